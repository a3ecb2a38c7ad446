//! Frozen rules by pieces of a group: up to so many tokens at once, which share a gradient point.
//!
//! All that depends on the gradient point alone is done for all tokens of a piece together, and its states are made in one
//! sweep over them. A piece has few barriers, where each token had as many. All numbers have 32 bits and sums the order of
//! the kernels by tokens or a better one: results are as good as theirs, whatever the type of the arguments.
//!
//! # Memory
//!
//! States are kept as by tokens. All that a block works on lies in shared memory: of a backward, the states after each token
//! of a piece. Only the gradient of the point and the states before the pieces of an interval have a workspace.
//!
//! # What goes token by token
//!
//! Groups of less than 4 tokens or more than 64, widths that four does not divide, and states too large for shared memory.

use super::{Grouped, MOST_THREADS, Start, near_limit};
use crate::Cuda;
use hecate_core::{Checkpoints, Dims};

/// `ROW_GAP`.
const ROW_GAP: usize = 4;
/// Tokens of a group from which on pieces pay, and at most, since groups are no longer than an interval of kept states.
const GROUPS: std::ops::RangeInclusive<usize> = 4..=Checkpoints::INTERVAL;

/// Threads and warps of a block, where a rule says nothing else.
pub(crate) const THREADS: usize = MOST_THREADS;
pub(crate) const WARPS: usize = THREADS / 32;

/// Elements of a panel, whose rows lie apart.
pub(crate) fn panel(rows: usize, width: usize) -> usize {
    rows * (width + ROW_GAP)
}

/// A kernel by pieces: what is needed to plan it.
pub(crate) struct Pieces<C> {
    pub(crate) start: Start<C>,
    /// Blocks that share a memory, and threads of each.
    pub(crate) cluster: usize,
    pub(crate) threads: usize,
    /// Its `Cell::TOKENS`.
    pub(crate) tokens: usize,
    /// Elements of a token's gates, and of a state.
    pub(crate) gates: usize,
    pub(crate) state: usize,
    /// Elements of a gradient point: `Cell::point`.
    pub(crate) point: usize,
    /// Elements that a backward has in global memory, with the gradient of the state where that is there.
    pub(crate) far: usize,
    /// Elements by which blocks exchange results: `Cell::SHARED`.
    pub(crate) shared: usize,
    /// Whether the gradient of the state is in shared memory: `Cell::NEAR_ADJOINT`.
    pub(crate) near_adjoint: bool,
    /// Arrays of the pass, in the order in which its cell takes them.
    pub(crate) room: Vec<usize>,
}

impl<C> Pieces<C> {
    /// The kernel of a pass, 0 forward and 1 backward, for groups of `frozen` tokens. None where it does not suit: widths are
    /// read four elements at once, and shared memory has room for all arrays.
    pub(crate) fn grouped(self, device: &Cuda, frozen: Option<u32>, dims: &Dims, pass: usize) -> Option<Grouped<C>> {
        let Self { start, cluster, threads, tokens, gates, state, point, far, shared, near_adjoint, room } = self;
        // No groups, or groups that do not fit an interval: token by token.
        let group = frozen.filter(|&group| GROUPS.contains(&(group as usize)))? as usize;
        let whole = [dims.key, dims.value].iter().all(|&width| width > 0 && width.is_multiple_of(4));
        // Only a backward reads gradients of outputs.
        let dout = if pass == 0 { 0 } else { tokens };
        let rows = [(tokens, dims.key), (tokens, dims.key), (tokens, dims.value), (dout, dims.value), (tokens, gates)];
        // Rows; the state or its gradient, and the point; what the cell takes.
        let rows = rows.iter().map(|&(rows, width)| panel(rows, width));
        // A forward always has its state at hand.
        let own = if pass == 0 || near_adjoint { state } else { 0 };
        let arrays: Vec<usize> = rows.chain([own, point]).chain(room).collect();
        // As the kernels count: arrays begin at multiples of four elements.
        let all: usize = arrays.iter().map(|count| count.next_multiple_of(4)).sum();
        if !whole || all > near_limit(device) {
            return None;
        }
        // In global memory a backward has the gradient of the point, and states before pieces of an interval but the first.
        let pieces = Checkpoints::new(frozen).period() / group * group.div_ceil(tokens);
        let far = if pass == 0 { 0 } else { pieces * state + far };
        Some(Grouped {
            start,
            cluster,
            together: false,
            threads: threads as u32,
            exchanged: shared + far,
            arrays,
            record: 0,
        })
    }
}
