//! The file of a spiking network: what is read is written again as it was, and fires or says which neuron has too much.
#![no_main]

use hecate_spiking::{Cpu, Experiment, Spiking, State};

libfuzzer_sys::fuzz_target!(|text: &str| {
    let Ok(experiment) = Experiment::parse(text) else { return };
    let again = Experiment::parse(&experiment.to_json()).expect("what was written");
    assert_eq!(again.to_json(), experiment.to_json());
    let cpu = Cpu::with_threads(1).expect("a thread");
    let Ok(mut net) = State::start(&experiment.network).and_then(|start| cpu.load(&experiment.network, &start)) else {
        return;
    };
    for burst in 1..=experiment.bursts.min(3) {
        if cpu.burst(&mut net, experiment.stimulus(burst)).is_err() {
            return;
        }
    }
});
