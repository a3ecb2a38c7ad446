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
    pub(super) fn parts<B: Backend>(&self, tape: &Tape<'_, B>) -> Result<(Var<B>, f32)> {
        Ok((tape.parameter(self.weight)?, self.epsilon))
    }

    /// `x [.., width]`.
    ///
    /// # Errors
    /// An `x` of another width; the device's own failures.
    pub fn forward<B: Backend>(&self, tape: &Tape<'_, B>, x: &Var<B>) -> Result<Var<B>> {
        tape.rms_norm(x, &self.weight(tape, x)?, self.epsilon)
    }

    /// The stream `x [.., width]` with what is still to be added to it, if anything, and that after the norm.
    pub(crate) fn after<B: Backend>(
        &self,
        tape: &Tape<'_, B>,
        x: &Var<B>,
        pending: Option<&Var<B>>,
    ) -> Result<[Var<B>; 2]> {
        match pending {
            Some(pending) => tape.add_rms_norm(pending, x, &self.weight(tape, x)?, self.epsilon),
            None => Ok([x.clone(), self.forward(tape, x)?]),
        }
    }

    /// `y silu(g)`, `g` of the shape of `x`.
    pub(super) fn gated<B: Backend>(&self, tape: &Tape<'_, B>, x: &Var<B>, g: &Var<B>) -> Result<Var<B>> {
        tape.rms_norm_gated(x, &self.weight(tape, x)?, g, self.epsilon)
    }

    /// `w [width]`, for an `x [.., width]`.
    fn weight<B: Backend>(&self, tape: &Tape<'_, B>, x: &Var<B>) -> Result<Var<B>> {
        let weight = tape.weight(self.weight)?;
        tape.check_width(self.weight, weight.value().shape().last(), x)?;
        Ok(weight)
    }
}
