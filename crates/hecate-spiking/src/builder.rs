//! Building a network piece by piece: each is checked when it is added.

use crate::{
    Area, Error, Mapping, Network, Neuron, Result, Synapse, fixed,
    network::{Dynamics, Entry, FATIGUE, MEMORY, POWER},
};
use hecate_core::memory;
use std::{collections::HashMap, sync::Arc};

/// A network in the making: areas first, then neurons, then what connects them.
///
/// ```
/// use hecate_spiking::{Area, Builder, Kind, Neuron, Synapse};
/// let mut builder = Builder::default();
/// builder.area(Area::uniform(3))?;
/// let (a, b) = (builder.neuron(Neuron::new(3, 10.0))?, builder.neuron(Neuron::new(3, 20.0))?);
/// builder.synapse(Synapse { source: a, target: b, weight: 5, potential: 4, kind: Kind::Excitatory })?;
/// let network = builder.build()?;
/// assert_eq!((network.count(), network.synapse_count()), (2, 1));
/// # Ok::<(), hecate_spiking::Error>(())
/// ```
#[derive(Debug, Default)]
pub struct Builder {
    /// Ascending by id.
    areas: Vec<Area>,
    /// For each neuron, which of `sorts` it is.
    sort: Vec<u32>,
    sorts: Vec<Neuron>,
    /// Where among `sorts` a neuron is, by all of its bits.
    known: HashMap<[u32; 7], u32>,
    /// Areas of memory neurons.
    memory: Vec<u32>,
    /// Id of the source, and the rest. Targets are ids too: indices of memory neurons are not known before the end.
    synapses: Vec<(u32, Entry)>,
    mappings: Vec<Mapping>,
    /// What the power neuron gets.
    power: f32,
}

impl Builder {
    /// Adds an area.
    ///
    /// # Errors
    /// [`Error::SameArea`] for an id that is there.
    pub fn area(&mut self, area: Area) -> Result<()> {
        match self.areas.binary_search_by_key(&area.id, |area| area.id) {
            Ok(_) => Err(Error::SameArea { area: area.id }),
            Err(place) => {
                self.areas.insert(place, area);
                Ok(())
            }
        }
    }

    /// Adds a neuron and returns its id.
    ///
    /// # Errors
    /// As [`Builder::neurons`].
    pub fn neuron(&mut self, neuron: Neuron) -> Result<u32> {
        self.neurons(1, neuron)
    }

    /// Adds `count` equal neurons and returns the id of the first; the others follow it.
    ///
    /// # Errors
    /// [`Error::MissingArea`], [`Error::Value`] with the neuron's index; [`Error::TooMany`] for more than [`MEMORY`];
    /// [`Error::Memory`].
    pub fn neurons(&mut self, count: usize, neuron: Neuron) -> Result<u32> {
        let first = self.sort.len();
        self.check_area("neuron", first, neuron.area)?;
        check(first, &neuron)?;
        room("neurons", first, count, MEMORY as usize)?;
        memory::check::<u32>("neurons of a network", count)?;
        // Equal neurons are one sort, however far apart they are.
        let sorts = &mut self.sorts;
        let sort = *self.known.entry(bits(&neuron)).or_insert_with(|| {
            sorts.push(neuron);
            sorts.len() as u32 - 1
        });
        self.sort.resize(first + count, sort);
        Ok(first as u32)
    }

    /// Adds `count` memory neurons to an area and returns the id of the first. A memory neuron fires in every burst in which
    /// something reaches it, with what reached it as its potential.
    ///
    /// # Errors
    /// [`Error::MissingArea`]; [`Error::TooMany`] for more than [`MEMORY`]; [`Error::Memory`].
    pub fn memory(&mut self, count: usize, area: u32) -> Result<u32> {
        let first = self.memory.len();
        self.check_area("memory neuron", first, area)?;
        room("memory neurons", first, count, MEMORY as usize)?;
        memory::check::<u32>("memory neurons of a network", count)?;
        self.memory.resize(first + count, area);
        Ok(MEMORY + first as u32)
    }

    /// Refuses a network of so many neurons and synapses for which there is no room, before any of it is taken. It counts what this
    /// takes, the network itself, and the copy from which a device is loaded.
    ///
    /// # Errors
    /// [`Error::TooMany`] for more than [`MEMORY`] neurons or 2³⁰ synapses; [`Error::Memory`].
    pub fn check_room(neurons: usize, synapses: usize) -> Result<()> {
        room("neurons", 0, neurons, MEMORY as usize)?;
        room("synapses", 0, synapses, fixed::SYNAPSES)?;
        // A synapse and its source, its row, and its two words on the way to a device; some ten arrays of words a neuron.
        let bytes = synapses * (size_of::<(u32, Entry)>() + 2 * size_of::<Entry>()) + neurons * 96;
        Ok(memory::check::<u8>("a network of this size", bytes)?)
    }

    /// Adds a synapse between neurons that are there.
    ///
    /// # Errors
    /// [`Error::MissingNeuron`] with the synapse's index; [`Error::TooMany`] for more than 2³⁰.
    pub fn synapse(&mut self, synapse: Synapse) -> Result<()> {
        let Synapse { source, target, weight, potential, kind } = synapse;
        let number = self.synapses.len();
        self.check_neuron("synapse source", number, source)?;
        self.check_neuron("synapse target", number, target)?;
        room("synapses", number, 1, fixed::SYNAPSES)?;
        self.synapses.push((source, Entry { target, weight, potential, kind }));
        Ok(())
    }

    /// Lets synapses between two areas learn. Mappings learn in the order in which they were added.
    ///
    /// # Errors
    /// [`Error::MissingArea`] with the mapping's index; [`Error::Value`] for a window of no burst.
    pub fn mapping(&mut self, mapping: Mapping) -> Result<()> {
        let number = self.mappings.len();
        self.check_area("mapping", number, mapping.source)?;
        self.check_area("mapping", number, mapping.target)?;
        if mapping.window == 0 {
            return Err(value("mapping", number, "window", 0, "at least 1"));
        }
        self.mappings.push(mapping);
        Ok(())
    }

    /// What the power neuron gets in every burst, and neurons of the area of fatigue in bursts with it; 0 unless said.
    ///
    /// # Errors
    /// [`Error::Value`] unless finite.
    pub fn power(&mut self, amount: f32) -> Result<()> {
        if !amount.is_finite() {
            return Err(value("network", 0, "power", amount, "a finite number"));
        }
        self.power = amount;
        Ok(())
    }

    /// The network.
    ///
    /// # Errors
    /// [`Error::NoNeurons`]; [`Error::Overflow`] with the neuron whose sum the power amount may overflow; [`Error::Memory`].
    pub fn build(self) -> Result<Arc<Network>> {
        let Self { areas, sort, sorts, memory: remembering, synapses, mappings, power, .. } = self;
        let count = sort.len() + remembering.len();
        if count == 0 {
            return Err(Error::NoNeurons);
        }
        let mut place = memory::with_capacity("neurons of a network", count)?;
        // Each area was there when its neurons were added.
        let of = |id: u32| areas.binary_search_by_key(&id, |area| area.id).unwrap_or_default() as u32;
        let of_sorts: Vec<_> = sorts.iter().map(|neuron| of(neuron.area)).collect();
        place.extend(sort.iter().map(|&sort| of_sorts[sort as usize]).chain(remembering.into_iter().map(of)));
        let mut members = vec![Vec::new(); areas.len()];
        place.iter().enumerate().for_each(|(index, &place)| members[place as usize].push(index as u32));
        let (rows, entries) = rows(sort.len(), count, synapses)?;
        let dynamics = sorts.iter().map(Dynamics::from).collect();
        let network =
            Network { areas, members, place, sort, sorts, dynamics, rows, entries, mappings, power, digest: 0 };
        check_power(&network)?;
        Ok(Arc::new(Network { digest: digest(&network), ..network }))
    }

    /// Refuses a staged potential of a neuron that is not there, or that is not finite.
    pub(crate) fn check_staged(&self, index: usize, neuron: u32, potential: f32) -> Result<()> {
        self.check_neuron("staged potential", index, neuron)?;
        if potential.is_finite() {
            return Ok(());
        }
        Err(value("staged potential", index, "potential", potential, "a finite number"))
    }

    /// Refuses the id of a neuron that is not there.
    fn check_neuron(&self, what: &'static str, index: usize, neuron: u32) -> Result<()> {
        let (neurons, memory) = (self.sort.len(), self.memory.len());
        let found = match neuron.checked_sub(MEMORY) {
            None => (neuron as usize) < neurons,
            Some(number) => (number as usize) < memory,
        };
        let missing = || Error::MissingNeuron { what, index, neuron, neurons, memory: MEMORY as usize + memory };
        found.then_some(()).ok_or_else(missing)
    }

    fn check_area(&self, what: &'static str, index: usize, area: u32) -> Result<()> {
        let found = self.areas.binary_search_by_key(&area, |area| area.id);
        found.map(drop).map_err(|_| Error::MissingArea { what, index, area })
    }
}

/// All of a neuron: two that have the same are one sort.
fn bits(neuron: &Neuron) -> [u32; 7] {
    let Neuron { area, threshold, limit, leak, refractory, excitability, fire_limit, snooze, accumulate } = *neuron;
    let limits = u32::from(fire_limit) << 16 | u32::from(snooze);
    let marks = u32::from(refractory) << 2 | u32::from(limit.is_some()) << 1 | u32::from(accumulate);
    let limit = limit.unwrap_or_default().to_bits();
    [area, threshold.to_bits(), limit, leak.to_bits(), excitability.to_bits(), limits, marks]
}

/// Refuses values of a neuron outside of what is defined; NaN is.
fn check(index: usize, neuron: &Neuron) -> Result<()> {
    let finite = "a finite number";
    let share = "0 to 1";
    let values = [
        ("threshold", neuron.threshold, neuron.threshold.is_finite(), finite),
        ("limit", neuron.limit.unwrap_or_default(), neuron.limit.is_none_or(f32::is_finite), finite),
        ("leak", neuron.leak, (0.0..=1.0).contains(&neuron.leak), share),
        ("excitability", neuron.excitability, (0.0..=1.0).contains(&neuron.excitability), share),
    ];
    match values.into_iter().find(|&(_, _, holds, _)| !holds) {
        None => Ok(()),
        Some((field, found, _, expected)) => Err(value("neuron", index, field, found, expected)),
    }
}

/// The error for a value.
pub(crate) fn value(
    what: &'static str,
    index: usize,
    field: &'static str,
    found: impl ToString,
    expected: &'static str,
) -> Error {
    Error::Value { what, index, field, found: found.to_string(), expected }
}

/// Refuses more of something than there can be.
pub(crate) fn room(what: &'static str, have: usize, more: usize, most: usize) -> Result<()> {
    let found = have.saturating_add(more);
    if found <= most { Ok(()) } else { Err(Error::TooMany { what, found: found as u64, most: most as u64 }) }
}

/// Synapses between ids in rows by index of the source, each row ascending by target, in the order given where targets are
/// the same.
fn rows(neurons: usize, count: usize, mut synapses: Vec<(u32, Entry)>) -> Result<(Vec<usize>, Vec<Entry>)> {
    // Memory neurons follow the others.
    let index = |id: u32| id.checked_sub(MEMORY).map_or(id, |number| neurons as u32 + number);
    for (source, entry) in &mut synapses {
        (*source, entry.target) = (index(*source), index(entry.target));
    }
    let mut rows = memory::zeros::<usize>("rows of synapses", count + 1)?;
    synapses.iter().for_each(|&(source, _)| rows[source as usize + 1] += 1);
    (0..count).for_each(|row| rows[row + 1] += rows[row]);
    let blank = Entry { target: 0, weight: 0, potential: 0, kind: Default::default() };
    let mut entries = memory::filled("synapses", synapses.len(), blank)?;
    let mut next = memory::collect("rows of synapses", rows.iter().copied())?;
    for (source, entry) in synapses {
        let place = &mut next[source as usize];
        entries[*place] = entry;
        *place += 1;
    }
    let mut rest = &mut entries[..];
    for row in rows.windows(2) {
        let (row, after) = rest.split_at_mut(row[1] - row[0]);
        row.sort_by_key(|entry| entry.target);
        rest = after;
    }
    Ok((rows, entries))
}

/// Refuses a power amount that a sum has no room for.
fn check_power(network: &Network) -> Result<()> {
    let gets = network.members(POWER).iter().take(1).chain(network.members(FATIGUE)).min();
    let amount = f64::from(network.power);
    match gets {
        Some(&index) if amount.abs() > fixed::STAGED => {
            Err(Error::Overflow { neuron: network.id(index as usize), what: "power", found: amount })
        }
        _ => Ok(()),
    }
}

/// A number that depends on all of a network.
fn digest(network: &Network) -> u64 {
    // Mixes a word in: a rotation and a multiplication by an odd number lose nothing.
    let mix = |digest: u64, word: u64| (digest.rotate_left(23) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let area = |area: &Area| (u64::from(area.id) << 32) | u64::from(area.history) << 2 | u64::from(area.uniform) << 1;
    let mut digest = mix(network.neuron_count() as u64, network.power.to_bits().into());
    for of in &network.areas {
        digest = mix(digest, area(of) | u64::from(of.membrane_driven));
    }
    for of in &network.dynamics {
        digest = mix(digest, u64::from(of.threshold.to_bits()) << 32 | u64::from(of.limit.to_bits()));
        digest =
            mix(digest, u64::from(of.keep.to_bits()) << 32 | u64::from(of.refractory) << 16 | u64::from(of.snooze));
        digest = mix(digest, of.chance << 17 | u64::from(of.fire_limit) << 1 | u64::from(of.accumulate));
    }
    digest = network.sort.iter().fold(digest, |digest, &sort| mix(digest, sort.into()));
    digest = network.place.iter().fold(digest, |digest, &place| mix(digest, place.into()));
    digest = network.rows.iter().fold(digest, |digest, &row| mix(digest, row as u64));
    for of in &network.entries {
        let rest = u64::from(of.weight) << 16 | u64::from(of.potential) << 8 | u64::from(u8::from(of.kind));
        digest = mix(digest, u64::from(of.target) << 32 | rest);
    }
    network.mappings.iter().fold(digest, |digest, mapping| mapping.words().into_iter().fold(digest, mix))
}
