//! Tokens of a text: its own bytes, or what a tokenizer made of it.

mod source;
mod spans;

pub(crate) use source::{BETWEEN, BLOCK, Source, fail, length};

use crate::{Error, Result};
use hecate_core::memory;
use spans::Spans;
use std::{ops::Range, sync::Arc};

/// Tokens in order. Those of a byte-level text are its bytes, in memory or on the disk, and take no more room than they do.
/// Others take two bytes each where all of them are under 2^16, else four, and one byte more where they know what they stand for.
/// Clones and parts share them.
#[derive(Clone, Debug)]
pub struct Tokens {
    store: Store,
    /// Bytes of text that each of them stands for, where that is known.
    spans: Option<Arc<Spans>>,
    /// The part that these are.
    range: Range<usize>,
}

#[derive(Clone, Debug)]
enum Store {
    Bytes(Arc<Source>),
    Ids(Arc<Vec<u32>>),
    /// All of them fit 16 bits, as those of most vocabularies do.
    Short(Arc<Vec<u16>>),
}

impl Tokens {
    /// A byte a token: these bytes of a text.
    pub(crate) fn bytes(source: Arc<Source>, range: Range<usize>) -> Self {
        Self { store: Store::Bytes(source), spans: None, range }
    }

    /// Number of tokens.
    pub fn len(&self) -> usize {
        self.range.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.range.is_empty()
    }

    /// The first tokens, at most `count`.
    pub fn head(&self, count: usize) -> Self {
        let end = self.range.start + count.min(self.len());
        Self { store: self.store.clone(), spans: self.spans.clone(), range: self.range.start..end }
    }

    /// Bytes of the text that these tokens stand for; none where it is not known what they were made of, and for tokens that are
    /// not there.
    pub fn bytes_of(&self, range: Range<usize>) -> Option<u64> {
        if range.start > range.end || range.end > self.len() {
            return None;
        }
        match (&self.store, &self.spans) {
            (Store::Bytes(_), _) => Some(range.len() as u64),
            (_, Some(spans)) => Some(spans.sum(self.range.start + range.start..self.range.start + range.end)),
            (_, None) => None,
        }
    }

    /// These tokens, as they are read by a model.
    ///
    /// # Errors
    /// [`Error::Config`] for a range outside of them. A text on the disk that cannot be read: [`Error::Io`], or
    /// [`Error::Text`] if it has changed.
    pub fn read(&self, range: Range<usize>) -> Result<Vec<u32>> {
        if range.start > range.end || range.end > self.len() {
            let expected = format!("a range of the {} that there are", self.len());
            return Err(Error::config("tokens of text", format!("{range:?}"), expected));
        }
        let range = self.range.start + range.start..self.range.start + range.end;
        match &self.store {
            Store::Ids(ids) => Ok(memory::collect("tokens of text", ids[range].iter().copied())?),
            Store::Short(ids) => Ok(memory::collect("tokens of text", ids[range].iter().copied().map(u32::from))?),
            Store::Bytes(source) => {
                let mut bytes = Vec::new();
                source.read(range, &mut bytes)?;
                Ok(memory::collect("tokens of text", bytes.into_iter().map(u32::from))?)
            }
        }
    }

    /// All of them.
    ///
    /// # Errors
    /// As [`Tokens::read`].
    pub fn to_vec(&self) -> Result<Vec<u32>> {
        self.read(0..self.len())
    }
}

impl From<Vec<u32>> for Tokens {
    fn from(ids: Vec<u32>) -> Self {
        let range = 0..ids.len();
        // The first one that does not fit ends it.
        let short: Result<Vec<u16>, _> = ids.iter().map(|&id| u16::try_from(id)).collect();
        let store = match short {
            Ok(short) => Store::Short(Arc::new(short)),
            Err(_) => Store::Ids(Arc::new(ids)),
        };
        Self { range, store, spans: None }
    }
}

/// Tokens of a text, as they are made one after another.
#[derive(Debug, Default)]
pub(crate) struct Growing {
    /// As long as all fit 16 bits.
    short: Vec<u16>,
    /// From the first that does not.
    ids: Vec<u32>,
    spans: Spans,
    /// Bytes of the text before the next token.
    bytes: u64,
}

impl Growing {
    /// A token, and the byte of the text at which it ends.
    pub(crate) fn push(&mut self, id: u32, end: usize) {
        match u16::try_from(id) {
            Ok(id) if self.ids.is_empty() => self.short.push(id),
            _ => {
                self.ids.extend(std::mem::take(&mut self.short).into_iter().map(u32::from));
                self.ids.push(id);
            }
        }
        // Some tokens end before the one in front, as parts of a character do.
        let end = self.bytes.max(end as u64);
        self.spans.push(end - self.bytes);
        self.bytes = end;
    }

    /// All of them, of a text of so many bytes.
    pub(crate) fn finish(mut self, bytes: usize) -> Tokens {
        self.spans.extend_last((bytes as u64).saturating_sub(self.bytes));
        let spans = Some(Arc::new(self.spans));
        let (range, store) = match self.ids.is_empty() {
            true => (0..self.short.len(), Store::Short(Arc::new(self.short))),
            false => (0..self.ids.len(), Store::Ids(Arc::new(self.ids))),
        };
        Tokens { store, spans, range }
    }
}

/// What windows are drawn from: the tokens of a text, or a slice.
#[derive(Clone, Copy, Debug)]
pub enum TokenSource<'a> {
    /// A slice.
    Ids(&'a [u32]),
    /// The tokens of a text.
    Tokens(&'a Tokens),
}

impl TokenSource<'_> {
    /// Number of tokens.
    pub fn len(&self) -> usize {
        match self {
            Self::Ids(ids) => ids.len(),
            Self::Tokens(tokens) => tokens.len(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// As [`Tokens::bytes_of`]; none for a slice.
    pub fn bytes_of(&self, range: Range<usize>) -> Option<u64> {
        match self {
            Self::Ids(_) => None,
            Self::Tokens(tokens) => tokens.bytes_of(range),
        }
    }

    /// These tokens.
    ///
    /// # Errors
    /// As [`Tokens::read`].
    pub fn read(&self, range: Range<usize>) -> Result<Vec<u32>> {
        match self {
            Self::Tokens(tokens) => tokens.read(range),
            Self::Ids(ids) => {
                let found = ids.get(range.clone()).ok_or_else(|| {
                    let expected = format!("a range of the {} that there are", ids.len());
                    Error::config("tokens of text", format!("{range:?}"), expected)
                })?;
                Ok(memory::collect("tokens of text", found.iter().copied())?)
            }
        }
    }
}

impl<'a> From<&'a [u32]> for TokenSource<'a> {
    fn from(ids: &'a [u32]) -> Self {
        Self::Ids(ids)
    }
}

impl<'a> From<&'a Vec<u32>> for TokenSource<'a> {
    fn from(ids: &'a Vec<u32>) -> Self {
        Self::Ids(ids)
    }
}

impl<'a> From<&'a Tokens> for TokenSource<'a> {
    fn from(tokens: &'a Tokens) -> Self {
        Self::Tokens(tokens)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_that_fit_take_two_bytes() {
        let most = u32::from(u16::MAX);
        for (ids, short) in
            [(vec![], true), (vec![0, 7, most], true), (vec![0, most + 1, 7], false), (vec![u32::MAX], false)]
        {
            let tokens = Tokens::from(ids.clone());
            assert_eq!(matches!(tokens.store, Store::Short(_)), short, "{ids:?}");
            assert_eq!((tokens.len(), tokens.to_vec().unwrap()), (ids.len(), ids));
        }
    }
}
