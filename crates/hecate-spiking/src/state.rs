//! States: what bursts change. A state of one device goes on on any other.

use crate::{Error, History, Ledger, Network, Result, Spike, Synapse, builder, fixed};
use hecate_core::memory;
use serde::{Deserialize, Serialize};

/// All that bursts change in a network: what [`Spiking::state`](crate::Spiking::state) reads and
/// [`Spiking::load`](crate::Spiking::load) starts from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct State {
    /// Digest of the network that it is of.
    pub network: u64,
    /// Number of bursts so far.
    pub burst: u64,
    /// Potentials, one a neuron; memory neurons have none.
    pub potential: Vec<f32>,
    /// Bursts with input that a neuron still passes over.
    pub refractory: Vec<u16>,
    /// Times that a neuron fired in a row.
    pub in_a_row: Vec<u16>,
    /// What fired in the last burst, ascending by id: the next one delivers it.
    pub fired: Vec<Spike>,
    /// Weights in the order of [`Network::synapses`]; empty where none learn.
    pub weights: Vec<u8>,
    /// Synapses that were made, ascending by source and then by target.
    pub made: Vec<Synapse>,
    /// What the ledger holds, ascending by area.
    pub history: Vec<History>,
}

impl State {
    /// The state before the first burst: all zero, and nothing fired.
    ///
    /// # Errors
    /// [`Error::Memory`].
    pub fn start(network: &Network) -> Result<Self> {
        let count = network.neuron_count();
        let weights = if network.learns() { &network.entries[..] } else { &[] };
        Ok(Self {
            network: network.digest(),
            burst: 0,
            potential: memory::zeros("a state", count)?,
            refractory: memory::zeros("a state", count)?,
            in_a_row: memory::zeros("a state", count)?,
            fired: Vec::new(),
            weights: memory::collect("weights", weights.iter().map(|entry| entry.weight))?,
            made: Vec::new(),
            history: Ledger::of(network).history(),
        })
    }

    /// Refuses a state that is not one of `network`.
    ///
    /// # Errors
    /// [`Error::OtherNetwork`], [`Error::Length`], [`Error::Value`], [`Error::MissingNeuron`] with the index of what is wrong.
    pub fn check(&self, network: &Network) -> Result<()> {
        if self.network != network.digest() {
            return Err(Error::OtherNetwork { found: self.network, expected: network.digest() });
        }
        let count = network.neuron_count();
        same("potential", self.potential.len(), count)?;
        same("refractory", self.refractory.len(), count)?;
        same("in_a_row", self.in_a_row.len(), count)?;
        same("weights", self.weights.len(), if network.learns() { network.synapse_count() } else { 0 })?;
        if let Some(index) = self.potential.iter().position(|potential| !potential.is_finite()) {
            return Err(builder::value("state of neuron", index, "potential", self.potential[index], FINITE));
        }
        check_spikes("fired neuron", network, &self.fired)?;
        self.check_made(network)?;
        self.check_history(network)
    }

    fn check_made(&self, network: &Network) -> Result<()> {
        if !self.made.is_empty() && !network.learns() {
            return same("made", self.made.len(), 0);
        }
        builder::room("synapses", network.synapse_count(), self.made.len(), fixed::SYNAPSES)?;
        // Halving finds synapses in rows that ascend, so that these have to.
        let mut last = None;
        for (index, synapse) in self.made.iter().enumerate() {
            let source = neuron(network, "made synapse's source", index, synapse.source)?;
            let target = neuron(network, "made synapse's target", index, synapse.target)?;
            if last.replace((source, target)).is_some_and(|last| last >= (source, target)) {
                return Err(builder::value("made synapse", index, "target", synapse.target, ASCENDING));
            }
        }
        Ok(())
    }

    fn check_history(&self, network: &Network) -> Result<()> {
        let watched = || network.areas().iter().filter(|area| network.watched(area) > 0);
        same("history", self.history.len(), watched().count())?;
        for (index, (history, area)) in self.history.iter().zip(watched()).enumerate() {
            if history.area != area.id {
                return Err(builder::value("history", index, "area", history.area, "watched areas, ascending by id"));
            }
            // Fewer bursts are fine: the network has just begun.
            if history.bursts.len() > network.watched(area) {
                return same("history", history.bursts.len(), network.watched(area));
            }
            for burst in &history.bursts {
                let of_area = |id: &u32| network.area_of(*id).is_some_and(|found| found.id == area.id);
                let wrong = burst.iter().find(|id| !of_area(id));
                let back = burst.windows(2).find(|pair| pair[0] >= pair[1]).map(|pair| &pair[1]);
                if let Some(id) = wrong.or(back) {
                    return Err(builder::value("history", index, "neuron", id, "neurons of the area, ascending"));
                }
            }
        }
        Ok(())
    }
}

/// What is accepted of potentials, and of lists of neurons.
const FINITE: &str = "a finite number";
const ASCENDING: &str = "ascending order, each once";

/// The index of a neuron that is there.
fn neuron(network: &Network, what: &'static str, index: usize, neuron: u32) -> Result<usize> {
    let (neurons, memory) = (network.neuron_count(), network.id(network.count() - 1) as usize + 1);
    let memory = memory.max(crate::MEMORY as usize);
    network.index(neuron).ok_or(Error::MissingNeuron { what, index, neuron, neurons, memory })
}

/// Refuses spikes that are not of a network, not ascending, or not finite.
pub(crate) fn check_spikes(what: &'static str, network: &Network, spikes: &[Spike]) -> Result<()> {
    for (index, spike) in spikes.iter().enumerate() {
        neuron(network, what, index, spike.neuron)?;
        if !spike.potential.is_finite() {
            return Err(builder::value(what, index, "potential", spike.potential, FINITE));
        }
        if index > 0 && spikes[index - 1].neuron >= spike.neuron {
            return Err(builder::value(what, index, "neuron", spike.neuron, ASCENDING));
        }
    }
    Ok(())
}

/// Refuses staged potentials of neurons that are not there, that are not finite, or that may overflow a sum.
pub(crate) fn check_staged(network: &Network, staged: &[(u32, f32)]) -> Result<()> {
    let mut total = 0.0;
    for (index, &(id, potential)) in staged.iter().enumerate() {
        neuron(network, "staged potential", index, id)?;
        if !potential.is_finite() {
            return Err(builder::value("staged potential", index, "potential", potential, FINITE));
        }
        // All of them together fit one sum, whoever gets them.
        total += f64::from(potential.abs());
        if total > fixed::STAGED {
            return Err(Error::Overflow { neuron: id, what: "all staged potentials up to this one", found: total });
        }
    }
    Ok(())
}

/// Refuses an array of another length.
fn same(field: &'static str, found: usize, expected: usize) -> Result<()> {
    if found == expected { Ok(()) } else { Err(Error::Length { field, found, expected }) }
}
