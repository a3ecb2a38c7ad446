//! How likely tokens were, told together with their text.

use crate::{order::Told, refusal::Refusal};
use hecate_core::Backend;
use hecate_models::generate::Session;
use std::collections::VecDeque;

/// Tokens of a continuation that are told once the first character after their start is.
///
/// A token's text may come later than the token: with the rest of a character, or once it has become no stop text. A token whose
/// text is never shown, since a stop text begins before it, is not told either.
#[derive(Clone, Debug)]
pub(super) struct Likelihoods {
    /// How many of the likeliest are told beside each; none where nobody asked.
    likeliest: Option<usize>,
    /// Characters that all tokens so far have become.
    written: usize,
    /// Those of them that were shown.
    shown: usize,
    /// Tokens that were not told yet, in their order.
    waiting: VecDeque<Told>,
}

impl Likelihoods {
    /// Before the first token.
    pub(super) fn new(likeliest: Option<usize>) -> Self {
        Self { likeliest, written: 0, shown: 0, waiting: VecDeque::new() }
    }

    /// Another token was drawn; its text is not written yet.
    ///
    /// # Errors
    /// The device's own.
    pub(super) fn draw<B: Backend>(&mut self, session: &Session<B>) -> Result<(), Refusal> {
        let Some(count) = self.likeliest else { return Ok(()) };
        let drawn = session.drawn(count)?;
        self.waiting.extend(drawn.map(|likelihood| Told { at: self.written, likelihood }));
        Ok(())
    }

    /// Tokens have become this.
    pub(super) fn write(&mut self, text: &str) {
        self.written += text.chars().count();
    }

    /// Tokens that are told with this text.
    pub(super) fn show(&mut self, text: &str) -> Vec<Told> {
        self.shown += text.chars().count();
        let ready = self.waiting.partition_point(|told| told.at < self.shown);
        self.waiting.drain(..ready).collect()
    }

    /// All that are left where a text ends by itself.
    pub(super) fn rest(&mut self) -> Vec<Told> {
        self.waiting.drain(..).collect()
    }
}
