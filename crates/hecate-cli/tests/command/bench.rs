//! Benchmarks at sizes that take milliseconds.

use super::harness::{Outcome, Workspace};
use serde_json::Value;

/// Two lengths, two rates and two seeds: every loop runs more than once.
const RECALL: &str = "bench recall --pairs 1,3 --keys 4 --values 2 --width 8 --key-dim 4 --value-dim 4 --steps 3 --batch 2 \
                      --examples 5 --rates 1e-2,1e-3 --seeds 2";
/// Four bits learned, nine measured.
const PARITY: &str = "bench state-tracking --length 4 --test-length 9 --width 8 --key-dim 4 --value-dim 4 --steps 3 \
                      --batch 2 --examples 5 --rates 1e-2 --seeds 2";

/// The command in a folder of its own; words are parted by spaces.
fn run(line: &str) -> Outcome {
    Workspace::new().run(&line.split_whitespace().collect::<Vec<_>>())
}

/// What it printed, which is nothing but one JSON value.
fn json(outcome: &Outcome) -> Value {
    serde_json::from_str(&outcome.stdout).unwrap_or_else(|error| panic!("{error}: {outcome:?}"))
}

/// Without learning anything.
#[test]
fn identities_hold() {
    let found = run("bench recall --identities");
    found.succeeded();
    for part in ["orthonormal", "linear attention", "delta: in calls of 1, 16 and 64", "titans: in calls", "holds"] {
        assert!(found.stdout.contains(part), "`{part}` is not in {found:?}");
    }
    // No table of runs either.
    assert!(!found.stdout.contains("FAILS") && !found.stdout.contains("by seed"), "{found:?}");
}

/// Byte for byte, whatever the number of threads; another flag gives another result.
#[test]
fn recall_is_the_same_twice() {
    let first = run(&format!("{RECALL} --rules delta,attention --json"));
    first.succeeded();
    // The first run has as many threads as the machine.
    assert_eq!(first.stdout, run(&format!("{RECALL} --rules delta,attention --json --threads 1")).stdout);
    let found = json(&first);
    assert_eq!(found["measures"], serde_json::json!(["1 pairs", "3 pairs"]));
    assert_eq!(found["settings"]["pairs"], serde_json::json!([1, 3]));
    let outcomes = found["outcomes"].as_array().unwrap();
    assert_eq!(outcomes.iter().map(|x| &x["rule"]).collect::<Vec<_>>(), ["delta", "attention"]);
    // A memory of keys of 4 and values of 4.
    assert_eq!(outcomes[0]["state"], 16);
    for outcome in outcomes {
        let runs = outcome["runs"].as_array().unwrap();
        // Both rates with the first seed, the better one with the second.
        assert_eq!(runs.iter().map(|run| run["seed"].as_u64().unwrap()).collect::<Vec<_>>(), [0, 0, 1]);
        assert_eq!(runs[2]["rate"], outcome["rate"]);
        for accuracy in runs.iter().flat_map(|run| run["accuracy"].as_array().unwrap()) {
            assert!((0.0..=1.0).contains(&accuracy.as_f64().unwrap()));
        }
    }
    // Memories that may forget have another gate, so other weights.
    assert_ne!(first.stdout, run(&format!("{RECALL} --rules delta,attention --json --decay")).stdout);
}

/// The delta rule once a step size, the others once.
#[test]
fn parity_is_reported_by_step_size() {
    let found = run(&format!("{PARITY} --rules delta,titans,attention"));
    found.succeeded();
    for part in ["delta, steps to 1", "delta, steps to 2", "titans", "attention", "bits 1 to 4", "bits 5 to 9", "bit 9"]
    {
        assert!(found.stdout.contains(part), "`{part}` is not in {found:?}");
    }
    // Four candidates with two seeds each.
    assert!(found.stderr.contains("8/8"), "{found:?}");
}

/// A run whose loss is not finite has no right answers, and says why.
#[test]
fn divergence_is_a_result() {
    let found =
        run(&format!("{} --rules delta --json", PARITY.replace("--steps 3", "--steps 30").replace("1e-2", "1e30")));
    found.succeeded();
    let found = json(&found);
    let run = &found["outcomes"][0]["runs"][0];
    assert!(run["failure"].as_str().unwrap().contains("lower rate"), "{run}");
    assert_eq!(run["accuracy"], serde_json::json!([0.0, 0.0, 0.0]));
}

/// Every rule and pass has a time, and what follows from it.
#[test]
fn speed_is_measured() {
    let found = run("bench speed --rules all,gated_delta --shapes 2x6x1x4 --seconds 0.001 --threads 1 --json");
    found.succeeded();
    let found = json(&found);
    let peak = found["peak_flops_per_second"].as_f64().unwrap();
    let rows = found["rows"].as_array().unwrap();
    // Every rule and gated_delta, forward, both and decode.
    assert_eq!(rows.len(), 17 * 3, "{found}");
    for row in rows {
        let number = |name: &str| row[name].as_f64().unwrap_or_else(|| panic!("{name} of {row}"));
        // Two texts: one token each in decoding, six otherwise.
        let tokens = if row["pass"] == "decode" { 2.0 } else { 12.0 };
        approx::assert_relative_eq!(number("tokens_per_second"), tokens / number("seconds"), max_relative = 1e-9);
        approx::assert_relative_eq!(number("share_of_peak"), number("flops_per_second") / peak, max_relative = 1e-9);
        assert!(number("seconds") > 0.0 && number("flops_per_second") > 0.0, "{row}");
    }
    // Three products of 4 by 4, twelve tokens.
    let delta = rows.iter().find(|row| row["rule"] == "delta" && row["pass"] == "forward").unwrap();
    let operations = delta["flops_per_second"].as_f64().unwrap() * delta["seconds"].as_f64().unwrap();
    approx::assert_relative_eq!(operations, 12.0 * 3.0 * 2.0 * 16.0, max_relative = 1e-9);
}

/// As for the other subcommands.
#[test]
fn mistakes_in_benchmarks_are_named() {
    let cases: &[(&str, &[&str])] = &[
        ("bench recall --pairs 0", &["--pairs", "--keys"]),
        ("bench recall --pairs 65", &["--pairs", "64"]),
        ("bench recall --keys 1", &["keys", "at least 2"]),
        ("bench recall --rules gamma", &["gamma", "hebbian"]),
        ("bench speed --rules gamma", &["gamma", "hebbian"]),
        ("bench speed --seconds 0", &["--seconds"]),
        ("bench recall --rates nan", &["learning rate", "NaN"]),
        ("bench recall --seeds 0", &["--seeds"]),
        ("bench recall --steps 0", &["steps"]),
        ("bench recall --enough -1", &["--enough"]),
        ("bench recall --width 1000000000000", &["hidden_size", "at most"]),
        ("bench state-tracking --length 0", &["--test-length", "--length"]),
        ("bench state-tracking --test-length 40", &["--test-length", "more than"]),
        ("bench state-tracking --step-sizes 3", &["step", "at most 2"]),
        ("bench state-tracking --step-sizes 2 --decay", &["step", "decay"]),
    ];
    // Status 1: the flags can be read, and what they say cannot be done.
    for (line, told) in cases {
        run(line).failed(1, told);
    }
    // Status 2: what clap cannot read.
    run("bench juggling").failed(2, &["juggling"]);
    // More than any memory holds, and more than can be counted.
    for shape in ["100x100000x100x1000", "4294967296x4294967296x1x1"] {
        run(&format!("bench speed --rules delta --threads 1 --seconds 0.001 --shapes {shape}"))
            .failed(1, &["GB of memory"]);
    }
    run("bench speed --shapes 1x2x3").failed(2, &["1x2x3", "batch"]);
    run("bench speed --dtype f8").failed(2, &["f8", "bf16"]);
}

/// What was found so far is still printed, and the status is that of Ctrl-C.
#[cfg(unix)]
#[test]
fn a_benchmark_can_be_stopped() {
    use std::{
        io::{BufRead, BufReader, Read},
        process::Command,
    };
    let workspace = Workspace::new();
    let line = format!("{} --rules hebbian,delta --json", PARITY.replace("--steps 3", "--steps 100000000"));
    let mut child = workspace.spawn(&line.split_whitespace().collect::<Vec<_>>());
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    // It listens for Ctrl-C before it says what it does.
    stderr.read_line(&mut String::new()).unwrap();
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    let mut rest = String::new();
    stderr.read_to_string(&mut rest).unwrap();
    let outcome = Outcome::new(child.wait_with_output().unwrap());
    assert_eq!(outcome.code, Some(130), "{outcome:?} {rest}");
    let found = json(&outcome);
    assert_eq!((&found["stopped"], &found["outcomes"][0]["rate"]), (&Value::Bool(true), &Value::Null));
}
