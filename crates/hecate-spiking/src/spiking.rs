//! What a device does for spiking networks.

use crate::{Network, Result, State, builder, state};
use serde::{Deserialize, Serialize};
use std::{fmt::Debug, ops::Range, sync::Arc};

/// A neuron that fired. In files `[neuron, potential]`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(into = "(u32, f32)", from = "(u32, f32)")]
pub struct Spike {
    /// Its id.
    pub neuron: u32,
    /// Its potential when it fired.
    pub potential: f32,
}

impl From<Spike> for (u32, f32) {
    fn from(spike: Spike) -> Self {
        (spike.neuron, spike.potential)
    }
}

impl From<(u32, f32)> for Spike {
    fn from((neuron, potential): (u32, f32)) -> Self {
        Self { neuron, potential }
    }
}

/// What reaches a network from outside in one burst.
#[derive(Clone, Copy, Debug, Default)]
pub struct Stimulus<'a> {
    /// Neurons and what they get; all that one neuron gets is summed.
    pub staged: &'a [(u32, f32)],
    /// Whether neurons of the area of fatigue get the power amount.
    pub fatigue: bool,
}

impl Stimulus<'_> {
    /// Refuses a stimulus that is none of `network`. Devices call it before anything changes.
    ///
    /// # Errors
    /// [`Error::MissingNeuron`](crate::Error::MissingNeuron), [`Error::Value`](crate::Error::Value) with the index in
    /// `staged`; [`Error::Overflow`](crate::Error::Overflow) with the neuron.
    pub fn check(&self, network: &Network) -> Result<()> {
        state::check_staged(network, self.staged)
    }
}

/// A device that runs spiking networks. All devices give the same bits.
///
/// It stands beside `hecate_core::Backend` and does not extend `hecate_core::Device`: networks have neither tensors nor
/// rules, and who runs them compiles no kernel of memories.
///
/// [`burst`](Self::burst) is `fire`, then `hear`. Between the two, parts of one network on several devices tell each other
/// what fired: [`Shards`](crate::Shards) does it.
pub trait Spiking: Clone + Debug + Send + Sync + 'static {
    /// Name in messages.
    const NAME: &'static str;

    /// A network on the device, or a part of it, with its state.
    type Net: Send;

    /// The neurons of `part`, as indices, and all synapses that lead to them, in a state of the whole network.
    ///
    /// # Errors
    /// What [`State::check`] refuses; [`Error::Part`](crate::Error::Part) for a part outside of the network or empty;
    /// [`Error::Memory`](crate::Error::Memory).
    fn load_part(&self, network: &Arc<Network>, state: &State, part: Range<usize>) -> Result<Self::Net>;

    /// The first half of a burst: what reaches the part's neurons, and which of them fire.
    ///
    /// # Errors
    /// What [`Stimulus::check`] refuses; [`Error::OtherDevice`](crate::Error::OtherDevice);
    /// [`Error::Order`](crate::Error::Order) before the last burst was heard.
    fn fire(&self, net: &mut Self::Net, stimulus: Stimulus<'_>) -> Result<()>;

    /// The second half: `others` fired in this burst outside of the part, ascending by id. Synapses learn, and what fired
    /// is kept for the next burst.
    ///
    /// # Errors
    /// [`Error::MissingNeuron`](crate::Error::MissingNeuron), [`Error::Value`](crate::Error::Value) for spikes that are not
    /// of other parts; [`Error::OtherDevice`](crate::Error::OtherDevice); [`Error::Order`](crate::Error::Order) without a
    /// burst to hear; [`Error::TooMany`](crate::Error::TooMany) where synapses would be made without room for them.
    fn hear(&self, net: &mut Self::Net, others: &[Spike]) -> Result<()>;

    /// What fired of the part in the last burst, ascending by id.
    ///
    /// # Errors
    /// [`Error::OtherDevice`](crate::Error::OtherDevice).
    fn fired(&self, net: &Self::Net) -> Result<Vec<Spike>>;

    /// The state after the last burst. That of a part has zeros for neurons of other parts, and weights of synapses that
    /// lead to them as they were loaded.
    ///
    /// # Errors
    /// [`Error::OtherDevice`](crate::Error::OtherDevice); [`Error::Order`](crate::Error::Order) before the burst was heard;
    /// [`Error::Memory`](crate::Error::Memory).
    fn state(&self, net: &Self::Net) -> Result<State>;

    /// A whole network in a state.
    ///
    /// # Errors
    /// As [`Spiking::load_part`].
    fn load(&self, network: &Arc<Network>, state: &State) -> Result<Self::Net> {
        self.load_part(network, state, 0..network.count())
    }

    /// One burst of a whole network: what fired one burst ago reaches its targets, and those that can, fire.
    ///
    /// # Errors
    /// As [`Spiking::fire`] and [`Spiking::hear`].
    fn burst(&self, net: &mut Self::Net, stimulus: Stimulus<'_>) -> Result<()> {
        // A whole network has no other parts to hear of.
        self.fire(net, stimulus)?;
        self.hear(net, &[])
    }

    /// So many bursts of a whole network, each with the same stimulus. A GPU is told of it once, and bursts follow each other there:
    /// nothing comes to the host between them, unless synapses are to be made.
    ///
    /// # Errors
    /// As [`Spiking::burst`]. Bursts before the one that failed have run.
    fn bursts(&self, net: &mut Self::Net, stimulus: Stimulus<'_>, count: u64) -> Result<()> {
        (0..count).try_for_each(|_| self.burst(net, stimulus))
    }

    /// Waits until all bursts that were begun have ended. Whoever reads what fired need not: a burst's time is measured so.
    ///
    /// # Errors
    /// [`Error::OtherDevice`](crate::Error::OtherDevice); what failed on a GPU since it was last waited for.
    fn synchronize(&self, net: &Self::Net) -> Result<()>;

    /// Bytes of the arrays that the device holds for a network or a part of it. What all parts of a host share is not counted.
    fn bytes(&self, net: &Self::Net) -> usize;

    /// Lets kernels run in blocks of so many threads from the next burst on, where blocks can be chosen: CUDA, 256 unless said.
    /// Results do not depend on it.
    ///
    /// # Errors
    /// [`Error::Value`](crate::Error::Value) for other numbers than 64 to 1024 by steps of 32, and for other devices.
    fn set_block(&self, net: &mut Self::Net, threads: u32) -> Result<()> {
        let _ = net;
        Err(builder::value("network", 0, "block", threads, "none: this device has no blocks to choose"))
    }
}
