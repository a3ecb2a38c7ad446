//! What every mixer does.

use super::{Context, RmsNorm};
use crate::{LayerCache, Parameters, Result, Tape, Var};
use hecate_core::Backend;
use std::fmt::Debug;

/// What carries information from token to token inside a block.
pub trait Mixer<B: Backend>: Debug + Send + Sync {
    /// `x [B,T,hidden]` to the same shape.
    ///
    /// # Errors
    /// An `x` of another width; the device's own failures.
    fn forward(&self, tape: &Tape<'_, B>, x: &Var<B>, context: &mut Context<'_, B>) -> Result<Var<B>>;

    /// `x + mixer(norm x)` in fewer calls of the device than one by one; none where there are no fewer.
    ///
    /// # Errors
    /// As [`Mixer::forward`].
    fn forward_onto(
        &self,
        _tape: &Tape<'_, B>,
        _norm: &RmsNorm,
        _x: &Var<B>,
        _context: &mut Context<'_, B>,
    ) -> Result<Option<Var<B>>> {
        Ok(None)
    }

    /// What is remembered of `batch` texts that are about to start.
    ///
    /// # Errors
    /// The device's own failures.
    fn cache(&self, device: &B, parameters: &Parameters<B>, batch: usize) -> Result<LayerCache<B>>;

    /// Calls must start at a multiple of this many tokens.
    fn group(&self) -> usize {
        1
    }

    /// What a call of one token needs to know of its place in the text.
    fn counts(&self) -> Counts {
        Counts::Host
    }

    /// Whether texts of unlike lengths can go on in one call of a token each: then [`Context::positions`] says where each stands.
    fn takes_unlike_texts(&self) -> bool {
        self.counts() != Counts::Host
    }
}

/// Who has to count the tokens before a call; of several parts of a mixer the greatest counts for all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Counts {
    /// Nobody: the call is the same work, with the same numbers, wherever it stands.
    Nobody,
    /// The device: the work is the same, and the place is a number in it.
    Device,
    /// The host: the work is other work at other places.
    Host,
}
