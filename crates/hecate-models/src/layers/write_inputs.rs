//! What tokens write, split and joined along the text.

use super::{Context, GatedRule};
use crate::{Result, Tape, Var};
use hecate_core::{Backend, DType, Dims, Sequences, Shape, Slots, Tensor, primitives};

/// Keys, values and gates of consecutive tokens, in this order, each `[B,T,H,..]`.
#[derive(Clone)]
pub(super) struct WriteInputs<B: Backend>(Vec<Var<B>>);

impl<B: Backend> WriteInputs<B> {
    /// Of keys `[B,T,H,K]`, values `[B,T,H,V]` and gates `[B,T,H,..]`.
    pub(super) fn new(k: Var<B>, v: Var<B>, gates: Vec<Var<B>>) -> Self {
        Self([k, v].into_iter().chain(gates).collect())
    }

    /// Tokens a text, `T`.
    pub(super) fn tokens(&self) -> usize {
        self.keys().axes()[1]
    }

    /// Keys `[B,T,H,K]`.
    pub(super) fn keys(&self) -> &Var<B> {
        &self.0[0]
    }

    /// Keys, values and gates.
    pub(super) fn parts(&self) -> (&Var<B>, &Var<B>, &[Var<B>]) {
        (&self.0[0], &self.0[1], &self.0[2..])
    }

    /// Consecutive tokens of these lengths, whose sum is `T`.
    pub(super) fn split(&self, tape: &Tape<'_, B>, lengths: &[usize]) -> Result<Vec<Self>> {
        let mut parts = vec![Self(Vec::new()); lengths.len()];
        for array in &self.0 {
            for (whole, part) in parts.iter_mut().zip(tape.split(array, 1, lengths)?) {
                whole.0.push(part);
            }
        }
        Ok(parts)
    }

    /// These tokens, then `later` ones.
    pub(super) fn join(&self, tape: &Tape<'_, B>, later: &Self) -> Result<Self> {
        self.0.iter().zip(&later.0).map(|(a, b)| tape.concat(&[a, b], 1)).collect::<Result<_>>().map(Self)
    }

    /// `f` of each array.
    pub(super) fn map(&self, f: impl FnMut(&Var<B>) -> Result<Var<B>>) -> Result<Self> {
        self.0.iter().map(f).collect::<Result<_>>().map(Self)
    }

    /// The same keys and values, with `f` of the index and array of each gate.
    pub(super) fn with_gates(&self, mut f: impl FnMut(usize, &Var<B>) -> Result<Var<B>>) -> Result<Self> {
        let (tokens, gates) = self.0.split_at(2);
        let gates = gates.iter().enumerate().map(|(slot, gate)| f(slot, gate));
        tokens.iter().cloned().map(Ok).chain(gates).collect::<Result<_>>().map(Self)
    }

    /// Inputs of the call that writes these tokens and reads `q`, by position. Where nothing is read, keys stand for the
    /// queries, as constants.
    pub(super) fn inputs(&self, q: Option<&Var<B>>, state: Vec<Var<B>>) -> Vec<Var<B>> {
        let q = q.cloned().unwrap_or_else(|| Var::constant(self.keys().value().clone()));
        [q].into_iter().chain(self.0.iter().cloned()).chain(state).collect()
    }

    /// The last `count` tokens of an unfinished chunk, as the context remembers them from before the queries `q`; none for
    /// `count = 0`.
    pub(super) fn pending(
        shapes: &[(&'static str, Shape)],
        count: usize,
        tape: &Tape<'_, B>,
        q: &Var<B>,
        context: &Context<'_, B>,
    ) -> Result<Option<Self>> {
        if count == 0 {
            return Ok(None);
        }
        let array = |(name, shape): &(&'static str, Shape)| {
            let array = match *name {
                // Keys and values are of the queries' type, gates in 32 bits.
                "k" | "v" => context.inputs(tape, name, q, shape.clone())?,
                _ => context.state(q.value().device(), name, shape.clone())?,
            };
            tape.narrow(&array, 1, 0, count)
        };
        Ok(Some(Self(shapes.iter().map(array).collect::<Result<_>>()?)))
    }

    /// Arrays of zeros with room for the tokens of `shapes`, as [`write_shapes`] gives them.
    pub(super) fn room(shapes: Vec<(&'static str, Shape)>, device: &B) -> Result<Vec<(&'static str, Tensor<B>)>> {
        let zeros = |(name, shape)| Ok((name, Tensor::zeros(device, shape, DType::F32)?));
        shapes.into_iter().map(zeros).collect()
    }

    /// Remembers the tokens of an unfinished chunk, padded with zeros to those of `shapes`, since shapes in a cache never
    /// change.
    pub(super) fn keep(
        pending: Option<&Self>,
        shapes: Vec<(&'static str, Shape)>,
        device: &B,
        context: &mut Context<'_, B>,
    ) -> Result<()> {
        if context.cache.is_none() {
            return Ok(());
        }
        for (at, (name, shape)) in shapes.into_iter().enumerate() {
            let array = match pending {
                Some(Self(arrays)) => {
                    let known = arrays[at].value();
                    filled(known, &Tensor::zeros(device, shape, known.dtype())?)?
                }
                None => Tensor::zeros(device, shape, DType::F32)?,
            };
            context.keep(name, &array);
        }
        Ok(())
    }
}

/// `x [B,t,..]` with the tokens of `room [B,C,..]` from `t` on.
fn filled<B: Backend>(x: &Tensor<B>, room: &Tensor<B>) -> hecate_core::Result<Tensor<B>> {
    let (count, whole) = (x.shape().axes()[1], room.shape().axes()[1]);
    if count == whole {
        return Ok(x.clone());
    }
    primitives::concat(&[x, &primitives::narrow(room, 1, count, whole - count)?], 1)
}

/// Names and shapes of what `dims.tokens` tokens write: keys `[B,T,H,K]`, values `[B,T,H,V]`, gates `[B,T,H,..]`.
pub(super) fn write_shapes<R: GatedRule>(rule: R, dims: &Dims) -> Vec<(&'static str, Shape)> {
    let mut all = vec![("k", dims.keys()), ("v", dims.values())];
    all.extend(R::Gates::NAMES.iter().copied().zip(R::Gates::into_vec(rule.gates(dims))));
    all
}

/// The same memory in a call of `tokens` tokens.
pub(super) fn with_tokens(dims: &Dims, tokens: usize) -> Dims {
    Dims { tokens, sequences: Sequences::batch(dims.batch, tokens), ..dims.clone() }
}

/// Lengths into which multiples of `period`, counted from the start of the text, split the `tokens` tokens from
/// `position` on.
pub(super) fn lengths_between_multiples(position: usize, tokens: usize, period: usize) -> Vec<usize> {
    // Only where in its period a token stands counts.
    let mut at = position % period;
    let end = at.saturating_add(tokens);
    let mut lengths = Vec::new();
    while at < end {
        let next = (at / period + 1).saturating_mul(period).min(end);
        lengths.push(next - at);
        at = next;
    }
    lengths
}
