//! Networks on GPUs: what is the same for all of them.
//!
//! A burst is two kernels: what fired delivers, then neurons that something reached decide. Rows of synapses, states and what fired stay
//! on the device. The host stages what comes from outside, and reads what it is asked for. Where areas are watched or synapses learn it
//! reads what fired in every burst: the ledger and [`Learning`](crate::cpu::Learning) are the CPU's, and weights that changed are
//! copied to the device.

#[cfg(feature = "cuda")]
mod cuda;
mod rows;
#[cfg(feature = "wgpu")]
mod wgpu;

use crate::{
    Error, Network, Result, Spike, State, Stimulus, builder,
    cpu::Learning,
    fixed,
    network::{FATIGUE, POWER},
    state,
};
use hecate_core::{Device, DeviceId, Tensor};
use rows::Rows;
use std::{collections::BTreeMap, fmt, ops::Range, sync::Arc};

/// What a GPU starts; arrays are of 32-bit words.
pub(crate) trait Engine: Device {
    /// Adds what `fired` and `staged` deliver to the sums of their targets.
    fn deliver(&self, net: &Arrays<Self>, of: &Delivered<'_, Self>) -> Result<()>;

    /// Neurons that something reached fire, or leak.
    fn decide(&self, net: &Arrays<Self>, of: &Decided) -> Result<()>;
}

/// Arrays of a part of a network, on its device.
pub(crate) struct Arrays<D: Device> {
    pub(crate) rows: Rows<D>,
    /// What reached each neuron in this burst: low and high word; zero between bursts.
    pub(crate) sums: Tensor<D>,
    /// Bits of the neurons that something reached; zero between bursts.
    pub(crate) candidates: Tensor<D>,
    /// Bits of potentials; memory neurons have none.
    pub(crate) potentials: Tensor<D>,
    /// Refractory bursts in the low half, times fired in a row in the high one.
    pub(crate) states: Tensor<D>,
    /// Which row of `table` each neuron has.
    pub(crate) sorts: Tensor<D>,
    /// What decides whether a neuron fires: 8 words a sort.
    pub(crate) table: Tensor<D>,
    /// What fired in the last burst and in this one, by parity of the burst: index and bits of the potential, in any order.
    pub(crate) fired: [Tensor<D>; 2],
    /// How many these are.
    pub(crate) counts: Tensor<D>,
}

/// What is delivered by one kernel.
pub(crate) struct Delivered<'a, D: Device> {
    pub(crate) fired: &'a Tensor<D>,
    pub(crate) counts: &'a Tensor<D>,
    /// Which of `counts` is that of `fired`.
    pub(crate) parity: u32,
    /// Index in the part, low and high word of an amount.
    pub(crate) staged: &'a Tensor<D>,
    pub(crate) staged_count: usize,
    /// Whether the burst begins with it.
    pub(crate) first: bool,
    /// How many neurons may have fired at most.
    pub(crate) most: usize,
}

impl<D: Device> Delivered<'_, D> {
    /// Threads that have something to do: 32 for each neuron that may have fired, and one for each staged amount.
    pub(crate) fn threads(&self) -> usize {
        self.most.saturating_mul(32).max(self.staged_count)
    }
}

/// What is decided.
pub(crate) struct Decided {
    /// Which list and count take what fires.
    pub(crate) parity: u32,
    /// Neurons of the part, memory neurons among them.
    pub(crate) count: usize,
    /// Neurons of the part that have a state.
    pub(crate) neurons: usize,
    /// Index of the first.
    pub(crate) start: usize,
    /// The number of the burst, modulo 2³².
    pub(crate) burst: u32,
    /// Whether potentials of some do not outlast a burst.
    pub(crate) forgets: bool,
}

/// A network, or a part of it, on a GPU.
pub struct DeviceNet<D: Device> {
    device: DeviceId,
    network: Arc<Network>,
    part: Range<usize>,
    /// Number of bursts so far.
    burst: u64,
    arrays: Arrays<D>,
    forgets: bool,
    /// What the last burst staged, with its copy on the device: equal bursts copy nothing.
    staged: (Vec<u32>, Tensor<D>),
    /// What fired outside of the part in the last burst that was heard, ascending by id.
    others: Vec<Spike>,
    /// Whether the last burst was heard.
    heard: bool,
    /// Where synapses learn or areas are watched.
    learning: Option<Learning>,
}

impl<D: Device> fmt::Debug for DeviceNet<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DeviceNet(neurons {:?} after {} bursts on {})", self.part, self.burst, self.device)
    }
}

/// Words on a device; arrays of none have one.
fn words<D: Device>(device: &D, mut words: Vec<u32>) -> Result<Tensor<D>> {
    if words.is_empty() {
        words.push(0);
    }
    Ok(Tensor::from_u32(device, [words.len()], words)?)
}

/// Zeros on a device.
fn zeros<D: Device>(device: &D, count: usize) -> Result<Tensor<D>> {
    Ok(Tensor::zeros(device, [count.max(1)], hecate_core::DType::U32)?)
}

/// Index and bits of the potential of each spike.
fn listed(network: &Network, spikes: &[Spike]) -> Vec<u32> {
    let index = |spike: &Spike| network.index(spike.neuron).unwrap_or_default() as u32;
    spikes.iter().flat_map(|spike| [index(spike), spike.potential.to_bits()]).collect()
}

/// What bursts read of each sort of neurons.
fn table(network: &Network) -> Vec<u32> {
    let sort = |of: &crate::network::Dynamics| {
        // A chance of 2³² is certain: its lower word is zero.
        let certain = of.chance >> 32;
        [
            // The range of potentials that fire.
            of.threshold.to_bits(),
            of.limit.to_bits(),
            // What is left of a potential after a leak.
            of.keep.to_bits(),
            // Two counts a word, the first in the low half.
            u32::from(of.refractory) | u32::from(of.fire_limit) << 16,
            u32::from(of.snooze) | u32::from(of.accumulate) << 16,
            // The word below which chance says yes.
            of.chance as u32,
            certain as u32,
            0,
        ]
    };
    network.dynamics.iter().flat_map(sort).collect()
}

// Whoever is outside reaches these through `Spiking` alone.
#[allow(private_bounds)]
impl<D: Engine> DeviceNet<D> {
    /// As [`Spiking::load_part`](crate::Spiking::load_part).
    pub(crate) fn load(device: &D, network: &Arc<Network>, state: &State, part: Range<usize>) -> Result<Self> {
        state.check(network)?;
        if part.is_empty() || part.end > network.count() {
            return Err(Error::Part { start: part.start, end: part.end, count: network.count() });
        }
        // As many bytes as the arrays that are copied, and learning's own.
        network.check_memory("a spiking network", 48)?;
        let watches = network.areas().iter().any(|area| network.watched(area) > 0);
        let learning = if network.learns() || watches { Some(Learning::new(network, state)?) } else { None };
        // What fired outside of the part comes to the kernels by a list of its own.
        let inside = |spike: &&Spike| network.index(spike.neuron).is_some_and(|index| part.contains(&index));
        let (own, others): (Vec<_>, Vec<_>) = state.fired.iter().partition(inside);
        let arrays = Arrays::new(device, network, state, &part, learning.as_ref(), &own)?;
        let forgets = network.dynamics.iter().any(|of| !of.accumulate);
        let net = Self {
            device: device.id().clone(),
            network: Arc::clone(network),
            burst: state.burst,
            arrays,
            forgets,
            staged: (Vec::new(), words(device, Vec::new())?),
            others,
            heard: true,
            learning,
            part,
        };
        tracing::debug!(?net, synapses = network.synapse_count(), "loaded a spiking network");
        Ok(net)
    }

    /// Refuses what another device value loaded.
    fn check(&self, device: &D) -> Result<()> {
        if self.device == *device.id() {
            return Ok(());
        }
        Err(Error::OtherDevice { found: self.device.clone(), expected: device.id().clone() })
    }

    /// Neurons of the part that have a state.
    fn own(&self) -> Range<usize> {
        let count = self.network.neuron_count();
        self.part.start.min(count)..self.part.end.min(count)
    }

    /// Which list has what fired in the last burst.
    fn parity(&self) -> usize {
        (self.burst & 1) as usize
    }

    /// What comes from outside and from power, one entry a neuron of the part.
    fn inject(&self, stimulus: Stimulus<'_>) -> Vec<u32> {
        let network = &self.network;
        let mut amounts = BTreeMap::<usize, i64>::new();
        let mut add = |index: usize, potential: f32| {
            if self.part.contains(&index) {
                *amounts.entry(index - self.part.start).or_default() += fixed::to_fixed(potential);
            }
        };
        // Amounts of one neuron add up before they are copied.
        let staged = stimulus.staged.iter().filter_map(|&(id, potential)| Some((network.index(id)?, potential)));
        staged.for_each(|(index, potential)| add(index, potential));
        network.members(POWER).first().into_iter().for_each(|&index| add(index as usize, network.power()));
        if stimulus.fatigue {
            network.members(FATIGUE).iter().for_each(|&index| add(index as usize, network.power()));
        }
        let words = |(index, amount): (usize, i64)| [index as u32, amount as u32, (amount >> 32) as u32];
        amounts.into_iter().flat_map(words).collect()
    }

    /// As [`Spiking::fire`](crate::Spiking::fire).
    pub(crate) fn fire(&mut self, device: &D, stimulus: Stimulus<'_>) -> Result<()> {
        self.check(device)?;
        if !self.heard {
            return Err(Error::Order { found: "was to fire before its last burst was heard" });
        }
        stimulus.check(&self.network)?;
        let staged = self.inject(stimulus);
        if staged != self.staged.0 {
            self.staged = (staged.clone(), words(device, staged)?);
        }
        let others = match self.others.len() {
            0 => None,
            count => Some((words(device, listed(&self.network, &self.others))?, words(device, vec![count as u32; 2])?)),
        };
        // All that can be refused was: from here on work is queued.
        let parity = self.parity();
        let (staged_count, most) = (self.staged.0.len() / 3, self.part.len());
        let of = Delivered {
            fired: &self.arrays.fired[parity],
            counts: &self.arrays.counts,
            parity: parity as u32,
            staged: &self.staged.1,
            staged_count,
            first: true,
            most,
        };
        device.deliver(&self.arrays, &of)?;
        if let Some((fired, counts)) = &others {
            let most = self.others.len();
            let of = Delivered { fired, counts, parity: 0, staged_count: 0, first: false, most, ..of };
            device.deliver(&self.arrays, &of)?;
        }
        self.burst = self.burst.wrapping_add(1);
        let decided = Decided {
            parity: self.parity() as u32,
            count: self.part.len(),
            neurons: self.own().len(),
            start: self.part.start,
            // The generator counts bursts modulo 2³².
            burst: self.burst as u32,
            forgets: self.forgets,
        };
        // Parts exchange what fired before the next burst.
        self.heard = false;
        tracing::trace!(burst = self.burst, staged = self.staged.0.len() / 3, "a burst");
        device.decide(&self.arrays, &decided)
    }

    /// As [`Spiking::hear`](crate::Spiking::hear).
    pub(crate) fn hear(&mut self, device: &D, others: &[Spike]) -> Result<()> {
        self.check(device)?;
        if self.heard {
            return Err(Error::Order { found: "was to hear before it fired" });
        }
        state::check_spikes("spike of another part", &self.network, others)?;
        let inside = |spike: &Spike| self.network.index(spike.neuron).is_some_and(|index| self.part.contains(&index));
        if let Some(index) = others.iter().position(inside) {
            let (found, expected) = (others[index].neuron, "a neuron of another part");
            return Err(builder::value("spike of another part", index, "neuron", found, expected));
        }
        // Learning is the CPU's: fired sets come to the host, and new rows go back.
        if self.learning.is_some() {
            let fired = self.gathered(device, others)?;
            if let Some(learning) = &mut self.learning {
                learning.learn(&self.network, &self.part, &fired)?;
                if self.network.learns() {
                    self.arrays.rows = Rows::new(device, &self.network, &self.part, Some(learning))?;
                }
            }
        }
        self.others = others.to_vec();
        self.heard = true;
        Ok(())
    }

    /// What fired of the part and what `others` did, ascending by id.
    fn gathered(&self, device: &D, others: &[Spike]) -> Result<Vec<Spike>> {
        let mut fired = self.fired(device)?;
        fired.extend_from_slice(others);
        fired.sort_unstable_by_key(|spike| spike.neuron);
        Ok(fired)
    }

    /// As [`Spiking::fired`](crate::Spiking::fired).
    pub(crate) fn fired(&self, device: &D) -> Result<Vec<Spike>> {
        self.check(device)?;
        let count = self.arrays.counts.to_u32()?[self.parity()] as usize;
        // The first of the list alone are copied.
        let words = device.download(self.arrays.fired[self.parity()].buffer(), hecate_core::DType::U32, 2 * count);
        let words = match words? {
            hecate_core::Host::U32(words) => words,
            _ => Vec::new(),
        };
        let spike =
            |word: &[u32]| Spike { neuron: self.network.id(word[0] as usize), potential: f32::from_bits(word[1]) };
        let mut fired: Vec<_> = words.chunks_exact(2).map(spike).collect();
        fired.sort_unstable_by_key(|spike| spike.neuron);
        Ok(fired)
    }

    /// As [`Spiking::state`](crate::Spiking::state).
    pub(crate) fn state(&self, device: &D) -> Result<State> {
        self.check(device)?;
        if !self.heard {
            return Err(Error::Order { found: "was asked for its state before its last burst was heard" });
        }
        // Neurons of other parts stay zero.
        let mut state = State::start(&self.network)?;
        state.burst = self.burst;
        state.fired = self.gathered(device, &self.others)?;
        let (potentials, states) = (self.arrays.potentials.to_u32()?, self.arrays.states.to_u32()?);
        // Both counts of a neuron are halves of a word.
        for (place, index) in self.own().enumerate() {
            state.potential[index] = f32::from_bits(potentials[place]);
            state.refractory[index] = states[place] as u16;
            state.in_a_row[index] = (states[place] >> 16) as u16;
        }
        if let Some(learning) = &self.learning {
            learning.write(&self.network, &mut state)?;
        }
        Ok(state)
    }
}

impl<D: Device> Arrays<D> {
    /// Of a state that was checked.
    fn new(
        device: &D,
        network: &Network,
        state: &State,
        part: &Range<usize>,
        learning: Option<&Learning>,
        own: &[Spike],
    ) -> Result<Self> {
        let (count, neurons) = (part.len(), network.neuron_count());
        let range = part.start.min(neurons)..part.end.min(neurons);
        let potentials = state.potential[range.clone()].iter().map(|&potential| fixed::flushed(potential).to_bits());
        let counts = state.refractory[range.clone()].iter().zip(&state.in_a_row[range.clone()]);
        let states = counts.map(|(&refractory, &in_a_row)| u32::from(refractory) | u32::from(in_a_row) << 16);
        // A list has room for all neurons of the part.
        let mut listed = listed(network, own);
        listed.resize(2 * count, 0);
        let last = words(device, listed)?;
        let next = zeros(device, 2 * count)?;
        let mut counts = vec![0; 2];
        counts[(state.burst & 1) as usize] = own.len() as u32;
        Ok(Self {
            rows: Rows::new(device, network, part, learning)?,
            sums: zeros(device, 2 * count)?,
            candidates: zeros(device, count.div_ceil(32))?,
            potentials: words(device, potentials.collect())?,
            states: words(device, states.collect())?,
            sorts: words(device, network.sort[range].to_vec())?,
            table: words(device, table(network).into_iter().chain([0; 8]).collect())?,
            fired: if state.burst & 1 == 0 { [last, next] } else { [next, last] },
            counts: words(device, counts)?,
        })
    }
}

/// A backend's device value as a device for networks.
macro_rules! spiking {
    ($device:ty, $name:literal) => {
        impl $crate::Spiking for $device {
            const NAME: &'static str = $name;
            type Net = $crate::DeviceNet<$device>;

            fn load_part(
                &self,
                network: &std::sync::Arc<$crate::Network>,
                state: &$crate::State,
                part: std::ops::Range<usize>,
            ) -> $crate::Result<Self::Net> {
                $crate::DeviceNet::load(self, network, state, part)
            }

            fn fire(&self, net: &mut Self::Net, stimulus: $crate::Stimulus<'_>) -> $crate::Result<()> {
                net.fire(self, stimulus)
            }

            fn hear(&self, net: &mut Self::Net, others: &[$crate::Spike]) -> $crate::Result<()> {
                net.hear(self, others)
            }

            fn fired(&self, net: &Self::Net) -> $crate::Result<Vec<$crate::Spike>> {
                net.fired(self)
            }

            fn state(&self, net: &Self::Net) -> $crate::Result<$crate::State> {
                net.state(self)
            }
        }
    };
}
use spiking;
