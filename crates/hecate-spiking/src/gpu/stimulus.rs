//! What comes from outside and from power, as a device reads it.

use crate::{
    Network, Stimulus, fixed,
    network::{FATIGUE, POWER},
};
use std::ops::Range;

/// Index in the part, low and high word of an amount, one entry a neuron of the part, ascending.
pub(super) fn amounts(network: &Network, part: &Range<usize>, stimulus: Stimulus<'_>) -> Vec<u32> {
    let staged = stimulus.staged.iter().filter_map(|&(id, potential)| Some((network.index(id)?, potential)));
    // Both amounts of power are zero in networks that name none: they make candidates all the same.
    let power = network.members(POWER).iter().take(1);
    let fatigue = if stimulus.fatigue { network.members(FATIGUE) } else { &[] };
    let power = power.chain(fatigue).map(|&index| (index as usize, network.power()));
    // What other parts get is theirs to stage.
    let own = staged.chain(power).filter(|(index, _)| part.contains(index));
    let mut amounts: Vec<_> = own.map(|(index, potential)| (index - part.start, fixed::to_fixed(potential))).collect();
    // What is staged often ascends, and then is not moved.
    if !amounts.is_sorted_by_key(|&(index, _)| index) {
        amounts.sort_unstable_by_key(|&(index, _)| index);
    }
    // Amounts of one neuron add up before they are copied.
    amounts.dedup_by(|next, first| {
        let same = next.0 == first.0;
        first.1 += if same { next.1 } else { 0 };
        same
    });
    amounts.iter().flat_map(|&(index, amount)| [index as u32, amount as u32, (amount >> 32) as u32]).collect()
}
