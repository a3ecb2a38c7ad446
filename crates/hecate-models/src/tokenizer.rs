//! From text to tokens and back.

use crate::{
    Error, Result,
    plain_file::{self, JSON, Links},
};
#[cfg(feature = "tokenizer")]
use hecate_core::caught;
use std::path::{Path, PathBuf};

/// What the numbers of a token sequence mean.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub enum Vocabulary {
    /// Every byte is a token: 256 of them.
    #[default]
    Bytes,
    /// A Hugging Face tokenizer.
    #[cfg(feature = "tokenizer")]
    Tokenizer {
        /// Where it came from.
        path: PathBuf,
        /// The tokenizer.
        tokenizer: Box<tokenizers::Tokenizer>,
        /// Number of tokens, which takes the tokenizer long to count.
        size: usize,
    },
}

impl Vocabulary {
    /// Reads a `tokenizer.json`.
    ///
    /// # Errors
    /// [`Error::Io`] or [`Error::Tokenizer`] if it cannot be read or understood, or if this build lacks the feature
    /// `tokenizer`.
    pub fn from_file(path: &Path) -> Result<Self> {
        let bytes = plain_file::read(path, Links::Follow, JSON)?;
        Self::from_json(path, &bytes)
    }

    /// As [`Vocabulary::from_file`], from the file's content. What it says of cutting texts short or filling them up does
    /// not count.
    ///
    /// # Errors
    /// [`Error::Tokenizer`].
    #[cfg(feature = "tokenizer")]
    pub fn from_json(path: &Path, bytes: &[u8]) -> Result<Self> {
        check_json(bytes).map_err(|why| not_a_tokenizer(path, why))?;
        let (tokenizer, size) = guarded(|| {
            let mut tokenizer = tokenizers::Tokenizer::from_bytes(bytes)?;
            // A text is learned whole, however long it is.
            tokenizer.with_truncation(None)?.with_padding(None);
            let size = tokenizer.get_vocab_size(true);
            Ok((tokenizer, size))
        })
        .map_err(|why| not_a_tokenizer(path, why))?;
        Ok(Self::Tokenizer { path: path.to_owned(), size, tokenizer: Box::new(tokenizer) })
    }

    /// As [`Vocabulary::from_file`], from the file's content.
    ///
    /// # Errors
    /// [`Error::Tokenizer`]: this build lacks the feature `tokenizer`.
    #[cfg(not(feature = "tokenizer"))]
    pub fn from_json(path: &Path, _: &[u8]) -> Result<Self> {
        let why = "this build reads bytes only; build again with `--features tokenizer`".into();
        Err(Error::Tokenizer { path: PathBuf::from(path), why })
    }

    /// Number of tokens it knows.
    pub fn size(&self) -> usize {
        match self {
            Self::Bytes => 256,
            #[cfg(feature = "tokenizer")]
            Self::Tokenizer { size, .. } => *size,
        }
    }

    /// The text as tokens.
    ///
    /// # Errors
    /// [`Error::Tokenizer`] if the tokenizer fails.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>> {
        match self {
            Self::Bytes => Ok(text.bytes().map(u32::from).collect()),
            #[cfg(feature = "tokenizer")]
            Self::Tokenizer { path, tokenizer, .. } => {
                guarded(|| Ok(tokenizer.encode_fast(text, false)?.get_ids().to_vec()))
                    .map_err(|why| Error::Tokenizer { path: path.clone(), why })
            }
        }
    }

    /// The tokens as text; bytes that are no UTF-8 become U+FFFD.
    ///
    /// # Errors
    /// As [`Decoder::push`].
    pub fn decode(&self, tokens: &[u32]) -> Result<String> {
        let mut decoder = self.decoder();
        let mut text = String::new();
        for &token in tokens {
            text.push_str(&decoder.push(token)?);
        }
        text.push_str(&decoder.finish());
        Ok(text)
    }

    /// For text that arrives token by token.
    pub fn decoder(&self) -> Decoder<'_> {
        Decoder { vocabulary: self, pending: Vec::new(), shown: 0 }
    }
}

/// Text from tokens, one at a time, never half a character.
#[derive(Clone, Debug)]
pub struct Decoder<'a> {
    vocabulary: &'a Vocabulary,
    /// Tokens whose text is not wholly out yet, and before them those that it depends on.
    pending: Vec<u32>,
    /// Tokens of `pending` whose text is out.
    shown: usize,
}

impl Decoder<'_> {
    /// The text that this token completes; empty inside a character.
    ///
    /// # Errors
    /// [`Error::Tokenizer`] if the tokenizer fails, [`Error::Config`] for a token outside the vocabulary.
    pub fn push(&mut self, token: u32) -> Result<String> {
        if token as usize >= self.vocabulary.size() {
            return Err(Error::config(
                "token",
                token,
                format!("under the vocabulary's size, {}", self.vocabulary.size()),
            ));
        }
        self.pending.push(token);
        match self.vocabulary {
            Vocabulary::Bytes => Ok(self.push_byte()),
            #[cfg(feature = "tokenizer")]
            Vocabulary::Tokenizer { path, tokenizer, .. } => {
                guarded(|| self.push_token(tokenizer)).map_err(|why| Error::Tokenizer { path: path.clone(), why })
            }
        }
    }

    /// What is left: U+FFFD for an unfinished character, or as many as the text really ends with; else nothing.
    pub fn finish(&mut self) -> String {
        let rest = match self.vocabulary {
            _ if self.pending.len() == self.shown => String::new(),
            #[cfg(feature = "tokenizer")]
            Vocabulary::Tokenizer { tokenizer, .. } => {
                guarded(|| self.unshown(tokenizer)).unwrap_or_else(|_| char::REPLACEMENT_CHARACTER.into())
            }
            Vocabulary::Bytes => char::REPLACEMENT_CHARACTER.into(),
        };
        self.pending.clear();
        self.shown = 0;
        rest
    }

    fn push_byte(&mut self) -> String {
        let bytes: Vec<u8> = self.pending.iter().map(|&token| token as u8).collect();
        let mut text = String::new();
        let mut done = 0;
        for chunk in bytes.utf8_chunks() {
            text.push_str(chunk.valid());
            done += chunk.valid().len();
            let unfinished = done + chunk.invalid().len() == bytes.len() && is_prefix(chunk.invalid());
            if !chunk.invalid().is_empty() && !unfinished {
                text.push(char::REPLACEMENT_CHARACTER);
                done += chunk.invalid().len();
            }
        }
        self.pending.drain(..done);
        text
    }

    #[cfg(feature = "tokenizer")]
    fn push_token(&mut self, tokenizer: &tokenizers::Tokenizer) -> tokenizers::Result<String> {
        let text = self.unshown(tokenizer)?;
        if text.ends_with(char::REPLACEMENT_CHARACTER) {
            return Ok(String::new());
        }
        self.pending.drain(..self.shown);
        self.shown = self.pending.len();
        Ok(text)
    }

    /// The pending tokens decoded with and without the new ones, since a tokenizer may join neighbours.
    #[cfg(feature = "tokenizer")]
    fn unshown(&self, tokenizer: &tokenizers::Tokenizer) -> tokenizers::Result<String> {
        let before = tokenizer.decode(&self.pending[..self.shown], true)?;
        let after = tokenizer.decode(&self.pending, true)?;
        Ok(after.strip_prefix(before.as_str()).unwrap_or(&after).to_owned())
    }
}

/// What a tokenizer does with a file or text of the user's; its panics are errors like others.
#[cfg(feature = "tokenizer")]
fn guarded<T>(work: impl FnOnce() -> tokenizers::Result<T>) -> Result<T, String> {
    let outcome = caught(work).unwrap_or_else(|panic| Err(format!("what reads it gave up ({panic})").into()));
    outcome.map_err(|error| error.to_string())
}

/// Refuses content whose outline is not that of a tokenizer, before the library makes something of it.
#[cfg(feature = "tokenizer")]
fn check_json(bytes: &[u8]) -> Result<(), String> {
    let file: serde_json::Value = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
    let model = file.get("model").ok_or("it has no `model`")?;
    let vocabulary = model.get("vocab").ok_or("its `model` has no `vocab`")?;
    if !(vocabulary.is_object() || vocabulary.is_array()) {
        return Err("the `vocab` of its `model` is neither an object nor a list".to_owned());
    }
    Ok(())
}

/// The error of a file that is no tokenizer.
#[cfg(feature = "tokenizer")]
fn not_a_tokenizer(path: &Path, why: String) -> Error {
    let why = format!("not a tokenizer.json: {why}; use a copy of it, or another one");
    Error::Tokenizer { path: path.to_owned(), why }
}

/// Whether these bytes can still become a character.
fn is_prefix(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_err_and(|error| error.error_len().is_none())
}
