//! One token of a memory layer: all that lies between the projections of the residual stream and the one back to it.
//!
//! With as few elements as one token has, starting a kernel takes longer than its work. A device that has this part in one
//! says so by [`Kernel::has_fused_decode`]; elsewhere a layer puts it together out of primitives and the rule.

use crate::{DType, DecodeCall, Device, Dims, Error, Kernel, Of, Result, Rule, Sequences, Shape, Slots, Tensor};
use std::fmt;

const WHAT: &str = "decode";

/// Arguments of [`decode`]: one token of `N` sequences, 32-bit floats everywhere.
///
/// ```text
/// q, k = l2norm(silu(conv(·)))     v = silu(conv(·))                    head by head
/// out = rmsnorm(rule(q, k, v, gates)) weight · silu(gate)
/// ```
pub struct Decode<R: Rule, T> {
    /// Queries, `[N,1,H·K]`.
    pub q: ConvInput<T>,
    /// Keys, `[N,1,H·K]`.
    pub k: ConvInput<T>,
    /// Values, `[N,1,H·V]`.
    pub v: ConvInput<T>,
    /// Added to the norms of queries and keys ([`l2_norm`](crate::primitives::l2_norm)).
    pub norm_epsilon: f32,
    /// Where gates come from.
    pub gates: TokenGates<T>,
    /// State before the token.
    pub state: Of<R::State, T>,
    /// Weight `[V]` of the norm of what is read.
    pub weight: T,
    /// Added to its mean square ([`rms_norm`](crate::primitives::rms_norm)).
    pub epsilon: f32,
    /// What SiLU makes factors of the result of, `[N,1,H·V]`.
    pub gate: Option<T>,
}

/// What a projection makes of a token.
#[derive(Clone, Debug)]
pub struct ConvInput<T> {
    /// `[N,1,H·width]`.
    pub x: T,
    /// Weight `[H·width,W]` of a convolution and its last inputs `[N,W−1,H·width]`.
    pub conv: Option<(T, T)>,
}

/// A number a head: `x + bias`.
#[derive(Clone, Debug)]
pub struct GateLogit<T> {
    /// `[N,1,H]`.
    pub x: T,
    /// `[H]`.
    pub bias: T,
}

/// Gates of a token. `σ` is the logistic function.
#[derive(Clone, Debug)]
pub struct TokenGates<T> {
    /// `log a = −exp(a_log) softplus(x + bias)` with `a_log [H]`; absent: 0.
    pub retention: Option<(GateLogit<T>, T)>,
    /// `b`.
    pub write: GateLogit<T>,
    /// What follows from `b`, and from a second number `e`.
    pub strengths: GateForm<T>,
}

/// How a rule's strengths follow from signals.
#[derive(Clone, Debug)]
pub enum GateForm<T> {
    /// `θ = c σ(b)`.
    Write(f32),
    /// `log η = log σ(e)`, `θ = σ(b) σ(−e)`.
    Momentum(GateLogit<T>),
    /// `θ = σ(b)`, `β = σ(e)`.
    Erase(GateLogit<T>),
    /// `θ = σ(b)`, `β = σ(e) σ(−b)`.
    EraseRest(GateLogit<T>),
}

impl<T> GateForm<T> {
    /// `e`.
    pub fn signal(&self) -> Option<&GateLogit<T>> {
        match self {
            Self::Write(_) => None,
            Self::Momentum(signal) | Self::Erase(signal) | Self::EraseRest(signal) => Some(signal),
        }
    }

    /// The gates that they are, beside `log_a`.
    fn names(&self) -> &'static [&'static str] {
        match self {
            Self::Write(_) => &["theta"],
            Self::Momentum(_) => &["log_eta", "theta"],
            Self::Erase(_) | Self::EraseRest(_) => &["theta", "beta"],
        }
    }
}

/// Results of [`decode`].
pub struct Decoded<R: Rule, T> {
    /// `[N,1,H·V]`.
    pub out: T,
    /// State after the token.
    pub state: Of<R::State, T>,
    /// Last inputs of the convolutions of q, k and v, where there are such.
    pub convs: [Option<T>; 3],
}

impl<R: Rule, T: fmt::Debug> fmt::Debug for Decode<R, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { q, k, v, gates, .. } = self;
        let mut shown = f.debug_struct("Decode");
        shown.field("q", q).field("k", k).field("v", v).field("gates", gates);
        shown.field("state", &R::State::list(&self.state)).finish_non_exhaustive()
    }
}

impl<R: Rule, T: fmt::Debug> fmt::Debug for Decoded<R, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Decoded");
        shown.field("out", &self.out).field("state", &R::State::list(&self.state)).field("convs", &self.convs).finish()
    }
}

/// One token of a layer's memory with `heads` memories of `key × value`.
///
/// # Errors
/// [`Error::Unsupported`] where [`Kernel::has_fused_decode`] says no. Shapes that do not fit, arrays of two devices or of
/// other than 32-bit floats, strengths that are not the rule's. The device's own failures.
pub fn decode<D: Kernel<R>, R: Rule>(
    rule: R,
    [heads, key, value]: [usize; 3],
    inputs: &Decode<R, Tensor<D>>,
) -> Result<Decoded<R, Tensor<D>>> {
    let batch = inputs.q.x.shape().axes().first().copied().unwrap_or(0);
    let dims = Dims { batch, tokens: 1, heads, key, value, sequences: Sequences::batch(batch, 1), anchored: false };
    check(rule, &dims, inputs)?;
    D::decode(DecodeCall { device: inputs.q.x.device(), rule, dims: &dims, inputs })
}

fn check<D: Device, R: Rule>(rule: R, dims: &Dims, inputs: &Decode<R, Tensor<D>>) -> Result<()> {
    if [dims.batch, dims.heads, dims.key, dims.value].contains(&0) {
        return Err(Error::Empty { what: WHAT, slot: "q", found: inputs.q.x.shape().clone() });
    }
    rule.check(dims)?;
    let Decode { q, k, v, gates, weight, gate, .. } = inputs;
    let (states, shapes) = (R::State::list(&inputs.state), R::State::into_vec(rule.state(dims)));
    if !R::Gates::NAMES.iter().filter(|name| **name != "log_a").eq(gates.strengths.names()) {
        let (option, found) = ("strengths", format!("{:?}", gates.strengths.names()));
        return Err(Error::Config { what: R::NAME, option, found, expected: "those of the rule's gates" });
    }
    check_arrays(dims, [q, k, v], gates, &states, shapes, weight, gate.as_ref())
}

/// [`check`] of what is the same for every rule.
fn check_arrays<D: Device>(
    dims: &Dims,
    [q, k, v]: [&ConvInput<Tensor<D>>; 3],
    gates: &TokenGates<Tensor<D>>,
    states: &[(&'static str, &Tensor<D>)],
    shapes: Vec<Shape>,
    weight: &Tensor<D>,
    gate: Option<&Tensor<D>>,
) -> Result<()> {
    let Dims { batch, heads, key, value, .. } = *dims;
    let device = q.x.device();
    let [keys, values] = [key, value].map(|width| heads.saturating_mul(width));
    projected(device, "q", q, batch, keys)?;
    projected(device, "k", k, batch, keys)?;
    projected(device, "v", v, batch, values)?;
    if let Some((retention, a_log)) = &gates.retention {
        signal(device, "retention", retention, batch, heads)?;
        slot(device, "a_log", a_log, [heads])?;
    }
    signal(device, "write", &gates.write, batch, heads)?;
    gates.strengths.signal().map_or(Ok(()), |x| signal(device, "strengths", x, batch, heads))?;
    states.iter().zip(shapes).try_for_each(|(&(name, x), shape)| slot(device, name, x, shape))?;
    slot(device, "weight", weight, [value])?;
    gate.map_or(Ok(()), |gate| slot(device, "gate", gate, [batch, 1, values]))
}

fn projected<D: Device>(
    device: &D,
    name: &'static str,
    map: &ConvInput<Tensor<D>>,
    batch: usize,
    width: usize,
) -> Result<()> {
    slot(device, name, &map.x, [batch, 1, width])?;
    let Some((weight, last)) = &map.conv else { return Ok(()) };
    let taps = weight.shape().last();
    if taps < 2 {
        let found = taps.to_string();
        return Err(Error::Config { what: WHAT, option: "width", found, expected: "at least 2 taps" });
    }
    slot(device, name, weight, [width, taps])?;
    slot(device, name, last, [batch, taps - 1, width])
}

fn signal<D: Device>(
    device: &D,
    name: &'static str,
    signal: &GateLogit<Tensor<D>>,
    batch: usize,
    heads: usize,
) -> Result<()> {
    slot(device, name, &signal.x, [batch, 1, heads])?;
    slot(device, name, &signal.bias, [heads])
}

fn slot<D: Device>(device: &D, slot: &'static str, x: &Tensor<D>, expected: impl Into<Shape>) -> Result<()> {
    x.check_device(device, WHAT, slot)?;
    let expected = expected.into();
    if *x.shape() != expected {
        return Err(Error::Shape { what: WHAT, slot, expected, found: x.shape().clone() });
    }
    if x.dtype() != DType::F32 {
        return Err(Error::DType { what: WHAT, slot, expected: "f32", found: x.dtype() });
    }
    Ok(())
}
