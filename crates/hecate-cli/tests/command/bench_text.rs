//! `hecate bench text` at sizes that take milliseconds.

use super::{
    bench::{json, run},
    harness::{Outcome, Workspace},
};
use serde_json::{Value, json};

/// As the harness's tiny model, without its text and its warm-up.
/// There are 25 steps, since the loss that is told is a mean of the last twenty.
const TINY: &str =
    "bench text --text text.txt --layers 1 --width 16 --heads 2 --tokens 24 --batch 2 --warmup=0 --steps 25";

/// What a row says under a name.
/// A row that is missing is shown with all that was found.
fn row<'a>(found: &'a Value, model: &str, seed: u64) -> &'a Value {
    let rows = found["rows"].as_array().unwrap();
    rows.iter().find(|row| row["model"] == model && row["seed"] == seed).unwrap_or_else(|| panic!("{model}: {found}"))
}

/// Losses of steps to the last bit, figures as they are printed: rules, momentum of its own, and a composition.
/// A comparison is worth something only if its models are those that `train` makes.
#[test]
fn models_learn_what_train_teaches_them() {
    // Two seeds, of which the second is trained as a run.
    let found = run(&format!("{TINY} --models delta,titans_mlp,mag --seeds 2 --first-seed 4 --json"));
    found.succeeded();
    let found = json(&found);
    for (model, flags) in [("delta", "--rule delta"), ("titans_mlp", "--rule titans_mlp"), ("mag", "--mixer mag")] {
        let workspace = Workspace::new();
        let line = format!("--steps 25 --seed 5 --measure all {flags}");
        let trained = workspace.train(&line.split(' ').collect::<Vec<_>>());
        trained.succeeded();
        let losses: Vec<f64> =
            workspace.record("runs/text").iter().map(|line| line["loss"].as_f64().unwrap()).collect();
        let row = row(&found, model, 5);
        // The mean of the last twenty steps.
        let learned = losses[5..].iter().sum::<f64>() / 20.0;
        assert_eq!(row["learned"]["loss"].as_f64().unwrap(), learned, "{model}");
        for (name, figure) in [("fresh windows of 24", "fresh"), ("one pass", "carried")] {
            let line =
                trained.stdout.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{trained:?}"));
            let shown = |unit: &str| format!("{:.4}", row[figure][unit].as_f64().unwrap());
            let words: Vec<_> = line[name.len()..].split_whitespace().collect();
            assert_eq!(words[..2], [shown("loss"), shown("bits_per_byte")], "{model}: {name}");
        }
        assert_ne!(row["learned"], self::row(&found, model, 4)["learned"], "{model}: seeds differ");
    }
    // As `train` has it unless told otherwise.
    let mixer = &row(&found, "titans_mlp", 4)["config"]["layers"][0]["mixer"];
    assert_eq!([&mixer["momentum"], &mixer["rule"]["frozen"]], [&json!(0.9_f32), &json!(16)]);
}

/// Every model that has a name, in its place, whatever ends first.
/// Five jobs end in another order than they began in, and no job may change the numbers of another.
#[test]
fn all_models_are_the_same_with_several_jobs() {
    let line = TINY.replace("--steps 25", "--steps 2");
    let one = run(&format!("{line} --json"));
    one.succeeded();
    assert_eq!(one.stdout, run(&format!("{line} --json --jobs 5")).stdout);
    let found = json(&one);
    let names: Vec<_> = found["rows"].as_array().unwrap().iter().map(|row| row["model"].as_str().unwrap()).collect();
    assert_eq!((names.len(), names[0], names[names.len() - 1]), (31, "hebbian", "hope"));
    let table = run(&format!("{line} --jobs 3"));
    table.succeeded();
    // A heading, a line under it, and the rows in their order.
    let firsts: Vec<_> = table.stdout.lines().skip(2).map(|line| line.split(' ').next().unwrap()).collect();
    assert_eq!(firsts, names);
    assert!(table.stdout.contains("fresh   carried  0-255   256-1k") && table.stderr.contains("31/31"), "{table:?}");
}

/// Two ranges of positions, or the first alone.
#[test]
fn a_part_of_the_held_out_text_is_enough() {
    let line = format!("{TINY} --models hebbian --json");
    let tokens = |more: &str| {
        let found = run(&format!("{line} {more}"));
        found.succeeded();
        let ranges = row(&json(&found), "hebbian", 1)["by_position"].clone();
        ranges.as_array().unwrap().iter().map(|range| range["tokens"].as_u64().unwrap()).collect::<Vec<_>>()
    };
    assert_eq!((tokens(""), tokens("--measure 0.5")), (vec![256, 82], vec![169]));
    // At least one token is predicted.
    assert_eq!(tokens("--measure 1e-9"), [1]);
}

/// What only some rules have is given to them, and to no other.
#[test]
fn options_are_those_of_the_models_that_have_them() {
    let found =
        run(&format!("{TINY} --models delta,titans,yaad,attention --momentum 0.5 --retain zero --steps 1 --json"));
    found.succeeded();
    let found = json(&found);
    // As the row's configuration has it.
    let mixer = |model: &str| &row(&found, model, 1)["config"]["layers"][0]["mixer"];
    assert_eq!([&mixer("delta")["momentum"], &mixer("titans")["momentum"]], [&json!(1.0), &json!(0.5)]);
    assert_eq!(mixer("yaad")["retain"], "zero");
    // Each has groups, and each has this momentum; titans has not both.
    let found =
        run(&format!("{TINY} --models titans,titans_mlp --frozen 4 --momentum-form look_ahead --steps 1 --json"));
    found.succeeded();
    let found = json(&found);
    let rule = |model: &str| row(&found, model, 1)["config"]["layers"][0]["mixer"]["rule"].clone();
    assert_eq!([&rule("titans")["momentum"], &rule("titans")["frozen"]], [&json!("look_ahead"), &json!(null)]);
    assert_eq!([&rule("titans_mlp")["momentum"], &rule("titans_mlp")["frozen"]], [&json!("look_ahead"), &json!(4)]);
}

/// Divergence is a row and no failure of the command; what cannot be run is both.
/// One model that diverges is not to cost a comparison its other rows.
#[test]
fn failures_are_rows() {
    let line = format!("{TINY} --models delta,hebbian");
    let diverged = run(&format!("{line} --lr 1e30 --json --jobs 2"));
    diverged.succeeded();
    // By the row's own words.
    let failure = |outcome: &Outcome, model| row(&json(outcome), model, 1)["failure"].clone();
    for model in ["delta", "hebbian"] {
        let told = failure(&diverged, model);
        assert!(told.as_str().is_some_and(|told| told.contains("at step 2") && !told.contains("checkpoint")), "{told}");
    }
    // Of the steps before there is a loss.
    assert!(row(&json(&diverged), "delta", 1)["learned"]["loss"].is_f64());
    assert!(row(&json(&diverged), "delta", 1)["carried"].is_null());
    // Terabytes, on any machine.
    let refused = run(&format!("{line} --json --tokens 1 --batch 16777216 --layers 60 --width 256"));
    assert_eq!(refused.code, Some(1), "{refused:?}");
    for model in ["delta", "hebbian"] {
        assert!(failure(&refused, model).as_str().unwrap().contains("does not fit"), "{refused:?}");
    }
}

/// Flags before texts, texts before steps.
/// What is wrong shows at once, and not after minutes of training.
#[test]
fn mistakes_are_named() {
    let cases: &[(&str, &[&str])] = &[
        ("--measure 0", &["--measure", "at most 1"]),
        ("--measure nan", &["--measure"]),
        ("--holdout 2", &["held-out fraction", "under 1"]),
        ("--momentum 0.5 --models delta,attention", &["momentum", "only titans"]),
        ("--momentum 7 --models titans", &["momentum", "at most 1"]),
        ("--first-seed 18446744073709551615 --seeds 2", &["--first-seed"]),
        ("--heads 3", &["heads", "divi"]),
        ("--lr nan", &["learning rate"]),
        ("--tokens 4000", &["text.txt", "too short"]),
    ];
    for (flags, told) in cases {
        // The last of two flags counts.
        run(&format!("{TINY} {flags}")).failed(1, told);
    }
    run(&format!("{TINY} --models gamma")).failed(2, &["gamma", "hebbian", "hope"]);
    run(&format!("{TINY} --seeds 0")).failed(2, &["--seeds"]);
    // What belongs to a run that is kept.
    run(&format!("{TINY} --save-every 2")).failed(2, &["--save-every"]);
}

/// Rows that are done are still printed.
/// So many steps that only a stop ends them.
#[cfg(unix)]
#[test]
fn a_comparison_can_be_stopped() {
    for jobs in ["1", "2"] {
        let line =
            format!("{} --models delta,titans --json --jobs {jobs}", TINY.replace("--steps 25", "--steps 100000000"));
        let found = super::bench::stopped(&line);
        assert_eq!((&found["stopped"], &found["rows"]), (&json!(true), &json!([])));
    }
}
