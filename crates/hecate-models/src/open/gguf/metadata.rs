//! What a GGUF file says beside its arrays.

use crate::{Error, Result};
use serde_json::Value;
use std::collections::BTreeMap;

/// Entries by their keys.
#[derive(Debug, Default)]
pub(in crate::open) struct Metadata {
    entries: BTreeMap<String, Entry>,
}

/// The value of a key.
#[derive(Debug)]
pub(super) enum Entry {
    /// A number, a truth or a text. What is no finite number is null.
    One(Value),
    /// Several of a kind.
    List(List),
}

/// Values of one kind, as they lie in the file.
#[derive(Debug)]
pub(super) struct List {
    pub(super) kind: Kind,
    /// Whole values: numbers from the lowest byte on, texts after their lengths in 8 bytes.
    pub(super) bytes: Vec<u8>,
}

/// Kinds of values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Without a sign, of so many bytes.
    Natural(usize),
    /// With a sign, of so many bytes.
    Whole(usize),
    /// Floats of so many bytes.
    Float(usize),
    /// A byte, 0 or another one.
    Truth,
    /// UTF-8.
    Text,
}

/// A list of lists, or one that lists hold.
pub(super) const LIST: u32 = 9;

impl Kind {
    /// The kind of this number in files.
    pub(super) fn numbered(number: u32) -> Option<Self> {
        Some(match number {
            0 => Self::Natural(1),
            1 => Self::Whole(1),
            2 => Self::Natural(2),
            3 => Self::Whole(2),
            4 => Self::Natural(4),
            5 => Self::Whole(4),
            6 => Self::Float(4),
            7 => Self::Truth,
            8 => Self::Text,
            10 => Self::Natural(8),
            11 => Self::Whole(8),
            12 => Self::Float(8),
            _ => return None,
        })
    }

    /// Bytes of a value; none of texts, which say it themselves.
    pub(super) fn size(self) -> Option<usize> {
        match self {
            Self::Natural(size) | Self::Whole(size) | Self::Float(size) => Some(size),
            Self::Truth => Some(1),
            Self::Text => None,
        }
    }

    /// The value of these bytes. Texts are those bytes themselves.
    pub(super) fn value(self, bytes: &[u8]) -> Result<Value, String> {
        let mut wide = [0; 8];
        if self != Self::Text {
            wide[..bytes.len()].copy_from_slice(bytes);
        }
        let bits = u64::from_le_bytes(wide);
        Ok(match self {
            Self::Natural(_) => bits.into(),
            // The sign is that of the highest bit.
            Self::Whole(size) => ((bits << (64 - 8 * size)) as i64 >> (64 - 8 * size)).into(),
            Self::Float(4) => f64::from(f32::from_bits(bits as u32)).into(),
            Self::Float(_) => f64::from_bits(bits).into(),
            Self::Truth => (bits != 0).into(),
            Self::Text => {
                std::str::from_utf8(bytes).map_err(|error| format!("a text that is no UTF-8 ({error})"))?.into()
            }
        })
    }
}

impl List {
    /// Its values, one after another.
    pub(super) fn values(&self) -> impl Iterator<Item = Result<Value, String>> {
        let mut rest = &self.bytes[..];
        std::iter::from_fn(move || {
            let (length, start) = match self.kind.size() {
                Some(size) => (size, 0),
                None => (u64::from_le_bytes(*rest.first_chunk()?) as usize, 8),
            };
            // Lengths were checked as they were read.
            let value = rest.get(start..start + length)?;
            rest = &rest[start + length..];
            Some(self.kind.value(value))
        })
    }
}

impl Metadata {
    /// Adds an entry.
    ///
    /// # Errors
    /// A key that is there.
    pub(super) fn insert(&mut self, key: String, entry: Entry) -> Result<(), String> {
        match self.entries.insert(key.clone(), entry) {
            Some(_) => Err(format!("the key `{key}` comes twice")),
            None => Ok(()),
        }
    }

    /// All keys, in order.
    pub(super) fn keys(&self) -> impl Iterator<Item = &str> {
        self.entries.keys().map(String::as_str)
    }

    /// The value of a key, if it is there and no list.
    ///
    /// # Errors
    /// [`Error::Config`] for a list.
    pub(super) fn one(&self, key: &str) -> Result<Option<&Value>> {
        match self.entries.get(key) {
            None => Ok(None),
            Some(Entry::One(value)) => Ok(Some(value)),
            Some(Entry::List(_)) => {
                Err(Error::config(key, "a list", "one value: layers unlike each other are not built"))
            }
        }
    }

    /// The values of a list, at most so many; none where there is no such key.
    ///
    /// # Errors
    /// [`Error::Config`] for what is no list, has more values, or texts that are no UTF-8.
    pub(super) fn list(&self, key: &str, most: usize) -> Result<Option<Vec<Value>>> {
        let list = match self.entries.get(key) {
            None => return Ok(None),
            Some(Entry::One(value)) => return Err(Error::config(key, value, "a list")),
            Some(Entry::List(list)) => list,
        };
        let values: Result<Vec<_>, String> = list.values().take(most.saturating_add(1)).collect();
        match values.map_err(|why| Error::config(key, why, "values that can be read"))? {
            values if values.len() > most => Err(Error::config(key, "longer", format!("a list of at most {most}"))),
            values => Ok(Some(values)),
        }
    }

    /// A whole number of 0 or more; none where there is no such key.
    ///
    /// # Errors
    /// [`Error::Config`] for something else.
    pub(super) fn optional_size(&self, key: &str) -> Result<Option<u64>> {
        let Some(value) = self.one(key)? else { return Ok(None) };
        value.as_u64().map(Some).ok_or_else(|| Error::config(key, value, "a whole number of 0 or more"))
    }

    /// As [`Metadata::optional_size`], of a key that has to be there.
    ///
    /// # Errors
    /// [`Error::Config`] where it is not.
    pub(super) fn size(&self, key: &str) -> Result<u64> {
        let missing = || Error::config(key, "missing", "a whole number; use a copy of the file as it was published");
        self.optional_size(key)?.ok_or_else(missing)
    }

    /// A text; none where there is no such key.
    ///
    /// # Errors
    /// [`Error::Config`] for something else.
    pub(super) fn text(&self, key: &str) -> Result<Option<&str>> {
        let Some(value) = self.one(key)? else { return Ok(None) };
        value.as_str().map(Some).ok_or_else(|| Error::config(key, value, "a text"))
    }
}
