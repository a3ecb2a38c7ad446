//! What a backward costs in memory.

use super::{CHUNK, Cell, Recurrent};
use crate::engine::cut;
use hecate_core::{Dims, Slots};

/// Upper bound of the bytes that a forward with its backward takes beside its arguments, for 32-bit inputs.
///
/// With `R` rows of tokens, `|s|` numbers of a state, `g` gates a token, `r` numbers that a token leaves for its
/// backward, and `J` kept states:
///
/// ```text
/// 4 bytes × ( H J |s|                                kept states
///           + R H V + 2 R H (2 K + V + g)            results; gradients, in lanes and joined
///           + threads T (2 K + 2 V + 2 g)            own rows of lanes under way, T the longest sequence
///           + 4 N H |s|                              states and their gradients, in lanes and joined
///           + threads ((C + 6) |s| + C r) )          scratch: the states of C = 64 tokens
/// + threads × what one token's step needs
/// ```
pub(crate) fn peak_bytes<R: Recurrent>(rule: R, dims: &Dims, threads: usize) -> usize {
    let Dims { heads, key, value, .. } = *dims;
    let cell = rule.cell(dims);
    let (count, rows) = (dims.sequences.count(), dims.sequences.rows() * heads);
    let state = R::State::list(&rule.state(dims)).iter().map(|(_, x)| x.count()).sum::<usize>();
    let gates = R::Gates::list(&rule.gates(dims)).iter().map(|(_, x)| x.count()).sum::<usize>() / rows;
    let size = state / (count * heads);
    let frozen = rule.frozen().map(|group| group as usize);
    let kept = |tokens| cut(tokens, frozen, CHUNK).iter().filter(|chunk| chunk.kept).count();
    let kept: usize = dims.sequences.ranges().map(|rows| kept(rows.len())).sum();
    let longest = dims.sequences.longest().min(CHUNK);
    let results = rows * value + 2 * rows * (2 * key + value + gates);
    let own = threads.min(count * heads) * dims.sequences.longest() * 2 * (key + value + gates);
    let scratch = threads * ((longest + 6) * size + longest * cell.record());
    4 * (kept * heads * size + results + own + 4 * state + scratch) + threads * cell.scratch_bytes()
}
