//! Text from tokens that arrive one by one.

use super::Vocabulary;
#[cfg(feature = "tokenizer")]
use super::stages::Told;
use crate::Result;

/// Text from tokens, one at a time, never half a character. Together it is what [`Vocabulary::decode`] makes of all tokens.
#[derive(Clone, Debug)]
pub struct Decoder<'a> {
    vocabulary: &'a Vocabulary,
    /// Of a character that is not whole yet, where tokens are bytes.
    bytes: Vec<u8>,
    /// Where they are a tokenizer's.
    #[cfg(feature = "tokenizer")]
    told: Option<Told<'a>>,
}

impl<'a> Decoder<'a> {
    /// Before the first token of a text.
    pub(super) fn new(vocabulary: &'a Vocabulary) -> Self {
        Self {
            vocabulary,
            bytes: Vec::new(),
            #[cfg(feature = "tokenizer")]
            told: match vocabulary {
                Vocabulary::Bytes => None,
                Vocabulary::Tokenizer { path, tokenizer, .. } => Some(Told::new(path, tokenizer)),
            },
        }
    }

    /// Words that are still kept.
    #[cfg(all(test, feature = "tokenizer"))]
    pub(super) fn kept(&self) -> usize {
        self.told.as_ref().map_or(0, Told::kept)
    }

    /// The text that this token completes; empty where a later one may still change it, as inside a character.
    ///
    /// # Errors
    /// [`Error::Config`](crate::Error::Config) for a token outside the vocabulary.
    pub fn push(&mut self, token: u32) -> Result<String> {
        self.vocabulary.check(token)?;
        #[cfg(feature = "tokenizer")]
        if let Some(told) = &mut self.told {
            return Ok(told.push(token));
        }
        self.bytes.push(token as u8);
        Ok(whole_characters(&mut self.bytes))
    }

    /// Reads tokens whose text is shown already, such as those of a prompt: what comes next goes on from there.
    ///
    /// # Errors
    /// As [`Decoder::push`] and [`Decoder::finish`].
    pub fn skip(&mut self, tokens: &[u32]) -> Result<()> {
        tokens.iter().try_for_each(|&token| self.vocabulary.check(token))?;
        #[cfg(feature = "tokenizer")]
        if let Some(told) = &mut self.told {
            return told.skip(tokens);
        }
        self.bytes.extend(tokens.iter().map(|&token| token as u8));
        whole_characters(&mut self.bytes);
        Ok(())
    }

    /// What is left where the text ends, such as U+FFFD for an unfinished character. Tokens may follow all the same.
    ///
    /// # Errors
    /// [`Error::Tokenizer`](crate::Error::Tokenizer) if the tokenizer cannot decode what it was given.
    pub fn finish(&mut self) -> Result<String> {
        #[cfg(feature = "tokenizer")]
        if let Some(told) = &mut self.told {
            return told.finish();
        }
        Ok(String::from_utf8_lossy(&std::mem::take(&mut self.bytes)).into_owned())
    }
}

/// Takes the whole characters out of the bytes; what can become none is U+FFFD.
fn whole_characters(bytes: &mut Vec<u8>) -> String {
    let (mut text, mut done) = (String::new(), 0);
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        done += chunk.valid().len();
        let unfinished = done + chunk.invalid().len() == bytes.len() && is_prefix(chunk.invalid());
        if !chunk.invalid().is_empty() && !unfinished {
            text.push(char::REPLACEMENT_CHARACTER);
            done += chunk.invalid().len();
        }
    }
    bytes.drain(..done);
    text
}

/// Whether these bytes can still become a character.
fn is_prefix(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_err_and(|error| error.error_len().is_none())
}
