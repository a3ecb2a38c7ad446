//! What tokens write, in pieces.

use super::{Context, GatedRule, memory::Tokens};
use crate::{Result, Tape, Var};
use hecate_core::{Backend, DType, Dims, Inputs, Of, Sequences, Shape, Slots, Tensor, primitives};

/// Keys, values and gates of consecutive tokens, in this order, each `[B,T,H,..]`.
#[derive(Clone)]
pub(super) struct Writes<B: Backend>(Vec<Var<B>>);

impl<B: Backend> Writes<B> {
    pub(super) fn new<R: GatedRule>(k: Var<B>, v: Var<B>, gates: Of<R::Gates, Var<B>>) -> Self {
        Self([k, v].into_iter().chain(R::Gates::into_vec(gates)).collect())
    }

    /// The queries, and what is written.
    pub(super) fn of<R: GatedRule>(Tokens { q, k, v, gates }: Tokens<R, B>) -> (Var<B>, Self) {
        (q, Self::new::<R>(k, v, gates))
    }

    pub(super) fn tokens(&self) -> usize {
        self.keys().axes()[1]
    }

    pub(super) fn keys(&self) -> &Var<B> {
        &self.0[0]
    }

    /// Consecutive pieces of these lengths.
    pub(super) fn split(&self, tape: &Tape<'_, B>, lengths: &[usize]) -> Result<Vec<Self>> {
        let mut pieces = vec![Self(Vec::new()); lengths.len()];
        for array in &self.0 {
            for (piece, part) in pieces.iter_mut().zip(tape.split(array, 1, lengths)?) {
                piece.0.push(part);
            }
        }
        Ok(pieces)
    }

    /// These tokens, and `later` ones behind them.
    pub(super) fn join(&self, tape: &Tape<'_, B>, later: &Self) -> Result<Self> {
        self.0.iter().zip(&later.0).map(|(a, b)| tape.concat(&[a, b], 1)).collect::<Result<_>>().map(Self)
    }

    /// Each array by itself.
    pub(super) fn map(&self, f: impl FnMut(&Var<B>) -> Result<Var<B>>) -> Result<Self> {
        self.0.iter().map(f).collect::<Result<_>>().map(Self)
    }

    /// The call that writes them and reads `q`; where nothing is read, the keys may stand for the queries.
    pub(super) fn inputs<R: GatedRule>(
        &self,
        q: Option<&Var<B>>,
        state: Of<R::State, Var<B>>,
    ) -> Result<Inputs<R, Var<B>>> {
        let [k, v] = [0, 1].map(|at| self.0[at].clone());
        let q = q.cloned().unwrap_or_else(|| Var::constant(k.value().clone()));
        let mut gates = self.0[2..].iter();
        // There is an array for every gate, in their order.
        let gates = R::Gates::build(|_| gates.next().expect("as many arrays as gates").clone());
        Ok(Inputs { q, k, v, gates, state })
    }

    /// The last `count` tokens of a chunk that is not full yet, as the context remembers them, in front of those with the
    /// queries `q`; none for `count = 0`.
    pub(super) fn pending<R: GatedRule>(
        rule: R,
        dims: &Dims,
        count: usize,
        tape: &Tape<'_, B>,
        (q, context): (&Var<B>, &Context<'_, B>),
    ) -> Result<Option<Self>> {
        if count == 0 {
            return Ok(None);
        }
        let array = |(name, shape)| {
            let array = match name {
                // Keys and values are of the queries' type, gates in 32 bits.
                "k" | "v" => context.inputs(tape, name, q, shape)?,
                _ => context.state(q.value().device(), name, shape)?,
            };
            tape.narrow(&array, 1, 0, count)
        };
        let arrays = shapes(rule, dims).into_iter().map(array);
        Ok(Some(Self(arrays.collect::<Result<_>>()?)))
    }

    /// Arrays that remember up to `dims.tokens` tokens.
    pub(super) fn room<R: GatedRule>(rule: R, dims: &Dims, device: &B) -> Result<Vec<(&'static str, Tensor<B>)>> {
        let zeros = |(name, shape)| Ok((name, Tensor::zeros(device, shape, DType::F32)?));
        shapes(rule, dims).into_iter().map(zeros).collect()
    }

    /// Remembers tokens of a chunk that is not full yet, behind them zeros.
    pub(super) fn keep<R: GatedRule>(
        pending: Option<&Self>,
        rule: R,
        dims: &Dims,
        device: &B,
        context: &mut Context<'_, B>,
    ) -> Result<()> {
        if context.cache.is_none() {
            return Ok(());
        }
        for (at, (name, shape)) in shapes(rule, dims).into_iter().enumerate() {
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

/// `x`, shorter than `room` along axis 1, and then what is in `room`.
fn filled<B: Backend>(x: &Tensor<B>, room: &Tensor<B>) -> hecate_core::Result<Tensor<B>> {
    let (count, whole) = (x.shape().axes()[1], room.shape().axes()[1]);
    if count == whole {
        return Ok(x.clone());
    }
    primitives::concat(&[x, &primitives::narrow(room, 1, count, whole - count)?], 1)
}

/// Names and shapes of the arrays that remember `dims.tokens` tokens.
fn shapes<R: GatedRule>(rule: R, dims: &Dims) -> Vec<(&'static str, Shape)> {
    let mut all = vec![("k", dims.keys()), ("v", dims.values())];
    all.extend(R::Gates::NAMES.iter().copied().zip(R::Gates::into_vec(rule.gates(dims))));
    all
}

/// The same memory in a call of `tokens` tokens.
pub(super) fn with_tokens(dims: &Dims, tokens: usize) -> Dims {
    Dims { tokens, sequences: Sequences::batch(dims.batch, tokens), ..dims.clone() }
}

/// Lengths of the pieces of `tokens` tokens at `position` that multiples of `period`, counted from the start of the
/// text, cut them into.
pub(super) fn pieces(position: usize, tokens: usize, period: usize) -> Vec<usize> {
    let (mut at, end) = (position, position + tokens);
    let mut lengths = Vec::new();
    while at < end {
        let next = (at / period + 1).saturating_mul(period).min(end);
        lengths.push(next - at);
        at = next;
    }
    lengths
}
