//! Learning: weights that change after a burst, and synapses that are made.
//!
//! Every part of a network knows all that fired, so each decides for itself which synapses are made, also those of other
//! parts: a neuron shares its potential among all of its synapses. Weights change only of synapses into the part.

use super::{Made, Synapse, within};
use crate::{
    Ledger, Mapping, Network, Result, Spike, State, builder, fixed,
    network::{Entry, Kind},
    plasticity::{PairTable, REACH},
};
use hecate_core::memory;
use std::{borrow::Cow, ops::Range};

/// What learns of a loaded network.
#[derive(Debug)]
pub(crate) struct Learning {
    ledger: Ledger,
    /// Synapses with their weights of now, in the network's order; empty where none learn.
    entries: Vec<Entry>,
    made: Made,
    pairs: PairTable,
    /// For each index, in how many bursts of a window it fired; zero between calls.
    counts: Vec<u16>,
    /// For each index, in which of the last bursts it fired, the newest in bit 0; zero between calls.
    recent: Vec<u64>,
}

impl Learning {
    /// As a state that was checked says.
    pub(crate) fn new(network: &Network, state: &State) -> Result<Self> {
        let (count, learning) = if network.learns() { (network.count(), &network.entries[..]) } else { (0, &[][..]) };
        let mut entries = memory::collect("synapses that learn", learning.iter().copied())?;
        entries.iter_mut().zip(&state.weights).for_each(|(entry, &weight)| entry.weight = weight);
        // A checked state lists them in the order of rows.
        let mut made = Made::new();
        for (source, entry) in state.made.iter().filter_map(|synapse| network.entry(synapse)) {
            made.entry(source as u32).or_default().push(entry);
        }
        let ledger = Ledger::after(network, &state.history);
        let (counts, recent) = (memory::zeros("a window", count)?, memory::zeros("a window", count)?);
        Ok(Self { ledger, entries, made, pairs: PairTable::new(), counts, recent })
    }

    /// Synapses with their weights of now.
    pub(crate) fn entries<'a>(&'a self, network: &'a Network) -> &'a [Entry] {
        if network.learns() { &self.entries } else { &network.entries }
    }

    /// Synapses that were made.
    pub(crate) fn made(&self) -> &Made {
        &self.made
    }

    /// Writes weights, synapses and the ledger into a state.
    pub(crate) fn write(&self, network: &Network, state: &mut State) -> Result<()> {
        state.weights.iter_mut().zip(&self.entries).for_each(|(weight, entry)| *weight = entry.weight);
        let count = self.made.values().map(Vec::len).sum();
        state.made = memory::with_capacity("synapses that were made", count)?;
        let synapses = |(source, row): (&u32, &'_ Vec<Entry>)| -> Vec<Synapse> {
            row.iter().map(|entry| network.synapse(*source as usize, entry)).collect()
        };
        state.made.extend(self.made.iter().flat_map(synapses));
        state.history = self.ledger.history();
        Ok(())
    }

    /// After a burst in which `fired` fired anywhere: archives it, then lets synapses into `part` learn.
    ///
    /// # Errors
    /// [`crate::Error::TooMany`], [`crate::Error::Memory`] where the synapses to be made have no room; nothing changes then.
    pub(crate) fn learn(&mut self, network: &Network, part: &Range<usize>, fired: &[Spike]) -> Result<()> {
        self.archive(network, fired)?;
        for mapping in network.mappings() {
            match mapping.steps() {
                Some(_) => self.learn_windows(network, part, mapping),
                None => self.learn_pairs(network, part, mapping),
            }
        }
        Ok(())
    }

    /// Archives what fired anywhere in a burst.
    ///
    /// # Errors
    /// Those of [`Learning::learn`].
    pub(crate) fn archive(&mut self, network: &Network, fired: &[Spike]) -> Result<()> {
        let mut ledger = Cow::Borrowed(&self.ledger);
        if network.mappings().iter().any(|mapping| mapping.made().is_some()) {
            // Asked on a copy: it is archived for good only if there is room.
            ledger.to_mut().archive(network, fired);
            self.room(network, &ledger)?;
        }
        match ledger {
            Cow::Owned(archived) => self.ledger = archived,
            Cow::Borrowed(_) => self.ledger.archive(network, fired),
        }
        Ok(())
    }

    /// Bytes of its arrays.
    pub(crate) fn bytes(&self, network: &Network) -> usize {
        let entries = self.entries(network).len() + self.made.values().map(Vec::len).sum::<usize>();
        size_of::<Entry>() * entries + size_of_val(&self.counts[..]) + size_of_val(&self.recent[..])
    }

    /// Refuses synapses to be made where there is no room for all of them.
    fn room(&self, network: &Network, ledger: &Ledger) -> Result<()> {
        let making = network.mappings().iter().filter(|mapping| mapping.made().is_some());
        let always = |area, window: u16| always(ledger, area, window.into()).map_or(0, |ids| ids.len());
        let more = making.map(|of| always(of.source, of.window).saturating_mul(always(of.target, of.window)));
        let more = more.fold(0, usize::saturating_add);
        // An upper bound: some of these synapses may be there.
        let have = network.synapse_count() + self.made.values().map(Vec::len).sum::<usize>();
        builder::room("synapses", have, more, fixed::SYNAPSES)?;
        Ok(memory::check::<Entry>("synapses that are made", more)?)
    }

    /// The classic and the bidirectional form: by who fired in all of a window, and who in some of it.
    fn learn_windows(&mut self, network: &Network, part: &Range<usize>, of: &Mapping) {
        let Some(steps) = of.steps() else { return };
        // Nothing is known of a window before it is full.
        let window = usize::from(of.window);
        let Some(sources) = self.ledger.window(of.source, window) else { return };
        let Some(targets) = self.ledger.window(of.target, window) else { return };
        // An area that learns with itself is counted once.
        let both = if of.source == of.target { &[][..] } else { &targets[..] };
        let indices = || sources.iter().chain(both).flat_map(|burst| *burst).filter_map(|&id| network.index(id));
        indices().for_each(|index| self.counts[index] += 1);
        let (counts, any_target) = (&self.counts, targets.iter().any(|burst| !burst.is_empty()));
        // A neuron that was silent has no change to make unless some target was not.
        for &source in network.members(of.source) {
            let often = counts[source as usize];
            if often == 0 && !any_target {
                continue;
            }
            for row in synapses(network, &mut self.entries, &mut self.made, source) {
                for entry in within_mut(row, part).iter_mut().filter(|entry| leads(network, entry, of.target)) {
                    entry.weight = steps.changed(entry.weight, often, counts[entry.target as usize], of.window);
                }
            }
        }
        indices().for_each(|index| self.counts[index] = 0);
        let missing = self.missing(network, of);
        self.make(of, missing);
    }

    /// Source and target of the synapses that are to be made: those that are missing between neurons that fired in all of a window,
    /// where the form makes them.
    pub(crate) fn missing(&self, network: &Network, of: &Mapping) -> Vec<(u32, u32)> {
        if of.made().is_none() {
            return Vec::new();
        }
        let window = usize::from(of.window);
        let index = |id: u32| network.index(id).map(|index| index as u32);
        let always = |area| always(&self.ledger, area, window).unwrap_or_default().into_iter().filter_map(index);
        let (targets, mut missing): (Vec<_>, _) = (always(of.target).collect(), Vec::new());
        // Rows ascend by target, so that a synapse that is there is found by halving.
        let has = |row: &[Entry], target: u32| row.binary_search_by_key(&target, |entry| entry.target).is_ok();
        for source in always(of.source) {
            let (row, made) = (network.row(source as usize), self.made.get(&source).map_or(&[][..], Vec::as_slice));
            let absent = targets.iter().filter(|&&target| !has(row, target) && !has(made, target));
            missing.extend(absent.map(|&target| (source, target)));
        }
        missing
    }

    /// Makes synapses that were [missing](Learning::missing).
    pub(crate) fn make(&mut self, of: &Mapping, missing: Vec<(u32, u32)>) {
        let (Some(potential), Some(steps)) = (of.made(), of.steps()) else { return };
        for (source, target) in missing {
            let row = self.made.entry(source).or_default();
            // Rows that are made ascend too.
            let place = row.partition_point(|entry| entry.target < target);
            row.insert(place, Entry { target, weight: steps.rise, potential, kind: Kind::Excitatory });
        }
    }

    /// The exponential form: by pairs of spikes of which the later one is of this burst.
    fn learn_pairs(&mut self, network: &Network, part: &Range<usize>, of: &Mapping) {
        // What is further apart changes nothing.
        let window = usize::from(of.window).min(REACH);
        let areas = if of.source == of.target { &[of.source][..] } else { &[of.source, of.target] };
        let ages = || areas.iter().flat_map(|&area| (0..window).map(move |age| (area, age)));
        let spikes = |ledger: &Ledger, (area, age)| ledger.burst(area, age).unwrap_or_default().to_vec();
        // One word a neuron: the window of 37 bursts fits 64 bits.
        for (area, age) in ages() {
            let indices = spikes(&self.ledger, (area, age)).into_iter().filter_map(|id| network.index(id));
            indices.for_each(|index| self.recent[index] |= 1 << age);
        }
        let any_target = self.ledger.burst(of.target, 0).is_some_and(|burst| !burst.is_empty());
        let (pairs, recent) = (&self.pairs, &self.recent);
        for &source in network.members(of.source) {
            // A pair counts now only if one of its two spikes is of this burst.
            let first = recent[source as usize];
            if first & 1 == 0 && (first == 0 || !any_target) {
                continue;
            }
            for row in synapses(network, &mut self.entries, &mut self.made, source) {
                for entry in within_mut(row, part).iter_mut().filter(|entry| leads(network, entry, of.target)) {
                    entry.weight = pairs.changed(entry.weight, first, recent[entry.target as usize]);
                }
            }
        }
        for (area, age) in ages() {
            let indices = spikes(&self.ledger, (area, age)).into_iter().filter_map(|id| network.index(id));
            indices.for_each(|index| self.recent[index] = 0);
        }
    }
}

/// For devices that hold weights of their own.
#[cfg(any(feature = "cuda", feature = "wgpu"))]
impl Learning {
    /// Takes over weights of the synapses into `part`: row by row, made ones after the network's own, as devices hold them.
    pub(crate) fn set_weights(&mut self, network: &Network, part: &Range<usize>, weights: &[u8]) {
        let mut weights = weights.iter();
        for source in 0..network.count() as u32 {
            for row in synapses(network, &mut self.entries, &mut self.made, source) {
                let entries = within_mut(row, part).iter_mut();
                entries.zip(&mut weights).for_each(|(entry, &weight)| entry.weight = weight);
            }
        }
    }

    /// As [`Learning::write`], with weights into `part` in the order of [`Learning::set_weights`].
    pub(crate) fn write_with(
        &self,
        network: &Network,
        part: &Range<usize>,
        weights: &[u8],
        state: &mut State,
    ) -> Result<()> {
        self.write(network, state)?;
        if !network.learns() {
            return Ok(());
        }
        let (mut weights, mut before) = (weights.iter(), 0);
        for source in 0..network.count() {
            let (own, made) = (&mut state.weights[network.rows[source]..network.rows[source + 1]], &mut state.made);
            let places = within(network.row(source), part);
            own[places].iter_mut().zip(&mut weights).for_each(|(own, &weight)| *own = weight);
            // Those that were made stand one row after the other in a state.
            let Some(row) = self.made.get(&(source as u32)) else { continue };
            let row_made = &mut made[before..before + row.len()];
            let places = within(row, part);
            row_made[places].iter_mut().zip(&mut weights).for_each(|(synapse, &weight)| synapse.weight = weight);
            before += row.len();
        }
        Ok(())
    }
}

/// The ids of `area` that fired in every burst of a window, ascending. None while the ledger has less than a window.
fn always(ledger: &Ledger, area: u32, window: usize) -> Option<Vec<u32>> {
    let bursts = ledger.window(area, window)?;
    let (newest, others) = bursts.split_first()?;
    let in_all = |id: &u32| others.iter().all(|burst| burst.binary_search(id).is_ok());
    Some(newest.iter().copied().filter(in_all).collect())
}

/// The synapses of a source: those of the network, and those that were made.
fn synapses<'a>(
    network: &Network,
    entries: &'a mut [Entry],
    made: &'a mut Made,
    source: u32,
) -> impl Iterator<Item = &'a mut [Entry]> {
    let row = network.rows[source as usize]..network.rows[source as usize + 1];
    [Some(&mut entries[row]), made.get_mut(&source).map(Vec::as_mut_slice)].into_iter().flatten()
}

/// Entries of a row whose targets lie in `targets`.
fn within_mut<'a>(row: &'a mut [Entry], targets: &Range<usize>) -> &'a mut [Entry] {
    let places = within(row, targets);
    &mut row[places]
}

/// Whether a synapse leads into an area.
fn leads(network: &Network, entry: &Entry, area: u32) -> bool {
    network.area_at(entry.target as usize).id == area
}
