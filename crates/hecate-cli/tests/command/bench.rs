//! Benchmarks at sizes that take milliseconds.

use super::harness::{Outcome, Workspace};
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// Two lengths, two rates and two seeds: every loop runs more than once.
const RECALL: &str = "bench recall --pairs 1,3 --keys 4 --values 2 --width 8 --key-dim 4 --value-dim 4 --steps 3 --batch 2 \
                      --examples 5 --rates 1e-2,1e-3 --seeds 2";
/// Four bits learned, nine measured.
const PARITY: &str = "bench state-tracking --length 4 --test-length 9 --width 8 --key-dim 4 --value-dim 4 --steps 3 \
                      --batch 2 --examples 5 --rates 1e-2 --seeds 2";

/// Sequences of two lengths, one twice as likely, and a third that is only measured.
const ZOOLOGY: &str = "bench recall --lengths 8:2,8:2,12:3 --test-lengths 16:3 --vocab 16 --width 8 --key-dim 4 \
                       --value-dim 4 --steps 3 --batch 2 --examples 5 --rates 1e-2 --seeds 2 --rules delta";
/// Eight tokens learned, forty measured.
const NEEDLE: &str = "bench needle --length 8 --test-lengths 8,40 --keys 2 --values 2 --noise 3 --width 8 --key-dim 4 \
                      --value-dim 4 --steps 3 --batch 2 --examples 5 --rates 1e-2 --seeds 2";
/// Six tasks.
const MAD: &str = "bench mad --width 8 --key-dim 4 --value-dim 4 --layers 1 --steps 2 --batch 2 --examples 3 --rates 1e-2 \
                   --seeds 1 --rules delta";

/// The command in a folder of its own; words are parted by spaces.
pub(super) fn run(line: &str) -> Outcome {
    Workspace::new().run(&line.split_whitespace().collect::<Vec<_>>())
}

/// What it printed, which is nothing but one JSON value.
pub(super) fn json(outcome: &Outcome) -> Value {
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

/// Byte for byte, in the order of the candidates, whichever run ends first.
#[test]
fn sweeps_are_the_same_with_several_jobs() {
    // Every task, several rates and seeds.
    let lines = [
        format!("{RECALL} --rules delta,attention,titans --json"),
        format!("{PARITY} --rules delta,hebbian --rates 1e-2,1e-3 --json"),
        format!("{NEEDLE} --rules delta,hebbian --json"),
        format!("{} --rules delta,hebbian --json", MAD.replace("--seeds 1", "--seeds 2")),
        // A table too.
        format!("{RECALL} --rules delta,attention"),
    ];
    for line in lines {
        let one = run(&line);
        one.succeeded();
        // More jobs than processors, and more than runs.
        for jobs in ["3", "64"] {
            let several = run(&format!("{line} --jobs {jobs}"));
            several.succeeded();
            assert_eq!(one.stdout, several.stdout, "{line} --jobs {jobs}");
        }
    }
    run(&format!("{RECALL} --jobs 0")).failed(2, &["--jobs", "0"]);
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

/// Each size once, with what others report beside.
///
/// A size that is given twice is drawn twice as often, and measured once.
#[test]
fn zoologys_recall_is_reported_by_size() {
    let found = run(&format!("{ZOOLOGY} --json"));
    found.succeeded();
    assert_eq!(found.stdout, run(&format!("{ZOOLOGY} --json --threads 1")).stdout);
    // Another filler is another task.
    assert_ne!(found.stdout, run(&format!("{ZOOLOGY} --json --filler zeros")).stdout);
    let found = json(&found);
    assert_eq!(found["measures"], json!(["8:2", "12:3", "16:3"]));
    assert_eq!(found["settings"]["lengths"], json!(["8:2", "8:2", "12:3"]));
    assert_eq!(found["outcomes"][0]["runs"][0]["accuracy"].as_array().unwrap().len(), 3);
    let published = &found["published"][1];
    assert_eq!((&published["accuracy"], &published["measure"]), (&json!(0.94), &json!("512:64")));
    let table = run(ZOOLOGY);
    assert!(table.stdout.contains("RWKV-7, state of 8k   512:64       0.940"), "{table:?}");
    // The small task has no published figure.
    assert!(!run(&format!("{RECALL} --rules delta")).stdout.contains("published"));
}

/// What is given goes before the preset, the preset before the defaults.
#[test]
fn a_preset_sets_what_is_not_given() {
    let small = "--steps 1 --batch 1 --examples 1 --seeds 1 --rules delta --rates 1e-3 --width 8 --vocab 2048 --json";
    let found = run(&format!("bench recall --preset zoology {small}"));
    found.succeeded();
    let found = json(&found);
    // Settings by the names of their flags, the task's own among them.
    let of = |name: &str| &found["settings"][name];
    assert_eq!(
        of("measured"),
        &json!(["64:4", "128:8", "256:16", "256:32", "256:64", "512:64", "512:128", "1024:256"])
    );
    assert_eq!([of("layers"), of("weight_decay"), of("stop_at")], [&json!(2), &json!(0.1), &json!(0.99)]);
    assert_eq!(
        [of("width"), of("steps"), of("vocab"), of("rates")],
        [&json!(8), &json!(1), &json!(2048), &json!([0.001])]
    );
    assert_eq!(of("lengths").as_array().unwrap().iter().filter(|size| **size == "64:4").count(), 5);
    assert_eq!([of("filler"), of("tie")], [&json!("zeros"), &json!(true)]);
    let random = json(&run(&format!("bench recall --preset zoology {small} --filler random")));
    assert_eq!(random["settings"]["filler"], json!("random"));
}

/// One of two values is right at random.
#[test]
fn a_run_stops_once_enough_is_right() {
    let line = "bench recall --lengths 4:1 --vocab 4 --width 8 --key-dim 4 --value-dim 4 --steps 60 --batch 2 --examples 40 \
                --rates 1e-2 --seeds 1 --rules delta --enough 0 --json";
    let steps = |more: &str| {
        let found = run(&format!("{line} {more}"));
        found.succeeded();
        json(&found)["outcomes"][0]["runs"][0]["steps"].as_u64().unwrap()
    };
    // Without the flag all steps are done, whatever is right.
    assert_eq!(steps(""), 60);
    let stopped = steps("--stop-at 0.3 --stop-every 7");
    assert!(stopped < 60 && stopped % 7 == 0, "{stopped}");
    // No measurement comes before the last step.
    assert_eq!(steps("--stop-at 0.3 --stop-every 61"), 60);
}

/// Words are measured up to sixteen times the learned length, by doublings.
#[test]
fn groups_are_reported_by_length() {
    for (group, length, measured) in [("s3", "4", 64), ("s5", "2", 32), ("parity", "4", 240)] {
        let line = PARITY.replace("--length 4 --test-length 9", &format!("--length {length} --group {group}"));
        let found = run(&format!("{line} --rules hebbian --json"));
        found.succeeded();
        let found = json(&found);
        assert_eq!([&found["settings"]["test_length"], &found["settings"]["group"]], [&json!(measured), &json!(group)]);
        // Parity keeps its two ranges.
        let expected = match group {
            "s3" => json!([
                "tokens 1 to 4",
                "tokens 5 to 8",
                "tokens 9 to 16",
                "tokens 17 to 32",
                "tokens 33 to 64",
                "token 64"
            ]),
            "s5" => json!([
                "tokens 1 to 2",
                "tokens 3 to 4",
                "tokens 5 to 8",
                "tokens 9 to 16",
                "tokens 17 to 32",
                "token 32"
            ]),
            _ => json!(["bits 1 to 4", "bits 5 to 240", "bit 240"]),
        };
        assert_eq!(found["measures"], expected);
        assert_eq!(found["published"].as_array().unwrap().len(), if group == "parity" { 2 } else { 0 });
    }
    // One token beyond the learned ones is the last too.
    let found =
        run(&format!("{} --rules hebbian --group s3 --json", PARITY.replace("--test-length 9", "--test-length 5")));
    assert_eq!(json(&found)["measures"], json!(["tokens 1 to 4", "token 5"]));
}

/// The same for any number of threads, attention beside memories.
#[test]
fn needles_are_reported_by_length() {
    let found = run(&format!("{NEEDLE} --rules delta,attention --json"));
    found.succeeded();
    assert_eq!(found.stdout, run(&format!("{NEEDLE} --rules delta,attention --json --threads 1")).stdout);
    let found = json(&found);
    assert_eq!(found["measures"], json!(["8 tokens", "40 tokens"]));
    assert_eq!(found["outcomes"][1]["rule"], "attention");
    assert!(
        found["published"].as_array().unwrap().iter().any(|row| row["model"] == "Mamba-2" && row["accuracy"] == 0.054)
    );
    assert_ne!(json(&run(&format!("{NEEDLE} --rules delta --json --noise 2")))["outcomes"], found["outcomes"]);
    // Shorter texts are learned from where they are asked for.
    assert_eq!((&found["settings"]["shortest"], &found["settings"]["learned"]), (&json!(8), &json!([8])));
    let shorter = json(&run(&format!("{NEEDLE} --rules delta --json --shortest 3")));
    // The shortest, doubled, and the longest.
    assert_eq!((&shorter["settings"]["shortest"], &shorter["settings"]["learned"]), (&json!(3), &json!([3, 6, 8])));
    assert_ne!(shorter["outcomes"][0]["runs"][0]["loss"], found["outcomes"][0]["runs"][0]["loss"]);
}

/// Each task by itself, and of the published row what was asked for.
#[test]
fn mads_tasks_are_reported() {
    let found = run(&format!("{MAD} --json"));
    found.succeeded();
    let found = json(&found);
    let tasks = json!(["compression", "fuzzy-recall", "recall", "memorisation", "noisy-recall", "copying"]);
    assert_eq!((&found["measures"], &found["settings"]["tasks"]), (&tasks, &tasks));
    // As many sequences as the paper learns from.
    assert_eq!(found["settings"]["known"], json!([12800, 12800, 12800, 256, 12800, 12800]));
    let figures: Vec<_> =
        found["published"].as_array().unwrap().iter().map(|row| row["accuracy"].as_f64().unwrap()).collect();
    assert_eq!(figures, [0.42, 0.36, 1.0, 0.53, 1.0, 1.0]);
    for (outcome, task) in found["outcomes"].as_array().unwrap().iter().zip(tasks.as_array().unwrap()) {
        assert_eq!(outcome["measures"], json!([task]));
        assert_eq!(outcome["runs"][0]["accuracy"].as_array().unwrap().len(), 1);
    }
    // The table shows each figure beside its task.
    let some = run(&format!("{MAD} --tasks copying,memorisation"));
    some.succeeded();
    assert!(some.stdout.contains("memorisation  0.530") && !some.stdout.contains("fuzzy"), "{some:?}");
    // One known sequence teaches something else than all.
    let losses = |known: &str| {
        json(&run(&format!("{MAD} --tasks recall --known {known} --json")))["outcomes"][0]["runs"][0]["loss"].clone()
    };
    assert_ne!(losses("1"), losses("0"));
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
    assert_eq!(rows.len(), 24 * 3, "{found}");
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

/// Rules that have groups, and only these; their decoding would be of groups of one.
#[test]
fn groups_are_measured() {
    let flags = "--shapes 1x6x1x4 --seconds 0.001 --threads 1 --json";
    let found = run(&format!("bench speed --rules all --frozen 2 {flags}"));
    found.succeeded();
    let found = json(&found);
    assert_eq!(found["frozen"], 2);
    let rows = found["rows"].as_array().unwrap();
    let rules: BTreeSet<_> = rows.iter().map(|row| row["rule"].as_str().unwrap()).collect();
    assert!(rules.contains("titans_mlp") && rules.contains("atlas") && !rules.contains("hebbian"), "{rules:?}");
    assert_eq!(rows.len(), 2 * rules.len(), "{found}");
    assert!(rows.iter().all(|row| row["pass"] != "decode"), "{found}");
    run(&format!("bench speed --rules hebbian --frozen 2 {flags}")).failed(1, &["--frozen", "hebbian", "groups"]);
    run(&format!("bench speed --rules gated_delta --frozen 2 {flags}")).failed(1, &["frozen", "decayed erase"]);
    run("bench speed --frozen 0").failed(2, &["--frozen", "0"]);
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
        ("bench recall --vocab 16", &["--vocab", "--lengths"]),
        ("bench recall --test-lengths 8:2", &["--test-lengths", "--preset zoology"]),
        ("bench recall --filler zeros", &["--filler", "--lengths"]),
        ("bench recall --lengths 8:3", &["length with 3 pairs", "at least 12"]),
        ("bench recall --lengths 8:2 --test-lengths 9:0", &["pairs", "at least 1"]),
        ("bench recall --lengths 64:9 --vocab 16", &["pairs", "at most 7"]),
        ("bench recall --lengths 8:2 --vocab 3", &["vocabulary", "at least 4"]),
        ("bench recall --stop-at 2", &["--stop-at", "at most 1"]),
        ("bench recall --stop-at 0", &["--stop-at", "over 0"]),
        ("bench recall --stop-at nan", &["--stop-at"]),
        ("bench recall --stop-every 0", &["--stop-every"]),
        ("bench recall --weight-decay -1", &["weight decay", "at least 0"]),
        ("bench needle --length 2", &["--length", "at least 3"]),
        ("bench needle --test-lengths 8,1", &["--test-lengths", "at least 3"]),
        ("bench needle --shortest 2", &["--shortest", "at least 3"]),
        ("bench needle --shortest 600 --steps 1 --test-lengths 9", &["--shortest", "512"]),
        ("bench needle --values 1", &["values", "at least 2"]),
        ("bench needle --noise 0", &["noise", "at least 1"]),
        ("bench mad --batch 0", &["--batch"]),
        ("bench mad --rules gamma", &["gamma", "hebbian"]),
        ("bench state-tracking --group s5 --length 0", &["--test-length", "--length"]),
        ("bench state-tracking --group s3 --test-length 40", &["--test-length", "more than"]),
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
    run("bench state-tracking --group s4").failed(2, &["s4", "s5"]);
    run("bench mad --tasks juggling").failed(2, &["juggling", "copying"]);
    run("bench recall --lengths 64").failed(2, &["64", "LENGTH:PAIRS"]);
    run("bench recall --lengths 8:2 --pairs 2").failed(2, &["--lengths", "--pairs"]);
    // Without steps nobody learns if it is not refused.
    run("bench recall --preset zoology --writes 2 --steps 0").failed(2, &["--preset", "--writes"]);
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
    // One run, and several of which each has to end.
    for jobs in ["1", "3"] {
        let found = stopped(&format!(
            "{} --rules hebbian,delta --json --jobs {jobs}",
            PARITY.replace("--steps 3", "--steps 100000000")
        ));
        assert_eq!((&found["stopped"], &found["outcomes"][0]["rate"]), (&Value::Bool(true), &Value::Null));
    }
}

/// What a benchmark prints as JSON that is interrupted once it has begun.
#[cfg(unix)]
pub(super) fn stopped(line: &str) -> Value {
    use std::{
        io::{BufRead, BufReader, Read},
        process::Command,
    };
    let workspace = Workspace::new();
    let mut child = workspace.spawn(&line.split_whitespace().collect::<Vec<_>>());
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    // It listens for Ctrl-C before it says what it does.
    stderr.read_line(&mut String::new()).unwrap();
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    let mut rest = String::new();
    stderr.read_to_string(&mut rest).unwrap();
    let outcome = Outcome::new(child.wait_with_output().unwrap());
    assert_eq!(outcome.code, Some(130), "{outcome:?} {rest}");
    json(&outcome)
}
