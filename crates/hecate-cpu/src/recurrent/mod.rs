//! Rules whose step is not linear in the memory: token by token, forward and backward.
//!
//! A rule says what one token does ([`Cell`]); this module cuts calls into sequences and heads, keeps states, computes
//! those between them again, and walks back. Frozen rules that have a form in matrix products say so ([`Groups`]) and
//! then go a group at a time.
//!
//! # Memory
//!
//! Between forward and backward a call keeps one state every `C = 64` tokens, and none a token: `N H ⌈T/C⌉ |state|`
//! numbers (frozen rules every `⌊C/G⌋ G` tokens, or every `C` tokens of each longer group). [`Bill`](crate::Bill) is the
//! whole bill of a backward.

mod bill;
mod lane;

pub(crate) use bill::peak_bytes;

use crate::{
    Algorithm, Cpu,
    device::{floats, tensor},
};
use hecate_core::{DType, Dims, Error, Host, Inputs, Of, Outputs, Result, Rule, Shape, Slots, Tensor};
use lane::{Lane, gather};
use rayon::prelude::*;

/// A rule that this engine runs.
pub(crate) trait Recurrent: Rule {
    /// The rule with all sizes known.
    type Cell: Cell;

    /// The rule at these sizes.
    fn cell(self, dims: &Dims) -> Self::Cell;

    /// Groups of this many tokens share one gradient point.
    fn frozen(self) -> Option<u32>;

    /// Refuses initial states that the rule is not defined for.
    ///
    /// # Errors
    /// [`Error::Value`] naming the slot.
    fn check_state(self, _dims: &Dims, _state: &Of<Self::State, &[f32]>) -> Result<()> {
        Ok(())
    }
}

/// One token's arguments: `q`, `k` `[K]`, `v` `[V]`, and the gates one behind another in the order of their slots.
#[derive(Clone, Copy)]
pub(crate) struct Token<'a> {
    pub(crate) q: &'a [f32],
    pub(crate) k: &'a [f32],
    pub(crate) v: &'a [f32],
    pub(crate) gates: &'a [f32],
}

/// Gradients of one token's arguments; zero when given.
pub(crate) struct TokenGrads<'a> {
    pub(crate) q: &'a mut [f32],
    pub(crate) k: &'a mut [f32],
    pub(crate) v: &'a mut [f32],
    pub(crate) gates: &'a mut [f32],
}

/// States around one token. A state is all its slots one behind another, each row-major.
#[derive(Clone, Copy)]
pub(crate) struct States<'a> {
    /// Before the token.
    pub(crate) old: &'a [f32],
    /// Where the gradient is taken: `old`, or the state at the start of the group.
    pub(crate) point: &'a [f32],
    /// After the token.
    pub(crate) new: &'a [f32],
}

/// Gradients of states.
pub(crate) struct Adjoint<'a> {
    /// Of the state after the token when given, of the state before it when handed back, `point` not counted.
    pub(crate) state: &'a mut [f32],
    /// Of the point; to be added to.
    pub(crate) point: &'a mut [f32],
}

/// A rule with all sizes known: what one token does. Everything called here is `#[inline(always)]`, so that it is
/// compiled for the widest vectors together with its caller.
pub(crate) trait Cell: Sync {
    /// Room for one token's intermediate results, one a lane; nothing is allocated in the loop over tokens.
    type Scratch: Send;

    /// A lane's scratch.
    fn scratch(&self) -> Self::Scratch;

    /// Numbers that a token's forward leaves for its backward.
    fn record(&self) -> usize;

    /// `out [V]` and the state after the token from the state before it; every element of `new`, `record` and `out` is
    /// written.
    #[expect(clippy::too_many_arguments, reason = "a token, states, what it leaves, results")]
    fn forward(
        &self,
        token: Token<'_>,
        old: &[f32],
        point: &[f32],
        new: &mut [f32],
        record: &mut [f32],
        scratch: &mut Self::Scratch,
        out: &mut [f32],
    );

    /// Gradients of a token's arguments and of the state before it.
    #[expect(clippy::too_many_arguments, reason = "a token, states, what it leaves, results")]
    fn backward(
        &self,
        token: Token<'_>,
        states: States<'_>,
        record: &[f32],
        dout: &[f32],
        adjoint: Adjoint<'_>,
        scratch: &mut Self::Scratch,
        grads: TokenGrads<'_>,
    );

    /// The next token is not the neighbour of the last one: nothing of its states is in the scratch.
    fn forget(&self, _: &mut Self::Scratch) {}

    /// Whether [`Cell::backward`] adds what belongs to the point to the gradient of the state before the token: where no
    /// group is frozen they are the same.
    fn merges(&self) -> bool {
        false
    }

    /// The form in matrix products over several tokens of one group, where the rule has one.
    fn groups(&self) -> Option<&dyn Groups<Self::Scratch>> {
        None
    }

    /// Bytes of a lane's scratch, that of [`Cell::groups`] included.
    fn scratch_bytes(&self) -> usize;
}

/// Several tokens of one group: rows one behind another.
#[derive(Clone, Copy)]
pub(crate) struct Rows<'a> {
    pub(crate) tokens: usize,
    pub(crate) q: &'a [f32],
    pub(crate) k: &'a [f32],
    pub(crate) v: &'a [f32],
    pub(crate) gates: &'a [f32],
}

/// A stretch of at most [`CHUNK`] tokens inside one group, at once; `S` is a lane's scratch.
pub(crate) trait Groups<S>: Sync {
    /// `out [n,V]`, and `state` from before the stretch to behind it; `point` is the state at the group's start.
    fn forward(&self, rows: Rows<'_>, scratch: &mut S, state: &mut [f32], point: &[f32], out: &mut [f32]);

    /// Gradients of a stretch that starts at `start`.
    #[expect(clippy::too_many_arguments, reason = "tokens, scratch, states, results")]
    fn backward(
        &self,
        rows: Rows<'_>,
        scratch: &mut S,
        start: &[f32],
        point: &[f32],
        dout: &[f32],
        adjoint: Adjoint<'_>,
        grads: TokenGrads<'_>,
    );
}

/// Tokens between kept states.
pub(crate) use crate::engine::CHUNK;

/// States that were kept, lane by lane.
pub struct Kept(Vec<Vec<f32>>);

/// A call: arrays as 32-bit floats, sizes, and where states are kept.
struct Call<'a, C> {
    cell: C,
    dims: &'a Dims,
    frozen: Option<usize>,
    /// Whether groups go through [`Groups`].
    grouped: bool,
    /// Numbers of gates a token and head, by slot.
    widths: Vec<usize>,
    /// Numbers of a state.
    size: usize,
}

impl<'a, C: Cell> Call<'a, C> {
    fn new<R: Recurrent<Cell = C>>(
        device: &Cpu,
        rule: R,
        dims: &'a Dims,
        inputs: &Inputs<R, Tensor<Cpu>>,
    ) -> Result<Self> {
        for (slot, gate) in R::Gates::list(&inputs.gates) {
            check_gate(R::NAME, slot, &floats(gate))?;
        }
        let state = R::State::map(R::State::as_ref(&inputs.state), |_, x| match &**x.buffer() {
            Host::F32(values) => values.as_slice(),
            _ => &[],
        });
        rule.check_state(dims, &state)?;
        let cell = rule.cell(dims);
        let rows = dims.sequences.rows() * dims.heads;
        let widths = R::Gates::list(&inputs.gates).iter().map(|(_, gate)| gate.shape().count() / rows).collect();
        let lanes = dims.sequences.count() * dims.heads;
        let size = R::State::list(&inputs.state).iter().map(|(_, x)| x.shape().count() / lanes).sum();
        let grouped = device.algorithm() != Algorithm::Scan && cell.groups().is_some();
        Ok(Self { cell, dims, frozen: rule.frozen().map(|group| group as usize), grouped, widths, size })
    }

    /// Sequences and heads, in this order.
    fn lanes(&self) -> Vec<(usize, std::ops::Range<usize>, usize)> {
        let heads = self.dims.heads;
        let sequences = self.dims.sequences.ranges().enumerate();
        sequences.flat_map(|(n, rows)| (0..heads).map(move |head| (n, rows.clone(), head))).collect()
    }
}

/// The arrays that lanes are cut out of.
struct Arrays<'a> {
    q: std::borrow::Cow<'a, [f32]>,
    k: std::borrow::Cow<'a, [f32]>,
    v: std::borrow::Cow<'a, [f32]>,
    gates: Vec<std::borrow::Cow<'a, [f32]>>,
    states: Vec<std::borrow::Cow<'a, [f32]>>,
}

impl<'a> Arrays<'a> {
    fn new<R: Rule>(inputs: &'a Inputs<R, Tensor<Cpu>>) -> Self {
        Self {
            q: floats(&inputs.q),
            k: floats(&inputs.k),
            v: floats(&inputs.v),
            gates: R::Gates::list(&inputs.gates).into_iter().map(|(_, x)| floats(x)).collect(),
            states: R::State::list(&inputs.state).into_iter().map(|(_, x)| floats(x)).collect(),
        }
    }
}

/// Refuses gates outside their ranges: logarithms of factors, thresholds, and strengths.
fn check_gate(what: &'static str, slot: &'static str, values: &[f32]) -> Result<()> {
    let (fits, expected): (fn(f32) -> bool, _) = match slot {
        "log_a" | "log_eta" => (|x| x <= 0.0, "a logarithm of a factor in [0, 1]: −∞ to 0"),
        "delta" => (|x| x.is_finite() && x >= 0.0, "a finite number, at least 0"),
        _ => (f32::is_finite, "a finite number"),
    };
    match values.iter().position(|&x| !fits(x)) {
        None => Ok(()),
        Some(index) => Err(Error::Value { what, slot, index, found: values[index].into(), expected }),
    }
}

/// Runs a rule; `keep` says whether a backward will come.
pub(crate) fn forward<R: Recurrent>(
    device: &Cpu,
    rule: R,
    dims: &Dims,
    inputs: &Inputs<R, Tensor<Cpu>>,
    keep: bool,
) -> Result<(Outputs<R, Tensor<Cpu>>, Kept)> {
    let call = Call::new(device, rule, dims, inputs)?;
    let arrays = Arrays::new(inputs);
    let (out, states, kept) = device.run(|| {
        let lanes = call.lanes();
        let done: Vec<_> = lanes.par_iter().map(|lane| Lane::new(&call, &arrays, lane).forward(keep)).collect();
        let out = gather(dims, dims.value, |i| &done[i].out);
        let shapes = R::State::list(&rule.state(dims)).into_iter().map(|(_, x)| x.count()).collect::<Vec<_>>();
        let states = split(&shapes, done.iter().map(|lane| lane.state.as_slice()));
        (out, states, done.into_iter().map(|lane| lane.kept).collect())
    });
    let mut states = states.into_iter();
    let out = tensor(device, dims.values(), inputs.q.dtype(), out);
    let state = R::State::map(rule.state(dims), |_, shape: Shape| {
        tensor(device, shape, DType::F32, states.next().unwrap_or_default())
    });
    Ok((Outputs { out, state }, Kept(kept)))
}

/// Gradients of all inputs.
pub(crate) fn backward<R: Recurrent>(
    device: &Cpu,
    rule: R,
    dims: &Dims,
    inputs: &Inputs<R, Tensor<Cpu>>,
    kept: Kept,
    grads: &Outputs<R, Tensor<Cpu>>,
) -> Result<Inputs<R, Tensor<Cpu>>> {
    let call = Call::new(device, rule, dims, inputs)?;
    let arrays = Arrays::new(inputs);
    let dout = floats(&grads.out);
    let dfinal: Vec<_> = R::State::list(&grads.state).into_iter().map(|(_, x)| floats(x)).collect();
    let (dq, dk, dv, dgates, dstates) = device.run(|| {
        let lanes = call.lanes();
        let done: Vec<_> = lanes
            .par_iter()
            .zip(kept.0)
            .map(|(lane, kept)| Lane::new(&call, &arrays, lane).backward(&kept, &dout, &dfinal))
            .collect();
        let dgates: Vec<_> =
            call.widths.iter().enumerate().map(|(s, &w)| gather(dims, w, |i| &done[i].gates[s])).collect();
        let shapes = R::State::list(&rule.state(dims)).into_iter().map(|(_, x)| x.count()).collect::<Vec<_>>();
        let dstates = split(&shapes, done.iter().map(|lane| lane.state.as_slice()));
        (
            gather(dims, dims.key, |i| &done[i].q),
            gather(dims, dims.key, |i| &done[i].k),
            gather(dims, dims.value, |i| &done[i].v),
            dgates,
            dstates,
        )
    });
    let (mut dgates, mut dstates) = (dgates.into_iter(), dstates.into_iter());
    let dtype = inputs.q.dtype();
    let wide = |shape: Shape, values: Option<Vec<f32>>| tensor(device, shape, DType::F32, values.unwrap_or_default());
    Ok(Inputs {
        q: tensor(device, dims.keys(), dtype, dq),
        k: tensor(device, dims.keys(), dtype, dk),
        v: tensor(device, dims.values(), dtype, dv),
        gates: R::Gates::map(rule.gates(dims), |_, shape| wide(shape, dgates.next())),
        state: R::State::map(rule.state(dims), |_, shape| wide(shape, dstates.next())),
    })
}

/// Lanes' states, cut into slots of `counts` numbers in all.
fn split<'l>(counts: &[usize], lanes: impl ExactSizeIterator<Item = &'l [f32]>) -> Vec<Vec<f32>> {
    let number = lanes.len();
    let mut slots: Vec<Vec<f32>> = counts.iter().map(|&count| Vec::with_capacity(count)).collect();
    for lane in lanes {
        let mut rest = lane;
        for (slot, count) in slots.iter_mut().zip(counts) {
            let (own, behind) = rest.split_at(count / number);
            slot.extend_from_slice(own);
            rest = behind;
        }
    }
    slots
}

/// A cell of this column for a rule that the engine runs: what [`hecate_core::Kernel`] and [`crate::Bill`] ask for.
macro_rules! cells {
    ($($rule:ty),* $(,)?) => { $(
        impl hecate_core::Kernel<$rule> for crate::Cpu {
            type Saved = crate::recurrent::Kept;

            fn forward(
                &self,
                rule: $rule,
                dims: &hecate_core::Dims,
                inputs: &hecate_core::Inputs<$rule, hecate_core::Tensor<Self>>,
            ) -> hecate_core::Result<(hecate_core::Outputs<$rule, hecate_core::Tensor<Self>>, Self::Saved)> {
                crate::recurrent::forward(self, rule, dims, inputs, true)
            }

            fn backward(
                &self,
                rule: $rule,
                dims: &hecate_core::Dims,
                inputs: &hecate_core::Inputs<$rule, hecate_core::Tensor<Self>>,
                saved: Self::Saved,
                grads: &hecate_core::Outputs<$rule, hecate_core::Tensor<Self>>,
            ) -> hecate_core::Result<hecate_core::Inputs<$rule, hecate_core::Tensor<Self>>> {
                crate::recurrent::backward(self, rule, dims, inputs, saved, grads)
            }

            fn infer(
                &self,
                rule: $rule,
                dims: &hecate_core::Dims,
                inputs: &hecate_core::Inputs<$rule, hecate_core::Tensor<Self>>,
            ) -> hecate_core::Result<hecate_core::Outputs<$rule, hecate_core::Tensor<Self>>> {
                Ok(crate::recurrent::forward(self, rule, dims, inputs, false)?.0)
            }
        }

        impl crate::Bill<$rule> for crate::Cpu {
            fn peak_bytes(&self, rule: $rule, dims: &hecate_core::Dims) -> usize {
                crate::recurrent::peak_bytes(rule, dims, self.threads())
            }
        }
    )* };
}
pub(crate) use cells;
