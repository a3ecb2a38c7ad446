//! States after beginnings of prompts, from which other prompts with the same beginning go on.
//!
//! What a text says must not depend on what was read before it, to the last bit. Sums of a segment are rounded by where it begins
//! and ends, so a state is only taken where the prompt would itself have been cut there: where a whole number of segments ends, or
//! at the end of the same prompt. What a model remembers after it wrote a text was read token by token, and is no such state.

use super::sessions::unused;
use crate::{Limits, refusal::Refusal};
use blake3::{Hash, Hasher};
use hecate_core::Backend;
use hecate_models::generate::{SEGMENT, Session};
use std::collections::HashMap;

/// Where a prompt can go on from a state, or leave one: so many tokens, and their hash.
pub(super) type Mark = (usize, Hash);

/// Kept states, as many as fit into a bound of memory: those go first that were not used for longest.
///
/// They are found by hashes of the tokens that they have read. A state's own memory is counted as if it shared nothing, so the bound
/// holds also once the text that it was forked from is gone.
#[derive(Debug)]
pub(super) struct Prefixes<B: Backend> {
    /// Tokens from a state to the next in a long prompt, a multiple of a segment.
    every: usize,
    /// The most bytes of all states; 0 keeps none.
    most: usize,
    /// Bytes of those that are kept.
    bytes: usize,
    /// Uses so far, of all states.
    uses: u64,
    kept: HashMap<Hash, Kept<B>>,
}

/// A state.
#[derive(Debug)]
struct Kept<B: Backend> {
    session: Session<B>,
    bytes: usize,
    /// The number of its last use.
    used: u64,
}

impl<B: Backend> Prefixes<B> {
    /// Before the first prompt.
    pub(super) fn new(limits: &Limits) -> Self {
        // A state in the midst of a segment would be of no use.
        let every = limits.prefix_every.max(1).checked_next_multiple_of(SEGMENT).unwrap_or(usize::MAX);
        Self { every, most: limits.prefix_bytes, bytes: 0, uses: 0, kept: HashMap::new() }
    }

    /// States and their bytes.
    pub(super) fn counts(&self) -> (usize, usize) {
        (self.kept.len(), self.bytes)
    }

    /// Where this prompt can go on or leave states, in their order; nowhere if none are kept.
    ///
    /// Hashes are of all tokens from the first on. Nobody finds two beginnings with one hash, so tokens need not be kept.
    pub(super) fn marks(&self, prompt: &[u32]) -> Vec<Mark> {
        if self.most == 0 {
            return Vec::new();
        }
        let (mut hasher, mut read) = (Hasher::new(), 0);
        let mark = |tokens: &[u32]| {
            hasher.update(&tokens.iter().flat_map(|token| token.to_le_bytes()).collect::<Vec<u8>>());
            read += tokens.len();
            (read, hasher.finalize())
        };
        prompt.chunks(self.every).map(mark).collect()
    }

    /// The state at the last of these marks that has one, and how many tokens it has read.
    ///
    /// The longest counts: what is read again is what comes after it.
    pub(super) fn nearest(&mut self, marks: &[Mark]) -> Option<(usize, Session<B>)> {
        let (read, hash) = marks.iter().rev().find(|(_, hash)| self.kept.contains_key(hash))?;
        self.uses += 1;
        let kept = self.kept.get_mut(hash)?;
        kept.used = self.uses;
        Some((*read, kept.session.fork()))
    }

    /// Keeps the state of a prompt that was read so far, if that is one of its marks.
    ///
    /// A fork shares what it remembers until one of the two goes on: nothing is copied here.
    ///
    /// # Errors
    /// None that a request could cause.
    pub(super) fn keep(&mut self, marks: &[Mark], read: usize, session: &Session<B>) -> Result<(), Refusal> {
        let Some(&(_, hash)) = marks.iter().find(|(at, _)| *at == read) else { return Ok(()) };
        // Whoever takes it brings a sampler of their own.
        let mut session = session.fork();
        session.set_sampler(unused()?);
        let bytes = session.bytes() + session.scores()?.map_or(0, size_of_val);
        // All others would go for it, and it would still not fit.
        if bytes > self.most {
            return Ok(());
        }
        // Two prompts may have been read side by side: the same state is kept once.
        self.forget(&hash);
        while self.bytes + bytes > self.most {
            let Some(oldest) = self.kept.iter().min_by_key(|(_, kept)| kept.used).map(|(hash, _)| *hash) else { break };
            self.forget(&oldest);
        }
        self.uses += 1;
        self.bytes += bytes;
        self.kept.insert(hash, Kept { session, bytes, used: self.uses });
        Ok(())
    }

    /// Lets one go, if it is there. Texts that began from it have their own forks.
    fn forget(&mut self, hash: &Hash) {
        self.bytes -= self.kept.remove(hash).map_or(0, |kept| kept.bytes);
    }
}
