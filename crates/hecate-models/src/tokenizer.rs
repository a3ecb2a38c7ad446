//! From text to tokens and back.

#[cfg(feature = "tokenizer")]
mod around;
mod decoder;
#[cfg(feature = "tokenizer")]
mod file;
#[cfg(all(test, feature = "tokenizer"))]
mod fixtures;
#[cfg(feature = "tokenizer")]
mod limits;
#[cfg(feature = "tokenizer")]
mod stages;
#[cfg(all(test, feature = "tokenizer"))]
mod tests;
#[cfg(feature = "tokenizer")]
mod windows;

pub use decoder::Decoder;

use crate::{
    Error, Result,
    files::{self, JSON, Links},
    tokens::{Growing, Tokens},
};
use std::{
    ops::Range,
    path::{Path, PathBuf},
    sync::Arc,
};

/// What the numbers of a token sequence mean.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub enum Vocabulary {
    /// Every byte is a token: 256 of them.
    #[default]
    Bytes,
    /// A Hugging Face tokenizer.
    #[cfg(feature = "tokenizer")]
    #[non_exhaustive]
    Tokenizer {
        /// Where it came from.
        path: PathBuf,
        /// The tokenizer.
        tokenizer: Box<tokenizers::Tokenizer>,
        /// The largest number of a token, and one more.
        size: usize,
        /// Numbers under `size` that no token has, in their order.
        gaps: Arc<[Range<u32>]>,
        /// Bytes that its normalizer and its pre-tokenizer make of one byte of text, at most.
        growth: f64,
        /// Tokens before a prompt and after it, or why they are not known.
        around: Result<[Vec<u32>; 2], String>,
    },
}

/// A text that is read in parts, each from one start of a character to another.
pub(crate) trait Passage {
    /// Number of bytes.
    fn bytes(&self) -> usize;

    /// The last start of a character at or before this byte; the end is one too.
    #[cfg(feature = "tokenizer")]
    fn character_start(&self, at: usize) -> Result<usize>;

    /// These bytes.
    fn read(&self, range: Range<usize>) -> Result<String>;
}

impl Passage for str {
    fn bytes(&self) -> usize {
        self.len()
    }

    #[cfg(feature = "tokenizer")]
    fn character_start(&self, at: usize) -> Result<usize> {
        Ok((0..=at.min(self.len())).rev().find(|&at| self.is_char_boundary(at)).unwrap_or(0))
    }

    fn read(&self, range: Range<usize>) -> Result<String> {
        Ok(self[range].to_owned())
    }
}

impl Vocabulary {
    /// Whether this build reads tokenizers: it has the feature `tokenizer`. Others read bytes alone.
    pub const READS_TOKENIZERS: bool = cfg!(feature = "tokenizer");

    /// Reads a `tokenizer.json`.
    ///
    /// # Errors
    /// [`Error::Io`] or [`Error::Tokenizer`] if it cannot be read or understood, or if this build lacks the feature
    /// `tokenizer`.
    pub fn from_file(path: &Path) -> Result<Self> {
        let bytes = files::read(path, Links::Follow, JSON)?;
        Self::from_json(path, &bytes)
    }

    /// As [`Vocabulary::from_file`], from the file's content. What it says of cutting texts short, of filling them up, of tokens
    /// around them and of chance (`dropout`) does not count: a text is learned as it is, whole, and the same in every run.
    ///
    /// A file is nobody's to trust. One whose tokens, patterns or stages could take all memory or all time is refused:
    /// `limits.rs` has the bounds, which are far from those of published tokenizers.
    ///
    /// # Errors
    /// [`Error::Tokenizer`].
    #[cfg(feature = "tokenizer")]
    pub fn from_json(path: &Path, bytes: &[u8]) -> Result<Self> {
        file::read(path, bytes)
    }

    /// As [`Vocabulary::from_file`], from the file's content.
    ///
    /// # Errors
    /// [`Error::Tokenizer`]: this build lacks the feature `tokenizer`.
    #[cfg(not(feature = "tokenizer"))]
    pub fn from_json(path: &Path, _: &[u8]) -> Result<Self> {
        let why = "this build reads bytes only; build it with the feature `tokenizer`".into();
        Err(Error::Tokenizer { path: PathBuf::from(path), why })
    }

    /// The number under which all its tokens are: the largest, and one more. Not every number need be a token
    /// ([`Vocabulary::gaps`]).
    pub fn size(&self) -> usize {
        match self {
            Self::Bytes => 256,
            #[cfg(feature = "tokenizer")]
            Self::Tokenizer { size, .. } => *size,
        }
    }

    /// Numbers under [`Vocabulary::size`] that no token has, in their order.
    pub fn gaps(&self) -> Arc<[Range<u32>]> {
        match self {
            Self::Bytes => Arc::default(),
            #[cfg(feature = "tokenizer")]
            Self::Tokenizer { gaps, .. } => Arc::clone(gaps),
        }
    }

    /// Whether the same numbers are the same tokens in both.
    pub fn has_tokens_of(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Bytes, Self::Bytes) => true,
            #[cfg(feature = "tokenizer")]
            (Self::Tokenizer { tokenizer, .. }, Self::Tokenizer { tokenizer: other, .. }) => {
                tokenizer.get_vocab(true) == other.get_vocab(true)
            }
            #[cfg(feature = "tokenizer")]
            _ => false,
        }
    }

    /// The text as tokens. A long one is read in windows, which take a bounded room beside the tokens, and gives the same ones.
    ///
    /// # Errors
    /// [`Error::Tokenizer`] if the tokenizer fails; too little memory for a text that it can only read as a whole.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>> {
        match self {
            Self::Bytes => Ok(text.bytes().map(u32::from).collect()),
            #[cfg(feature = "tokenizer")]
            Self::Tokenizer { .. } => self.encode_passage(text)?.to_vec(),
        }
    }

    /// As [`Vocabulary::encode`], with the tokens that a released model's tokenizer puts around a prompt, such as one for its
    /// beginning. A rendered conversation has its own.
    ///
    /// # Errors
    /// As [`Vocabulary::encode`]; [`Error::Tokenizer`] where it is not known what is to be put there.
    pub fn encode_prompt(&self, text: &str) -> Result<Vec<u32>> {
        match self {
            Self::Bytes => self.encode(text),
            #[cfg(feature = "tokenizer")]
            Self::Tokenizer { path, around, .. } => {
                let [before, after] = around.as_ref().map_err(|why| {
                    let why = format!("{why}; use a copy of it as it was published");
                    Error::Tokenizer { path: path.clone(), why }
                })?;
                Ok([&before[..], &self.encode(text)?, after].concat())
            }
        }
    }

    /// As [`Vocabulary::encode`], of a text that need not be in memory; each token knows the bytes that it stands for.
    pub(crate) fn encode_passage(&self, text: &(impl Passage + ?Sized)) -> Result<Tokens> {
        let tokens = match self {
            Self::Bytes => {
                let mut tokens = Growing::default();
                let bytes = text.read(0..text.bytes())?.into_bytes();
                bytes.iter().zip(1..).for_each(|(&byte, end)| tokens.push(byte.into(), end));
                tokens
            }
            #[cfg(feature = "tokenizer")]
            Self::Tokenizer { path, tokenizer, growth, .. } => {
                windows::Reader::new(path, tokenizer, *growth, text).read()?
            }
        };
        Ok(tokens.finish(text.bytes()))
    }

    /// The tokens as text, as the tokenizer's own decoder writes them; bytes that are no UTF-8 become U+FFFD.
    ///
    /// # Errors
    /// As [`Decoder::push`].
    pub fn decode(&self, tokens: &[u32]) -> Result<String> {
        tokens.iter().try_for_each(|&token| self.check(token))?;
        match self {
            Self::Bytes => {
                let bytes: Vec<u8> = tokens.iter().map(|&token| token as u8).collect();
                Ok(String::from_utf8_lossy(&bytes).into_owned())
            }
            #[cfg(feature = "tokenizer")]
            Self::Tokenizer { path, tokenizer, .. } => {
                let decoded = stages::Chain::of(tokenizer).decode(tokens);
                decoded.map_err(|why| Error::Tokenizer { path: path.clone(), why })
            }
        }
    }

    /// The bytes of text that a token stands for after another one, which may be half a character; the name of a special token,
    /// which stands for no text.
    ///
    /// # Errors
    /// As [`Decoder::push`], and [`Error::Tokenizer`] if the tokenizer cannot decode it.
    pub fn bytes_of(&self, token: u32) -> Result<Vec<u8>> {
        self.check(token)?;
        match self {
            Self::Bytes => Ok(vec![token as u8]),
            #[cfg(feature = "tokenizer")]
            Self::Tokenizer { path, tokenizer, .. } => {
                let bytes = stages::Chain::of(tokenizer).bytes(token);
                bytes.map_err(|why| Error::Tokenizer { path: path.clone(), why })
            }
        }
    }

    /// Whether a token stands for text: special ones do not, whose names are none, and neither do numbers without a token.
    pub fn has_text(&self, token: u32) -> bool {
        self.check(token).is_ok()
            && match self {
                Self::Bytes => true,
                #[cfg(feature = "tokenizer")]
                Self::Tokenizer { tokenizer, .. } => stages::Chain::of(tokenizer).has_text(token),
            }
    }

    /// For text that arrives token by token.
    pub fn decoder(&self) -> Decoder<'_> {
        Decoder::new(self)
    }

    /// Refuses a token outside of it.
    fn check(&self, token: u32) -> Result<()> {
        if (token as usize) < self.size() {
            return Ok(());
        }
        Err(Error::config("token", token, format!("under the vocabulary's size, {}", self.size())))
    }
}
