//! Vectors of another implementation: every `*.genome` in the folder that `HECATE_SPIKING_VECTORS` names, with the spikes and
//! the state that its `*.expect` has.
//!
//! A line is a neuron (`N threshold limit|max leak refractory excitability fire_limit snooze accumulate area`), a synapse
//! (`S source target weight potential kind`), an area's flags (`F area uniform membrane_driven`), a staged potential
//! (`I burst neuron potential`) or the number of bursts (`B`). Expected are spikes of each burst (`B burst neuron…`), and bits
//! of each potential with two counts (`V neuron bits refractory in_a_row`).

use crate::require;
use hecate_spiking::{Area, Builder, Cpu, Experiment, Kind, Neuron, Spiking, State, Synapse};
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Debug,
    fs,
    path::Path,
    str::FromStr,
};

/// A word of a line as a number.
fn word<T: FromStr<Err: Debug>>(words: &[&str], at: usize) -> T {
    words[at].parse().unwrap_or_else(|error| panic!("`{}` of {words:?}: {error:?}", words[at]))
}

/// The neuron of a line.
fn neuron(words: &[&str]) -> Neuron {
    Neuron {
        area: word(words, 9),
        threshold: word(words, 1),
        limit: (words[2] != "max").then(|| word(words, 2)),
        leak: word(words, 3),
        refractory: word(words, 4),
        excitability: word(words, 5),
        fire_limit: word(words, 6),
        snooze: word(words, 7),
        accumulate: words[8] == "1",
    }
}

/// Reads a network of the line format.
fn experiment(text: &str) -> Experiment {
    // Words by line; a line's first word says what it is.
    let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
    let of = |kind: &'static str| lines.iter().filter(move |words| words.first() == Some(&kind));
    let flags: BTreeMap<u32, (bool, bool)> =
        of("F").map(|words| (word(words, 1), (words[2] == "1", words[3] == "1"))).collect();
    let mut builder = Builder::default();
    let areas: BTreeSet<u32> = of("N").map(|words| word(words, 9)).collect();
    for id in areas {
        // Without any flag all areas are uniform; with one, those without are not.
        let (uniform, membrane_driven) = flags.get(&id).copied().unwrap_or((flags.is_empty(), false));
        builder.area(Area { uniform, membrane_driven, ..Area::uniform(id) }).expect("an area");
    }
    for words in of("N") {
        builder.neuron(neuron(words)).expect("a neuron");
    }
    for words in of("S") {
        let kind = Kind::try_from(word::<u8>(words, 5)).expect("a kind");
        let (source, target, weight, potential) = (word(words, 1), word(words, 2), word(words, 3), word(words, 4));
        builder.synapse(Synapse { source, target, weight, potential, kind }).expect("a synapse");
    }
    let bursts = of("B").map(|words| word::<u64>(words, 1)).sum();
    let mut experiment = Experiment::new(builder.build().expect("a network"), bursts);
    // A burst may stage a neuron several times.
    let inputs = of("I").map(|words| (word(words, 1), word(words, 2), word(words, 3)));
    experiment.stage(inputs.collect()).expect("staged potentials");
    experiment
}

/// Spikes and state in the lines of `*.expect`.
fn told<D: Spiking>(device: &D, experiment: &Experiment) -> String {
    let start = State::start(&experiment.network).expect("room");
    let mut net = device.load(&experiment.network, &start).expect("a network");
    let mut lines = Vec::new();
    for burst in 1..=experiment.bursts {
        device.burst(&mut net, experiment.stimulus(burst)).expect("a burst");
        let fired = device.fired(&net).expect("what fired");
        let ids: Vec<_> = fired.iter().map(|spike| spike.neuron.to_string()).collect();
        lines.push(format!("B {burst} {}", ids.join(" ")));
    }
    // Potentials are compared by bits: minus zero is not zero.
    let state = device.state(&net).expect("its state");
    for (index, potential) in state.potential.iter().enumerate() {
        let (refractory, in_a_row) = (state.refractory[index], state.in_a_row[index]);
        lines.push(format!("V {index} {:08x} {refractory} {in_a_row}", potential.to_bits()));
    }
    lines.join("\n") + "\n"
}

#[test]
fn spikes_and_states_are_those_of_the_vectors() {
    // Networks are small, so that one task has all of each.
    compare_all(&Cpu::with_threads(2).expect("threads"));
}

/// Compares all vectors on a device.
pub(crate) fn compare_all<D: Spiking>(device: &D) {
    let Some(folder) = std::env::var_os("HECATE_SPIKING_VECTORS") else {
        return require::skip("vectors", "set HECATE_SPIKING_VECTORS to the folder of the vectors of spiking networks");
    };
    let entries = fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", Path::new(&folder).display()));
    let mut count = 0;
    for path in entries.map(|entry| entry.expect("an entry").path()) {
        if path.extension().is_none_or(|extension| extension != "genome") {
            continue;
        }
        let read = |path: &Path| fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let found = told(device, &experiment(&read(&path)));
        let expected = read(&path.with_extension("expect"));
        // A burst in which nothing fired ends with a blank in some files.
        let differs = found.lines().zip(expected.lines()).find(|(found, expected)| found.trim() != expected.trim());
        assert_eq!(differs, None, "{}: found, expected", path.display());
        assert_eq!(found.lines().count(), expected.lines().count(), "{}", path.display());
        count += 1;
    }
    assert!(count > 0, "there is no *.genome in HECATE_SPIKING_VECTORS");
}
