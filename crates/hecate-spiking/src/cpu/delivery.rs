//! What a neuron that fired sends: looked up once a burst, so that tasks pass over rows that lead elsewhere.
//!
//! A row lies anywhere in memory, and finding it takes longer than adding a few of its synapses. The list of deliveries is
//! short and read from its beginning to its end by every task.

use super::Made;
use crate::{Network, Spike, fixed};

/// The synapses of one neuron that fired, and by how much they deliver.
#[derive(Clone, Copy, Debug)]
pub(super) struct Delivery {
    /// Its synapses: from here in the network's entries.
    pub(super) start: usize,
    /// To here.
    pub(super) end: usize,
    /// Its index.
    pub(super) source: u32,
    /// By how many synapses its potential is shared; 1 where each delivers all of it.
    pub(super) divisor: u32,
    /// Least index that the row leads to; above `last` for an empty row.
    pub(super) first: u32,
    /// Largest index that the row leads to.
    pub(super) last: u32,
    /// The potential at which it fired, where that is what synapses deliver.
    pub(super) driven: Option<u8>,
}

impl Delivery {
    /// What a spike delivers, with synapses that were made until now.
    pub(super) fn new(network: &Network, made: &Made, spike: &Spike) -> Self {
        // Spikes were checked: there is such a neuron.
        let source = network.index(spike.neuron).unwrap_or_default();
        let (row, area) = (network.row(source), network.area_at(source));
        let others = if area.uniform { 0 } else { made.get(&(source as u32)).map_or(0, Vec::len) };
        Self {
            start: network.rows[source],
            end: network.rows[source + 1],
            source: source as u32,
            // A network has at most 2³⁰ synapses.
            divisor: if area.uniform { 1 } else { (row.len() + others) as u32 },
            first: row.first().map_or(u32::MAX, |entry| entry.target),
            last: row.last().map_or(0, |entry| entry.target),
            driven: area.membrane_driven.then(|| fixed::delivered(spike.potential)),
        }
    }
}
