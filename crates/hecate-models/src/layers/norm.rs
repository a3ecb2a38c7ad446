//! Normalisation.

use crate::{Builder, Init, ParameterId, Result, Tape, Var};
use hecate_core::Backend;

/// `y = x / √(mean x² + ε) · w`, row by row.
#[derive(Clone, Copy, Debug)]
pub struct RmsNorm {
    weight: ParameterId,
    epsilon: f32,
}

impl RmsNorm {
    /// `weight [width]` under `name.weight`, starting at one.
    ///
    /// # Errors
    /// The device's own failures.
    pub fn new<B: Backend>(build: &mut Builder<'_, B>, name: &str, width: usize, epsilon: f32) -> Result<Self> {
        Ok(Self { weight: build.within(name).parameter("weight", [width], Init::Constant(1.0))?, epsilon })
    }

    /// Its weight, and what is added to mean squares.
    pub(super) fn parts<B: Backend>(&self, tape: &Tape<'_, B>) -> (Var<B>, f32) {
        (tape.parameter(self.weight), self.epsilon)
    }

    /// `x [.., width]`.
    ///
    /// # Errors
    /// An `x` of another width; the device's own failures.
    pub fn forward<B: Backend>(&self, tape: &Tape<'_, B>, x: &Var<B>) -> Result<Var<B>> {
        tape.rms_norm(x, &tape.weight(self.weight)?, self.epsilon)
    }

    /// `y silu(g)`, `g` of the shape of `x`.
    pub(super) fn gated<B: Backend>(&self, tape: &Tape<'_, B>, x: &Var<B>, g: &Var<B>) -> Result<Var<B>> {
        tape.rms_norm_gated(x, &tape.weight(self.weight)?, g, self.epsilon)
    }
}
