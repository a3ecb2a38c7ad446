//! The tokens of a long text, window by window.
//!
//! A tokenizer takes a hundred times the room of the text that it is given. So it is given windows, each of which begins before the
//! one in front ends. Near its ends, a window's tokens may be others than those of the whole text. Where two windows have the same
//! tokens in the middle of what both read, these depend on neither end, and there the second takes over. Windows that agree nowhere,
//! as in a text without a border between two tokens, become longer, up to the whole text.

use super::{Passage, file::guarded};
use crate::{Error, Result, tokens::Growing};
use hecate_core::memory;
use std::{ops::Range, path::Path};
use tokenizers::Tokenizer;

/// Bytes of a window before normalization, and after it.
const WINDOW: usize = 256 << 10;
const NORMALIZED: f64 = (16 << 20) as f64;
/// The part of a window that the next one reads again.
const OVERLAP: usize = 8;
/// Tokens that two windows have to have in common.
const AGREED: usize = 16;
/// Bytes that the library takes for a byte of normalized text.
const ROOM: f64 = 100.0;

/// What reads a text.
pub(super) struct Reader<'a, P: ?Sized> {
    path: &'a Path,
    tokenizer: &'a Tokenizer,
    text: &'a P,
    /// Bytes of a window.
    window: usize,
}

/// Tokens of a part of the text.
struct Window {
    range: Range<usize>,
    tokens: Vec<Token>,
}

/// A token and the bytes of the text that it was made of.
#[derive(Clone, Debug, PartialEq)]
struct Token {
    id: u32,
    start: usize,
    end: usize,
}

impl<'a, P: Passage + ?Sized> Reader<'a, P> {
    /// `growth` is what normalizing makes of a byte, at most.
    pub(super) fn new(path: &'a Path, tokenizer: &'a Tokenizer, growth: f64, text: &'a P) -> Self {
        let window = WINDOW.min((NORMALIZED / growth.max(1.0)) as usize);
        Self { path, tokenizer, text, window }
    }

    /// All tokens of the text.
    pub(super) fn read(&self) -> Result<Growing> {
        let bytes = self.text.bytes();
        let mut tokens = Growing::default();
        let (mut window, mut first, mut more) = (self.window(0..self.window)?, 0, self.window);
        while window.range.end < bytes {
            if let Some((next, [end, begin])) = self.next(&window, first)? {
                window.tokens[first..end].iter().for_each(|token| tokens.push(token.id, token.end));
                (window, first, more) = (next, begin, self.window);
                continue;
            }
            more = more.saturating_mul(2);
            let longer = self.window(window.range.start..window.range.end.saturating_add(more))?;
            if longer.tokens.get(..first) == window.tokens.get(..first) {
                window = longer;
            } else {
                // Its tokens depend on where it begins: only the whole is sure.
                (window, first, tokens) = (self.window(0..bytes)?, 0, Growing::default());
            }
        }
        window.tokens[first..].iter().for_each(|token| tokens.push(token.id, token.end));
        Ok(tokens)
    }

    /// The window after this one, and the numbers of the first token that is not this one's any more: here and there. None
    /// where both do not agree.
    fn next(&self, window: &Window, first: usize) -> Result<Option<(Window, [usize; 2])>> {
        let Range { start, end } = window.range;
        let shared = ((end - start) / OVERLAP).max(1);
        let next = self.window(end - shared..end.saturating_add(self.window))?;
        let inner = next.range.start + shared / 4..end - shared / 4;
        let [here, there] = [window, &next].map(|window| window.inside(&inner));
        let same = window.tokens[here.clone()] == next.tokens[there.clone()];
        let middle = here.len() / 2;
        let cut = [here.start + middle, there.start + middle];
        Ok((same && here.len() >= AGREED && cut[0] >= first).then_some((next, cut)))
    }

    /// The tokens of these bytes, without parts of a character.
    fn window(&self, Range { start, end }: Range<usize>) -> Result<Window> {
        let start = self.text.character_start(start)?;
        let end = self.text.character_start(end.min(self.text.bytes()))?;
        memory::check::<u8>("tokens of a text", ((end - start) as f64 * ROOM) as usize)?;
        let text = self.text.read(start..end)?;
        let encoded = guarded(|| self.tokenizer.encode(text.as_str(), false));
        let encoded = encoded.map_err(|why| Error::Tokenizer { path: self.path.to_owned(), why })?;
        let token = |(&id, &(from, to)): (&u32, &(usize, usize))| Token { id, start: start + from, end: start + to };
        let tokens = encoded.get_ids().iter().zip(encoded.get_offsets()).map(token).collect();
        Ok(Window { range: start..end, tokens })
    }
}

impl Window {
    /// The numbers of the tokens that lie in these bytes.
    fn inside(&self, bytes: &Range<usize>) -> Range<usize> {
        let first = self.tokens.iter().rposition(|token| token.start < bytes.start).map_or(0, |last| last + 1);
        let inside = self.tokens[first..].iter().take_while(|token| token.end <= bytes.end).count();
        first..first + inside
    }
}

#[cfg(test)]
mod tests;
