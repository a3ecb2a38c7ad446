//! Text to learn from: reading it, splitting it, drawing windows of it.

use crate::{
    Error, Random, Result, Vocabulary,
    bounds::{SIZE, at_most, product},
    checksum::checksum,
};
use serde::{Deserialize, Serialize};
use std::{fs, io, path::Path};

/// Reads a UTF-8 file.
///
/// # Errors
/// [`Error::Text`] if it is missing, empty or not UTF-8, [`Error::Io`] if it cannot be read.
pub fn read_text(path: &Path) -> Result<String> {
    let bytes = fs::read(path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => fail(path, "no such file; give the path of a text in UTF-8"),
        _ => Error::io("read", path)(error),
    })?;
    if bytes.is_empty() {
        return Err(fail(path, "the file is empty; give a file with text in it"));
    }
    String::from_utf8(bytes).map_err(|error| {
        let offset = error.utf8_error().valid_up_to();
        fail(path, format!("not UTF-8 at byte {offset}; convert the file, for example with `iconv -t UTF-8`"))
    })
}

/// An [`Error::Text`].
fn fail(path: &Path, why: impl Into<String>) -> Error {
    Error::Text { path: path.to_owned(), why: why.into() }
}

/// Tokens in order, and the number of bytes of text that they stand for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stream {
    /// Tokens.
    pub tokens: Vec<u32>,
    /// Bytes of the text.
    pub bytes: usize,
}

impl Stream {
    /// The text as tokens.
    ///
    /// # Errors
    /// Those of [`Vocabulary::encode`].
    pub fn encode(vocabulary: &Vocabulary, text: &str) -> Result<Self> {
        Ok(Self { tokens: vocabulary.encode(text)?, bytes: text.len() })
    }

    /// Bytes of text a token; 1 for byte-level text.
    pub fn bytes_per_token(&self) -> f64 {
        self.bytes as f64 / self.tokens.len().max(1) as f64
    }

    /// Its first tokens, at most `count`.
    pub fn head(&self, count: usize) -> Self {
        let tokens = self.tokens[..count.min(self.tokens.len())].to_vec();
        let bytes = (self.bytes_per_token() * tokens.len() as f64).round() as usize;
        Self { tokens, bytes }
    }
}

/// Which text a run learns, so that resuming with another one is noticed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Identity {
    /// Length.
    pub bytes: usize,
    /// Checksum of the bytes, in hexadecimal digits.
    pub checksum: String,
}

impl Identity {
    /// Of this text.
    pub fn of(text: &str) -> Self {
        Self { bytes: text.len(), checksum: checksum(text.as_bytes()) }
    }
}

/// A text split into a part to learn and a part to measure on.
#[derive(Clone, Debug)]
pub struct Corpus {
    /// The first part: windows are drawn from it.
    pub train: Stream,
    /// The last part: never learned.
    pub held_out: Stream,
    /// Which text it is.
    pub identity: Identity,
}

impl Corpus {
    /// Holds out the last `fraction` of the text's bytes (the cut moves back to the start of a character); both
    /// parts must be longer than `length` tokens. `path` is for messages.
    ///
    /// # Errors
    /// [`Error::Config`] for a fraction outside `(0, 1)`, [`Error::Text`] if a part is too short.
    pub fn new(path: &Path, text: &str, vocabulary: &Vocabulary, fraction: f32, length: usize) -> Result<Self> {
        if !(fraction > 0.0 && fraction < 1.0) {
            return Err(Error::config("held-out fraction", fraction, "above 0 and under 1"));
        }
        let (train, held_out) = split(text, fraction);
        let part = |name: &str, text: &str, needed: usize| {
            let stream = Stream::encode(vocabulary, text)?;
            if stream.tokens.len() >= needed {
                return Ok(stream);
            }
            let found = stream.tokens.len();
            let why = format!(
                "too short: the {name} part holds {found} tokens, one sequence needs {needed}; \
                 give more text, shorter sequences or another held-out fraction"
            );
            Err(fail(path, why))
        };
        Ok(Self {
            train: part("training", train, length.saturating_add(1))?,
            held_out: part("held-out", held_out, 2)?,
            identity: Identity::of(text),
        })
    }
}

/// The text without its last `fraction` of bytes, and that; the cut moves back to the start of a character.
pub fn split(text: &str, fraction: f32) -> (&str, &str) {
    let held_out = (text.len() as f64 * f64::from(fraction)).round() as usize;
    let mut cut = text.len().saturating_sub(held_out);
    while !text.is_char_boundary(cut) {
        cut -= 1;
    }
    text.split_at(cut)
}

/// Random windows of a text. Saved and loaded, it goes on where it was.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Windows {
    random: Random,
}

impl Windows {
    /// At the start of the random numbers of `seed`, on another stream than the weights'.
    pub fn new(seed: u64) -> Self {
        Self { random: Random::stream(seed, 1) }
    }

    /// `batch` windows of `length` tokens, and the tokens that follow each of theirs: `(inputs, targets)`, both
    /// `[batch, length]`.
    ///
    /// # Errors
    /// As [`Windows::starts`], and for more tokens than fit into a pass.
    pub fn draw(&mut self, text: &[u32], batch: usize, length: usize) -> Result<(Vec<u32>, Vec<u32>)> {
        at_most("batch × sequence length", product(&[batch, length]), SIZE as u128)?;
        Ok(windows(text, self.starts(text, batch, length)?, length))
    }

    /// Where `batch` windows of `length` tokens start.
    ///
    /// # Errors
    /// [`Error::Config`] if the text holds no window.
    pub fn starts(&mut self, text: &[u32], batch: usize, length: usize) -> Result<Vec<usize>> {
        let starts = text.len().saturating_sub(length) as u64;
        if starts == 0 {
            let expected = format!(
                "more than {length}: the sequence length, times the sequences that memories are carried through"
            );
            return Err(Error::config("tokens of text", text.len(), expected));
        }
        Ok((0..batch).map(|_| self.random.within(0..starts) as usize).collect())
    }
}

/// The windows of `length` tokens that start there, and the tokens that follow each of theirs: `(inputs, targets)`, one
/// window after another.
pub(crate) fn windows(text: &[u32], starts: impl IntoIterator<Item = usize>, length: usize) -> (Vec<u32>, Vec<u32>) {
    let (mut inputs, mut targets) = (Vec::new(), Vec::new());
    for start in starts {
        inputs.extend(&text[start..start + length]);
        targets.extend(&text[start + 1..start + length + 1]);
    }
    (inputs, targets)
}
