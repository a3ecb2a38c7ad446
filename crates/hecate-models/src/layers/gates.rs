//! How rules get their gates.

mod functions;
mod linear;

use super::memory::NORM_EPSILON;
use crate::{Error, Result, Tape, Var};
use hecate_core::{
    Backend, DType, Dims, Inputs, Of, Rule, Shape, Signal, Slots, Strengths, Tensor,
    primitives::{Map, Transpose},
    rules::{Atlas, CodeGates, Lattice, MomentumGates, Phi, Trellis, WindowGates, WriteGates},
    slots,
};

/// What a layer allows its memories: [`MemoryConfig::step`](crate::MemoryConfig::step) and
/// [`MemoryConfig::momentum`](crate::MemoryConfig::momentum), in their ranges.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Largest step size.
    pub step: f32,
    /// Largest momentum.
    pub momentum: f32,
}

slots! {
    /// Signals of rules that write with one strength.
    pub struct WriteSignals {
        /// Step size.
        b_proj,
    }
}

slots! {
    /// Signals of rules with momentum.
    pub struct MomentumSignals {
        /// Step size.
        b_proj,
        /// Momentum.
        eta_proj,
    }
}

slots! {
    /// Signals of rules that erase with a strength of its own.
    pub struct EraseSignals {
        /// Step size.
        b_proj,
        /// Extra erase strength.
        erase_proj,
    }
}

slots! {
    /// Signals of rules with a bounded error.
    pub struct HuberSignals {
        /// Step size.
        b_proj,
        /// Threshold.
        delta_proj,
    }
}

slots! {
    /// Signals of rules with a bounded error and momentum.
    pub struct HuberMomentumSignals {
        /// Step size.
        b_proj,
        /// Momentum.
        eta_proj,
        /// Threshold.
        delta_proj,
    }
}

slots! {
    /// Signals of rules that bring a code along.
    pub struct CodeSignals {
        /// Step size.
        b_proj,
        /// What the slots are taught to answer, a number a slot.
        code_proj,
    }
}

/// A rule whose gates can be made from the residual stream.
///
/// All rules forget; what else a token tells them, a number or a few a head, are *signals*: linear maps with bias, named
/// as their parameters are.
pub trait GatedRule: Rule {
    /// The signals by name.
    type Signals: Slots;

    /// Slots of the state that move the memory by themselves, whatever the gates say. They are zeros in a pass that only
    /// reads ([`GatedRule::reading`]).
    const MOMENTUM: &'static [&'static str] = &[];

    /// Tokens that share a gradient point; 1 where the rule is exact. Calls must start at a multiple.
    fn group(self) -> usize {
        1
    }

    /// The rule with one gradient point for each group of this many tokens: exact for 1; unchanged where the gradient
    /// does not see the memory.
    fn with_group(self, tokens: usize) -> Self;

    /// Numbers a head of each signal; absent: one, without an axis of its own.
    fn widths(self) -> Of<Self::Signals, Option<usize>> {
        Self::Signals::build(|_| None)
    }

    /// Gates from the retention `log a [B,T,H]` and the signals `[B,T,H]` or `[B,T,H,width]`, any real numbers, within what
    /// the layer allows, where the rule has such an option.
    ///
    /// # Errors
    /// The device's own failures.
    fn gates_of<B: Backend>(
        self,
        tape: &Tape<'_, B>,
        log_a: Var<B>,
        signals: Of<Self::Signals, Var<B>>,
        limits: Limits,
    ) -> Result<Of<Self::Gates, Var<B>>>;

    /// The values that are written, from `v [B,T,H,V]`: as they come, or of unit norm where only directions are learned.
    ///
    /// # Errors
    /// The device's own failures.
    fn values<B: Backend>(self, _tape: &Tape<'_, B>, v: Var<B>) -> Result<Var<B>> {
        Ok(v)
    }

    /// The signal that writes, and how strengths follow from it and the other one: what [`GatedRule::gates_of`] computes, told
    /// to a device. None where there is no word for it.
    fn strengths<T>(
        self,
        _signals: Of<Self::Signals, Signal<T>>,
        _limits: Limits,
    ) -> Option<(Signal<T>, Strengths<T>)> {
        None
    }

    /// Gates of tokens that write nothing and forget nothing: factors of one, strengths of zero. The memory stays as it
    /// is where the slots of [`GatedRule::MOMENTUM`] are zero.
    ///
    /// # Errors
    /// The device's own failures.
    fn idle<B: Backend>(self, device: &B, dims: &Dims) -> Result<Of<Self::Gates, Var<B>>> {
        Self::Gates::try_map(self.gates(dims), |name, shape| match name {
            // A threshold, which has to be over zero; without a step size it bounds nothing.
            "delta" => Ok(Var::constant(Tensor::from_f32(device, shape.clone(), vec![1.0; shape.count()])?)),
            // Logarithms of factors, and strengths.
            _ => zeros(device, shape),
        })
    }

    /// Arguments of a pass in which `q` reads the memory `state` and nothing is written: every token reads the same
    /// memory, so the order of the tokens does not matter. Gradients flow to `q` and `state`; the state behind the pass
    /// is of no use.
    ///
    /// # Errors
    /// The device's own failures.
    fn reading<B: Backend>(
        self,
        dims: &Dims,
        q: Var<B>,
        state: Of<Self::State, Var<B>>,
    ) -> Result<Inputs<Self, Var<B>>> {
        let device = q.value().device().clone();
        let still = |name, x: Var<B>| {
            if Self::MOMENTUM.contains(&name) { zeros(&device, x.value().shape().clone()) } else { Ok(x) }
        };
        let state = Self::State::try_map(state, still)?;
        let tokens = |shape| Ok::<_, Error>(Var::constant(Tensor::zeros(&device, shape, q.value().dtype())?));
        let (k, v) = (tokens(dims.keys())?, tokens(dims.values())?);
        Ok(Inputs { q, k, v, gates: self.idle(&device, dims)?, state })
    }
}

fn zeros<B: Backend>(device: &B, shape: Shape) -> Result<Var<B>> {
    Ok(Var::constant(Tensor::zeros(device, shape, DType::F32)?))
}

fn group(frozen: Option<u32>) -> usize {
    frozen.map_or(1, |group| group as usize)
}

/// The option behind a group of this many tokens. Groups too large to be counted are never filled.
fn frozen(tokens: usize) -> Option<u32> {
    (tokens != 1).then(|| u32::try_from(tokens).unwrap_or(u32::MAX))
}

/// `log η = log σ(e)`. Without Newton-Schulz `γ_j = (1 − η) σ(b_j)/c` and `θ = 1`: what a window writes adds up to less
/// than one over time, as with [`Titans`](hecate_core::rules::Titans). With it `γ_j = σ(b_j)/c`, whose size does not count,
/// and `θ = σ(b_c)`, from one number more.
impl GatedRule for Atlas {
    type Signals = MomentumSignals<()>;
    const MOMENTUM: &'static [&'static str] = &["s"];

    fn group(self) -> usize {
        group(self.frozen)
    }

    fn with_group(self, tokens: usize) -> Self {
        Self { frozen: frozen(tokens), ..self }
    }

    fn widths(self) -> MomentumSignals<Option<usize>> {
        let emission = usize::from(self.newton_schulz > 0);
        MomentumSignals { b_proj: Some(self.window as usize + emission), eta_proj: None }
    }

    fn gates_of<B: Backend>(
        self,
        tape: &Tape<'_, B>,
        log_a: Var<B>,
        MomentumSignals { b_proj, eta_proj }: MomentumSignals<Var<B>>,
        _: Limits,
    ) -> Result<WindowGates<Var<B>>> {
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
        let row = Var::constant(Tensor::from_f32(&device, [1, window], vec![share; window])?);
        let rest = tape.matmul(&rest, &row, Transpose::default())?;
        let rest = tape.reshape(&rest, strengths.value().shape().clone())?;
        let theta = Var::constant(Tensor::from_f32(&device, shape.clone(), vec![1.0; shape.count()])?);
        Ok(WindowGates { log_a, log_eta, theta, gamma: tape.mul(&strengths, &rest)? })
    }
}

/// `θ = σ(b)`: with unit keys and values of norm about 1, a write turns a slot by less than a right angle.
impl GatedRule for Lattice {
    type Signals = WriteSignals<()>;

    fn group(self) -> usize {
        group(self.frozen)
    }

    fn with_group(self, tokens: usize) -> Self {
        Self { frozen: frozen(tokens), ..self }
    }

    fn gates_of<B: Backend>(
        self,
        tape: &Tape<'_, B>,
        log_a: Var<B>,
        signals: WriteSignals<Var<B>>,
        _: Limits,
    ) -> Result<WriteGates<Var<B>>> {
        Ok(WriteGates { log_a, theta: tape.map(Map::Sigmoid, &signals.b_proj)? })
    }
}

/// `θ = σ(b)`. With a norm values are of norm 1, since long ones drive slots to where SiLU is flat and the norm divides by
/// next to nothing; the code is its signal scaled to the norm that answers have, and `log a` a
/// thousandth of what others get (1/1024); else both are as they come.
impl GatedRule for Trellis {
    type Signals = CodeSignals<()>;

    fn group(self) -> usize {
        group(self.frozen)
    }

    fn with_group(self, tokens: usize) -> Self {
        Self { frozen: frozen(tokens), ..self }
    }

    fn widths(self) -> CodeSignals<Option<usize>> {
        CodeSignals { b_proj: None, code_proj: Some(self.slots as usize) }
    }

    fn values<B: Backend>(self, tape: &Tape<'_, B>, v: Var<B>) -> Result<Var<B>> {
        if self.phi == Phi::Identity { Ok(v) } else { tape.l2_norm(&v, NORM_EPSILON) }
    }

    fn gates_of<B: Backend>(
        self,
        tape: &Tape<'_, B>,
        log_a: Var<B>,
        CodeSignals { b_proj, code_proj }: CodeSignals<Var<B>>,
        _: Limits,
    ) -> Result<CodeGates<Var<B>>> {
        let theta = tape.map(Map::Sigmoid, &b_proj)?;
        if self.phi == Phi::Identity {
            return Ok(CodeGates { log_a, theta, code: code_proj });
        }
        let unit = tape.l2_norm(&code_proj, NORM_EPSILON)?;
        let code = if self.phi == Phi::LnSilu { tape.scale((self.slots as f32).sqrt(), &unit)? } else { unit };
        Ok(CodeGates { log_a: tape.scale(SLOW_FORGETTING.recip(), &log_a)?, theta, code })
    }
}

/// Memories that must not be empty forget this many times more slowly. A network of zeros learns nothing, since its layers
/// learn from each other: one that forgets faster than it is taught is lost for the rest of the text. Behind a norm, what
/// a memory forgets comes back as longer steps, and soon as chaos.
const SLOW_FORGETTING: f32 = 1024.0;

/// `1 − σ(x)`, to full precision.
fn rest<B: Backend>(tape: &Tape<'_, B>, x: &Var<B>) -> Result<Var<B>> {
    tape.map(Map::Sigmoid, &tape.scale(-1.0, x)?)
}

/// `η = momentum σ(e)`; `θ = (1 − momentum) σ(b)`, or `(1 − η) σ(b)` where the largest momentum is 1.
fn momentum<B: Backend>(
    tape: &Tape<'_, B>,
    log_a: Var<B>,
    MomentumSignals { b_proj, eta_proj }: MomentumSignals<Var<B>>,
    Limits { momentum: most, .. }: Limits,
) -> Result<MomentumGates<Var<B>>> {
    let (log_eta, step) = (tape.map(Map::LogSigmoid, &eta_proj)?, tape.map(Map::Sigmoid, &b_proj)?);
    if most == 1.0 {
        let theta = tape.mul(&step, &rest(tape, &eta_proj)?)?;
        return Ok(MomentumGates { log_a, log_eta, theta });
    }
    // One number a head, the same for all rows; made on the device, since a recorded step does not hear from the host.
    let zeros = Tensor::zeros(eta_proj.value().device(), [eta_proj.axes()[2]], DType::F32)?;
    let log_most = tape.scale(most.ln(), &tape.map(Map::Exp, &Var::constant(zeros))?)?;
    Ok(MomentumGates { log_a, log_eta: tape.add(&log_eta, &log_most)?, theta: tape.scale(1.0 - most, &step)? })
}
