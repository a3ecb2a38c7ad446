//! Normalisation.

use crate::{Builder, Init, ParameterId, Result, Tape, Var};
use hecate_core::{
    Backend,
    primitives::{GateFunction, RmsNormOptions},
};

/// `y = x / √(mean x² + ε) · w`, row by row; or times `1 + w`.
#[derive(Clone, Copy, Debug)]
pub struct RmsNorm {
    weight: ParameterId,
    options: RmsNormOptions,
}

impl RmsNorm {
    /// `weight [width]` under `name.weight`, starting at one.
    ///
    /// # Errors
    /// The device's own failures.
    pub fn new<B: Backend>(build: &mut Builder<'_, B>, name: &str, width: usize, epsilon: f32) -> Result<Self> {
        Self::with(build, name, width, RmsNormOptions::new(epsilon))
    }

    /// As [`RmsNorm::new`], times `1 + w` with a weight that starts at zero.
    ///
    /// # Errors
    /// The device's own failures.
    pub fn one_plus<B: Backend>(build: &mut Builder<'_, B>, name: &str, width: usize, epsilon: f32) -> Result<Self> {
        Self::with(build, name, width, RmsNormOptions { one_plus: true, ..RmsNormOptions::new(epsilon) })
    }

    fn with<B: Backend>(build: &mut Builder<'_, B>, name: &str, width: usize, options: RmsNormOptions) -> Result<Self> {
        let start = if options.one_plus { 0.0 } else { 1.0 };
        Ok(Self { weight: build.within(name).parameter("weight", [width], Init::Constant(start))?, options })
    }

    /// What rows are multiplied by, and what is added to mean squares: for kernels that know no more of a norm.
    pub(super) fn parts<B: Backend>(&self, tape: &Tape<'_, B>) -> Result<(Var<B>, f32)> {
        let weight = tape.parameter(self.weight)?;
        let factor = if self.options.one_plus { (1.0 + &weight)? } else { weight };
        Ok((factor, self.options.epsilon))
    }

    /// `x [.., width]`.
    ///
    /// # Errors
    /// An `x` of another width; the device's own failures.
    pub fn forward<B: Backend>(&self, tape: &Tape<'_, B>, x: &Var<B>) -> Result<Var<B>> {
        tape.norm(x, &self.weight(tape, x)?, None, self.options)
    }

    /// The stream `x [.., width]` with what is still to be added to it, if anything, and that after the norm.
    pub(crate) fn after<B: Backend>(
        &self,
        tape: &Tape<'_, B>,
        x: &Var<B>,
        pending: Option<&Var<B>>,
    ) -> Result<[Var<B>; 2]> {
        match pending {
            Some(pending) => tape.add_norm([pending, x], &self.weight(tape, x)?, self.options),
            None => Ok([x.clone(), self.forward(tape, x)?]),
        }
    }

    /// `y function(g)`, `g` of the shape of `x`.
    pub(super) fn gated<B: Backend>(
        &self,
        tape: &Tape<'_, B>,
        x: &Var<B>,
        g: &Var<B>,
        function: GateFunction,
    ) -> Result<Var<B>> {
        tape.norm(x, &self.weight(tape, x)?, Some(g), RmsNormOptions { function, ..self.options })
    }

    /// `w [width]`, for an `x [.., width]`.
    fn weight<B: Backend>(&self, tape: &Tape<'_, B>, x: &Var<B>) -> Result<Var<B>> {
        let weight = tape.weight(self.weight)?;
        tape.check_width(self.weight, weight.value().shape().last(), x)?;
        Ok(weight)
    }
}
