//! An answer that is kept to a schema.
//!
//! All of it is on the model's thread. What is found out for one token is bounded, so that no schema holds the other texts up.

use crate::refusal::Refusal;
use llguidance::{
    Matcher,
    api::StopReason,
    toktrie::{SimpleVob, TokTrie},
};
use std::{fmt, sync::Arc};

/// The grammar of an answer, where the answer stands in it.
///
/// A clone goes on by itself.
#[derive(Clone)]
pub(crate) struct Bound {
    // More than a kilobyte, which an order is moved with.
    matcher: Box<Matcher>,
    /// Tokens that end a text.
    ends: Arc<[u32]>,
    /// Whether each token of the vocabulary may come next `[V]`; none once the answer is complete and nothing may.
    next: Option<Vec<bool>>,
}

impl fmt::Debug for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bound").field("is_done", &self.next.is_none()).finish_non_exhaustive()
    }
}

impl Bound {
    /// Before the first token.
    ///
    /// # Errors
    /// As [`Bound::take`].
    pub(super) fn new(matcher: Matcher, ends: Arc<[u32]>) -> Result<Self, Refusal> {
        let mut bound = Self { matcher: Box::new(matcher), ends, next: None };
        bound.look()?;
        Ok(bound)
    }

    /// Whether each token may come next `[V]`, at least one of them; none where the answer is complete.
    pub(crate) fn next(&self) -> Option<&[bool]> {
        self.next.as_deref()
    }

    /// Another token has come, one that was allowed and that ends no text.
    ///
    /// # Errors
    /// 400 for a schema that takes too much work here, or where no token of the vocabulary goes on.
    pub(crate) fn take(&mut self, token: u32) -> Result<(), Refusal> {
        self.matcher.consume_token(token).map_err(refusal)?;
        self.look()
    }

    /// Finds out what may come next.
    ///
    /// Where the answer is complete a token may end it, and most answers are so that nothing else may come.
    fn look(&mut self) -> Result<(), Refusal> {
        self.next = None;
        if self.matcher.is_stopped() && self.matcher.stop_reason().is_ok() {
            return Ok(());
        }
        let found = self.matcher.compute_mask().and_then(|mask| Ok((mask, self.matcher.tok_env()?)));
        let (mask, tokens) = found.map_err(refusal)?;
        self.next = next(&mask, tokens.tok_trie(), &self.ends);
        Ok(())
    }
}

/// Why an answer does not go on, after the library's reason.
fn refusal(why: impl fmt::Display) -> Refusal {
    let why = why.to_string();
    let why = why.lines().next().unwrap_or_default();
    if why == StopReason::NoExtensionBias.to_string() {
        return Refusal::request(
            "the model has no token that goes on as the schema asks for; ask for other names and values",
        );
    }
    Refusal::request(format!("the schema takes too much work ({why}); ask for a simpler one"))
}

/// Whether each token of the vocabulary may come next, as a grammar's mask says; none where nothing but the end may.
///
/// The mask has one number more than the vocabulary, which is allowed where the answer is complete.
fn next(mask: &SimpleVob, tokens: &TokTrie, ends: &[u32]) -> Option<Vec<bool>> {
    let end = tokens.eos_token();
    let is_complete = mask.is_allowed(end);
    let mut next: Vec<bool> = (0..end).map(|token| mask.is_allowed(token)).collect();
    if is_complete {
        if !next.contains(&true) {
            return None;
        }
        for &token in ends {
            next.get_mut(token as usize).into_iter().for_each(|allowed| *allowed = true);
        }
    }
    Some(next)
}
