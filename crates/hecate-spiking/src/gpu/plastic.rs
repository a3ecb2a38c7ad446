//! What learns on a device: who fired in the last bursts, and weights that change where they lie.
//!
//! The device keeps a bit for each neuron and burst of the longest window, for all neurons of the network: what fired of other parts is
//! noted too. The host hears of nothing, but where synapses may be made: then it reads what fired, keeps a ledger of its own, and in a
//! burst that makes some it reads the weights and writes rows anew.

use super::{
    engine::{Arrays, Engine, Learned, List, Recent},
    rows::Rows,
    too_large, words,
};
use crate::{
    History, Mapping, Network, Result, Spike, State,
    cpu::Learning,
    plasticity::{PairTable, REACH},
};
use hecate_core::{Device, Tensor, memory};
use std::ops::Range;

/// What is watched or learns of a part of a network.
pub(super) struct Plastic<D: Device> {
    recent: Recent<D>,
    /// Of each watched area, ascending: its id, the bursts that are kept of it, and how many there are at most.
    kept: Vec<(u32, usize, usize)>,
    /// Which area each neuron has.
    places: Tensor<D>,
    /// Sources of each mapping.
    members: Vec<Tensor<D>>,
    /// Changes by pairs of spikes.
    table: Tensor<D>,
    /// Weights as they were when rows were written, synapses that were made, and the ledger where some may be.
    pub(super) learning: Learning,
}

impl<D: Engine> Plastic<D> {
    /// Of a state that was checked; none where nothing is watched and nothing learns.
    pub(super) fn new(device: &D, network: &Network, state: &State) -> Result<Option<Self>> {
        // Areas ascend, and so do the histories of a checked state.
        let watched = network.areas().iter().filter(|area| network.watched(area) > 0);
        let kept: Vec<_> = watched
            .zip(&state.history)
            .map(|(area, history)| (area.id, history.bursts.len(), network.watched(area)))
            .collect();
        let Some(deepest) = kept.iter().map(|&(_, _, depth)| depth).max() else { return Ok(None) };
        // Every neuron has as many words as the longest window asks for.
        let (count, planes) = (network.count(), deepest.div_ceil(32));
        too_large("last bursts", 4 * count as u64 * planes as u64, device.most_bytes())?;
        let mut bits: Vec<u32> = memory::zeros("last bursts", count * planes)?;
        for history in &state.history {
            // A history has its oldest burst first.
            for (age, burst) in history.bursts.iter().rev().enumerate() {
                let indices = burst.iter().filter_map(|&id| network.index(id));
                indices.for_each(|index| bits[age / 32 * count + index] |= 1 << (age % 32));
            }
        }
        // Who only watches needs none of what follows but the bits.
        let learns = network.learns();
        let members = |of: &Mapping| words(device, network.members(of.source).to_vec());
        let PairTable { rise, fall } = PairTable::new();
        let table = rise.iter().zip(&fall).map(|(&rise, &fall)| u32::from(rise) | u32::from(fall) << 16);
        Ok(Some(Self {
            recent: Recent { bits: words(device, bits)?, count, planes },
            kept,
            // Who only watches has no use for areas.
            places: words(device, if learns { network.place.clone() } else { Vec::new() })?,
            members: network.mappings().iter().map(members).collect::<Result<_>>()?,
            table: words(device, table.collect())?,
            learning: Learning::new(network, state)?,
        }))
    }

    /// Words of its arrays.
    pub(super) fn words(&self) -> usize {
        let arrays = [&self.recent.bits, &self.places, &self.table].into_iter().chain(&self.members);
        arrays.map(|array| array.shape().count()).sum()
    }

    /// Notes what fired: `own` of the part, and `others`.
    pub(super) fn note(
        &mut self,
        device: &D,
        kernels: &D::Kernels,
        own: List<'_, D>,
        others: Option<List<'_, D>>,
    ) -> Result<()> {
        // First all grow older, then those of this burst are noted.
        device.age(kernels, &self.recent, &own)?;
        for list in [Some(own), others].into_iter().flatten() {
            device.note(kernels, &self.recent, &list)?;
        }
        for (_, kept, depth) in &mut self.kept {
            *kept = (*kept + 1).min(*depth);
        }
        Ok(())
    }

    /// Weights change, and synapses are made, mapping after mapping.
    pub(super) fn learn(
        &mut self,
        device: &D,
        kernels: &D::Kernels,
        network: &Network,
        part: &Range<usize>,
        arrays: &mut Arrays<D>,
    ) -> Result<()> {
        for (of, members) in network.mappings().iter().zip(&self.members) {
            self.change(device, kernels, network, part, arrays, of, members)?;
            let missing = self.learning.missing(network, of);
            if missing.is_empty() {
                continue;
            }
            // Rows are written anew, with the weights that the device has now.
            let weights = arrays.rows.weights()?;
            self.learning.set_weights(network, part, &weights);
            self.learning.make(of, missing);
            arrays.rows = arrays.rows.renewed(device, network, part, &self.learning)?;
        }
        Ok(())
    }

    /// Weights of one mapping change.
    #[expect(clippy::too_many_arguments, reason = "a mapping, where it is, and what runs it")]
    fn change(
        &self,
        device: &D,
        kernels: &D::Kernels,
        network: &Network,
        part: &Range<usize>,
        arrays: &Arrays<D>,
        of: &Mapping,
        members: &Tensor<D>,
    ) -> Result<()> {
        // Windows as a whole have two changes, pairs have a table.
        let steps = of.steps().map(|steps| [steps.rise.into(), steps.fall.into()]);
        let window = usize::from(of.window);
        let kept = |area: u32| self.kept.iter().find(|kept| kept.0 == area).map_or(0, |kept| kept.1);
        // Nothing is known of a window as a whole before it is full.
        if steps.is_some() && kept(of.source).min(kept(of.target)) < window {
            return Ok(());
        }
        // Kernels compare places of areas, which are dense.
        let area = network.areas().binary_search_by_key(&of.target, |area| area.id).unwrap_or_default() as u32;
        let window = if steps.is_some() { window } else { window.min(REACH) } as u32;
        let member_count = network.members(of.source).len();
        // A kernel an array: rows that go on in the next are clipped to each.
        for segment in &arrays.rows.segments {
            let rows = &arrays.rows;
            let (places, table) = (&self.places, &self.table);
            let learned = Learned { rows, segment, places, members, member_count, table, part, area, window, steps };
            device.learn(kernels, &self.recent, &learned)?;
        }
        Ok(())
    }

    /// Archives what fired where synapses may be made; whether there is room for them is asked before anything changes.
    pub(super) fn archive(&mut self, network: &Network, fired: impl FnOnce() -> Result<Vec<Spike>>) -> Result<()> {
        if network.mappings().iter().any(|mapping| mapping.made().is_some()) {
            self.learning.archive(network, &fired()?)?;
        }
        Ok(())
    }

    /// Writes weights, synapses and what is kept of watched areas into a state.
    pub(super) fn write(
        &self,
        network: &Network,
        part: &Range<usize>,
        rows: &Rows<D>,
        state: &mut State,
    ) -> Result<()> {
        // The device has the weights of now, the host those of rows as they were written.
        let weights = if network.learns() { rows.weights()? } else { Vec::new() };
        self.learning.write_with(network, part, &weights, state)?;
        let (bits, count) = (self.recent.bits.to_u32()?, self.recent.count);
        let burst = |area: u32, age: usize| {
            let fired = |index: &&u32| bits[age / 32 * count + **index as usize] >> (age % 32) & 1 == 1;
            network.members(area).iter().filter(fired).map(|&index| network.id(index as usize)).collect()
        };
        // The oldest burst comes first.
        let history = |&(area, kept, _): &(u32, usize, usize)| History {
            area,
            bursts: (0..kept).rev().map(|age| burst(area, age)).collect(),
        };
        state.history = self.kept.iter().map(history).collect();
        Ok(())
    }
}
