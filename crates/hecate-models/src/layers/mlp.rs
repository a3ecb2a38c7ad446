//! The part of a block that looks at one token alone.

use super::{Linear, RmsNorm};
use crate::{Builder, Init, Result, Tape, Var};
use hecate_core::{
    Backend,
    primitives::{Map, ProjectionEnd},
};

/// SwiGLU: `y = (silu(x W_gate) · x W_up) W_down` (Shazeer, "GLU variants improve transformer").
#[derive(Clone, Copy, Debug)]
pub struct Mlp {
    gate: Linear,
    up: Linear,
    down: Linear,
    /// What the gate is times before SiLU, and what comes out.
    factors: [f32; 2],
    /// Share of the elements inside that is dropped.
    dropout: f32,
}

impl Mlp {
    /// Widths outside and inside.
    ///
    /// # Errors
    /// The device's own failures.
    pub fn new<B: Backend>(build: &mut Builder<'_, B>, hidden: usize, inner: usize) -> Result<Self> {
        Ok(Self {
            gate: Linear::new(build, "gate_proj", hidden, inner, Init::Normal)?,
            up: Linear::new(build, "up_proj", hidden, inner, Init::Normal)?,
            down: Linear::new(build, "down_proj", inner, hidden, Init::Residual)?,
            factors: [1.0; 2],
            dropout: build.dropout().activation,
        })
    }

    /// The same, `(silu(f₀ x W_gate) · x W_up) W_down · f₁` of these factors.
    pub(crate) fn scaled(self, factors: [f32; 2]) -> Self {
        Self { factors, ..self }
    }

    /// Whether [`Mlp::forward_onto`] is for `x [.., hidden]`.
    pub(super) fn is_fused<B: Backend>(&self, tape: &Tape<'_, B>, x: &Var<B>) -> bool {
        self.factors == [1.0; 2] && Linear::projects(tape, &[self.gate, self.up, self.down], x)
    }

    /// `x + mlp(norm x)`, in two calls of the device.
    pub(super) fn forward_onto<B: Backend>(&self, tape: &Tape<'_, B>, norm: &RmsNorm, x: &Var<B>) -> Result<Var<B>> {
        let inner = Linear::projected(tape, &[self.up, self.gate], (x, Some(norm)), ProjectionEnd::Gated)?;
        Ok(Linear::projected(tape, &[self.down], (&inner[0], None), ProjectionEnd::Added(x.value()))?.remove(0))
    }

    /// `x [.., hidden]`.
    ///
    /// # Errors
    /// An `x` of another width; the device's own failures.
    pub fn forward<B: Backend>(&self, tape: &Tape<'_, B>, x: &Var<B>) -> Result<Var<B>> {
        if tape.is_inert() {
            let inner = Linear::each(tape, &[self.up, self.gate], x)?;
            let inner = tape.gated(Map::Silu, &inner[0], &tape.scale(self.factors[0], &inner[1])?)?;
            return tape.scale(self.factors[1], &self.down.forward(tape, &inner)?);
        }
        let inner = match Linear::at_once(tape, &[self.gate, self.up], x)? {
            Some(inner) => inner,
            None => vec![self.gate.forward(tape, x)?, self.up.forward(tape, x)?],
        };
        let inner = tape.gated(Map::Silu, &inner[1], &tape.scale(self.factors[0], &inner[0])?)?;
        tape.scale(self.factors[1], &self.down.forward(tape, &tape.dropout(self.dropout, &inner)?)?)
    }
}
