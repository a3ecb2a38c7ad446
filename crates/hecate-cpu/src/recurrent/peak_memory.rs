//! The peak memory of a backward of rules that go token by token.

use super::{CHUNK, Cell, Recurrent};
use crate::peak_memory::{product, sum};
use hecate_core::{Checkpoints, Dims, Slots};

/// More elements than any memory holds. Sums and products of what is under it do not overflow.
const MOST: usize = if usize::BITS < 64 { 1 << 30 } else { 1 << 48 };

/// Upper bound of the bytes that a forward with its backward takes beside its arguments, for 32-bit inputs.
///
/// `R` counts rows of tokens, `|s|` elements of a state, `g` gates a token, `J` kept states.
/// `r` counts the elements that a token leaves for its backward.
///
/// ```text
/// 4 bytes × ( H J |s|                                kept states
///           + R H V + 2 R H (2 K + V + g)            results; gradients, by head and joined
///           + tasks T (2 K + 2 V + 2 g)              own rows of heads under way, T the longest sequence
///           + 4 N H |s|                              states and their gradients, by head and joined
///           + tasks ((C + 6) |s| + C r) )            workspace: the states of C = 64 tokens
///           + N H |s| + tasks (3 |s| + T)            with an anchor: its gradients, what tokens find, retention
///           + tasks (|s| + 9 columns)                where columns go back to its lengths: starts of groups, sums, factors
/// + tasks × what one token's step needs           a task is a head of a sequence, a thread each at most
/// ```
pub(super) fn peak_bytes<R: Recurrent<F>, F>(rule: R, dims: &Dims, threads: usize) -> usize {
    let Some(sizes) = Sizes::of(rule, dims) else { return usize::MAX };
    let given = sum(&[sizes.kept, sizes.out, product(&[2, sizes.state])]);
    product(&[4, sum(&[given, sizes.backward(dims, threads)])])
}

/// Elements of what a call of known sizes needs; none where they are more than any memory holds.
pub(super) struct Sizes {
    /// Rows of tokens, one a head.
    rows: usize,
    /// Gates a token.
    gates: usize,
    /// Of all states.
    state: usize,
    /// Of what is read.
    out: usize,
    /// Of the states that are kept for a backward.
    kept: usize,
    /// Of one task's workspace.
    scratch: usize,
    /// Of gradients of anchors by sequence and head; 0 without.
    anchors: usize,
}

impl Sizes {
    /// Of this rule and these sizes; of no elements where an axis has none.
    pub(super) fn of<R: Recurrent<F>, F>(rule: R, dims: &Dims) -> Option<Self> {
        let state = sum(&R::State::into_vec(rule.state(dims)).iter().map(|x| x.count()).collect::<Vec<_>>());
        let gates = sum(&R::Gates::into_vec(rule.gates(dims)).iter().map(|x| x.count()).collect::<Vec<_>>());
        let (rows, heads) =
            (product(&[dims.sequences.rows(), dims.heads]), product(&[dims.sequences.count(), dims.heads]));
        let (keys, out) = (dims.keys().count(), dims.values().count());
        let one = R::State::into_vec(rule.state(&Dims::new(1, 1, 1, dims.key, dims.value)));
        let one = sum(&one.iter().map(|x| x.count()).collect::<Vec<_>>());
        if [state, one, gates, rows, keys, out, dims.key, dims.value].into_iter().any(|count| count > MOST) {
            return None;
        }
        let (size, gates) = (state / heads.max(1), gates / rows.max(1));
        let kept = product(&[Checkpoints::new(rule.frozen()).total(&dims.sequences), dims.heads, size]);
        // An interval is no longer than a chunk, and shorter in shorter sequences.
        let (cell, longest) = (rule.cell(dims), dims.sequences.longest().min(CHUNK));
        let states = product(&[longest + 6, size]);
        // The anchor of a head, its gradient, what a token finds, and `a` of each of them.
        let anchored = if dims.anchored { sum(&[product(&[3, size]), dims.sequences.longest()]) } else { 0 };
        // The widest matrix decides: there is one at a time.
        let widest = cell.renormed().iter().map(|[_, columns]| *columns).max();
        let opened = widest.map_or(0, |columns| sum(&[size, product(&[9, columns])]));
        let anchored = sum(&[anchored, opened]);
        let scratch = sum(&[states, anchored, product(&[longest, cell.record()]), cell.scratch_bytes().div_ceil(4)]);
        let anchors = if dims.anchored { state } else { 0 };
        Some(Self { rows, gates, state, out, kept, scratch, anchors })
    }

    /// A forward's: results, by head and joined, and what tasks under way hold.
    pub(super) fn forward(&self, dims: &Dims, threads: usize, keep: bool) -> usize {
        let kept = if keep { self.kept } else { 0 };
        sum(&[product(&[2, self.out]), product(&[2, self.state]), kept, self.under_way(dims, threads, 1)])
    }

    /// A backward's: gradients, by head and joined, and what tasks under way hold.
    pub(super) fn backward(&self, dims: &Dims, threads: usize) -> usize {
        let token = 2 * dims.key + dims.value + self.gates;
        let states = sum(&[product(&[2, self.state]), self.anchors]);
        sum(&[product(&[2, self.rows, token]), states, self.under_way(dims, threads, 2)])
    }

    /// Rows of heads under way, `copies` of each, and workspaces.
    fn under_way(&self, dims: &Dims, threads: usize, copies: usize) -> usize {
        let tasks = threads.min(product(&[dims.sequences.count(), dims.heads]));
        let token = dims.key + dims.value + self.gates;
        sum(&[product(&[tasks, dims.sequences.longest(), copies, token]), product(&[tasks, self.scratch])])
    }
}
