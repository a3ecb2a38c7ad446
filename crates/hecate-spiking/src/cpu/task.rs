//! A task: neurons side by side, what reaches them, and which of them fire.

use super::{Made, delivery::Delivery, within};
use crate::{
    MEMORY, Network, Result, Spike, State, Stimulus, fixed,
    network::{Dynamics, Entry, FATIGUE, Kind, POWER},
};
use hecate_core::memory;
use std::ops::Range;

/// What all tasks of a burst read.
pub(super) struct Surroundings<'a> {
    pub(super) network: &'a Network,
    /// Synapses with the weights that they have now.
    pub(super) entries: &'a [Entry],
    pub(super) made: &'a Made,
    /// What neurons send that fired in the last burst.
    pub(super) deliveries: &'a [Delivery],
    /// The number of this burst, counted from 1.
    pub(super) burst: u64,
}

/// Neurons of one range of indices. Arrays of neurons' states leave memory neurons out, which have none and come last.
#[derive(Debug)]
pub(super) struct Task {
    /// Its neurons.
    targets: Range<usize>,
    /// What reached each in this burst, in fixed point; zero between bursts.
    sums: Vec<i64>,
    /// Bits of the neurons that something reached in the last burst, even if it came to zero.
    candidates: Vec<u64>,
    potential: Vec<f32>,
    refractory: Vec<u16>,
    in_a_row: Vec<u16>,
    /// What fired in the last burst, ascending.
    fired: Vec<Spike>,
}

impl Task {
    /// The neurons of `targets` in a state that was checked.
    pub(super) fn new(network: &Network, state: &State, targets: Range<usize>) -> Result<Self> {
        let own = own(network, &targets);
        let mut task = Self {
            sums: memory::zeros("sums of a burst", targets.len())?,
            candidates: memory::zeros("candidates of a burst", targets.len().div_ceil(64))?,
            potential: memory::collect("potentials", state.potential[own.clone()].iter().copied().map(fixed::flushed))?,
            refractory: memory::collect("a state", state.refractory[own.clone()].iter().copied())?,
            in_a_row: memory::collect("a state", state.in_a_row[own].iter().copied())?,
            fired: Vec::new(),
            targets,
        };
        // Potentials that do not outlast a burst are read only of candidates, so these count as such.
        for place in 0..task.potential.len() {
            if task.potential[place].to_bits() != 0 {
                task.mark(place);
            }
        }
        Ok(task)
    }

    pub(super) fn fired(&self) -> &[Spike] {
        &self.fired
    }

    /// Bytes of its arrays.
    pub(super) fn bytes(&self) -> usize {
        // A neuron has a potential of four bytes and two counts of two.
        8 * (self.sums.len() + self.candidates.len() + self.potential.len())
    }

    /// Writes its neurons into the state of the whole network.
    pub(super) fn write(&self, network: &Network, state: &mut State) {
        // Memory neurons have no place in these arrays.
        let own = own(network, &self.targets);
        state.refractory[own.clone()].copy_from_slice(&self.refractory);
        state.in_a_row[own.clone()].copy_from_slice(&self.in_a_row);
        for (place, index) in own.enumerate() {
            // The next burst begins with zero in the others; nobody wrote it.
            let outlasts = network.dynamics(index).accumulate || self.is_candidate(place);
            state.potential[index] = if outlasts { self.potential[place] } else { 0.0 };
        }
    }

    /// One burst: what reaches its neurons, and which of them fire.
    pub(super) fn burst(&mut self, around: &Surroundings<'_>, stimulus: Stimulus<'_>) {
        self.candidates.fill(0);
        self.inject(around.network, stimulus);
        around.deliveries.iter().for_each(|delivery| self.deliver(around, delivery));
        self.decide(around.network, around.burst);
    }

    /// What comes from outside of the network, and from power.
    fn inject(&mut self, network: &Network, stimulus: Stimulus<'_>) {
        for &(neuron, potential) in stimulus.staged {
            self.add_at(network.index(neuron), potential);
        }
        // Both amounts are zero in networks that name none: they make candidates all the same.
        let power = network.members(POWER).first();
        power.into_iter().for_each(|&index| self.add_at(Some(index as usize), network.power()));
        if stimulus.fatigue {
            network.members(FATIGUE).iter().for_each(|&index| self.add_at(Some(index as usize), network.power()));
        }
    }

    /// Adds a potential to the sum at an index, if it is one of its own.
    fn add_at(&mut self, index: Option<usize>, potential: f32) {
        if let Some(index) = index.filter(|index| self.targets.contains(index)) {
            self.add(index - self.targets.start, fixed::to_fixed(potential));
        }
    }

    /// Adds to a sum, and notes that something reached the neuron: the amount may be zero.
    fn add(&mut self, place: usize, amount: i64) {
        self.sums[place] += amount;
        self.mark(place);
    }

    /// Notes a candidate.
    fn mark(&mut self, place: usize) {
        self.candidates[place / 64] |= 1 << (place % 64);
    }

    /// Whether something reached a neuron in the last burst.
    fn is_candidate(&self, place: usize) -> bool {
        self.candidates[place / 64] >> (place % 64) & 1 == 1
    }

    /// What a neuron that fired sends to neurons of this task.
    fn deliver(&mut self, around: &Surroundings<'_>, delivery: &Delivery) {
        // Most rows lead to few tasks, and the list alone says to which.
        if (delivery.first as usize) < self.targets.end && delivery.last as usize >= self.targets.start {
            self.add_row(&around.entries[delivery.start..delivery.end], delivery);
        }
        if let Some(made) = around.made.get(&delivery.source) {
            self.add_row(made, delivery);
        }
    }

    /// Adds the part of a row that leads into this task.
    fn add_row(&mut self, row: &[Entry], delivery: &Delivery) {
        for entry in &row[within(row, &self.targets)] {
            let potential = delivery.driven.unwrap_or(entry.potential);
            let amount = fixed::contribution(entry.weight, potential, delivery.divisor);
            let signed = if entry.kind == Kind::Excitatory { amount } else { -amount };
            self.add(entry.target as usize - self.targets.start, signed);
        }
    }

    /// Which candidates fire, in the order of their ids.
    fn decide(&mut self, network: &Network, burst: u64) {
        self.fired.clear();
        // 64 neurons a word: bits ascend as ids do, and most words are zero.
        for word in 0..self.candidates.len() {
            let mut bits = self.candidates[word];
            while bits != 0 {
                let place = 64 * word + bits.trailing_zeros() as usize;
                bits &= bits - 1;
                let input = fixed::to_float(std::mem::take(&mut self.sums[place]));
                let index = self.targets.start + place;
                let neuron = network.id(index);
                let fires = if neuron >= MEMORY {
                    // Whatever reaches a memory neuron fires it.
                    Some(input)
                } else {
                    self.step(place, network.dynamics(index), input, || fixed::word(neuron, burst))
                };
                self.fired.extend(fires.map(|potential| Spike { neuron, potential }));
            }
        }
    }

    /// One neuron that `input` reached: its potential if it fires. `word` decides where it fires by chance.
    fn step(&mut self, place: usize, of: &Dynamics, input: f32, word: impl FnOnce() -> u32) -> Option<f32> {
        let (potential, refractory) = (&mut self.potential[place], &mut self.refractory[place]);
        let in_a_row = &mut self.in_a_row[place];
        let is_limited = of.fire_limit > 0;
        if !of.accumulate {
            *potential = 0.0;
        }
        if *refractory > 0 {
            // The input is lost, and nothing leaks.
            *refractory -= 1;
            if *refractory == 0 && is_limited && *in_a_row >= of.fire_limit {
                *in_a_row = 0;
            }
            return None;
        }
        // One rounding of 32 bits, the same on every device.
        *potential = fixed::flushed(*potential + input);
        if (of.threshold..=of.limit).contains(potential) {
            // It has fired its number of times: it passes once, and nothing leaks.
            if is_limited && *in_a_row >= of.fire_limit {
                *in_a_row = 0;
                return None;
            }
            if u64::from(word()) < of.chance {
                // Counted also where nothing limits it, as the state shows it.
                *in_a_row = in_a_row.saturating_add(1);
                let snoozes = is_limited && *in_a_row >= of.fire_limit;
                *refractory = of.refractory.saturating_add(if snoozes { of.snooze } else { 0 });
                return Some(std::mem::take(potential));
            }
        }
        if is_limited {
            *in_a_row = 0;
        }
        *potential = fixed::flushed(*potential * of.keep);
        None
    }
}

/// Those of a range that are neurons with a state, and no memory neurons.
fn own(network: &Network, targets: &Range<usize>) -> Range<usize> {
    let count = network.neuron_count();
    targets.start.min(count)..targets.end.min(count)
}
