//! What a program can get wrong is a typed error that names the index, and the network is as it was.

use hecate_spiking::{
    Area, Builder, Cpu, Error, Form, Kind, MEMORY, Mapping, Network, Neuron, STAGED, Shards, Spike, Spiking, State,
    Stimulus, Synapse,
};
use std::{collections::BTreeSet, sync::Arc};

/// Three neurons in areas 1 to 3, one memory neuron in area 3, synapses in a ring, which learn.
fn builder() -> Builder {
    let mut builder = Builder::default();
    for id in 1..=3 {
        builder.area(Area { history: 2, ..Area::uniform(id) }).expect("an area");
    }
    for area in 1..=3 {
        builder.neuron(Neuron { leak: 0.5, ..Neuron::new(area, 10.0) }).expect("a neuron");
    }
    builder.memory(1, 3).expect("a memory neuron");
    for (source, target) in [(0, 1), (1, 2), (2, 0)] {
        let synapse = Synapse { source, target, weight: 3, potential: 4, kind: Kind::Excitatory };
        builder.synapse(synapse).expect("a synapse");
    }
    builder
}

/// The same, with a mapping: states have weights and a history.
fn network() -> Arc<Network> {
    let mut builder = builder();
    builder.mapping(Mapping { source: 3, target: 1, window: 2, form: Form::Exponential }).expect("a mapping");
    builder.build().expect("a network")
}

/// One thread is enough for three neurons.
fn cpu() -> Cpu {
    Cpu::with_threads(1).expect("a thread")
}

/// The error says all of this.
#[track_caller]
fn says<T: std::fmt::Debug>(result: Result<T, Error>, words: &[&str]) {
    let text = result.expect_err("an error").to_string();
    assert!(words.iter().all(|word| text.contains(word)), "`{text}` does not say {words:?}");
}

#[test]
fn networks_that_cannot_be() {
    // Each line is one mistake in a network that is good otherwise.
    says(Builder::default().build(), &["0 neurons"]);
    says(builder().area(Area::uniform(2)), &["area 2", "twice"]);
    says(builder().neuron(Neuron::new(9, 1.0)), &["neuron 3", "area 9"]);
    says(builder().memory(1, 9), &["memory neuron 1", "area 9"]);
    says(builder().neurons(MEMORY as usize, Neuron::new(1, 1.0)), &["50000003 neurons", "50000000"]);
    says(builder().memory(usize::MAX, 1), &["memory neurons", "50000000"]);
    let synapse = Synapse { source: 0, target: 3, weight: 1, potential: 1, kind: Kind::Excitatory };
    says(builder().synapse(synapse), &["synapse target 3", "no neuron 3"]);
    says(builder().synapse(Synapse { source: MEMORY + 1, ..synapse }), &["synapse source 3", "no neuron 50000001"]);
    builder().synapse(Synapse { source: MEMORY, target: MEMORY, ..synapse }).expect("a memory neuron that is there");
    let mapping = Mapping { source: 1, target: 2, window: 1, form: Form::Exponential };
    says(builder().mapping(Mapping { source: 7, ..mapping }), &["mapping 0", "area 7"]);
    says(builder().mapping(Mapping { target: 8, ..mapping }), &["mapping 0", "area 8"]);
    says(builder().mapping(Mapping { window: 0, ..mapping }), &["mapping 0", "`window` is 0", "at least 1"]);
}

#[test]
fn values_of_neurons() {
    let good = Neuron::new(1, 1.0);
    let wrong = [
        ("threshold", Neuron { threshold: f32::NAN, ..good.clone() }),
        ("threshold", Neuron { threshold: f32::INFINITY, ..good.clone() }),
        ("limit", Neuron { limit: Some(f32::NAN), ..good.clone() }),
        ("leak", Neuron { leak: f32::NAN, ..good.clone() }),
        ("leak", Neuron { leak: -0.1, ..good.clone() }),
        ("leak", Neuron { leak: 1.1, ..good.clone() }),
        ("excitability", Neuron { excitability: f32::NAN, ..good.clone() }),
        ("excitability", Neuron { excitability: 1.5, ..good.clone() }),
    ];
    for (field, neuron) in wrong {
        says(builder().neuron(neuron), &["neuron 3", field, "expected"]);
    }
}

/// The power amount has to fit the sums of those who get it; where nobody does, it may be anything finite.
#[test]
fn power_that_overflows() {
    let over = (STAGED * 2.0) as f32;
    for amount in [f32::NAN, f32::INFINITY] {
        says(builder().power(amount), &["power", "finite"]);
    }
    for amount in [over, -over, f32::MAX] {
        let mut builder = builder();
        builder.power(amount).expect("finite");
        says(builder.build(), &["neuron 0", "power", "2^44"]);
    }
    // Without an area of power, the first neuron of fatigue is named.
    let mut tired = Builder::default();
    tired.area(Area::uniform(2)).and_then(|()| tired.area(Area::uniform(5))).expect("areas");
    tired.neuron(Neuron::new(5, 1.0)).and_then(|_| tired.neuron(Neuron::new(2, 1.0))).expect("neurons");
    tired.power(over).expect("finite");
    says(tired.build(), &["neuron 1", "power"]);
    // The border itself is allowed, on both sides of it nothing else changes.
    let mut largest = builder();
    largest.power(STAGED as f32).expect("finite");
    largest.build().expect("the largest amount");
    // Neither area 1 nor area 2 is there.
    let mut nobody = Builder::default();
    nobody.area(Area::uniform(5)).and_then(|()| nobody.power(over)).expect("finite");
    nobody.neuron(Neuron::new(5, 1.0)).expect("a neuron");
    nobody.build().expect("an amount that nobody gets");
}

/// The largest staged potentials, power and a burst before: nothing wraps around.
#[test]
fn the_largest_sums_fit() {
    let mut builder = builder();
    builder.power(STAGED as f32).expect("finite");
    let network = builder.build().expect("a network");
    let (cpu, start) = (cpu(), State::start(&network).expect("room"));
    let mut net = cpu.load(&network, &start).expect("a network");
    cpu.burst(&mut net, Stimulus { staged: &[(0, STAGED as f32)], fatigue: true }).expect("a burst");
    let fired = cpu.fired(&net).expect("what fired");
    // The power neuron has both amounts; the neuron in fatigue has one.
    let twice = Spike { neuron: 0, potential: (2.0 * STAGED) as f32 };
    assert_eq!(fired, [twice, Spike { neuron: 1, potential: STAGED as f32 }]);
}

/// Whatever is wrong with a stimulus, the network goes on as if it had not been given.
#[test]
fn stimuli_leave_the_network_as_it_was() {
    let (network, cpu) = (network(), cpu());
    let start = State::start(&network).expect("room");
    let mut net = cpu.load(&network, &start).expect("a network");
    cpu.burst(&mut net, Stimulus { staged: &[(0, 20.0), (2, 3.0)], fatigue: false }).expect("a burst");
    let before = cpu.state(&net).expect("its state");
    // In each of these, what comes before the fault would change the network.
    let large = STAGED as f32;
    let wrong: [(&[(u32, f32)], &[&str]); 6] = [
        (&[(0, 1.0), (3, 1.0)], &["staged potential 1", "no neuron 3"]),
        (&[(MEMORY + 1, 1.0)], &["staged potential 0", "no neuron 50000001"]),
        (&[(0, 1.0), (1, 1.0), (2, f32::NAN)], &["staged potential 2", "NaN"]),
        (&[(2, f32::NEG_INFINITY)], &["staged potential 0", "-inf"]),
        (&[(2, large), (1, large)], &["neuron 1", "2^44"]),
        (&[(2, f32::MAX)], &["neuron 2", "2^44"]),
    ];
    for (staged, words) in wrong {
        says(cpu.burst(&mut net, Stimulus { staged, fatigue: true }), words);
        assert_eq!(cpu.state(&net).expect("its state"), before);
        // A part that had begun the burst could not go back.
        let shards = Shards::new([cpu.clone(), cpu.clone()]).expect("devices");
        let mut parts = shards.load(&network, &before).expect("a network");
        says(shards.burst(&mut parts, Stimulus { staged, fatigue: true }), words);
        assert_eq!(shards.state(&parts).expect("its state"), before);
    }
}

/// Each array of a state is checked against the network, and each value in it.
#[test]
fn states_of_others() {
    let (network, cpu) = (network(), cpu());
    let good = State::start(&network).expect("room");
    let spike = |neuron, potential| Spike { neuron, potential };
    let made = |target| Synapse { source: 0, target, weight: 1, potential: 1, kind: Kind::Excitatory };
    let wrong: [(&dyn Fn(&mut State), &[&str]); 16] = [
        (&|state| state.network += 1, &["network"]),
        (&|state| state.potential.push(0.0), &["`potential`", "4", "3"]),
        (&|state| state.refractory.truncate(2), &["`refractory`", "2", "3"]),
        (&|state| state.in_a_row.clear(), &["`in_a_row`", "0"]),
        (&|state| state.weights.push(1), &["`weights`", "4", "3"]),
        (&|state| state.potential[2] = f32::NAN, &["state of neuron 2", "NaN"]),
        (&|state| state.potential[1] = f32::INFINITY, &["state of neuron 1", "inf"]),
        (&|state| state.fired = vec![spike(1, 1.0), spike(3, 1.0)], &["fired neuron 1", "no neuron 3"]),
        (&|state| state.fired = vec![spike(0, f32::NAN)], &["fired neuron 0", "NaN"]),
        (&|state| state.fired = vec![spike(1, 1.0), spike(1, 1.0)], &["fired neuron 1", "ascending"]),
        (&|state| state.made = vec![made(7)], &["made synapse's target 0", "no neuron 7"]),
        (&|state| state.made = vec![made(1), made(0)], &["made synapse 1", "ascending"]),
        (&|state| drop(state.history.pop()), &["`history`", "2", "3"]),
        (&|state| state.history[1].area = 9, &["history 1", "`area` is 9"]),
        (&|state| state.history[0].bursts = vec![vec![]; 3], &["`history`", "3", "2"]),
        (&|state| state.history[0].bursts = vec![vec![1]], &["history 0", "neurons of the area"]),
    ];
    for (change, words) in wrong {
        let mut state = good.clone();
        change(&mut state);
        says(cpu.load(&network, &state), words);
    }
    // The same without its mapping is another network.
    let other = builder().build().expect("a network");
    says(cpu.load(&other, &good), &["network", "start anew"]);
    // Empty, past the end, and behind it.
    for part in [0..0, 2..9, 4..5] {
        says(cpu.load_part(&network, &good, part.clone()), &[&format!("neurons {} to {}", part.start, part.end)]);
    }
    cpu.load_part(&network, &good, 3..4).expect("the memory neuron");
}

/// Networks that differ in anything have other digests, so that neither takes a state of the other.
#[test]
fn every_change_makes_another_network() {
    let good = Synapse { source: 1, target: 0, weight: 3, potential: 4, kind: Kind::Excitatory };
    // Each change is of one value beside a change that is there too, so that nothing else tells them apart.
    let synapse = |synapse| move |of: &mut Builder| of.synapse(synapse).expect("a synapse");
    let neuron = |neuron| {
        move |of: &mut Builder| {
            of.neuron(neuron).expect("a neuron");
        }
    };
    let plain = Neuron::new(3, 10.0);
    let changes: [Box<dyn FnOnce(&mut Builder)>; 18] = [
        Box::new(|_| ()),
        Box::new(synapse(good)),
        Box::new(synapse(Synapse { source: 0, ..good })),
        Box::new(synapse(Synapse { target: 2, ..good })),
        Box::new(synapse(Synapse { weight: 5, ..good })),
        Box::new(synapse(Synapse { potential: 5, ..good })),
        Box::new(synapse(Synapse { kind: Kind::Inhibitory, ..good })),
        Box::new(neuron(plain.clone())),
        Box::new(neuron(Neuron { threshold: 11.0, ..plain.clone() })),
        Box::new(neuron(Neuron { limit: Some(99.0), ..plain.clone() })),
        Box::new(neuron(Neuron { leak: 0.25, ..plain.clone() })),
        Box::new(neuron(Neuron { excitability: 0.5, ..plain.clone() })),
        Box::new(neuron(Neuron { fire_limit: 2, ..plain.clone() })),
        Box::new(neuron(Neuron { snooze: 2, ..plain })),
        Box::new(|of| of.power(1.0).expect("finite")),
        Box::new(|of| drop(of.memory(1, 2))),
        Box::new(|of| of.area(Area::uniform(9)).expect("an area")),
        Box::new(|of| {
            let form = Form::Classic { constant: 1, ltp: 2, ltd: 3 };
            of.mapping(Mapping { source: 1, target: 2, window: 1, form }).expect("a mapping");
        }),
    ];
    // The first change is none at all.
    let digests = changes.into_iter().map(|change| {
        let mut builder = builder();
        change(&mut builder);
        builder.build().expect("a network").digest()
    });
    assert_eq!(digests.collect::<BTreeSet<_>>().len(), 18);
}

/// A loaded network belongs to the value that loaded it.
#[test]
fn networks_of_other_devices() {
    let (network, one, other) = (network(), cpu(), cpu());
    let mut net = one.load(&network, &State::start(&network).expect("room")).expect("a network");
    let words = &["loaded", "cpu (pool"];
    says(other.burst(&mut net, Stimulus::default()), words);
    says(other.fire(&mut net, Stimulus::default()), words);
    says(other.fired(&net), words);
    says(other.state(&net), words);
    // Devices are compared by identity, not by what they are.
    one.clone().fire(&mut net, Stimulus::default()).expect("a clone is the same device");
    says(other.hear(&mut net, &[]), words);
    for threads in [0, 5000] {
        says(Cpu::with_threads(threads), &[&threads.to_string(), "1 to 4096"]);
    }
    says(Shards::<Cpu>::new([]), &["0 devices"]);
}

/// A part fires, then hears; what it hears is of other parts.
#[test]
fn parts_in_their_order() {
    let (network, cpu) = (network(), cpu());
    let start = State::start(&network).expect("room");
    // The part knows neurons 0 and 1; neuron 2 and the memory neuron are elsewhere.
    let mut part = cpu.load_part(&network, &start, 0..2).expect("a part");
    says(cpu.hear(&mut part, &[]), &["hear before it fired"]);
    cpu.fire(&mut part, Stimulus { staged: &[(0, 20.0)], fatigue: false }).expect("half a burst");
    says(cpu.fire(&mut part, Stimulus::default()), &["fire before its last burst was heard"]);
    says(cpu.state(&part), &["state before its last burst was heard"]);
    let spike = |neuron, potential| Spike { neuron, potential };
    says(cpu.hear(&mut part, &[spike(2, 1.0), spike(1, 1.0)]), &["spike of another part 1", "ascending"]);
    says(cpu.hear(&mut part, &[spike(1, 1.0), spike(2, 1.0)]), &["spike of another part 0", "another part"]);
    says(cpu.hear(&mut part, &[spike(9, 1.0)]), &["spike of another part 0", "no neuron 9"]);
    says(cpu.hear(&mut part, &[spike(2, f32::NAN)]), &["spike of another part 0", "NaN"]);
    cpu.hear(&mut part, &[spike(2, 12.0)]).expect("the other half");
    let fired: Vec<_> = cpu.state(&part).expect("its state").fired.iter().map(|spike| spike.neuron).collect();
    assert_eq!(fired, [0, 2]);
}
