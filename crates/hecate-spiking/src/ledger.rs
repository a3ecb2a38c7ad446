//! The ledger of fired sets: which neurons of an area fired in its last bursts.
//!
//! Each area that is watched has a ring of as many bursts as were asked for. The newest burst takes the place of the oldest,
//! and the memory of its list, so that a ledger stops growing once its rings are full.

use crate::{Network, Spike};
use serde::{Deserialize, Serialize};

/// Fired sets of all watched areas, burst by burst.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    /// One a watched area, in the order of areas' ids.
    rings: Vec<Ring>,
}

/// The last bursts of an area, the oldest first: what a state keeps of a ledger.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct History {
    /// The area's id.
    pub area: u32,
    /// Ids that fired, ascending, one list a burst.
    pub bursts: Vec<Vec<u32>>,
}

/// The last `depth` bursts of one area.
#[derive(Clone, Debug)]
struct Ring {
    area: u32,
    /// Most bursts kept, at least 1.
    depth: usize,
    /// Where the next burst goes once all places are taken: the oldest one's.
    next: usize,
    bursts: Vec<Vec<u32>>,
}

impl Ring {
    fn push(&mut self, fired: impl Iterator<Item = u32>) {
        if self.bursts.len() < self.depth {
            self.bursts.push(fired.collect());
            return;
        }
        let oldest = &mut self.bursts[self.next];
        oldest.clear();
        oldest.extend(fired);
        self.next = (self.next + 1) % self.depth;
    }

    /// The burst before which `age` others were newer.
    fn at(&self, age: usize) -> Option<&[u32]> {
        let kept = self.bursts.len();
        // While places are free, the newest is the last one and `next` is 0.
        (age < kept).then(|| self.bursts[(self.next + kept - 1 - age) % kept].as_slice())
    }
}

impl Ledger {
    /// Empty rings for areas, given as id and depth in bursts. Areas of depth 0 are not watched.
    pub fn new(areas: impl IntoIterator<Item = (u32, usize)>) -> Self {
        let watched = areas.into_iter().filter(|&(_, depth)| depth > 0);
        Self { rings: watched.map(|(area, depth)| Ring { area, depth, next: 0, bursts: Vec::new() }).collect() }
    }

    /// Adds a burst: the ids that fired in an area, ascending, as `fired` says.
    pub fn push<I: IntoIterator<Item = u32>>(&mut self, fired: impl Fn(u32) -> I) {
        self.rings.iter_mut().for_each(|ring| ring.push(fired(ring.area).into_iter()));
    }

    /// Ids of `area` that fired, ascending, in the burst that `age` later ones followed; 0 is the newest. None where the
    /// area is not watched, or its ring has no such burst.
    pub fn burst(&self, area: u32, age: usize) -> Option<&[u32]> {
        self.rings.iter().find(|ring| ring.area == area)?.at(age)
    }

    /// The last `depth` bursts of `area`, the newest first. None while the ledger has fewer.
    pub fn window(&self, area: u32, depth: usize) -> Option<Vec<&[u32]>> {
        (0..depth).map(|age| self.burst(area, age)).collect()
    }

    /// All that is kept, the oldest burst first.
    pub fn history(&self) -> Vec<History> {
        let bursts =
            |ring: &Ring| (0..ring.bursts.len()).rev().filter_map(|age| ring.at(age).map(<[u32]>::to_vec)).collect();
        self.rings.iter().map(|ring| History { area: ring.area, bursts: bursts(ring) }).collect()
    }

    /// An empty ledger of a network's watched areas.
    pub(crate) fn of(network: &Network) -> Self {
        Self::new(network.areas().iter().map(|area| (area.id, network.watched(area))))
    }

    /// The ledger of a network after the bursts of `history`, which was checked.
    pub(crate) fn after(network: &Network, history: &[History]) -> Self {
        let mut ledger = Self::of(network);
        for (ring, history) in ledger.rings.iter_mut().zip(history) {
            history.bursts.iter().for_each(|burst| ring.push(burst.iter().copied()));
        }
        ledger
    }

    /// Adds the spikes of a burst, ascending by id, to the rings of their areas.
    pub(crate) fn archive(&mut self, network: &Network, fired: &[Spike]) {
        // Most networks watch none or few areas; each looks through all that fired.
        self.push(|area| {
            let of_area = move |spike: &&Spike| network.area_of(spike.neuron).is_some_and(|found| found.id == area);
            fired.iter().filter(of_area).map(|spike| spike.neuron)
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// After more bursts than places, the oldest are gone and the order is kept.
    #[test]
    fn a_ring_wraps_around() {
        let mut ledger = Ledger::new([(7, 3), (8, 0), (9, 1)]);
        assert_eq!(ledger.burst(7, 0), None);
        for burst in 0..8 {
            ledger.push(|area| [100 * area + burst]);
            let kept = (burst as usize + 1).min(3);
            for age in 0..kept {
                assert_eq!(ledger.burst(7, age), Some(&[700 + burst - age as u32][..]), "burst {burst}, age {age}");
            }
            assert_eq!(ledger.burst(7, kept), None, "burst {burst}");
            assert_eq!(ledger.window(7, 3).is_some(), burst >= 2);
        }
        assert_eq!(ledger.window(7, 3), Some(vec![&[707][..], &[706], &[705]]));
        assert_eq!(ledger.window(9, 1), Some(vec![&[907][..]]));
        assert_eq!(ledger.burst(8, 0), None, "an area of depth 0 is not watched");
        let history = ledger.history();
        assert_eq!(history[0], History { area: 7, bursts: vec![vec![705], vec![706], vec![707]] });
        assert_eq!(history[1], History { area: 9, bursts: vec![vec![907]] });
    }

    /// A full ring takes the memory of its oldest list.
    #[test]
    fn a_full_ring_does_not_grow() {
        let mut ledger = Ledger::new([(1, 4)]);
        let places = |ledger: &Ledger| ledger.rings[0].bursts.iter().map(|burst| burst.as_ptr()).collect::<Vec<_>>();
        (0..4).for_each(|_| ledger.push(|_| 0..9));
        let before = places(&ledger);
        (0..40).for_each(|_| ledger.push(|_| 0..9));
        assert_eq!(places(&ledger), before);
    }
}
