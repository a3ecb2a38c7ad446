//! From what memories were read, back to the residual stream.

use super::{Linear, RmsNorm};
use crate::{Builder, Init, Result, Tape, Var};
use hecate_core::{Backend, primitives::GateFunction};

/// `(rmsnorm(read) · silu(x W_g)) W_o`, the norm head by head; some families of models gate by the logistic function.
#[derive(Clone, Copy, Debug)]
pub(super) struct OutputProjection {
    /// `W_g`, where the output is gated.
    pub(super) gate: Option<Linear>,
    /// What is made of it.
    function: GateFunction,
    /// Of what a head read, `[V]`.
    pub(super) norm: RmsNorm,
    /// `W_o`, from `H · V` to the residual stream.
    pub(super) back: Linear,
    /// Share of what is projected back that is dropped.
    dropout: f32,
}

/// Sizes of an [`OutputProjection`].
#[derive(Clone, Copy, Debug)]
pub(super) struct OutputDims {
    /// Width of the residual stream.
    pub(super) hidden: usize,
    /// `H`.
    pub(super) heads: usize,
    /// `V`, the width of what a head read.
    pub(super) value: usize,
}

impl OutputProjection {
    /// Parameters `g_proj` (with a gate), `o_norm`, `o_proj`.
    pub(super) fn new<B: Backend>(
        build: &mut Builder<'_, B>,
        gate: bool,
        dims: OutputDims,
        norm_eps: f32,
    ) -> Result<Self> {
        Self::with_gate(Self::gate(build, gate, dims)?, build, dims, norm_eps)
    }

    /// `W_g`, to `H · V`, if there is a gate. Its parameter may come before others, whose order checkpoints fix.
    pub(super) fn gate<B: Backend>(build: &mut Builder<'_, B>, gate: bool, dims: OutputDims) -> Result<Option<Linear>> {
        let OutputDims { hidden, heads, value } = dims;
        if gate { Linear::new(build, "g_proj", hidden, heads * value, Init::Normal).map(Some) } else { Ok(None) }
    }

    /// As [`OutputProjection::new`], with a gate that is there already.
    pub(super) fn with_gate<B: Backend>(
        gate: Option<Linear>,
        build: &mut Builder<'_, B>,
        OutputDims { hidden, heads, value }: OutputDims,
        norm_eps: f32,
    ) -> Result<Self> {
        let norm = RmsNorm::new(build, "o_norm", value, norm_eps)?;
        let back = Linear::new(build, "o_proj", heads * value, hidden, Init::Residual)?;
        Ok(Self { gate, function: GateFunction::Silu, norm, back, dropout: build.dropout().attention })
    }

    /// The same, whose gate goes through this function.
    pub(super) fn with_function(self, function: GateFunction) -> Self {
        Self { function, ..self }
    }

    /// Whether kernels of a whole layer gate as it does: they know of SiLU alone.
    pub(super) fn is_plain(&self) -> bool {
        self.function == GateFunction::Silu
    }

    /// The gate before its function, `x W_g`: `[B,T,H·V]`.
    pub(super) fn factors<B: Backend>(&self, tape: &Tape<'_, B>, x: &Var<B>) -> Result<Option<Var<B>>> {
        self.gate.as_ref().map(|gate| gate.forward(tape, x)).transpose()
    }

    /// `x [B,T,hidden]` and what it read `[B,T,H,V]` to `[B,T,hidden]`.
    pub(super) fn forward<B: Backend>(&self, tape: &Tape<'_, B>, x: &Var<B>, read: &Var<B>) -> Result<Var<B>> {
        self.of_factors(tape, self.factors(tape, x)?, read)
    }

    /// As [`OutputProjection::forward`], with what [`OutputProjection::factors`] are.
    pub(super) fn of_factors<B: Backend>(
        &self,
        tape: &Tape<'_, B>,
        factors: Option<Var<B>>,
        read: &Var<B>,
    ) -> Result<Var<B>> {
        let [batch, tokens] = [0, 1].map(|axis| read.axes()[axis]);
        let y = match factors {
            Some(gate) => self.norm.gated(tape, read, &tape.reshape(&gate, read.axes())?, self.function)?,
            None => self.norm.forward(tape, read)?,
        };
        let width = y.axes()[2] * y.axes()[3];
        self.back.forward(tape, &tape.dropout(self.dropout, &tape.reshape(&y, [batch, tokens, width])?)?)
    }
}
