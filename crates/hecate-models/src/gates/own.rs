//! Gates of the rules with kernels of their own.

use super::{GateInputs, GatedRule, rest};
use crate::{Result, Tape, Var, gates::NORM_EPSILON};
use hecate_core::{
    Backend, Tensor,
    families::Own,
    memory,
    primitives::{Map, Transpose},
    rules::{
        Atlas, CodeGates, CodeLogits, Lattice, Lif, MomentumLogits, Phi, Trellis, WindowGates, WriteGates, WriteLogits,
    },
};

/// `log η = log σ(e)`. Without Newton-Schulz `γ_j = (1 − η) σ(b_j)/c` and `θ = 1`: what a window writes adds up to less
/// than one over time, as with [`Titans`](hecate_core::rules::Titans). With it `γ_j = σ(b_j)/c`, whose size does not count,
/// and `θ = σ(b_c)`, from one number more.
impl GatedRule<Own> for Atlas {
    type Logits = MomentumLogits<()>;
    const MOMENTUM: &'static [&'static str] = &["s"];

    fn widths(self, _: [usize; 2]) -> MomentumLogits<Option<usize>> {
        let emission = usize::from(self.newton_schulz > 0);
        MomentumLogits { b_proj: Some(self.window as usize + emission), eta_proj: None }
    }

    fn gates_of<B: Backend>(self, from: GateInputs<'_, '_, B, MomentumLogits<()>>) -> Result<WindowGates<Var<B>>> {
        let GateInputs { tape, log_a, logits: MomentumLogits { b_proj, eta_proj }, .. } = from;
        let (device, shape) = (log_a.value().device().clone(), log_a.value().shape().clone());
        let window = self.window as usize;
        let log_eta = tape.map(Map::LogSigmoid, &eta_proj)?;
        let strengths = tape.map(Map::Sigmoid, &b_proj)?;
        let share = 1.0 / window as f32;
        if self.newton_schulz > 0 {
            let gamma = tape.scale(share, &tape.narrow(&strengths, 3, 0, window)?)?;
            let theta = tape.reshape(&tape.narrow(&strengths, 3, window, 1)?, shape)?;
            return Ok(WindowGates { log_a, log_eta, theta, gamma });
        }
        // (1 − η)/c beside each token of the window: a column times a row.
        let rest = tape.reshape(&rest(tape, &eta_proj)?, [shape.count(), 1])?;
        let row = Var::constant(Tensor::from_f32(&device, [1, window], memory::filled("gates", window, share)?)?);
        let rest = tape.matmul(&rest, &row, Transpose::default())?;
        let rest = tape.reshape(&rest, strengths.value().shape().clone())?;
        let ones = memory::filled("gates", shape.count(), 1.0)?;
        let theta = Var::constant(Tensor::from_f32(&device, shape, ones)?);
        Ok(WindowGates { log_a, log_eta, theta, gamma: tape.mul(&strengths, &rest)? })
    }
}

/// `θ = σ(b)`: with unit keys and values of norm about 1, a write turns a slot by less than a right angle.
impl GatedRule<Own> for Lattice {
    type Logits = WriteLogits<()>;

    fn gates_of<B: Backend>(self, from: GateInputs<'_, '_, B, WriteLogits<()>>) -> Result<WriteGates<Var<B>>> {
        let GateInputs { tape, log_a, logits, .. } = from;
        Ok(WriteGates { log_a, theta: tape.map(Map::Sigmoid, &logits.b_proj)? })
    }
}

/// `θ = σ(b)`, the share of a token's current that comes in. Values have elements of about `2 ϑ √V`, so that with unit keys
/// as wide as values a token alone makes some neurons fire: a silent layer learns by the tails of surrogates alone.
impl GatedRule<Own> for Lif {
    type Logits = WriteLogits<()>;

    fn values<B: Backend>(self, tape: &Tape<'_, B>, v: Var<B>) -> Result<Var<B>> {
        let width = v.axes()[3] as f32;
        tape.scale(2.0 * self.threshold * width, &tape.l2_norm(&v, NORM_EPSILON)?)
    }

    fn gates_of<B: Backend>(self, from: GateInputs<'_, '_, B, WriteLogits<()>>) -> Result<WriteGates<Var<B>>> {
        let GateInputs { tape, log_a, logits, .. } = from;
        Ok(WriteGates { log_a, theta: tape.map(Map::Sigmoid, &logits.b_proj)? })
    }
}

/// `θ = σ(b)`. With a norm, values are of norm 1: long ones drive slots to where SiLU is flat, and the norm divides by
/// next to nothing. The code is its signal scaled to the norm that answers have. Without a norm all are as they come.
impl GatedRule<Own> for Trellis {
    type Logits = CodeLogits<()>;

    fn widths(self, _: [usize; 2]) -> CodeLogits<Option<usize>> {
        CodeLogits { b_proj: None, code_proj: Some(self.slots as usize) }
    }

    fn values<B: Backend>(self, tape: &Tape<'_, B>, v: Var<B>) -> Result<Var<B>> {
        if self.phi == Phi::Identity { Ok(v) } else { tape.l2_norm(&v, NORM_EPSILON) }
    }

    fn gates_of<B: Backend>(self, from: GateInputs<'_, '_, B, CodeLogits<()>>) -> Result<CodeGates<Var<B>>> {
        let GateInputs { tape, log_a, logits: CodeLogits { b_proj, code_proj }, .. } = from;
        let theta = tape.map(Map::Sigmoid, &b_proj)?;
        if self.phi == Phi::Identity {
            return Ok(CodeGates { log_a, theta, code: code_proj });
        }
        let unit = tape.l2_norm(&code_proj, NORM_EPSILON)?;
        let code = if self.phi == Phi::LnSilu { tape.scale((self.slots as f32).sqrt(), &unit)? } else { unit };
        Ok(CodeGates { log_a, theta, code })
    }
}
