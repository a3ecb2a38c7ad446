//! What a trainer learns from.

use hecate_models::text::{Examples, TokenSource, Tokens};

/// A text, or examples.
#[derive(Clone, Copy, Debug)]
pub enum Material<'a> {
    /// A text, of which windows are drawn: every token of them has a loss.
    Text(TokenSource<'a>),
    /// Examples, of which some are drawn and packed: what they say is learned has a loss. Each starts with fresh memories.
    Examples(&'a Examples),
}

impl<'a> From<TokenSource<'a>> for Material<'a> {
    fn from(text: TokenSource<'a>) -> Self {
        Self::Text(text)
    }
}

impl<'a> From<&'a [u32]> for Material<'a> {
    fn from(ids: &'a [u32]) -> Self {
        Self::Text(ids.into())
    }
}

impl<'a> From<&'a Vec<u32>> for Material<'a> {
    fn from(ids: &'a Vec<u32>) -> Self {
        Self::Text(ids.into())
    }
}

impl<'a> From<&'a Tokens> for Material<'a> {
    fn from(tokens: &'a Tokens) -> Self {
        Self::Text(tokens.into())
    }
}

impl<'a> From<&'a Examples> for Material<'a> {
    fn from(examples: &'a Examples) -> Self {
        Self::Examples(examples)
    }
}
