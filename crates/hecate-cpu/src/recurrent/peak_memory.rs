//! The peak memory of a backward of rules that go token by token.

use super::{CHUNK, Cell, Recurrent};
use crate::linear::cut;
use hecate_core::{Dims, Slots};

/// Upper bound of the bytes that a forward with its backward takes beside its arguments, for 32-bit inputs.
///
/// `R` counts rows of tokens, `|s|` elements of a state, `g` gates a token, `J` kept states.
/// `r` counts the elements that a token leaves for its backward.
///
/// ```text
/// 4 bytes × ( H J |s|                                kept states
///           + R H V + 2 R H (2 K + V + g)            results; gradients, by head and joined
///           + threads T (2 K + 2 V + 2 g)            own rows of heads under way, T the longest sequence
///           + 4 N H |s|                              states and their gradients, by head and joined
///           + threads ((C + 6) |s| + C r) )          workspace: the states of C = 64 tokens
/// + threads × what one token's step needs
/// ```
pub(super) fn peak_bytes<R: Recurrent<F>, F>(rule: R, dims: &Dims, threads: usize) -> usize {
    let Dims { heads, key, value, .. } = *dims;
    let cell = rule.cell(dims);
    let (count, rows) = (dims.sequences.count(), dims.sequences.rows() * heads);
    let state = R::State::list(&rule.state(dims)).iter().map(|(_, x)| x.count()).sum::<usize>();
    let gates = R::Gates::list(&rule.gates(dims)).iter().map(|(_, x)| x.count()).sum::<usize>() / rows;
    let size = state / (count * heads);
    let frozen = rule.frozen().map(|group| group as usize);
    let kept = |tokens| cut(tokens, frozen, CHUNK).iter().filter(|chunk| chunk.kept).count();
    let kept: usize = dims.sequences.ranges().map(|rows| kept(rows.len())).sum();
    // An interval is no longer than a chunk, and shorter in shorter sequences.
    let longest = dims.sequences.longest().min(CHUNK);
    let results = rows * value + 2 * rows * (2 * key + value + gates);
    let own = threads.min(count * heads) * dims.sequences.longest() * 2 * (key + value + gates);
    let scratch = threads * ((longest + 6) * size + longest * cell.record());
    4 * (kept * heads * size + results + own + 4 * state + scratch) + threads * cell.scratch_bytes()
}
