//! GPUs: the same spikes and states as the CPU's, bit for bit, for recorded, foreign and generated networks.

use crate::{generated::beside, recorded, require, specs::Spec, vectors};
use hecate_cuda::Cuda;
use hecate_spiking::{Cpu, Error, Form, MEMORY, Mapping, Neuron, Shards, Spiking, State, Stimulus};
use hecate_wgpu::{Selection, Wgpu};

/// Two values of the first GPU, or what a missing one means.
fn cudas() -> Option<[Cuda; 2]> {
    match Cuda::new(0).and_then(|first| Ok([first, Cuda::new(0)?])) {
        Ok(both) => Some(both),
        Err(error) => {
            require::skip("cuda", &error.to_string());
            None
        }
    }
}

/// Two queues of the adapter that is chosen, or what a missing one means.
fn wgpus() -> Option<[Wgpu; 2]> {
    match Wgpu::new(&Selection::Default).and_then(|first| Ok([first, Wgpu::new(&Selection::Default)?])) {
        Ok(both) => Some(both),
        Err(error) => {
            require::skip("wgpu", &error.to_string());
            None
        }
    }
}

/// A hundred networks, half of which learn or begin in the middle of things.
fn generated<D: Spiking>(device: &D) {
    let mut fired = 0;
    for seed in 2000..2100 {
        let spec = Spec::draw(seed, 40, 24);
        fired += beside(&format!("network {seed}"), device, &spec.build().expect("a network"), &spec);
    }
    assert!(fired > 4000, "{fired} spikes");
}

/// Windows and histories of more bursts than a word has bits, on one value and in parts: states are those of the CPU, histories among
/// them, and go on where they were read.
fn long_windows<D: Spiking>([first, second]: &[D; 2]) {
    let cpu = Cpu::with_threads(1).expect("a thread");
    let two = Shards::new([first.clone(), second.clone()]).expect("devices");
    for (seed, window) in [(6000, 31), (6001, 32), (6002, 33), (6003, 64), (6004, 65)] {
        let mut spec = Spec { start: vec![], ..Spec::draw(seed, 40, 140) };
        // Some fire in all bursts of a window, most in some of it.
        for (index, neuron) in spec.neurons.iter_mut().enumerate() {
            *neuron = Neuron { leak: 0.5, area: neuron.area, ..Neuron::new(neuron.area, 100.0) };
            let stages = |(_, (staged, _)): (usize, &mut (Vec<(u32, f32)>, bool))| staged.push((index as u32, 1e7));
            spec.bursts
                .iter_mut()
                .enumerate()
                .filter(|(burst, _)| index % 3 != 2 || burst % 7 == index % 7)
                .for_each(stages);
        }
        spec.areas[2].history = 97;
        let form = Form::Classic { constant: 1, ltp: 2, ltd: 1 };
        spec.mappings =
            [(1, 2), (3, 3), (4, 1)].map(|(source, target)| Mapping { source, target, window, form }).into();
        spec.mappings.push(Mapping { source: 2, target: 5, window: 99, form: Form::Exponential });
        let network = spec.build().expect("a network");
        let start = State::start(&network).expect("room");
        let mut expected = cpu.load(&network, &start).expect("a network");
        // One value and two, from the same beginning.
        let (mut one, mut parts) = (first.load(&network, &start).expect("it"), two.load(&network, &start).expect("it"));
        for (number, (staged, fatigue)) in spec.bursts.iter().enumerate() {
            let stimulus = Stimulus { staged, fatigue: *fatigue };
            cpu.burst(&mut expected, stimulus).expect("a burst");
            first.burst(&mut one, stimulus).expect("a burst");
            two.burst(&mut parts, stimulus).expect("a burst");
            if number % 23 == 22 {
                let state = cpu.state(&expected).expect("its state");
                assert!(first.state(&one).expect("its state") == state, "network {seed}, burst {number}");
                assert!(two.state(&parts).expect("its state") == state, "network {seed} in parts, burst {number}");
                one = first.load(&network, &state).expect("its own state");
            }
        }
        let (weights, before) = (cpu.state(&expected).expect("its state").weights, start.weights);
        assert!(weights.iter().zip(&before).any(|(now, then)| now > then), "network {seed}: nothing grew");
        assert!(weights.iter().zip(&before).any(|(now, then)| now < then), "network {seed}: nothing shrank");
    }
}

/// Bursts that are queued at once are those that come one by one, with and without learning.
fn queued<D: Spiking>([device, _]: &[D; 2]) {
    for seed in 7000..7020 {
        let spec = Spec::draw(seed, 40, 1);
        let network = spec.build().expect("a network");
        let start = State::start(&network).expect("room");
        let load = || device.load(&network, &start).expect("a network");
        // Two copies of one network.
        let (mut at_once, mut one_by_one) = (load(), load());
        let stimulus = Stimulus { staged: &spec.bursts[0].0, fatigue: spec.bursts[0].1 };
        device.bursts(&mut at_once, stimulus, 9).expect("bursts");
        (0..9).for_each(|_| device.burst(&mut one_by_one, stimulus).expect("a burst"));
        device.synchronize(&at_once).expect("an end");
        let state = device.state(&at_once).expect("its state");
        assert!(state == device.state(&one_by_one).expect("its state"), "network {seed}");
        assert_eq!(state.burst, 9);
    }
}

/// A thousand bursts, without learning: that would connect all neurons by then.
fn thousand<D: Spiking>(device: &D) {
    for seed in [3000, 3001] {
        let spec = Spec { mappings: vec![], ..Spec::draw(seed, 90, 1000) };
        let count = beside(&format!("network {seed}"), device, &spec.build().expect("a network"), &spec);
        assert!(count > 1000, "{count} spikes");
    }
}

/// Thousands of neurons, many of which fire: rows of several rounds and several workgroups.
fn large<D: Spiking>(device: &D) {
    let mut spec = Spec { mappings: vec![], ..Spec::draw(7, 9000, 6) };
    // The first neuron reaches all others, and every second one fires.
    for neuron in &mut spec.neurons {
        (neuron.excitability, neuron.limit, neuron.refractory) = (1.0, None, neuron.refractory % 3);
    }
    let hub = spec.synapses[0];
    spec.synapses.extend((0..4000).map(|target| hecate_spiking::Synapse { source: 0, target, ..hub }));
    let count = beside("a large network", device, &spec.build().expect("a network"), &spec);
    assert!(count > 5000, "{count} spikes");
}

/// Parts on two values, and on three of which one is there twice, are one network.
fn parts<D: Spiking>([first, second]: &[D; 2]) {
    let two = Shards::new([first.clone(), second.clone()]).expect("devices");
    let three = Shards::new([first.clone(), second.clone(), first.clone()]).expect("devices");
    for seed in 4000..4040 {
        let spec = Spec::draw(seed, 40, 24);
        let network = spec.build().expect("a network");
        beside(&format!("network {seed} in two"), &two, &network, &spec);
        beside(&format!("network {seed} in three"), &three, &network, &spec);
    }
}

/// What is wrong is said with its index, and the network is as it was.
fn refused<D: Spiking>([first, second]: &[D; 2]) {
    let spec = Spec::draw(5000, 40, 3);
    let network = spec.build().expect("a network");
    let mut state = State::start(&network).expect("room");
    let mut net = first.load(&network, &state).expect("a network");
    first.burst(&mut net, Stimulus { staged: &[(0, 9.0)], fatigue: true }).expect("a burst");
    let before = first.state(&net).expect("its state");
    let wrong: [&[(u32, f32)]; 3] = [&[(0, 1.0), (41, 1.0)], &[(0, 1.0), (0, f32::NAN)], &[(MEMORY + 99, 1.0)]];
    for staged in wrong {
        let error = first.burst(&mut net, Stimulus { staged, fatigue: false }).expect_err("an error");
        assert!(matches!(error, Error::MissingNeuron { .. } | Error::Value { index: 1, .. }), "{error}");
    }
    let other = second.burst(&mut net, Stimulus::default()).expect_err("another value");
    assert!(matches!(other, Error::OtherDevice { .. }), "{other}");
    assert!(matches!(first.hear(&mut net, &[]), Err(Error::Order { .. })));
    assert_eq!(first.state(&net).expect("its state"), before);
    assert!(matches!(first.load_part(&network, &state, 2..2), Err(Error::Part { .. })));
    state.potential[0] = f32::INFINITY;
    assert!(matches!(first.load(&network, &state), Err(Error::Value { index: 0, .. })));
    state.network ^= 1;
    assert!(matches!(first.load(&network, &state), Err(Error::OtherNetwork { .. })));
}

/// One test a kind of network, for each backend whose values `open` gives.
macro_rules! backends {
    ($($backend:ident: $open:ident),*) => { $(
        mod $backend {
            use super::*;

            #[test]
            fn recorded_networks() {
                if let Some([device, _]) = $open() { recorded::compare_all(&device) }
            }

            #[test]
            fn foreign_networks() {
                if let Some([device, _]) = $open() { vectors::compare_all(&device) }
            }

            #[test]
            fn generated_networks() {
                if let Some([device, _]) = $open() { generated(&device) }
            }

            #[test]
            fn a_thousand_bursts() {
                if let Some([device, _]) = $open() { thousand(&device) }
            }

            #[test]
            fn large_networks() {
                if let Some([device, _]) = $open() { large(&device) }
            }

            #[test]
            fn networks_in_parts() {
                if let Some(both) = $open() { parts(&both) }
            }

            #[test]
            fn windows_of_many_bursts() {
                if let Some(both) = $open() { long_windows(&both) }
            }

            #[test]
            fn bursts_at_once() {
                if let Some(both) = $open() { queued(&both) }
            }

            #[test]
            fn what_is_refused() {
                if let Some(both) = $open() { refused(&both) }
            }
        }
    )* };
}
backends!(cuda: cudas, wgpu: wgpus);
