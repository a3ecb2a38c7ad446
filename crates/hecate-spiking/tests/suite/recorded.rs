//! Recorded networks: what a reference in Python (`reference/reference.py`) made of the files in `networks`.
//!
//! Five of them were made by another implementation, whose spikes and states these are too. The others are about what it
//! lacks: power, fatigue, memory neurons, certain excitability and the three forms of plasticity.

use hecate_spiking::{Cpu, Experiment, Shards, Spiking, State, Synapse};
use serde::Deserialize;
use std::{
    fs,
    path::{Path, PathBuf},
};

/// What the reference says.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Expected {
    /// By burst: neuron, and bits of its potential.
    fired: Vec<Vec<(u32, u32)>>,
    /// Bits of potentials after the last burst.
    potential: Vec<u32>,
    refractory: Vec<u16>,
    in_a_row: Vec<u16>,
    weights: Vec<u8>,
    made: Vec<Synapse>,
}

/// The recorded networks, and how many there are.
fn networks() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/networks");
    let files = fs::read_dir(folder).expect("the networks").map(|entry| entry.expect("a file").path());
    let mut networks: Vec<_> = files.filter(|path| !path.to_string_lossy().ends_with(".spikes.json")).collect();
    networks.sort();
    assert_eq!(networks.len(), 12, "{networks:?}");
    networks
}

/// Runs an experiment and compares all of it.
fn compare<D: Spiking>(name: &str, device: &D, experiment: &Experiment, expected: &Expected) {
    let network = &experiment.network;
    let mut net = device.load(network, &State::start(network).expect("room")).expect("a network");
    assert_eq!(expected.fired.len() as u64, experiment.bursts, "{name}");
    for burst in 1..=experiment.bursts {
        device.burst(&mut net, experiment.stimulus(burst)).expect("a burst");
        let fired = device.fired(&net).expect("what fired");
        let fired: Vec<_> = fired.iter().map(|spike| (spike.neuron, spike.potential.to_bits())).collect();
        assert_eq!(fired, expected.fired[burst as usize - 1], "{name}, burst {burst}");
    }
    let state = device.state(&net).expect("its state");
    let potential: Vec<_> = state.potential.iter().map(|potential| potential.to_bits()).collect();
    assert_eq!(potential, expected.potential, "{name}: potentials");
    assert_eq!(state.refractory, expected.refractory, "{name}: refractory");
    assert_eq!(state.in_a_row, expected.in_a_row, "{name}: fired in a row");
    assert_eq!(state.weights, expected.weights, "{name}: weights");
    assert_eq!(state.made, expected.made, "{name}: synapses that were made");
}

/// Compares all recorded networks on a device.
pub(crate) fn compare_all<D: Spiking>(device: &D) {
    for path in networks() {
        let name = path.display().to_string();
        let experiment = Experiment::read(&path).unwrap_or_else(|error| panic!("{name}: {error}"));
        let text = fs::read_to_string(path.with_extension("spikes.json")).expect("the spikes");
        let expected: Expected = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(expected.fired.iter().map(Vec::len).sum::<usize>() > 100, "{name} hardly fires");
        compare(&name, device, &experiment, &expected);
    }
}

#[test]
fn spikes_and_states_are_those_of_the_reference() {
    let cpu = |threads| Cpu::with_threads(threads).expect("threads");
    compare_all(&cpu(1));
    compare_all(&cpu(2));
    compare_all(&Shards::new([1, 1, 2].map(cpu)).expect("devices"));
}

/// A file that was written reads as the same network.
#[test]
fn files_are_written_as_they_are_read() {
    for path in networks() {
        let experiment = Experiment::read(&path).expect("a network");
        let text = experiment.to_json();
        let again = Experiment::parse(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        assert_eq!(again.network.digest(), experiment.network.digest(), "{}", path.display());
        assert_eq!(again.to_json(), text, "{}", path.display());
        for burst in 0..=experiment.bursts + 1 {
            let (a, b) = (again.stimulus(burst), experiment.stimulus(burst));
            assert_eq!((a.staged, a.fatigue), (b.staged, b.fatigue), "{}, burst {burst}", path.display());
        }
    }
}
