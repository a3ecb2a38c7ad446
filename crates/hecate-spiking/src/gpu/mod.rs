//! Networks on GPUs: what is the same for all of them.
//!
//! A burst is two kernels: what fired delivers, then neurons that something reached decide. Rows of synapses, states and what fired stay
//! on the device, and so do weights that learn and who fired in their windows. The host stages what comes from outside, and reads what it
//! is asked for. Only where synapses may be made does it read what fired in every burst.

#[cfg(feature = "cuda")]
mod cuda;
mod engine;
mod plastic;
mod rows;
mod stimulus;
#[cfg(test)]
mod tests;
#[cfg(feature = "wgpu")]
mod wgpu;

use crate::{Error, Network, Result, Spike, State, Stimulus, builder, fixed, state};
use engine::{Arrays, Decided, Delivered, Engine, List};
use hecate_core::{Device, DeviceId, Tensor};
use plastic::Plastic;
use rows::Rows;
use std::{fmt, ops::Range, sync::Arc};

/// A network, or a part of it, on a GPU.
// Whoever is outside names it as `Spiking::Net` alone.
#[allow(private_bounds)]
pub struct DeviceNet<D: Engine> {
    device: DeviceId,
    network: Arc<Network>,
    part: Range<usize>,
    /// Number of bursts so far.
    burst: u64,
    kernels: D::Kernels,
    arrays: Arrays<D>,
    forgets: bool,
    /// What the last burst staged, with its copy on the device: equal bursts copy nothing.
    staged: (Vec<u32>, Tensor<D>),
    /// What fired outside of the part in the last burst that was heard, ascending by id.
    others: Vec<Spike>,
    /// The same on the device, with their number; none for none.
    other_list: Option<[Tensor<D>; 2]>,
    /// Whether the last burst was heard.
    heard: bool,
    /// Where synapses learn or areas are watched.
    plastic: Option<Plastic<D>>,
}

#[allow(private_bounds)]
impl<D: Engine> fmt::Debug for DeviceNet<D> {
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

/// Refuses an array over what the device binds, with the way out.
fn too_large(what: &'static str, bytes: u64, most: u64) -> Result<()> {
    if bytes <= most { Ok(()) } else { Err(Error::TooLarge { what, bytes, most }) }
}

/// What fired elsewhere, and its number in the place of both counters; none for none.
fn other_list<D: Device>(device: &D, network: &Network, others: &[Spike]) -> Result<Option<[Tensor<D>; 2]>> {
    if others.is_empty() {
        return Ok(None);
    }
    Ok(Some([words(device, listed(network, others))?, words(device, vec![others.len() as u32; 2])?]))
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
        Self::load_split(device, network, state, part, device.most_bytes())
    }

    /// The same with no more than so many bytes of synapses in an array.
    fn load_split(device: &D, network: &Arc<Network>, state: &State, part: Range<usize>, most: u64) -> Result<Self> {
        state.check(network)?;
        if part.is_empty() || part.end > network.count() {
            return Err(Error::Part { start: part.start, end: part.end, count: network.count() });
        }
        // As many bytes as the arrays that are copied, and learning's own.
        network.check_memory("a spiking network", 48)?;
        // What fired outside of the part comes to the kernels by a list of its own.
        let inside = |spike: &&Spike| network.index(spike.neuron).is_some_and(|index| part.contains(&index));
        let (own, others): (Vec<_>, Vec<_>) = state.fired.iter().partition(inside);
        let plastic = Plastic::new(device, network, state)?;
        let rows = Rows::new(device, network, &part, plastic.as_ref().map(|plastic| &plastic.learning), most)?;
        let arrays = Arrays::new(device, network, state, &part, rows, &own)?;
        let net = Self {
            device: device.id().clone(),
            network: Arc::clone(network),
            burst: state.burst,
            kernels: device.kernels(plastic.is_some())?,
            arrays,
            forgets: network.dynamics.iter().any(|of| !of.accumulate),
            staged: (Vec::new(), words(device, Vec::new())?),
            other_list: other_list(device, network, &others)?,
            others,
            heard: true,
            plastic,
            part,
        };
        tracing::debug!(?net, synapses = network.synapse_count(), bytes = net.bytes(), "loaded a spiking network");
        Ok(net)
    }

    /// Refuses what another device value loaded.
    fn check(&self, device: &D) -> Result<()> {
        if self.device == *device.id() {
            return Ok(());
        }
        Err(Error::OtherDevice { found: self.device.clone(), expected: device.id().clone() })
    }

    /// As [`Spiking::bytes`](crate::Spiking::bytes).
    pub(crate) fn bytes(&self) -> usize {
        let words =
            self.arrays.words() + self.staged.1.shape().count() + self.plastic.as_ref().map_or(0, Plastic::words);
        4 * words
    }

    /// As [`Spiking::set_block`](crate::Spiking::set_block).
    pub(crate) fn set_block(&mut self, device: &D, threads: u32) -> Result<()> {
        self.check(device)?;
        D::set_block(&mut self.kernels, threads)
    }

    /// As [`Spiking::synchronize`](crate::Spiking::synchronize).
    pub(crate) fn synchronize(&self, device: &D) -> Result<()> {
        self.check(device)?;
        Ok(device.synchronize()?)
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

    /// What fired of the part in the last burst.
    fn list(&self) -> List<'_, D> {
        let parity = self.parity();
        let (fired, counts) = (&self.arrays.fired[parity], &self.arrays.counts);
        List { fired, counts, parity: parity as u32, most: self.part.len() }
    }

    /// What fired outside of the part in the last burst that was heard.
    fn others(&self) -> Option<List<'_, D>> {
        let [fired, counts] = self.other_list.as_ref()?;
        Some(List { fired, counts, parity: 0, most: self.others.len() })
    }

    /// As [`Spiking::fire`](crate::Spiking::fire).
    pub(crate) fn fire(&mut self, device: &D, stimulus: Stimulus<'_>) -> Result<()> {
        self.stage(device, stimulus)?;
        self.queue(device)
    }

    /// As [`Spiking::bursts`](crate::Spiking::bursts).
    pub(crate) fn bursts(&mut self, device: &D, stimulus: Stimulus<'_>, count: u64) -> Result<()> {
        self.stage(device, stimulus)?;
        (0..count).try_for_each(|_| {
            self.queue(device)?;
            self.hear(device, &[])
        })
    }

    /// Brings to the device what comes from outside, unless it is there.
    fn stage(&mut self, device: &D, stimulus: Stimulus<'_>) -> Result<()> {
        self.check(device)?;
        if !self.heard {
            return Err(Error::Order { found: "was to fire before its last burst was heard" });
        }
        stimulus.check(&self.network)?;
        let staged = stimulus::amounts(&self.network, &self.part, stimulus);
        if staged != self.staged.0 {
            self.staged = (staged.clone(), words(device, staged)?);
        }
        Ok(())
    }

    /// Queues a burst of what was staged. All that a user can get wrong was refused.
    fn queue(&mut self, device: &D) -> Result<()> {
        let (own, staged) = (self.list(), &self.staged.1);
        let mut first = true;
        for list in [Some(own), self.others()].into_iter().flatten() {
            for segment in &self.arrays.rows.segments {
                // What is staged comes once, and counters begin anew once.
                let staged_count = if first { self.staged.0.len() / 3 } else { 0 };
                let of = Delivered { list, segment, staged, staged_count, first };
                device.deliver(&self.kernels, &self.arrays, &of)?;
                first = false;
            }
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
        device.decide(&self.kernels, &self.arrays, &decided)
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
        let list = other_list(device, &self.network, others)?;
        // It is moved out so that the rest can be read beside it.
        if let Some(mut plastic) = self.plastic.take() {
            let archived = plastic.archive(&self.network, || self.gathered(device, others));
            let learned = archived.and_then(|()| {
                (self.others, self.other_list) = (others.to_vec(), list);
                self.learn(device, &mut plastic)
            });
            self.plastic = Some(plastic);
            learned?;
        } else {
            (self.others, self.other_list) = (others.to_vec(), list);
        }
        self.heard = true;
        Ok(())
    }

    /// Notes what fired anywhere, and lets weights change by it.
    fn learn(&mut self, device: &D, plastic: &mut Plastic<D>) -> Result<()> {
        plastic.note(device, &self.kernels, self.list(), self.others())?;
        plastic.learn(device, &self.kernels, &self.network, &self.part, &mut self.arrays)
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
        // Index above potential: whole words sort fastest.
        let mut found: Vec<_> =
            words.chunks_exact(2).map(|word| u64::from(word[0]) << 32 | u64::from(word[1])).collect();
        found.sort_unstable();
        let network = &self.network;
        let spike =
            |word: u64| Spike { neuron: network.id((word >> 32) as usize), potential: f32::from_bits(word as u32) };
        let fired = found.into_iter().map(spike).collect();
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
        if let Some(plastic) = &self.plastic {
            plastic.write(&self.network, &self.part, &self.arrays.rows, &mut state)?;
        }
        Ok(state)
    }
}

impl<D: Engine> Arrays<D> {
    /// Of a state that was checked.
    fn new(
        device: &D,
        network: &Network,
        state: &State,
        part: &Range<usize>,
        rows: Rows<D>,
        own: &[Spike],
    ) -> Result<Self> {
        let (count, neurons) = (part.len(), network.neuron_count());
        // The largest arrays beside synapses: two words a neuron of the part, one a neuron of the network.
        too_large("sums of neurons", 8 * count as u64, device.most_bytes())?;
        too_large("rows of synapses", 4 * (network.count() as u64 + 1), device.most_bytes())?;
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
            rows,
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

            fn bursts(&self, net: &mut Self::Net, stimulus: $crate::Stimulus<'_>, count: u64) -> $crate::Result<()> {
                net.bursts(self, stimulus, count)
            }

            fn synchronize(&self, net: &Self::Net) -> $crate::Result<()> {
                net.synchronize(self)
            }

            fn bytes(&self, net: &Self::Net) -> usize {
                net.bytes()
            }

            fn set_block(&self, net: &mut Self::Net, threads: u32) -> $crate::Result<()> {
                net.set_block(self, threads)
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
