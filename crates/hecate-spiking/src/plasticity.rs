//! Plasticity: how weights between two areas change after each burst, by who fired in its window of last bursts.
//!
//! Three forms. In the *classic* one, a synapse whose ends both fired in every burst of the window gains
//! `Δ⁺ = clamp(constant · ltp, 0, 255)`; one of whose ends only some fired loses `Δ⁻ = clamp(constant · ltd, 0, 255)`; one
//! whose ends never fired stays. Nothing changes while the ledger has less than a window. The *bidirectional* form does the
//! same, and then makes each missing synapse between neurons that fired in every burst, with weight Δ⁺.
//!
//! The *exponential* form goes pair by pair. A spike of the source `Δt` bursts before one of the target adds
//! `round(255 · 0.01 · exp(−Δt / 20))`, one after it takes `round(255 · 0.012 · exp(−|Δt| / 20))` away; in the same burst they
//! change nothing. A pair counts once, in the burst of its later spike, if both are in the window. Where several pairs
//! count in one burst, those that are furthest apart come first; of two equally far apart, the one that adds.
//!
//! Weights stay in 0 to 255: sums and differences saturate.

use serde::{Deserialize, Serialize};

/// Synapses from one area to another that learn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mapping {
    /// Id of the area whose neurons are sources.
    pub source: u32,
    /// Id of the area whose neurons are targets.
    pub target: u32,
    /// Bursts looked at, the last one among them; at least 1.
    pub window: u16,
    /// How weights change.
    pub form: Form,
}

/// How weights change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Form {
    /// All of a window adds, some of it takes away.
    Classic {
        /// Factor of both changes.
        constant: i64,
        /// Long-term potentiation: `Δ⁺` is `constant · ltp`.
        ltp: i64,
        /// Long-term depression: `Δ⁻` is `constant · ltd`.
        ltd: i64,
    },
    /// As classic, and missing synapses are made.
    Bidirectional {
        /// Factor of both changes.
        constant: i64,
        /// Long-term potentiation, and the weight of new synapses.
        ltp: i64,
        /// Long-term depression.
        ltd: i64,
        /// Postsynaptic potential of new synapses, which are excitatory.
        potential: u8,
    },
    /// Pairs of spikes, by the bursts between them.
    Exponential,
}

/// Largest changes of a weight by a pair of spikes, as shares of 255, and the bursts in which changes fall by `e`.
const RISE: f64 = 0.01;
const FALL: f64 = 0.012;
const TAU: f64 = 20.0;

/// From so many bursts on, a pair of spikes changes a weight by nothing: `255 · 0.012 · exp(−37 / 20)` is below a half.
pub(crate) const REACH: usize = 37;

/// Changes of weights by pairs of spikes; index: bursts between the two.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PairTable {
    /// The source fired first.
    pub(crate) rise: [u8; REACH],
    /// The target fired first.
    pub(crate) fall: [u8; REACH],
}

impl PairTable {
    /// The table, the same for all mappings.
    pub(crate) fn new() -> Self {
        let table = |size: f64| {
            let change = |apart: usize| (255.0 * size * (-(apart as f64) / TAU).exp()).round() as u8;
            // In the same burst nothing changes.
            std::array::from_fn(|apart| if apart == 0 { 0 } else { change(apart) })
        };
        Self { rise: table(RISE), fall: table(FALL) }
    }

    /// The weight of a synapse after a burst. Bit `i` of `source` and of `target` says that its end fired `i` bursts ago;
    /// bits outside of the window are 0.
    pub(crate) fn changed(&self, weight: u8, source: u64, target: u64) -> u8 {
        let mut changed = weight;
        for apart in (1..REACH).rev() {
            if target & 1 == 1 && source >> apart & 1 == 1 {
                changed = changed.saturating_add(self.rise[apart]);
            }
            if source & 1 == 1 && target >> apart & 1 == 1 {
                changed = changed.saturating_sub(self.fall[apart]);
            }
        }
        changed
    }
}

/// Changes of weights by windows as a whole.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Steps {
    /// Δ⁺, 0 to 255.
    pub(crate) rise: u8,
    /// Δ⁻, 0 to 255.
    pub(crate) fall: u8,
}

impl Steps {
    /// The weight of a synapse whose ends fired in so many of the window's bursts.
    pub(crate) fn changed(self, weight: u8, source: u16, target: u16, window: u16) -> u8 {
        match (source, target) {
            (0, 0) => weight,
            _ if source == window && target == window => weight.saturating_add(self.rise),
            _ => weight.saturating_sub(self.fall),
        }
    }
}

impl Mapping {
    /// The changes of a form that looks at windows as a whole.
    pub(crate) fn steps(&self) -> Option<Steps> {
        let clamped = |constant: i64, factor: i64| constant.saturating_mul(factor).clamp(0, 255) as u8;
        match self.form {
            Form::Classic { constant, ltp, ltd } | Form::Bidirectional { constant, ltp, ltd, .. } => {
                Some(Steps { rise: clamped(constant, ltp), fall: clamped(constant, ltd) })
            }
            Form::Exponential => None,
        }
    }

    /// Potential of synapses that are made, where they are.
    pub(crate) fn made(&self) -> Option<u8> {
        match self.form {
            Form::Bidirectional { potential, .. } => Some(potential),
            _ => None,
        }
    }

    /// All of it in numbers that other mappings do not have.
    pub(crate) fn words(&self) -> [u64; 6] {
        let (form, [constant, ltp, ltd], potential) = match self.form {
            Form::Classic { constant, ltp, ltd } => (1, [constant, ltp, ltd], 0),
            Form::Bidirectional { constant, ltp, ltd, potential } => (2, [constant, ltp, ltd], potential),
            Form::Exponential => (3, [0; 3], 0),
        };
        let ends = u64::from(self.source) << 32 | u64::from(self.target);
        let rest = u64::from(self.window) << 16 | u64::from(potential);
        [ends, form, constant as u64, ltp as u64, ltd as u64, rest]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rounded values of the two exponentials, from a table of `exp` and not from this code.
    #[test]
    fn pairs_change_weights_by_the_table() {
        let PairTable { rise, fall } = PairTable::new();
        // 2.55 · 0.9512 = 2.43, 2.55 · 0.7788 = 1.99, 3.06 · 0.9512 = 2.91, 3.06 · 0.6065 = 1.86.
        assert_eq!([rise[0], rise[1], rise[5], fall[0], fall[1], fall[10]], [0, 2, 2, 0, 3, 2]);
        // The last ones that round up: 2.55 · 0.2019 = 0.51 and 3.06 · 0.1653 = 0.506; then 0.49 and nothing.
        assert_eq!([rise[32], rise[33], fall[36]], [1, 0, 1]);
        let next = 255.0 * FALL * (-(REACH as f64) / TAU).exp();
        assert!(next < 0.5, "{next}");
    }

    /// What is further apart comes first, and of two equally far apart the one that adds: saturation shows it.
    #[test]
    fn pairs_count_in_their_order() {
        let table = PairTable::new();
        // The target fires now, the source fired 1 burst ago: + 2.
        assert_eq!(table.changed(9, 0b10, 0b1), 11);
        // The other way round: − 3.
        assert_eq!(table.changed(9, 0b1, 0b10), 6);
        // Both at once: 254 + 2 saturates before 3 are taken.
        assert_eq!(table.changed(254, 0b11, 0b11), 252);
        // Neither fires now: the pair has counted before.
        assert_eq!(table.changed(9, 0b100, 0b10), 9);
        // The source fires now; the target fired 30 bursts ago (− 1) and 1 ago (− 3), each floored at 0.
        assert_eq!(table.changed(2, 0b1, 1 << 30 | 0b10), 0);
    }

    #[test]
    fn windows_change_weights_as_a_whole() {
        let form = Form::Classic { constant: 3, ltp: 2, ltd: 1 };
        let steps = Mapping { source: 1, target: 2, window: 4, form }.steps().expect("classic");
        let changed = |source, target| steps.changed(9, source, target, 4);
        assert_eq!([changed(0, 0), changed(4, 4), changed(4, 3), changed(0, 1), changed(4, 0)], [9, 15, 6, 6, 6]);
        assert_eq!([steps.changed(251, 4, 4, 4), steps.changed(2, 1, 1, 4)], [255, 0]);
        let form = Form::Classic { constant: i64::MAX, ltp: 7, ltd: -7 };
        let steps = Mapping { source: 1, target: 2, window: 1, form }.steps().expect("classic");
        assert_eq!((steps.rise, steps.fall), (255, 0));
    }
}
