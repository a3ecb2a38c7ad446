//! The header of a GGUF file: entries of metadata, then names, shapes, types and places of arrays.
//!
//! ```text
//! "GGUF", version (4 bytes), number of arrays (8), number of entries (8)
//! an entry    key, kind (4), value; a text is its length (8) and its bytes, a list is kind (4), number (8), values
//! an array    name, number of axes (4), their lengths from the innermost on (8 each), type (4), place (8)
//! ```
//!
//! Places count from the end of the header, rounded up to the alignment. Nothing is taken for granted: lengths are compared with
//! what is left of the file before there is room for them.

use super::{
    Change,
    metadata::{Entry, Kind, LIST, List, Metadata},
};
use crate::{
    Error, Result,
    open::{arrays::Array, blocks::Blocks, damaged, numbers::Stored},
};
use hecate_core::memory;
use safetensors::Dtype;
use std::{
    collections::HashSet,
    fs::File,
    io::{BufReader, Read},
    path::Path,
};

/// Most bytes of a header. Large vocabularies have some 20 MB.
const HEADER: u64 = 256 << 20;
/// Versions that are read: both have the same layout.
const VERSIONS: [u32; 2] = [2, 3];
/// Alignment where the metadata says none.
const ALIGNMENT: u64 = 32;
/// Most axes of an array.
const AXES: u32 = 4;
/// Least bytes of an entry, and of an array's: how many there can be.
const LEAST: [u64; 2] = [13, 32];

/// Types that are known by name, to be refused by it.
const NOT_READ: [(u32, &str); 22] = [
    (9, "Q8_1"),
    (10, "Q2_K"),
    (11, "Q3_K"),
    (15, "Q8_K"),
    (16, "IQ2_XXS"),
    (17, "IQ2_XS"),
    (18, "IQ3_XXS"),
    (19, "IQ1_S"),
    (20, "IQ4_NL"),
    (21, "IQ3_S"),
    (22, "IQ2_S"),
    (23, "IQ4_XS"),
    (24, "I8"),
    (25, "I16"),
    (26, "I32"),
    (27, "I64"),
    (28, "F64"),
    (29, "IQ1_M"),
    (34, "TQ1_0"),
    (35, "TQ2_0"),
    (39, "MXFP4"),
    (40, "NVFP4"),
];

/// What a header says. Arrays are in the order of their bytes, under their own names.
#[derive(Debug)]
pub(super) struct Header {
    pub(super) metadata: Metadata,
    pub(super) arrays: Vec<Array>,
}

/// Reads the header of a file of `all` bytes.
///
/// # Errors
/// [`Error::Io`]; [`Error::Checkpoint`] for a file that is no GGUF file, damaged or cut short.
pub(super) fn read(path: &Path, file: File, all: u64) -> Result<(Header, File)> {
    let mut reader = Reader { path, file: BufReader::new(file), at: 0, all };
    let [arrays, entries] = reader.counts()?;
    let (mut metadata, mut keys) = (Metadata::default(), 0);
    while keys < entries {
        let (key, entry) = reader.entry()?;
        metadata.insert(key, entry).map_err(|why| damaged(path, why))?;
        keys += 1;
    }
    let mut found = Vec::new();
    for _ in 0..arrays {
        found.push(reader.array()?);
    }
    let alignment = metadata.optional_size("general.alignment").map_err(|error| damaged(path, error))?;
    let alignment = alignment.unwrap_or(ALIGNMENT);
    if !alignment.is_power_of_two() || alignment > all {
        return Err(damaged(
            path,
            format!("an alignment of {alignment} bytes, expected a power of two within the file"),
        ));
    }
    place(&mut found, reader.at.next_multiple_of(alignment), alignment, all).map_err(|why| damaged(path, why))?;
    Ok((Header { metadata, arrays: found }, reader.file.into_inner()))
}

/// Adds the place of the first byte to the arrays' own, and sorts them by it.
///
/// # Errors
/// Arrays outside of the file, in each other, off the alignment, or of one name.
fn place(arrays: &mut [Array], start: u64, alignment: u64, all: u64) -> Result<(), String> {
    let mut names = HashSet::new();
    for array in arrays.iter_mut() {
        if !names.insert(array.stored.clone()) {
            return Err(format!("`{}` comes twice", array.stored));
        }
        if !array.at.is_multiple_of(alignment) {
            return Err(format!("`{}` is at {}, expected a multiple of {alignment}", array.stored, array.at));
        }
        let at = array.at.checked_add(start);
        let Some(at) = at.filter(|at| at.checked_add(array.bytes).is_some_and(|end| end <= all)) else {
            return Err(format!("`{}` has {} bytes that are not all in the file", array.stored, array.bytes));
        };
        array.at = at;
    }
    arrays.sort_by_key(|array| (array.at, array.bytes));
    match arrays.windows(2).find(|pair| pair[0].at + pair[0].bytes > pair[1].at) {
        Some(pair) => Err(format!("`{}` and `{}` lie in each other", pair[0].stored, pair[1].stored)),
        None => Ok(()),
    }
}

/// Reads forward, and knows how much there is.
struct Reader<'a> {
    path: &'a Path,
    file: BufReader<File>,
    at: u64,
    all: u64,
}

impl Reader<'_> {
    /// An error of what was read.
    fn damaged(&self, why: impl std::fmt::Display) -> Error {
        damaged(self.path, why)
    }

    /// Appends `count` bytes.
    fn append(&mut self, count: u64, bytes: &mut Vec<u8>) -> Result<()> {
        if count > self.all - self.at {
            return Err(self.damaged(format!("{count} bytes of its header at {}, and {} in all", self.at, self.all)));
        }
        if self.at + count > HEADER {
            return Err(self.damaged(format!("a header of more than {HEADER} bytes")));
        }
        let first = bytes.len();
        // Doubled where it grows, as lists of texts do; what is read at once gets room for itself alone.
        if first == 0 {
            memory::reserve("weights", bytes, count as usize)?;
        }
        bytes.resize(first + count as usize, 0);
        self.file.read_exact(&mut bytes[first..]).map_err(Error::io("read", self.path))?;
        self.at += count;
        Ok(())
    }

    /// The next `count` bytes.
    fn bytes(&mut self, count: u64) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        self.append(count, &mut bytes)?;
        Ok(bytes)
    }

    /// A number of 4 bytes.
    fn word(&mut self) -> Result<u32> {
        Ok(self.bytes(4)?.first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes)))
    }

    /// A number of 8 bytes.
    fn long(&mut self) -> Result<u64> {
        Ok(self.bytes(8)?.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes)))
    }

    /// A text after its length.
    fn text(&mut self) -> Result<String> {
        let length = self.long()?;
        let bytes = self.bytes(length)?;
        String::from_utf8(bytes).map_err(|error| self.damaged(format!("a name that is no UTF-8 ({error})")))
    }

    /// Numbers of arrays and of entries, after the format's name and version.
    fn counts(&mut self) -> Result<[u64; 2]> {
        let name = if self.all < 4 { Vec::new() } else { self.bytes(4)? };
        if name != b"GGUF" {
            let why =
                "is no GGUF file; a released model is a folder with config.json and safetensors files, or a GGUF file";
            return Err(Error::checkpoint(self.path, why));
        }
        let version = self.word()?;
        if !VERSIONS.contains(&version) {
            let order = if VERSIONS.contains(&version.swap_bytes()) { " (the highest byte comes first)" } else { "" };
            let why = format!("is of version {version}{order}, expected 2 or 3; convert the model again");
            return Err(Error::checkpoint(self.path, why));
        }
        let [arrays, entries] = [self.long()?, self.long()?];
        let left = self.all - self.at;
        match arrays > left / LEAST[1] || entries > left / LEAST[0] {
            true => Err(self.damaged(format!("{arrays} arrays and {entries} entries in {left} bytes"))),
            false => Ok([arrays, entries]),
        }
    }

    /// A key and its value.
    fn entry(&mut self) -> Result<(String, Entry)> {
        let key = self.text()?;
        let kind = self.word()?;
        let entry = if kind == LIST { Entry::List(self.list(&key)?) } else { Entry::One(self.value(&key, kind)?) };
        Ok((key, entry))
    }

    /// The kind of this number.
    fn kind(&self, key: &str, number: u32) -> Result<Kind> {
        let unknown = || self.damaged(format!("`{key}` is of the kind {number}, of which there is none"));
        Kind::numbered(number).ok_or_else(unknown)
    }

    /// A value that is no list.
    fn value(&mut self, key: &str, kind: u32) -> Result<serde_json::Value> {
        let kind = self.kind(key, kind)?;
        let size = match kind.size() {
            Some(size) => size as u64,
            None => self.long()?,
        };
        let bytes = self.bytes(size)?;
        kind.value(&bytes).map_err(|why| self.damaged(format!("`{key}`: {why}")))
    }

    /// A list.
    fn list(&mut self, key: &str) -> Result<List> {
        let (kind, count) = (self.word()?, self.long()?);
        let kind = self.kind(key, kind)?;
        if let Some(size) = kind.size() {
            return Ok(List { kind, bytes: self.bytes(count.saturating_mul(size as u64))? });
        }
        let mut bytes = Vec::new();
        for _ in 0..count {
            let length = self.long()?;
            bytes.extend(length.to_le_bytes());
            self.append(length, &mut bytes)?;
        }
        Ok(List { kind, bytes })
    }

    /// Name, shape, type and place of an array.
    fn array(&mut self) -> Result<Array> {
        let (stored, axes) = (self.text()?, self.word()?);
        if axes == 0 || axes > AXES {
            return Err(self.damaged(format!("`{stored}` has {axes} axes, expected 1 to {AXES}")));
        }
        let mut shape = Vec::new();
        for _ in 0..axes {
            shape.push(self.long()?);
        }
        let (number, at) = (self.word()?, self.long()?);
        let dtype = stored_as(number).map_err(|why| Error::checkpoint(self.path, format!("`{stored}` {why}")))?;
        let bytes = size(&shape, dtype).map_err(|why| self.damaged(format!("`{stored}` {why}")))?;
        // The file has the innermost axis first.
        let shape = shape.iter().rev().map(|&length| length as usize).collect();
        Ok(Array { name: stored.clone(), stored, dtype, shape, shard: 0, at, bytes, change: Change::Nothing })
    }
}

/// The type of this number.
fn stored_as(number: u32) -> Result<Stored, String> {
    let single = match number {
        0 => Some(Dtype::F32),
        1 => Some(Dtype::F16),
        30 => Some(Dtype::BF16),
        _ => None,
    };
    if let Some(stored) = single.map(Stored::Single).or_else(|| Blocks::numbered(number).map(Stored::Blocks)) {
        return Ok(stored);
    }
    let name = NOT_READ.iter().find(|(known, _)| *known == number).map(|(_, name)| *name);
    let name = name.map_or_else(|| format!("type {number}"), str::to_owned);
    let expected =
        "F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K or Q6_K; convert the model to one of these";
    Err(format!("is stored as {name}, expected {expected}"))
}

/// Bytes of an array of these lengths, the innermost first.
fn size(lengths: &[u64], dtype: Stored) -> Result<u64, String> {
    let [values, bytes] = dtype.unit().unwrap_or([1, 1]).map(|size| size as u64);
    if values > 1 && (lengths.len() < 2 || !lengths[0].is_multiple_of(values)) {
        return Err(format!("has rows of {} values, expected a matrix of whole blocks of {values}", lengths[0]));
    }
    let count = lengths.iter().try_fold(1u64, |count, &length| count.checked_mul(length));
    let size = count.filter(|&count| count <= isize::MAX as u64).and_then(|count| (count / values).checked_mul(bytes));
    size.ok_or_else(|| format!("has lengths {lengths:?}, which are more values than can be counted"))
}
