//! Plasticity on small networks whose weights are known: the scenarios of the form's description.

use hecate_spiking::{
    Area, Builder, Cpu, Form, History, Kind, Mapping, Network, Neuron, Spiking, State, Stimulus, Synapse,
};
use std::sync::Arc;

/// Sources 0 to 2 in area 10, targets 3 to 5 in area 11; all fire whenever they are given 128.
fn network(synapses: &[Synapse], mappings: &[Mapping], history: u16) -> Arc<Network> {
    let mut builder = Builder::default();
    for id in [10, 11] {
        builder.area(Area { history, ..Area::uniform(id) }).expect("an area");
    }
    // What synapses bring is no reason to fire: only staged potentials are.
    let neuron = |area| Neuron { threshold: 100_000.0, accumulate: false, ..Neuron::new(area, 0.0) };
    builder.neurons(3, neuron(10)).expect("sources");
    builder.neurons(3, neuron(11)).expect("targets");
    synapses.iter().for_each(|&synapse| builder.synapse(synapse).expect("a synapse"));
    mappings.iter().for_each(|&mapping| builder.mapping(mapping).expect("a mapping"));
    builder.build().expect("a network")
}

/// Lets neurons fire burst by burst, and returns weights, made synapses and history after each.
fn run(network: &Arc<Network>, bursts: &[&[u32]]) -> Vec<State> {
    let cpu = Cpu::with_threads(1).expect("a thread");
    let mut net = cpu.load(network, &State::start(network).expect("room")).expect("a network");
    let burst = |ids: &&[u32]| {
        let staged: Vec<_> = ids.iter().map(|&id| (id, 200_000.0)).collect();
        cpu.burst(&mut net, Stimulus { staged: &staged, fatigue: false }).expect("a burst");
        let state = cpu.state(&net).expect("its state");
        assert_eq!(state.fired.iter().map(|spike| spike.neuron).collect::<Vec<_>>(), *ids);
        state
    };
    bursts.iter().map(burst).collect()
}

fn synapse(source: u32, target: u32, weight: u8) -> Synapse {
    Synapse { source, target, weight, potential: 100, kind: Kind::Excitatory }
}

fn mapping(window: u16, form: Form) -> Mapping {
    Mapping { source: 10, target: 11, window, form }
}

/// A synapse forms when the whole window was seen, with the mapping's potential.
#[test]
fn a_missing_synapse_forms_after_a_full_window() {
    let form = Form::Bidirectional { constant: 1, ltp: 5, ltd: 2, potential: 200 };
    let states = run(&network(&[], &[mapping(2, form)], 0), &[&[0, 3], &[0, 3]]);
    assert_eq!(states[0].made, []);
    assert_eq!(states[1].made, [Synapse { potential: 200, ..synapse(0, 3, 5) }]);
}

/// A window of one burst: made with Δ⁺, then Δ⁺ more.
#[test]
fn a_made_synapse_grows() {
    let form = Form::Bidirectional { constant: 2, ltp: 3, ltd: 1, potential: 128 };
    let states = run(&network(&[], &[mapping(1, form)], 0), &[&[0, 3], &[0, 3], &[0], &[1]]);
    let weights: Vec<_> = states.iter().map(|state| state.made[0].weight).collect();
    // Then one end alone fires, and then neither.
    assert_eq!(weights, [6, 12, 10, 10]);
    assert!(states.iter().all(|state| state.made.len() == 1));
}

/// Classic plasticity changes what is there and makes nothing.
#[test]
fn classic_plasticity_makes_no_synapse() {
    let form = Form::Classic { constant: 3, ltp: 2, ltd: 1 };
    // Source 0 fires without target 3; source 1 and target 4, which fire together, are not connected.
    let states = run(&network(&[synapse(0, 3, 9)], &[mapping(1, form)], 0), &[&[0, 1, 4], &[0, 3]]);
    assert_eq!((&states[0].weights[..], &states[0].made[..]), (&[6][..], &[][..]));
    assert_eq!((&states[1].weights[..], &states[1].made[..]), (&[12][..], &[][..]));
}

/// Weights end at 0 and at 255.
#[test]
fn weights_saturate() {
    let form = Form::Classic { constant: 2, ltp: 1, ltd: 2 };
    let synapses = [synapse(0, 3, 1), synapse(1, 4, 254)];
    let states = run(&network(&synapses, &[mapping(1, form)], 0), &[&[0, 1, 4]]);
    assert_eq!(states[0].weights, [0, 255]);
}

/// A pair of spikes counts once, in the burst of the later one, and not beyond the window.
#[test]
fn pairs_count_once_within_the_window() {
    let net = |window| network(&[synapse(0, 3, 100)], &[mapping(window, Form::Exponential)], 0);
    let weights = |window, bursts: &[&[u32]]| -> Vec<u8> {
        run(&net(window), bursts).iter().map(|state| state.weights[0]).collect()
    };
    // round(2.55 · exp(−1 / 20)) = 2, and once only.
    assert_eq!(weights(5, &[&[0], &[3], &[], &[]]), [100, 102, 102, 102]);
    // round(3.06 · exp(−2 / 20)) = 3, for the target came first.
    assert_eq!(weights(5, &[&[3], &[], &[0]]), [100, 100, 97]);
    assert_eq!(weights(2, &[&[3], &[], &[0]]), [100, 100, 100]);
    assert_eq!(weights(3, &[&[3], &[], &[0]]), [100, 100, 97]);
    // In the same burst nothing changes; then the pair of both with both: + 2, − 3.
    assert_eq!(weights(5, &[&[0, 3], &[0, 3]]), [100, 99]);
}

/// Synapses that are made count when a neuron shares its potential.
#[test]
fn made_synapses_share_the_potential() {
    let mut builder = Builder::default();
    builder.area(Area { uniform: false, ..Area::uniform(10) }).expect("an area");
    builder.area(Area::uniform(11)).expect("an area");
    builder.neurons(1, Neuron::new(10, 1.0)).expect("a source");
    builder.neurons(2, Neuron::new(11, 1000.0)).expect("targets");
    builder.synapse(synapse(0, 1, 4)).expect("a synapse");
    let form = Form::Bidirectional { constant: 1, ltp: 2, ltd: 0, potential: 50 };
    builder.mapping(mapping(1, form)).expect("a mapping");
    let network = builder.build().expect("a network");
    let cpu = Cpu::with_threads(1).expect("a thread");
    let mut net = cpu.load(&network, &State::start(&network).expect("room")).expect("a network");
    let staged = [(0, 1.0), (2, 1000.0)];
    cpu.burst(&mut net, Stimulus { staged: &staged, fatigue: false }).expect("a burst");
    cpu.burst(&mut net, Stimulus::default()).expect("a burst");
    // 4 · 100 and 2 · 50, each by two synapses.
    assert_eq!(cpu.state(&net).expect("its state").potential, [0.0, 200.0, 50.0]);
}

/// The ledger keeps as many bursts as areas ask for, and windows of mappings.
#[test]
fn the_ledger_keeps_the_last_bursts() {
    let bursts: [&[u32]; 4] = [&[0, 3], &[1], &[], &[2, 4]];
    let states = run(&network(&[], &[], 3), &bursts);
    let history = |area, bursts: [&[u32]; 3]| History { area, bursts: bursts.map(<[u32]>::to_vec).to_vec() };
    assert_eq!(states[3].history, [history(10, [&[1], &[], &[2]]), history(11, [&[], &[], &[4]])]);
    let states = run(&network(&[], &[mapping(4, Form::Exponential)], 3), &bursts);
    assert_eq!(states[3].history.iter().map(|of| of.bursts.len()).collect::<Vec<_>>(), [4, 4]);
    assert!(run(&network(&[], &[], 0), &bursts)[3].history.is_empty());
}
