//! GPUs: the same spikes and states as the CPU's, bit for bit, for recorded, foreign and generated networks.

use crate::{generated::beside, recorded, require, specs::Spec, vectors};
use hecate_cuda::Cuda;
use hecate_spiking::{Error, MEMORY, Shards, Spiking, State, Stimulus};
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
            fn what_is_refused() {
                if let Some(both) = $open() { refused(&both) }
            }
        }
    )* };
}
backends!(cuda: cudas, wgpu: wgpus);
