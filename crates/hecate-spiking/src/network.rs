//! Networks: areas, neurons and synapses, as they stand before a burst.
//!
//! A network does not change. What bursts change, weights that learn among it, is a [`State`](crate::State).

use crate::{Mapping, fixed};
use hecate_core::memory;
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// The area whose first neuron is the power neuron: it gets the power amount in every burst.
pub const POWER: u32 = 1;
/// The area whose neurons get the power amount in bursts with fatigue.
pub const FATIGUE: u32 = 2;
/// The first id of a memory neuron; ids below it are those of neurons, counted from 0.
pub const MEMORY: u32 = 50_000_000;

/// Neurons that share how their synapses deliver.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Area {
    /// Any number; [`POWER`] and [`FATIGUE`] have a meaning.
    pub id: u32,
    /// Whether each synapse of a neuron delivers all of its potential; else they share it evenly.
    pub uniform: bool,
    /// Whether synapses deliver the potential at which their neuron fired, rounded into 0 to 255, in the place of their own.
    #[serde(default)]
    pub membrane_driven: bool,
    /// Bursts whose fired sets the ledger keeps at least; plastic areas keep their windows anyway.
    #[serde(default)]
    pub history: u16,
}

impl Area {
    /// An area of this id whose synapses deliver all of their own potential.
    pub fn uniform(id: u32) -> Self {
        Self { id, uniform: true, membrane_driven: false, history: 0 }
    }
}

/// When a neuron fires, and what comes after it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Neuron {
    /// Id of its area.
    pub area: u32,
    /// Least potential that fires. Any finite number.
    pub threshold: f32,
    /// Largest potential that fires, if there is one. Any finite number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<f32>,
    /// Share of the potential that is lost in a burst that brought something and did not fire, 0 to 1.
    #[serde(default)]
    pub leak: f32,
    /// Bursts with input after firing that pass without effect.
    #[serde(default)]
    pub refractory: u16,
    /// Probability of firing, 0 to 1, where the potential allows it. From 0.999 on it is certain.
    #[serde(default = "certain")]
    pub excitability: f32,
    /// Times that it fires in a row before it snoozes; 0 and 65535 mean any number.
    #[serde(default)]
    pub fire_limit: u16,
    /// Bursts that a snooze adds to the refractory ones.
    #[serde(default)]
    pub snooze: u16,
    /// Whether the potential outlasts a burst; else it is zero when the next begins.
    #[serde(default = "accumulates")]
    pub accumulate: bool,
}

/// The excitability of a neuron that names none.
fn certain() -> f32 {
    1.0
}

/// Potentials outlast a burst unless a neuron says otherwise.
fn accumulates() -> bool {
    true
}

impl Neuron {
    /// A neuron that fires whenever its potential reaches `threshold`, and keeps what does not.
    pub fn new(area: u32, threshold: f32) -> Self {
        let (leak, excitability, accumulate) = (0.0, certain(), accumulates());
        Self { area, threshold, limit: None, leak, refractory: 0, excitability, fire_limit: 0, snooze: 0, accumulate }
    }
}

/// The sign of what a synapse delivers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "u8", try_from = "u8")]
pub enum Kind {
    /// It adds; 0 in files.
    #[default]
    Excitatory,
    /// It takes away; 1 in files.
    Inhibitory,
}

impl From<Kind> for u8 {
    fn from(kind: Kind) -> u8 {
        kind as u8
    }
}

impl TryFrom<u8> for Kind {
    type Error = String;

    fn try_from(kind: u8) -> Result<Self, String> {
        match kind {
            0 => Ok(Self::Excitatory),
            1 => Ok(Self::Inhibitory),
            other => Err(format!("a synapse's kind is {other}, expected 0 (excitatory) or 1 (inhibitory)")),
        }
    }
}

/// A connection: when `source` fires, `target` gets `weight · potential` one burst later. In files `[source, target, weight,
/// potential, kind]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "(u32, u32, u8, u8, Kind)", from = "(u32, u32, u8, u8, Kind)")]
pub struct Synapse {
    /// Id of the neuron that fires.
    pub source: u32,
    /// Id of the neuron that gets something.
    pub target: u32,
    /// How strong it is.
    pub weight: u8,
    /// Postsynaptic potential, unless the source's area is membrane-driven.
    pub potential: u8,
    /// Whether it adds or takes away.
    pub kind: Kind,
}

impl From<Synapse> for (u32, u32, u8, u8, Kind) {
    fn from(of: Synapse) -> Self {
        (of.source, of.target, of.weight, of.potential, of.kind)
    }
}

impl From<(u32, u32, u8, u8, Kind)> for Synapse {
    fn from((source, target, weight, potential, kind): (u32, u32, u8, u8, Kind)) -> Self {
        Self { source, target, weight, potential, kind }
    }
}

/// A synapse in its source's row, 8 bytes: `target` is an index, not an id.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    pub(crate) target: u32,
    pub(crate) weight: u8,
    pub(crate) potential: u8,
    pub(crate) kind: Kind,
}

/// What decides whether a neuron fires, as bursts read it: 32 bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Dynamics {
    pub(crate) threshold: f32,
    /// Infinity where there is no limit.
    pub(crate) limit: f32,
    /// Share of the potential that a burst leaves.
    pub(crate) keep: f32,
    pub(crate) refractory: u16,
    /// 0 where firing in a row is not limited.
    pub(crate) fire_limit: u16,
    pub(crate) snooze: u16,
    pub(crate) accumulate: bool,
    /// Words of 2³² that let it fire.
    pub(crate) chance: u64,
}

impl From<&Neuron> for Dynamics {
    fn from(neuron: &Neuron) -> Self {
        Self {
            // Tiny borders are zero on every device, as tiny potentials are.
            threshold: fixed::flushed(neuron.threshold),
            limit: neuron.limit.map_or(f32::INFINITY, fixed::flushed),
            keep: 1.0 - neuron.leak,
            refractory: neuron.refractory,
            fire_limit: if neuron.fire_limit == u16::MAX { 0 } else { neuron.fire_limit },
            snooze: neuron.snooze,
            accumulate: neuron.accumulate,
            chance: fixed::chance(neuron.excitability),
        }
    }
}

/// A network that was checked. [`Builder`](crate::Builder) makes it, or a [file](crate::Experiment).
///
/// Neurons have ids: from 0 on, and memory neurons from [`MEMORY`] on. Arrays over all of them have indices: neurons first,
/// then memory neurons. Synapses lie in rows by source (CSR), each row ascending by target.
#[derive(Debug)]
pub struct Network {
    /// Ascending by id.
    pub(crate) areas: Vec<Area>,
    /// Indices of each area's neurons, ascending; one list an area.
    pub(crate) members: Vec<Vec<u32>>,
    /// For each index, which of `areas`.
    pub(crate) place: Vec<u32>,
    /// For each neuron, which of `sorts` it is: most networks have few, and bursts read these from caches.
    pub(crate) sort: Vec<u32>,
    /// Neurons that differ.
    pub(crate) sorts: Vec<Neuron>,
    /// What of each sort bursts read.
    pub(crate) dynamics: Vec<Dynamics>,
    /// `entries[rows[i]..rows[i + 1]]` are the synapses of index `i`.
    pub(crate) rows: Vec<usize>,
    pub(crate) entries: Vec<Entry>,
    pub(crate) mappings: Vec<Mapping>,
    pub(crate) power: f32,
    /// Tells networks apart.
    pub(crate) digest: u64,
}

impl Network {
    /// Number of indices: neurons and memory neurons.
    pub fn count(&self) -> usize {
        self.place.len()
    }

    /// Number of neurons, without memory neurons.
    pub fn neuron_count(&self) -> usize {
        self.sort.len()
    }

    /// Neurons, by id. Memory neurons have no parameters: they fire whenever something reaches them.
    pub fn neurons(&self) -> impl ExactSizeIterator<Item = &Neuron> {
        self.sort.iter().map(|&sort| &self.sorts[sort as usize])
    }

    /// What decides whether a neuron fires.
    pub(crate) fn dynamics(&self, index: usize) -> &Dynamics {
        &self.dynamics[self.sort[index] as usize]
    }

    /// Areas, ascending by id.
    pub fn areas(&self) -> &[Area] {
        &self.areas
    }

    /// Areas between which synapses learn, in the order in which they do.
    pub fn mappings(&self) -> &[Mapping] {
        &self.mappings
    }

    /// What the power neuron gets in every burst, and neurons of the area of fatigue in bursts with it.
    pub fn power(&self) -> f32 {
        self.power
    }

    /// Number of synapses.
    pub fn synapse_count(&self) -> usize {
        self.entries.len()
    }

    /// All synapses, ascending by index of the source and then of the target. This is the order of a state's weights.
    pub fn synapses(&self) -> impl Iterator<Item = Synapse> {
        let row = move |source: usize| self.row(source).iter().map(move |entry| self.synapse(source, entry));
        (0..self.count()).flat_map(row)
    }

    /// A number that other networks do not have, but by accident in 2⁶⁴ cases.
    pub fn digest(&self) -> u64 {
        self.digest
    }

    /// The index of a neuron or memory neuron, if there is one of this id.
    pub fn index(&self, neuron: u32) -> Option<usize> {
        let (id, neurons) = (neuron as usize, self.neuron_count());
        match neuron.checked_sub(MEMORY) {
            None => (id < neurons).then_some(id),
            Some(memory) => Some(neurons + memory as usize).filter(|&index| index < self.count()),
        }
    }

    /// The id at an index, which must be below [`Network::count`].
    pub fn id(&self, index: usize) -> u32 {
        let neurons = self.neuron_count();
        // Ids fit: a network has at most `MEMORY` neurons, and as many memory neurons.
        if index < neurons { index as u32 } else { MEMORY + (index - neurons) as u32 }
    }

    /// The area of a neuron or memory neuron, if there is one of this id.
    pub fn area_of(&self, neuron: u32) -> Option<&Area> {
        self.index(neuron).map(|index| self.area_at(index))
    }

    /// The area at an index.
    pub(crate) fn area_at(&self, index: usize) -> &Area {
        &self.areas[self.place[index] as usize]
    }

    /// Indices of an area's neurons, ascending; none for an area that is not there.
    pub(crate) fn members(&self, area: u32) -> &[u32] {
        self.areas.binary_search_by_key(&area, |area| area.id).map_or(&[], |place| &self.members[place])
    }

    /// Bursts of an area that the ledger keeps.
    pub(crate) fn watched(&self, area: &Area) -> usize {
        let touches = |mapping: &&Mapping| mapping.source == area.id || mapping.target == area.id;
        let windows = self.mappings.iter().filter(touches).map(|mapping| mapping.window);
        windows.fold(area.history, u16::max).into()
    }

    /// Whether synapses change.
    pub(crate) fn learns(&self) -> bool {
        !self.mappings.is_empty()
    }

    /// The synapses of an index.
    pub(crate) fn row(&self, index: usize) -> &[Entry] {
        &self.entries[self.rows[index]..self.rows[index + 1]]
    }

    /// A row's entry as a synapse between ids.
    pub(crate) fn synapse(&self, source: usize, entry: &Entry) -> Synapse {
        let &Entry { target, weight, potential, kind } = entry;
        Synapse { source: self.id(source), target: self.id(target as usize), weight, potential, kind }
    }

    /// A synapse between ids of this network as an entry.
    pub(crate) fn entry(&self, synapse: &Synapse) -> Option<(usize, Entry)> {
        let (source, target) = (self.index(synapse.source)?, self.index(synapse.target)? as u32);
        let &Synapse { weight, potential, kind, .. } = synapse;
        Some((source, Entry { target, weight, potential, kind }))
    }

    /// Memory for arrays over all neurons is there, or an error says that it is not.
    pub(crate) fn check_memory(&self, what: &'static str, bytes: usize) -> crate::Result<()> {
        Ok(memory::check::<u8>(what, self.count().saturating_mul(bytes))?)
    }
}

/// Entries of a row whose targets lie in `targets`: a part of it, since rows ascend by target.
pub(crate) fn within(row: &[Entry], targets: &Range<usize>) -> Range<usize> {
    let before = |end: usize| row.partition_point(|entry| (entry.target as usize) < end);
    before(targets.start)..before(targets.end)
}
