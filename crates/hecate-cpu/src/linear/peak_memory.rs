//! What a backward costs in memory.

use super::{
    call::block_width,
    checkpoints::{CHUNK, cut},
};
use crate::{Cpu, PeakMemory};
use hecate_core::{
    Dims,
    families::{Linear, LinearRule},
};

impl<R: LinearRule> PeakMemory<R, Linear> for Cpu {
    fn peak_bytes(&self, rule: R, dims: &Dims) -> usize {
        let spec = rule.spec();
        peak_bytes(dims, spec.momentum, spec.group(), self.threads())
    }
}

/// Upper bound of the bytes that a forward with its backward takes beside its arguments.
///
/// It holds for 32-bit inputs on `threads` threads.
/// What the device keeps of earlier calls is counted where it is used again.
///
/// With `R` rows of tokens, `X` column blocks a head, `C = 64` and `m` = 2 with momentum, else 1:
///
/// ```text
/// 4 bytes × ( H J K V m                           kept states
///           + 2 R H V + 2 R H K X + 2 N H K V m   results, gradients of q, k and v, states and their gradients
///           + 16 R H X                            scalars of the recurrence and their gradients
///           + 12 R H X + 4 N H X K m              where the rows of each tile are
///           + threads (24 C² + 20 C (K + V) + (16 + m L) K V) )     workspaces
/// ```
///
/// Unless frozen, `J = ⌈T/C⌉`, summed over the sequences, and `L = 0`.
/// In frozen groups of `G < C` tokens one state is kept for `L = ⌊C/G⌋` groups.
/// Of longer groups one is kept every `C` tokens of each.
/// Nothing in it is a state per token: doubling `T` adds one state every 64 tokens, or every 33 at worst.
fn peak_bytes(dims: &Dims, momentum: bool, frozen: Option<usize>, threads: usize) -> usize {
    let Dims { heads, key, value, .. } = *dims;
    let count = dims.sequences.count();
    let matrices = if momentum { 2 } else { 1 };
    let blocks = value.div_ceil(block_width(count * heads, value));
    let group = frozen.map(|group| group.max(1));
    let kept = |tokens| cut(tokens, group, CHUNK).iter().filter(|chunk| chunk.kept).count();
    let states_kept: usize = dims.sequences.ranges().map(|rows| kept(rows.len())).sum();
    // States between checkpoints, which a frozen interval computes again.
    let between = group.map_or(0, |group| (CHUNK / group).max(1));
    let tokens = dims.sequences.rows() * heads;
    let states = heads * key * value * matrices;
    let results = 2 * tokens * value + 2 * tokens * key * blocks + 2 * count * states;
    let rows = 12 * tokens * blocks + 4 * count * heads * blocks * key * matrices;
    let scalars = 16 * tokens * blocks;
    // Padded matrices of one chunk, tables, and the memories of a task's tiles.
    let scratch = 24 * CHUNK * CHUNK + 20 * CHUNK * (key + value) + (16 + matrices * between) * key * value;
    4 * (states_kept * states + results + rows + scalars + threads * scratch)
}
