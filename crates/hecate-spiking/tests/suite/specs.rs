//! Networks that are drawn, as plain lists.

use hecate_spiking::{Area, Builder, Error, Form, Kind, MEMORY, Mapping, Network, Neuron, Synapse};
use rand::{RngExt, SeedableRng, seq::IndexedRandom};
use rand_chacha::ChaCha8Rng;
use std::sync::Arc;

/// A network, and what reaches it in each burst.
#[derive(Clone, Debug, Default)]
pub(crate) struct Spec {
    /// Ids 1 to 5, of which two have a meaning.
    pub(crate) areas: Vec<Area>,
    pub(crate) neurons: Vec<Neuron>,
    /// Areas of memory neurons.
    pub(crate) memory: Vec<u32>,
    pub(crate) synapses: Vec<Synapse>,
    pub(crate) mappings: Vec<Mapping>,
    /// What the power neuron gets, and neurons in fatigue.
    pub(crate) power: f32,
    /// What neurons begin with: potential, bursts to pass over, times fired in a row; all zero where it is empty.
    pub(crate) start: Vec<(f32, u16, u16)>,
    /// One list and one mark of fatigue a burst.
    pub(crate) bursts: Vec<(Vec<(u32, f32)>, bool)>,
}

impl Spec {
    /// A network of at most `most` neurons. The same seed draws the same one.
    pub(crate) fn draw(seed: u64, most: usize, bursts: usize) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut spec = Self { power: pick(&mut rng, &[0.0, 0.75, 37.25, -5.0]), ..Self::default() };
        for id in 1..=5 {
            let (uniform, membrane_driven) = (rng.random_bool(0.5), rng.random_bool(0.3));
            spec.areas.push(Area { id, uniform, membrane_driven, history: pick(&mut rng, &[0, 0, 3]) });
        }
        // A network of one neuron is one too.
        let count = rng.random_range(1..=most);
        spec.neurons.extend((0..count).map(|_| neuron(&mut rng)));
        // Most have no memory neurons; those that have them deliver to and from them.
        let remembering = pick(&mut rng, &[0, 0, 1, 5]);
        spec.memory.extend((0..remembering).map(|_| rng.random_range(1..=5)));
        // Synapses lead from and to all of them, several between the same two among them.
        let ids: Vec<u32> = (0..count as u32).chain((0..remembering as u32).map(|number| MEMORY + number)).collect();
        for &source in &ids {
            for _ in 0..pick(&mut rng, &[0, 1, 2, 3, 5, 7, 16]) {
                spec.synapses.push(synapse(&mut rng, source, &ids));
            }
        }
        // Mappings may be of one area with itself, and several of the same areas.
        if rng.random_bool(0.4) {
            spec.mappings.extend((0..rng.random_range(1..=3)).map(|_| mapping(&mut rng)));
        }
        if rng.random_bool(0.5) {
            spec.start.extend((0..count).map(|_| begin(&mut rng)));
        }
        spec.bursts.extend((0..bursts).map(|_| stimulus(&mut rng, &ids)));
        spec
    }

    /// The network.
    pub(crate) fn build(&self) -> Result<Arc<Network>, Error> {
        let mut builder = Builder::default();
        self.areas.iter().cloned().try_for_each(|area| builder.area(area))?;
        self.neurons.iter().cloned().try_for_each(|neuron| builder.neuron(neuron).map(drop))?;
        self.memory.iter().try_for_each(|&area| builder.memory(1, area).map(drop))?;
        self.synapses.iter().try_for_each(|&synapse| builder.synapse(synapse))?;
        self.mappings.iter().try_for_each(|&mapping| builder.mapping(mapping))?;
        builder.power(self.power)?;
        builder.build()
    }
}

/// One of these.
fn pick<T: Copy>(rng: &mut ChaCha8Rng, from: &[T]) -> T {
    *from.choose(rng).expect("something to choose from")
}

/// Values at the borders of what is defined: no leak and all of it, chance that never and always succeeds, counts that
/// saturate.
fn neuron(rng: &mut ChaCha8Rng) -> Neuron {
    let threshold = pick(rng, &[0.0, 1.0, 1.0, 50.0, 400.0, 3000.0, -10.0, 1e-40]);
    let limit = pick(rng, &[None, None, Some(1.0), Some(1.5), Some(4.0)]);
    Neuron {
        area: rng.random_range(1..=5),
        threshold,
        limit: limit.map(|times| threshold * times + 100.0),
        leak: pick(rng, &[0.0, 0.1, 0.25, 0.5, 1.0, 0.999_999]),
        refractory: pick(rng, &[0, 0, 0, 1, 2, 5, 65535]),
        excitability: pick(rng, &[1.0, 1.0, 0.999, 0.7, 0.3, 0.0, 1e-9]),
        fire_limit: pick(rng, &[0, 0, 65535, 1, 2, 3]),
        snooze: pick(rng, &[0, 1, 4, 65535]),
        accumulate: rng.random_bool(0.6),
    }
}

/// A state in the middle of things, with counts at their ends.
fn begin(rng: &mut ChaCha8Rng) -> (f32, u16, u16) {
    let potential = pick(rng, &[0.0, 0.0, -0.0, 3.5, -70.0, 1e-41, 5000.0]);
    (potential, pick(rng, &[0, 0, 1, 3, 65535]), pick(rng, &[0, 1, 2, 65534, 65535]))
}

/// A synapse of a source to any neuron.
fn synapse(rng: &mut ChaCha8Rng, source: u32, ids: &[u32]) -> Synapse {
    let kind = if rng.random_bool(0.3) { Kind::Inhibitory } else { Kind::Excitatory };
    Synapse { source, target: pick(rng, ids), weight: rng.random(), potential: rng.random(), kind }
}

/// Small steps, some of which would be negative, over short windows; pairs of spikes over long ones.
fn mapping(rng: &mut ChaCha8Rng) -> Mapping {
    let (constant, ltp, ltd) = (rng.random_range(-1..6), rng.random_range(0..40), rng.random_range(0..20));
    let form = match rng.random_range(0..3) {
        0 => Form::Classic { constant, ltp, ltd },
        1 => Form::Bidirectional { constant, ltp, ltd, potential: rng.random() },
        _ => Form::Exponential,
    };
    let window = if form == Form::Exponential { pick(rng, &[1, 2, 9, 60]) } else { pick(rng, &[1, 1, 2, 3]) };
    Mapping { source: rng.random_range(1..=5), target: rng.random_range(1..=5), window, form }
}

/// Nothing, one potential, or up to as many as there are neurons, some of which round to zero or to a half.
fn stimulus(rng: &mut ChaCha8Rng, ids: &[u32]) -> (Vec<(u32, f32)>, bool) {
    let count = pick(rng, &[0, 1, ids.len() / 4, ids.len()]);
    let potentials = [1.0, 60.0, 500.0, 5000.0, -200.0, 0.1, 1e-30, 7.0 / 131_072.0, 3e9];
    let staged = (0..count).map(|_| (pick(rng, ids), pick(rng, &potentials)));
    (staged.collect(), rng.random_bool(0.2))
}
