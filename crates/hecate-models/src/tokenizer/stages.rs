//! A tokenizer's decoder, of tokens that arrive one by one.
//!
//! A decoder is a chain of stages. Up to the first that joins tokens, a stage changes each token by itself, by whether it is the
//! first or the last, and by the one before it. So a token's text is settled by a few neighbours, and what is settled goes out:
//! no later token changes it. What a stage might still change is held back: bytes of an unfinished character, a run of tokens
//! that are bytes, the end of a last word. Stages that change a text once it is joined may change all of it: its text goes out
//! where it ends, unless they change characters one by one.

use super::file::guarded;
use crate::{Error, Result};
use std::path::Path;
use tokenizers::{Decoder as _, DecoderWrapper, Tokenizer};

/// What a tokenizer's decoder makes of tokens, as far as it is settled.
#[derive(Clone, Debug)]
pub(super) struct Told<'a> {
    path: &'a Path,
    chain: Chain<'a>,
    /// The last tokens: those whose text is not wholly out, and before them those that it depends on.
    words: Vec<String>,
    /// What of their text is out.
    told: String,
}

impl<'a> Told<'a> {
    pub(super) fn new(path: &'a Path, tokenizer: &'a Tokenizer) -> Self {
        Self { path, chain: Chain::of(tokenizer), words: Vec::new(), told: String::new() }
    }

    #[cfg(test)]
    pub(super) fn kept(&self) -> usize {
        self.words.len()
    }

    /// The text that is settled by this token.
    pub(super) fn push(&mut self, token: u32) -> String {
        let Some(word) = self.chain.token(token) else { return String::new() };
        let waits = self.chain.waits(&word);
        self.words.push(word);
        // What cannot be decoded yet, as some stages refuse a text that is too short, may be with the next token.
        let settled = if waits { None } else { self.chain.settled(&self.words).ok() };
        settled.map_or_else(String::new, |Settled { text, all }| {
            let new = self.tell(text);
            if all {
                self.forget();
            }
            new
        })
    }

    /// As [`Decoder::skip`](super::Decoder::skip).
    pub(super) fn skip(&mut self, tokens: &[u32]) -> Result<()> {
        self.words.extend(tokens.iter().filter_map(|&token| self.chain.token(token)));
        self.finish().map(drop)
    }

    /// As [`Decoder::finish`](super::Decoder::finish).
    pub(super) fn finish(&mut self) -> Result<String> {
        let whole = self.chain.whole(&self.words);
        let whole = whole.map_err(|why| Error::Tokenizer { path: self.path.to_owned(), why })?;
        let new = self.tell(whole);
        if self.chain.settled(&self.words).is_ok_and(|settled| settled.all) {
            self.forget();
        }
        Ok(new)
    }

    /// What this text of the tokens has beyond what is out.
    fn tell(&mut self, text: String) -> String {
        // After a text that ended too early, such as a prompt inside of a character, the two may part before its end.
        let same = text.chars().zip(self.told.chars()).take_while(|(one, other)| one == other);
        let same: usize = same.map(|(letter, _)| letter.len_utf8()).sum();
        let new = text[same..].to_owned();
        if !new.is_empty() || text.len() >= self.told.len() {
            self.told = text;
        }
        new
    }

    /// Lets go of tokens that the text to come does not depend on: of the last ones enough are kept to have a text, since
    /// stages treat the start of a text in their own ways.
    fn forget(&mut self) {
        let mut count = 1;
        while count < self.words.len() {
            let last = &self.words[self.words.len() - count..];
            match self.chain.settled(last) {
                Ok(Settled { text, all: true }) if !text.is_empty() => {
                    (self.words, self.told) = (last.to_vec(), text);
                    return;
                }
                _ => count *= 2,
            }
        }
    }
}

/// The text of tokens that no later one changes.
struct Settled {
    text: String,
    /// Whether that is all of their text.
    all: bool,
}

/// The stages of a tokenizer's decoder.
#[derive(Clone, Debug)]
pub(super) struct Chain<'a> {
    tokenizer: &'a Tokenizer,
    stages: Vec<Stage<'a>>,
}

#[derive(Clone, Debug)]
struct Stage<'a> {
    decoder: &'a DecoderWrapper,
    /// What it does to a text that may go on.
    effect: Effect,
}

/// What the text of a stage depends on.
#[derive(Clone, Debug, PartialEq)]
enum Effect {
    /// A token and the one before it, or a character.
    Local,
    /// Whether a token is the last: such an end of a word becomes a space in others.
    Ends(String),
    /// A whole run of tokens that are bytes.
    Runs,
    /// Bytes up to the end of a character.
    Bytes,
    /// All of the text.
    Everything,
}

impl<'a> Chain<'a> {
    pub(super) fn of(tokenizer: &'a Tokenizer) -> Self {
        let mut joined = false;
        let stage = |decoder| {
            let effect = Effect::of(decoder, joined);
            joined |= matches!(decoder, DecoderWrapper::Fuse(_) | DecoderWrapper::ByteLevel(_));
            Stage { decoder, effect }
        };
        Self { tokenizer, stages: flat(tokenizer.get_decoder()).into_iter().map(stage).collect() }
    }

    /// The token's own word, if it has a text: special ones and numbers without a token have none.
    fn token(&self, token: u32) -> Option<String> {
        let added = self.tokenizer.get_added_vocabulary();
        self.tokenizer.id_to_token(token).filter(|word| !added.is_special_token(word))
    }

    /// Whether it has one.
    pub(super) fn has_text(&self, token: u32) -> bool {
        self.token(token).is_some()
    }

    /// Whether nothing can be settled by this word, which spares trying.
    fn waits(&self, word: &str) -> bool {
        self.stages.iter().any(|stage| match stage.effect {
            Effect::Everything => true,
            Effect::Runs => is_byte(word),
            _ => false,
        })
    }

    /// The text of these tokens.
    pub(super) fn decode(&self, tokens: &[u32]) -> Result<String, String> {
        self.whole(&tokens.iter().filter_map(|&token| self.token(token)).collect::<Vec<_>>())
    }

    /// The bytes that a token stands for after another one; the name of one without a text.
    pub(super) fn bytes(&self, token: u32) -> Result<Vec<u8>, String> {
        let Some(word) = self.token(token) else {
            return Ok(self.tokenizer.id_to_token(token).unwrap_or_default().into_bytes());
        };
        let has = |effect: Effect| self.stages.iter().any(|stage| stage.effect == effect);
        // Decoded, half a character would be U+FFFD.
        if has(Effect::Bytes)
            && let Some(bytes) = word.chars().map(byte_of).collect()
        {
            return Ok(bytes);
        }
        if has(Effect::Runs)
            && let Some(byte) = named_byte(&word)
        {
            return Ok(vec![byte]);
        }
        // Stages treat the start of a text in their own ways: what counts is what the token adds after itself.
        let (once, twice) = (self.whole(std::slice::from_ref(&word))?, self.whole(&[word.clone(), word])?);
        Ok(twice.strip_prefix(&once).unwrap_or(&twice).as_bytes().to_vec())
    }

    /// As [`Chain::decode`], of their words.
    fn whole(&self, words: &[String]) -> Result<String, String> {
        // Some decoders look for a last word.
        if words.is_empty() {
            return Ok(String::new());
        }
        guarded(|| match self.tokenizer.get_decoder() {
            Some(decoder) => decoder.decode(words.to_vec()),
            None => Ok(words.join(" ")),
        })
    }

    /// As [`Chain::whole`], without what later words may change.
    fn settled(&self, words: &[String]) -> Result<Settled, String> {
        if self.stages.is_empty() {
            return self.whole(words).map(|text| Settled { text, all: true });
        }
        let (mut words, mut all) = (words.to_vec(), true);
        for Stage { decoder, effect } in &self.stages {
            all &= effect.keep_settled(&mut words);
            if words.is_empty() {
                return Ok(Settled { text: String::new(), all });
            }
            words = guarded(|| decoder.decode_chain(words))?;
            if *effect == Effect::Bytes
                && let Some(text) = words.last_mut()
                && text.ends_with(char::REPLACEMENT_CHARACTER)
            {
                text.pop();
                all = false;
            }
        }
        Ok(Settled { text: words.concat(), all })
    }
}

impl Effect {
    /// What this stage does to words, or to a text where those before it `joined` them.
    fn of(decoder: &DecoderWrapper, joined: bool) -> Self {
        match decoder {
            DecoderWrapper::Fuse(_) | DecoderWrapper::Strip(_) | DecoderWrapper::Metaspace(_) => Self::Local,
            DecoderWrapper::Replace(_) if !joined || replaces_a_character(decoder) => Self::Local,
            _ if joined => Self::Everything,
            DecoderWrapper::ByteLevel(_) => Self::Bytes,
            DecoderWrapper::ByteFallback(_) => Self::Runs,
            DecoderWrapper::BPE(decoder) => Self::Ends(decoder.suffix.clone()),
            _ => Self::Local,
        }
    }

    /// Takes away what later words may change; whether there was nothing of it.
    fn keep_settled(&self, words: &mut Vec<String>) -> bool {
        let before = words.len();
        match self {
            Self::Local | Self::Bytes => {}
            Self::Everything => words.clear(),
            Self::Runs => words.truncate(words.iter().rposition(|word| !is_byte(word)).map_or(0, |last| last + 1)),
            Self::Ends(suffix) => {
                let Some(last) = words.last_mut() else { return true };
                let Some(at) = last.find(suffix) else { return true };
                let end = at + suffix.len() == last.len();
                last.truncate(at);
                return end;
            }
        }
        words.len() == before
    }
}

/// The stages of a decoder, without the lists that they stand in.
fn flat(decoder: Option<&DecoderWrapper>) -> Vec<&DecoderWrapper> {
    match decoder {
        Some(DecoderWrapper::Sequence(list)) => list.get_decoders().iter().flat_map(|one| flat(Some(one))).collect(),
        other => other.into_iter().collect(),
    }
}

/// Whether a stage puts something in the place of one character, wherever that stands.
fn replaces_a_character(decoder: &DecoderWrapper) -> bool {
    // The library tells the pattern to files alone.
    let fields = serde_json::to_value(decoder).unwrap_or_default();
    fields["pattern"]["String"].as_str().is_some_and(|pattern| pattern.chars().count() == 1)
}

/// Whether a word is a byte, such as `<0x0A>`.
fn is_byte(word: &str) -> bool {
    named_byte(word).is_some()
}

/// The byte that such a word is.
fn named_byte(word: &str) -> Option<u8> {
    let digits = word.strip_prefix("<0x")?.strip_suffix('>')?;
    u8::from_str_radix(digits, 16).ok().filter(|_| digits.len() == 2)
}

/// The byte that a letter stands for where words are of bytes: itself where it is printable, else one of the letters from 256 on
/// (Radford et al., "Language Models are Unsupervised Multitask Learners").
fn byte_of(letter: char) -> Option<u8> {
    let printable = |byte: &u8| matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    match u8::try_from(letter) {
        Ok(byte) => Some(byte).filter(printable),
        Err(_) => (0..=u8::MAX).filter(|byte| !printable(byte)).nth(letter as usize - 256),
    }
}
