//! One token of a memory layer: all that lies between the projections of the residual stream and the one back to it.
//!
//! With as few numbers as one token has, starting a kernel takes longer than its work. A device that has this part in one
//! says so by [`Kernel::decodes`]; elsewhere a layer puts it together out of primitives and the rule.

use crate::{DType, Device, Dims, Error, Kernel, Of, Result, Rule, Sequences, Shape, Slots, Tensor};

const WHAT: &str = "decode";

/// Arguments of [`decode`]: one token of `N` sequences, 32-bit floats everywhere.
///
/// ```text
/// q, k = l2norm(silu(conv(·)))     v = silu(conv(·))                    head by head
/// out = rmsnorm(rule(q, k, v, gates)) weight · silu(gate)
/// ```
pub struct Decode<R: Rule, T> {
    /// Queries, `[N,1,H·K]`.
    pub q: Projected<T>,
    /// Keys, `[N,1,H·K]`.
    pub k: Projected<T>,
    /// Values, `[N,1,H·V]`.
    pub v: Projected<T>,
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
pub struct Projected<T> {
    /// `[N,1,H·width]`.
    pub x: T,
    /// Weight `[H·width,W]` of a convolution and its last inputs `[N,W−1,H·width]`.
    pub conv: Option<(T, T)>,
}

/// A number a head: `x + bias`.
#[derive(Clone, Debug)]
pub struct Signal<T> {
    /// `[N,1,H]`.
    pub x: T,
    /// `[H]`.
    pub bias: T,
}

/// Gates of a token. `σ` is the logistic function.
#[derive(Clone, Debug)]
pub struct TokenGates<T> {
    /// `log a = −exp(slope) softplus(x + bias)` with `slope [H]`; absent: 0.
    pub retention: Option<(Signal<T>, T)>,
    /// `b`.
    pub write: Signal<T>,
    /// What follows from `b`, and from a second number `e`.
    pub strengths: Strengths<T>,
}

/// How a rule's strengths follow from signals.
#[derive(Clone, Debug)]
pub enum Strengths<T> {
    /// `θ = c σ(b)`.
    Write(f32),
    /// `log η = log σ(e)`, `θ = σ(b) σ(−e)`.
    Momentum(Signal<T>),
    /// `θ = σ(b)`, `β = σ(e)`.
    Erase(Signal<T>),
    /// `θ = σ(b)`, `β = σ(e) σ(−b)`.
    EraseRest(Signal<T>),
}

impl<T> Strengths<T> {
    /// `e`.
    pub fn signal(&self) -> Option<&Signal<T>> {
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
    /// State behind the token.
    pub state: Of<R::State, T>,
    /// Last inputs of the convolutions of q, k and v, where there are such.
    pub convs: [Option<T>; 3],
}

/// One token of a layer's memory with `heads` memories of `key × value`.
///
/// # Errors
/// [`Error::Unsupported`] where [`Kernel::decodes`] says no; shapes that do not fit, arrays of other than 32-bit floats,
/// strengths that are not the rule's; the device's own failures.
pub fn decode<D: Kernel<R>, R: Rule>(
    rule: R,
    [heads, key, value]: [usize; 3],
    inputs: &Decode<R, Tensor<D>>,
) -> Result<Decoded<R, Tensor<D>>> {
    let batch = inputs.q.x.shape().axes().first().copied().unwrap_or(0);
    let dims = Dims { batch, tokens: 1, heads, key, value, sequences: Sequences::batch(batch, 1) };
    check(rule, &dims, inputs)?;
    inputs.q.x.device().decode(rule, &dims, inputs)
}

fn check<D: Device, R: Rule>(rule: R, dims: &Dims, inputs: &Decode<R, Tensor<D>>) -> Result<()> {
    let Dims { batch, heads, key, value, .. } = *dims;
    if batch * heads * key * value == 0 {
        return Err(Error::Empty { what: WHAT, slot: "q", found: inputs.q.x.shape().clone() });
    }
    rule.check(dims)?;
    let gates = &inputs.gates;
    if !R::Gates::NAMES.iter().filter(|name| **name != "log_a").eq(gates.strengths.names()) {
        let (option, found) = ("strengths", format!("{:?}", gates.strengths.names()));
        return Err(Error::Config { what: R::NAME, option, found, expected: "those of the rule's gates" });
    }
    projected("q", &inputs.q, batch, heads * key)?;
    projected("k", &inputs.k, batch, heads * key)?;
    projected("v", &inputs.v, batch, heads * value)?;
    if let Some((retention, slope)) = &gates.retention {
        signal("retention", retention, batch, heads)?;
        slot("slope", slope, [heads])?;
    }
    signal("write", &gates.write, batch, heads)?;
    gates.strengths.signal().map_or(Ok(()), |x| signal("strengths", x, batch, heads))?;
    let (states, shapes) = (R::State::list(&inputs.state), rule.state(dims));
    let states = states.into_iter().zip(R::State::into_vec(shapes));
    states.into_iter().try_for_each(|((name, x), shape)| slot(name, x, shape))?;
    slot("weight", &inputs.weight, [value])?;
    inputs.gate.as_ref().map_or(Ok(()), |gate| slot("gate", gate, [batch, 1, heads * value]))
}

fn projected<D: Device>(name: &'static str, map: &Projected<Tensor<D>>, batch: usize, width: usize) -> Result<()> {
    slot(name, &map.x, [batch, 1, width])?;
    let Some((weight, last)) = &map.conv else { return Ok(()) };
    let taps = weight.shape().last();
    if taps < 2 {
        let found = taps.to_string();
        return Err(Error::Config { what: WHAT, option: "width", found, expected: "at least 2 taps" });
    }
    slot(name, weight, [width, taps])?;
    slot(name, last, [batch, taps - 1, width])
}

fn signal<D: Device>(name: &'static str, signal: &Signal<Tensor<D>>, batch: usize, heads: usize) -> Result<()> {
    slot(name, &signal.x, [batch, 1, heads])?;
    slot(name, &signal.bias, [heads])
}

fn slot<D: Device>(slot: &'static str, x: &Tensor<D>, expected: impl Into<Shape>) -> Result<()> {
    let expected = expected.into();
    if *x.shape() != expected {
        return Err(Error::Shape { what: WHAT, slot, expected, found: x.shape().clone() });
    }
    if x.dtype() != DType::F32 {
        return Err(Error::DType { what: WHAT, slot, expected: "f32", found: x.dtype() });
    }
    Ok(())
}
