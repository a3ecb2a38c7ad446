//! One network on several device values.

use crate::{Error, Network, Result, Spike, Spiking, State, Stimulus};
use rayon::prelude::*;
use std::{ops::Range, sync::Arc};

/// Devices that share one network: each has a part of the neurons and the synapses that lead to them. Once a burst they tell
/// each other what fired. The result is that of one device, bit for bit.
#[derive(Clone, Debug)]
pub struct Shards<D> {
    devices: Arc<[D]>,
}

impl<D: Spiking> Shards<D> {
    /// Over these devices; one value may be there several times.
    ///
    /// # Errors
    /// [`Error::NoDevice`] for none.
    pub fn new(devices: impl IntoIterator<Item = D>) -> Result<Self> {
        let devices: Arc<[D]> = devices.into_iter().collect();
        if devices.is_empty() { Err(Error::NoDevice { found: 0 }) } else { Ok(Self { devices }) }
    }

    /// Does something on every device at once, with its part; the first error of any is returned.
    fn each(
        &self,
        net: &mut ShardedNet<D>,
        work: impl Fn(usize, &D, &mut D::Net) -> Result<()> + Send + Sync,
    ) -> Result<()> {
        // Devices beyond the parts of a small network have nothing to do.
        let parts = self.devices.par_iter().zip(&mut net.parts).enumerate();
        parts.try_for_each(|(number, (device, part))| work(number, device, part))
    }
}

/// A network in parts.
#[derive(Debug)]
pub struct ShardedNet<D: Spiking> {
    network: Arc<Network>,
    /// Indices of each part's neurons.
    ranges: Vec<Range<usize>>,
    parts: Vec<D::Net>,
}

impl<D: Spiking> Spiking for Shards<D> {
    const NAME: &'static str = "shards";
    type Net = ShardedNet<D>;

    /// Parts differ by one neuron at most; a network of fewer neurons than devices leaves some without one.
    fn load_part(&self, network: &Arc<Network>, state: &State, part: Range<usize>) -> Result<ShardedNet<D>> {
        let count = self.devices.len().min(part.len()).max(1);
        let (start, length) = (part.start, part.len());
        let range = |number: usize| start + length * number / count..start + length * (number + 1) / count;
        let ranges: Vec<_> = (0..count).map(range).collect();
        let load = |(device, range): (&D, &Range<usize>)| device.load_part(network, state, range.clone());
        let parts = self.devices.iter().zip(&ranges).map(load).collect::<Result<_>>()?;
        Ok(ShardedNet { network: Arc::clone(network), ranges, parts })
    }

    fn fire(&self, net: &mut ShardedNet<D>, stimulus: Stimulus<'_>) -> Result<()> {
        // All parts would refuse it; here none has begun.
        stimulus.check(&net.network)?;
        self.each(net, |_, device, part| device.fire(part, stimulus))
    }

    fn hear(&self, net: &mut ShardedNet<D>, others: &[Spike]) -> Result<()> {
        // Each part's spikes are read once, and every other part hears them.
        let own: Vec<_> =
            self.devices.iter().zip(&net.parts).map(|(device, part)| device.fired(part)).collect::<Result<_>>()?;
        self.each(net, |number, device, part| {
            let elsewhere = own.iter().enumerate().filter(|&(from, _)| from != number).flat_map(|(_, fired)| fired);
            let mut heard: Vec<Spike> = elsewhere.chain(others).copied().collect();
            heard.sort_unstable_by_key(|spike| spike.neuron);
            device.hear(part, &heard)
        })
    }

    fn fired(&self, net: &ShardedNet<D>) -> Result<Vec<Spike>> {
        let fired = self.devices.iter().zip(&net.parts).map(|(device, part)| device.fired(part));
        Ok(fired.collect::<Result<Vec<_>>>()?.concat())
    }

    fn synchronize(&self, net: &ShardedNet<D>) -> Result<()> {
        self.devices.iter().zip(&net.parts).try_for_each(|(device, part)| device.synchronize(part))
    }

    fn bytes(&self, net: &ShardedNet<D>) -> usize {
        self.devices.iter().zip(&net.parts).map(|(device, part)| device.bytes(part)).sum()
    }

    fn set_block(&self, net: &mut ShardedNet<D>, threads: u32) -> Result<()> {
        self.each(net, |_, device, part| device.set_block(part, threads))
    }

    fn state(&self, net: &ShardedNet<D>) -> Result<State> {
        // All parts agree in what fired, in the history, and in which synapses were made.
        let mut whole: Option<State> = None;
        for ((device, part), range) in self.devices.iter().zip(&net.parts).zip(&net.ranges) {
            let state = device.state(part)?;
            match &mut whole {
                None => whole = Some(state),
                Some(whole) => take_over(&net.network, whole, state, range),
            }
        }
        whole.ok_or(Error::NoDevice { found: 0 })
    }
}

/// Copies what belongs to the neurons of `range` from a part's state into that of the whole.
fn take_over(network: &Network, whole: &mut State, part: State, range: &Range<usize>) {
    // Memory neurons come last and have no state.
    let count = network.neuron_count();
    let own = range.start.min(count)..range.end.min(count);
    whole.potential[own.clone()].copy_from_slice(&part.potential[own.clone()]);
    whole.refractory[own.clone()].copy_from_slice(&part.refractory[own.clone()]);
    whole.in_a_row[own.clone()].copy_from_slice(&part.in_a_row[own]);
    // A synapse belongs to the part of its target, and so does its weight.
    let weights = whole.weights.iter_mut().zip(part.weights).zip(&network.entries);
    for ((weight, of_part), _) in weights.filter(|(_, entry)| range.contains(&(entry.target as usize))) {
        *weight = of_part;
    }
    for (synapse, of_part) in whole.made.iter_mut().zip(part.made) {
        if network.index(synapse.target).is_some_and(|index| range.contains(&index)) {
            *synapse = of_part;
        }
    }
}
