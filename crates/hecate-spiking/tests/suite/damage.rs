//! Damaged files: refused with line and reason, and never a panic.

use hecate_spiking::{Cpu, Error, Experiment, Spiking, State};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::fs;

/// A small file with every field.
const WHOLE: &str = r#"{
"format": "hecate-spiking 1",
"areas": [
{"id":1,"uniform":true,"history":2},
{"id":2,"uniform":false,"membrane_driven":true}
],
"power": 12.5,
"neurons": [
[3,{"area":1,"threshold":10.0,"limit":4000.0,"leak":0.1,"refractory":1,"excitability":0.7,"fire_limit":2,"snooze":3}],
[2,{"area":2,"threshold":-1.0,"accumulate":false}]
],
"memory": [
[1,2]
],
"synapses": [
[0,3,200,100,0],
[3,50000000,7,90,1],
[4,1,7,90,0]
],
"plasticity": [
{"source":1,"target":2,"window":2,"form":{"classic":{"constant":3,"ltp":2,"ltd":1}}},
{"source":1,"target":2,"window":1,"form":{"bidirectional":{"constant":3,"ltp":2,"ltd":1,"potential":90}}},
{"source":2,"target":1,"window":9,"form":"exponential"}
],
"inputs": [
[1,0,500.0],
[1,4,-2.5],
[3,50000000,1.0]
],
"fatigue": [
[2,3]
],
"bursts": 4
}
"#;

/// The error of a text: line and reason.
#[track_caller]
fn refused(text: &str) -> (usize, String) {
    match Experiment::parse(text) {
        Err(Error::File { line, column, reason }) => {
            assert!(column <= text.lines().nth(line - 1).map_or(0, str::len) + 1, "column {column} of line {line}");
            (line, reason)
        }
        other => panic!("{other:?} is no damaged file"),
    }
}

/// Each change is refused on its line, with its reason.
#[test]
fn damage_is_told_by_line_and_reason() {
    Experiment::parse(WHOLE).expect("a good file");
    Experiment::parse(&format!("\u{feff}{WHOLE}")).expect("a byte-order mark");
    let changes = [
        ("hecate-spiking 1", "hecate-spiking 2", 2, "expected `hecate-spiking 1`"),
        ("\"id\":2", "\"id\":1", 5, "area 1 was added twice"),
        ("\"uniform\":false", "\"uniform\":0", 5, "boolean"),
        ("\"power\": 12.5", "\"power\": 1e39", 7, "finite"),
        ("\"power\": 12.5", "\"power\": 1e999", 7, "range"),
        ("[3,{\"area\":1", "[3,{\"area\":9", 9, "neuron 0: there is no area 9"),
        ("\"leak\":0.1", "\"leak\":1.5", 9, "neuron 0: `leak` is 1.5, expected 0 to 1"),
        ("\"leak\":0.1", "\"leek\":0.1", 9, "unknown field `leek`"),
        ("\"refractory\":1", "\"refractory\":65536", 9, "65536"),
        ("[2,{\"area\":2", "[60000000,{\"area\":2", 10, "60000003 neurons were asked for"),
        ("[2,{\"area\":2", "[-2,{\"area\":2", 10, "-2"),
        ("[1,2]\n", "[1,7]\n", 13, "no area 7"),
        ("[0,3,200,100,0]", "[0,5,200,100,0]", 16, "synapse target 0: there is no neuron 5"),
        ("[0,3,200,100,0]", "[0,3,256,100,0]", 16, "256"),
        ("[0,3,200,100,0]", "[0,3,200,100,2]", 16, "expected 0 (excitatory) or 1 (inhibitory)"),
        ("[0,3,200,100,0]", "[0,3,200,100]", 16, "length 4"),
        ("[3,50000000", "[3,50000001", 17, "no neuron 50000001"),
        ("\"window\":2", "\"window\":0", 21, "at least 1"),
        ("\"classic\"", "\"classical\"", 21, "classical"),
        ("\"exponential\"", "\"linear\"", 23, "linear"),
        ("[1,4,-2.5]", "[1,6,-2.5]", 27, "staged potential 1: there is no neuron 6"),
        ("[1,4,-2.5]", "[1,4,1e39]", 27, "finite"),
        ("\"bursts\": 4", "\"burst\": 4", 33, "there is no field `burst`"),
        ("\"bursts\": 4", "\"power\": 4", 33, "`power` is there twice"),
        ("\"bursts\": 4\n}", "\"bursts\": 4\n} x", 34, "trailing"),
    ];
    // Only the first place changes, and the line is that of the change.
    for (from, to, line, reason) in changes {
        let text = WHOLE.replacen(from, to, 1);
        assert_ne!(text, WHOLE, "{from}");
        let (found, said) = refused(&text);
        assert!(found == line && said.contains(reason), "{to}: line {found}, {said}");
    }
    // Sums of a burst and the power amount are known when all is read.
    let (_, said) = refused(&WHOLE.replacen("500.0", "2e13", 1));
    assert!(said.contains("neuron 0") && said.contains("2^44"), "{said}");
    let (_, said) = refused(&WHOLE.replacen("12.5", "1e20", 1));
    assert!(said.contains("neuron 0") && said.contains("power"), "{said}");
    // Texts that are no network at all.
    assert!(refused("{}").1.contains("0 neurons"));
    assert!(refused("{\"neurons\": []}").1.contains("expected `\"format\""));
    assert!(refused("[]").1.contains("a network"));
    assert_eq!(refused("").0, 1);
}

/// The file of `docs/spiking.md` is a network, whose neurons fire.
#[test]
fn the_documentation_shows_a_network() {
    // The block of JSON, without its fences.
    let page = include_str!("../../../../docs/spiking.md");
    let (_, rest) = page.split_once("```json\n").expect("a file");
    let (text, _) = rest.split_once("```").expect("its end");
    let experiment = Experiment::parse(text).expect("a good file");
    let cpu = Cpu::with_threads(1).expect("a thread");
    let start = State::start(&experiment.network).expect("room");
    let mut net = cpu.load(&experiment.network, &start).expect("a network");
    let burst = |burst| {
        cpu.burst(&mut net, experiment.stimulus(burst)).expect("a burst");
        cpu.fired(&net).expect("what fired").len()
    };
    assert!((1..=experiment.bursts).map(burst).sum::<usize>() >= 80, "power alone fires a neuron in every burst");
}

/// Files that are none.
#[test]
fn what_is_no_file_is_told() {
    let folder = tempfile::tempdir().expect("a folder");
    let missing = folder.path().join("missing.json");
    for path in [&missing, &folder.path().to_owned()] {
        let error = Experiment::read(path).expect_err("no file");
        assert!(
            matches!(error, Error::Read { .. }) && error.to_string().contains(&path.display().to_string()),
            "{error}"
        );
    }
    // Bytes that begin no character.
    let bytes = folder.path().join("bytes.json");
    fs::write(&bytes, [0xff, 0xfe]).expect("a file");
    assert!(matches!(Experiment::read(&bytes), Err(Error::Read { .. })), "it is no UTF-8");
}

/// What stands in the place of a number. None of them makes millions of neurons, which would only take time.
const WORDS: [&str; 15] = [
    "0",
    "-1",
    "1",
    "3",
    "65535",
    "65536",
    "4294967295",
    "4294967296",
    "18446744073709551616",
    "1e39",
    "1e-46",
    "1e999",
    "null",
    "\"\"",
    "[]",
];

/// A file after one or two changes of bytes, runs of bytes and words.
fn damaged(rng: &mut ChaCha8Rng) -> Vec<u8> {
    let mut bytes = WHOLE.as_bytes().to_vec();
    for _ in 0..rng.random_range(1..3) {
        let at = rng.random_range(0..bytes.len());
        let end = (at + rng.random_range(1..30)).min(bytes.len());
        // A bit, a byte, a gap, the end, a run that is there twice, or most often a number.
        match rng.random_range(0..12) {
            0 => bytes[at] ^= 1 << rng.random_range(0..8),
            1 => bytes[at] = rng.random(),
            2 => drop(bytes.drain(at..end)),
            3 => bytes.truncate(at.max(1)),
            4 => {
                let run = bytes[at..end].to_vec();
                bytes.splice(at..at, run);
            }
            _ => {
                // A number, as a whole.
                let is_number = |byte: &u8| byte.is_ascii_digit() || *byte == b'.';
                let start = bytes[at..].iter().position(is_number).map_or(at, |from| at + from);
                let length = bytes[start..].iter().position(|byte| !is_number(byte)).unwrap_or(0);
                let word = WORDS[rng.random_range(0..WORDS.len())];
                bytes.splice(start..start + length, word.bytes());
            }
        }
    }
    bytes
}

/// Ten thousand files: each is refused with a line of its own and a reason, or is a network that runs.
#[test]
fn ten_thousand_damaged_files() {
    let cpu = Cpu::with_threads(1).expect("a thread");
    let (mut rng, mut refusals, mut ran) = (ChaCha8Rng::seed_from_u64(61), 0, 0);
    // The same seed damages the same way on every machine.
    while refusals + ran < 10_000 {
        let bytes = damaged(&mut rng);
        // Files that are no UTF-8 are refused before; here their rest is looked at.
        let text = String::from_utf8_lossy(&bytes);
        match Experiment::parse(&text) {
            // What is left is a network: it has to run, whatever its values are.
            Ok(experiment) if experiment.network.count() < 100_000 => {
                let network = &experiment.network;
                let mut net = cpu.load(network, &State::start(network).expect("room")).expect("a network");
                (1..=experiment.bursts.min(6)).for_each(|burst| {
                    cpu.burst(&mut net, experiment.stimulus(burst)).expect("a burst of a file that was checked");
                });
                ran += 1;
            }
            // Large ones were made; running them would only take time.
            Ok(_) => ran += 1,
            // The line is in the file, or just behind its end.
            Err(Error::File { line, reason, .. }) => {
                assert!((1..=text.lines().count() + 1).contains(&line) && !reason.is_empty(), "line {line}: {reason}");
                refusals += 1;
            }
            Err(error) => panic!("{error} is no error of a file:\n{text}"),
        }
    }
    assert!(refusals > 5000 && ran > 300, "{refusals} were refused, {ran} ran");
}
