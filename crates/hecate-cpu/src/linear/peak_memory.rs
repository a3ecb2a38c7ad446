//! What a backward costs in memory.

use super::{call::block_width, checkpoints::CHUNK};
use crate::{
    Cpu, PeakMemory,
    peak_memory::{product, sum},
};
use hecate_core::{
    Checkpoints, Dims,
    families::{Linear, LinearRule, LinearSpec},
};

impl<R: LinearRule> PeakMemory<R, Linear> for Cpu {
    fn peak_bytes(&self, rule: R, dims: &Dims) -> usize {
        peak_bytes(rule.spec(), dims, self.threads())
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
///           + tasks (24 C² + 20 C (K + V) + (16 + m L) K V) )       workspaces of tasks at work, a thread each at most
/// ```
///
/// Unless frozen, `J = ⌈T/C⌉`, summed over the sequences, and `L = 0`.
/// In frozen groups of `G < C` tokens one state is kept for `L = ⌊C/G⌋` groups.
/// Of longer groups one is kept every `C` tokens of each.
/// Nothing in it is a state per token: doubling `T` adds one state every 64 tokens, or every 33 at worst.
/// Momentum that looks ahead is three rules without one, forward and then backward one after another.
fn peak_bytes(spec: LinearSpec, dims: &Dims, threads: usize) -> usize {
    let (parts, spec) = match spec.look_ahead {
        true => (3, LinearSpec { look_ahead: false, momentum: false, ..spec }),
        false => (1, spec),
    };
    let states = product(&[dims.heads, dims.key, dims.value, spec.matrices()]);
    let kept = product(&[Checkpoints::new(spec.frozen).total(&dims.sequences), states]);
    // What the forward gave is there beside all that the backward makes.
    let given = sum(&[dims.values().count(), product(&[dims.sequences.count(), states])]);
    // Gradients of the parts that are done, what is written, and gates.
    let (keys, values, scalars) = (dims.keys().count(), dims.values().count(), dims.scalars().count());
    let others =
        product(&[parts - 1, sum(&[product(&[2, keys]), values, product(&[3, scalars]), product(&[2, states])])]);
    product(&[4, sum(&[product(&[parts, sum(&[kept, given])]), others, backward_elements(spec, dims, threads)])])
}

/// The part of the bound that a backward asks for, in elements.
pub(super) fn backward_elements(spec: LinearSpec, dims: &Dims, threads: usize) -> usize {
    let Dims { heads, key, value, .. } = *dims;
    let (count, matrices) = (dims.sequences.count(), spec.matrices());
    let blocks = value.div_ceil(block_width(product(&[count, heads]), value).max(1));
    // States between checkpoints, which a frozen interval computes again.
    let between = spec.group().map_or(0, |group| (CHUNK / group.max(1)).max(1));
    let tokens = product(&[dims.sequences.rows(), heads]);
    let states = product(&[count, heads, key, value, matrices]);
    let results = sum(&[product(&[tokens, value]), product(&[2, tokens, key, blocks]), states]);
    let rows = sum(&[product(&[12, tokens, blocks]), product(&[4, count, heads, blocks, key, matrices])]);
    let scalars = product(&[16, tokens, blocks]);
    // Padded matrices of one chunk, tables, and the memories of a task's tiles.
    let memories = product(&[16 + matrices * between, key, value]);
    let scratch = sum(&[24 * CHUNK * CHUNK, product(&[20 * CHUNK, sum(&[key, value])]), memories]);
    // A task is a block of columns of one head of one sequence.
    let tasks = threads.min(product(&[count, heads, blocks]));
    sum(&[results, rows, scalars, product(&[tasks, scratch])])
}
