//! Attention let through by a memory.

use super::{Linear, RmsNorm};
use crate::{Builder, Init, Result, Tape, Var};
use hecate_core::{Backend, primitives::Map};

/// `(y · σ(rmsnorm(m))) W_o` with `y = rmsnorm(what attention saw)` and `m` what the memory read: each norm has a weight
/// a channel.
#[derive(Clone, Copy, Debug)]
pub struct GatedFusion {
    seen: RmsNorm,
    read: RmsNorm,
    back: Linear,
    /// Share of what is projected back that is dropped.
    dropout: f32,
}

impl GatedFusion {
    /// Parameters `attention_norm.weight`, `memory_norm.weight` and `o_proj.weight`.
    ///
    /// # Errors
    /// The device's own failures.
    pub fn new<B: Backend>(build: &mut Builder<'_, B>, hidden: usize, norm_eps: f32) -> Result<Self> {
        Ok(Self {
            seen: RmsNorm::new(build, "attention_norm", hidden, norm_eps)?,
            read: RmsNorm::new(build, "memory_norm", hidden, norm_eps)?,
            back: Linear::new(build, "o_proj", hidden, hidden, Init::Residual)?,
            dropout: build.dropout().attention,
        })
    }

    /// `y` from what attention saw, `[B,T,hidden]`.
    ///
    /// # Errors
    /// An array of another width; the device's own failures.
    pub fn seen<B: Backend>(&self, tape: &Tape<'_, B>, seen: &Var<B>) -> Result<Var<B>> {
        self.seen.forward(tape, seen)
    }

    /// The result from `y` and what the memory read, both `[B,T,hidden]`.
    ///
    /// # Errors
    /// Arrays of another width; the device's own failures.
    pub fn forward<B: Backend>(&self, tape: &Tape<'_, B>, y: &Var<B>, m: &Var<B>) -> Result<Var<B>> {
        let gate = self.read.forward(tape, m)?;
        self.back.forward(tape, &tape.dropout(self.dropout, &tape.gated(Map::Sigmoid, y, &gate)?)?)
    }
}
