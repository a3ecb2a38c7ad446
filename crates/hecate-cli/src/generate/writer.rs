//! What a model writes, on its way to standard output.

use crate::{error::Result, visible::visible};
use hecate::models::{Decoder, Vocabulary, generate::Stops};
use std::io::{Write, stdout};

/// Writes tokens as text, each character as soon as it is whole. A token may hold a part of a character, or several.
pub(crate) struct Writer<'a> {
    /// Knows the tokens before the first that is written: its text may depend on them.
    decoder: Decoder<'a>,
    /// Tokens are bytes, and go out as they are.
    bytes: bool,
    /// Control characters go out as they are.
    raw: bool,
    stops: Stops,
}

impl<'a> Writer<'a> {
    /// Before the first token; the text ends at any of `stops`.
    pub(crate) fn new(vocabulary: &'a Vocabulary, raw: bool, stops: &[String]) -> Self {
        let bytes = raw && matches!(vocabulary, Vocabulary::Bytes);
        Self { decoder: vocabulary.decoder(), bytes, raw, stops: Stops::new(stops.to_vec()) }
    }

    /// The text that is written goes on after these tokens.
    pub(crate) fn after(&mut self, prompt: &[u32]) -> Result<()> {
        Ok(self.decoder.skip(prompt)?)
    }

    /// The prompt's text, at which no text ends.
    pub(super) fn prompt(&self, prompt: &str) -> Result<()> {
        self.write(prompt.as_bytes())
    }

    /// The next token; whether the text goes on.
    pub(crate) fn token(&mut self, token: u32) -> Result<bool> {
        // The decoder also refuses what is no token.
        let text = self.decoder.push(token)?;
        let shown = if self.bytes { self.stops.push(&[token as u8]) } else { self.stops.push(text.as_bytes()) };
        self.write(&shown)?;
        Ok(!self.stops.met())
    }

    /// What is left of a character that was cut off, and a newline. What is written next is looked through for stop texts anew.
    pub(crate) fn finish(&mut self) -> Result<()> {
        let rest = self.decoder.finish()?;
        if !self.stops.met() {
            let rest = if self.bytes { Vec::new() } else { self.stops.push(rest.as_bytes()) };
            self.write(&rest)?;
        }
        let held = self.stops.finish();
        self.write(&held)?;
        self.write(b"\n")
    }

    fn write(&self, bytes: &[u8]) -> Result<()> {
        write(bytes, self.raw)
    }
}

/// Writes bytes as they are, or so that they do nothing to a terminal.
fn write(bytes: &[u8], raw: bool) -> Result<()> {
    let mut out = stdout().lock();
    match raw {
        true => out.write_all(bytes)?,
        // Stops part no character in two: these are whole.
        false => out.write_all(visible(&String::from_utf8_lossy(bytes)).as_bytes())?,
    }
    // Each token is seen when it is made; a line may take minutes.
    Ok(out.flush()?)
}
