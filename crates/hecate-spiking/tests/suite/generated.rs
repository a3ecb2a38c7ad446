//! Generated networks: every device against the naive model, bit for bit.

use crate::{naive::Naive, specs::Spec};
use hecate_spiking::{Cpu, Network, Shards, Spike, Spiking, State, Stimulus};
use std::sync::Arc;

/// Ids and bits of potentials.
fn bits(fired: &[(u32, f32)]) -> Vec<(u32, u32)> {
    fired.iter().map(|&(neuron, potential)| (neuron, potential.to_bits())).collect()
}

/// Spikes of a device as those of the model.
fn spikes(fired: &[Spike]) -> Vec<(u32, u32)> {
    bits(&fired.iter().map(|&spike| spike.into()).collect::<Vec<_>>())
}

/// Two lists are the same; else the first difference is told, and not all of both.
#[track_caller]
fn same<T: PartialEq + std::fmt::Debug>(case: &str, what: &str, found: &[T], expected: &[T]) {
    let differs = found.iter().zip(expected).position(|(found, expected)| found != expected);
    if let Some(at) = differs {
        panic!("{case}: {what} {at} is {:?}, expected {:?}", found[at], expected[at]);
    }
    assert_eq!(found.len(), expected.len(), "{case}: {what}");
}

/// All of a state is that of the model.
fn same_state(case: &str, state: &State, naive: &Naive, learns: bool) {
    let potentials = state.potential.iter().map(|potential| potential.to_bits());
    // One triple a neuron, so that a difference names the neuron.
    let found: Vec<_> = potentials.zip(&state.refractory).zip(&state.in_a_row).map(|((v, &r), &n)| (v, r, n)).collect();
    let expected: Vec<_> = naive.neurons.values().map(|&(v, r, n)| (v.to_bits(), r, n)).collect();
    same(case, "neuron", &found, &expected);
    same(case, "weight", &state.weights, &if learns { naive.weights() } else { vec![] });
    let made: Vec<_> = state.made.iter().map(|&of| of.into()).collect::<Vec<(u32, u32, u8, u8, _)>>();
    same(case, "made synapse", &made, &naive.made());
    let fired: Vec<_> = naive.fired.iter().map(|(&id, &v)| (id, v)).collect();
    same(case, "fired neuron", &spikes(&state.fired), &bits(&fired));
}

/// Runs a device beside the model. Half-way its state is read and loaded anew.
pub(crate) fn beside<D: Spiking>(case: &str, device: &D, network: &Arc<Network>, spec: &Spec) -> usize {
    // Half of the networks begin in the middle of things.
    let mut state = State::start(network).expect("room");
    for (index, &(potential, refractory, in_a_row)) in spec.start.iter().enumerate() {
        (state.potential[index], state.refractory[index], state.in_a_row[index]) = (potential, refractory, in_a_row);
    }
    let mut net = device.load(network, &state).expect("a network");
    let (mut naive, mut count) = (Naive::new(spec), 0);
    for (number, (staged, fatigue)) in spec.bursts.iter().enumerate() {
        let case = format!("{case}, burst {}", number + 1);
        device.burst(&mut net, Stimulus { staged, fatigue: *fatigue }).expect("a burst");
        let fired = device.fired(&net).expect("what fired");
        count += fired.len();
        same(&case, "spike", &spikes(&fired), &bits(&naive.burst(staged, *fatigue)));
        let state = device.state(&net).expect("its state");
        same_state(&case, &state, &naive, !spec.mappings.is_empty());
        if number == spec.bursts.len() / 2 {
            net = device.load(network, &state).expect("its own state");
            let again = device.state(&net).expect("its state");
            assert_eq!(serde_json::to_string(&again).ok(), serde_json::to_string(&state).ok(), "{case}: loaded anew");
        }
    }
    count
}

/// A thousand networks of up to 40 neurons. What they do is not trivial: most of them fire, synapses are made, weights move.
#[test]
fn a_thousand_networks_are_those_of_the_model() {
    let cpu = Cpu::with_threads(1).expect("a thread");
    let (mut fired, mut silent) = (0, 0);
    for seed in 0..1000 {
        let spec = Spec::draw(seed, 40, 24);
        let network = spec.build().expect("a network");
        let count = beside(&format!("network {seed}"), &cpu, &network, &spec);
        (fired, silent) = (fired + count, silent + usize::from(count == 0));
    }
    assert!(fired > 40_000 && silent < 100, "{fired} spikes, {silent} networks without one");
}

/// Parts of a network on several values of the CPU are the whole, with synapses and learning across their borders.
#[test]
fn shards_are_one_network() {
    let cpus: Vec<_> = (0..5).map(|_| Cpu::with_threads(1).expect("a thread")).collect();
    for seed in 1000..1200 {
        let spec = Spec::draw(seed, 40, 24);
        let network = spec.build().expect("a network");
        let count = 2 + seed as usize % 4;
        let shards = Shards::new(cpus[..count].iter().cloned()).expect("devices");
        beside(&format!("network {seed} over {count}"), &shards, &network, &spec);
    }
    // Five devices at most; a network may have fewer neurons than that.
    // Shards of shards.
    let halves = cpus[..4].chunks(2).map(|two| Shards::new(two.iter().cloned()).expect("devices"));
    let quarters = Shards::new(halves).expect("devices");
    for seed in 1200..1220 {
        let spec = Spec::draw(seed, 40, 24);
        beside(&format!("network {seed} over halves"), &quarters, &spec.build().expect("a network"), &spec);
    }
}

/// Large enough for several tasks, and busy enough for threads.
#[test]
fn threads_do_not_show() {
    let mut spec = Spec { mappings: vec![], ..Spec::draw(7, 9000, 6) };
    // Nearly all fire, so that bursts have thousands of deliveries.
    for neuron in &mut spec.neurons {
        (neuron.excitability, neuron.limit, neuron.refractory) = (1.0, None, neuron.refractory % 3);
    }
    let network = spec.build().expect("a network");
    assert!(network.count() > 4 * 1024 && network.synapse_count() > 20_000, "too small to be divided");
    let mut spikes = Vec::new();
    // More threads than processors, and a number that divides nothing.
    for threads in [1, 2, 3, 7] {
        let cpu = Cpu::with_threads(threads).expect("threads");
        spikes.push(beside(&format!("{threads} threads"), &cpu, &network, &spec));
    }
    let shards = Shards::new([2, 3].map(|threads| Cpu::with_threads(threads).expect("threads"))).expect("devices");
    spikes.push(beside("shards of threads", &shards, &network, &spec));
    assert!(spikes[0] > 5000 && spikes.iter().all(|&count| count == spikes[0]), "{spikes:?}");
}
