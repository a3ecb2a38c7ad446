//! Runs that go on: for longer, from their own text, and as the beginning of others.

use super::harness::Workspace;
use std::fs;

/// Rates of a run's record, step by step.
fn rates(workspace: &Workspace, run: &str) -> Vec<f64> {
    let text = fs::read_to_string(workspace.path(run).join("metrics.jsonl")).unwrap();
    let rate = |line: &str| serde_json::from_str::<serde_json::Value>(line).unwrap()["learning_rate"].as_f64().unwrap();
    text.lines().map(rate).collect()
}

/// The steps to come have the rates of a run that was that long from the start.
#[test]
fn a_run_goes_on_for_longer() {
    let (workspace, long) = (Workspace::new(), Workspace::new());
    workspace.train(&["--steps", "4"]).succeeded();
    // Steps that are done cannot be taken back.
    let fewer = workspace.run(&["train", "--resume", "--steps", "3"]);
    fewer.failed(1, &["--steps", "3 are fewer than the 4 that are done"]);
    let longer = workspace.run(&["train", "--resume", "--steps", "8"]);
    longer.succeeded();
    let told = "8 steps instead of 4: from here on the learning rate is that of a run of 8 steps";
    assert!(longer.stderr.contains(told) && longer.stderr.contains("going on after step 4"), "{longer:?}");
    assert_eq!(workspace.recorded_steps("runs/text"), (1..=8).collect::<Vec<_>>());
    // One schedule from the fifth step on; before that, each run had its own.
    long.train(&["--steps", "8"]).succeeded();
    assert_eq!(rates(&workspace, "runs/text")[4..], rates(&long, "runs/text")[4..]);
    assert_ne!(rates(&workspace, "runs/text")[..4], rates(&long, "runs/text")[..4]);
    // As many as before is nothing to tell of; the run is done.
    let same = workspace.run(&["train", "--resume", "--steps", "8"]);
    same.succeeded();
    assert!(!same.stderr.contains("instead of"), "{same:?}");
}

/// The program's own text is kept with the run: another build of the program has another.
#[test]
fn own_sources_are_kept_with_the_run() {
    let workspace = Workspace::new();
    // Megabytes of text: as little of it as can be is held out and measured.
    let line = "train --steps 1 --layers 1 --width 8 --heads 1 --batch 1 --tokens 16 --holdout 0.001 --measure 0.1";
    workspace.run(&line.split(' ').collect::<Vec<_>>()).succeeded();
    let kept = workspace.path("runs/default/checkpoint-00000001/sources.txt");
    assert!(fs::read_to_string(&kept).unwrap().contains("fn main()"));
    assert!(workspace.path("runs/default/sources.txt").is_file());
    // Each checkpoint has it, so that any of them can be gone on from.
    workspace.run(&["train", "--resume", "--steps", "2", "--measure", "0.1"]).succeeded();
    // It is what is read, and not the program's: damage to it is noticed.
    let newest = workspace.path("runs/default/checkpoint-00000002/sources.txt");
    // A file of its own: the checkpoint before has this content under a second name of the same file.
    fs::remove_file(&newest).unwrap();
    fs::write(&newest, "x").unwrap();
    workspace.run(&["train", "--resume"]).failed(1, &["sources.txt", "damaged", "from step 1"]);
    // Texts that lie elsewhere are not kept.
    workspace.train(&["--steps", "1"]).succeeded();
    assert!(!workspace.path("runs/text/sources.txt").exists());
}

/// Checkpoint 0 of the new run has the bytes of the other's weights, last or best; the record begins anew.
#[test]
fn a_run_begins_with_the_weights_of_another() {
    let workspace = Workspace::new();
    // At this rate the best of thirty measurements is not the last, and the rule is not that of the flags' defaults.
    let flags = "--steps 30 --eval-every 1 --lr 0.3 --min-lr 0.3 --rule titans --out first";
    workspace.train(&flags.split(' ').collect::<Vec<_>>()).succeeded();
    let begin = |flags: &str| {
        let line = format!("train --text text.txt --tokens 24 --batch 2 --steps 1 {flags}");
        workspace.run(&line.split(' ').collect::<Vec<_>>())
    };
    let read = |path: &str| fs::read(workspace.path(path)).unwrap();
    for (flags, name, weights, from) in [
        ("--init-from first --out last", "last", "last/checkpoint-00000000", "first/model.safetensors"),
        ("--init-from first --best --out best", "best", "best/checkpoint-00000000", "first/best.safetensors"),
    ] {
        let found = begin(flags);
        found.succeeded();
        assert!(found.stderr.contains(&format!("beginning with the {name} weights of first")), "{found:?}");
        assert!(read(&format!("{weights}/model.safetensors")) == read(from), "{flags}: other weights");
        assert_eq!(read(&format!("{name}/config.json")), read("first/config.json"));
        assert_eq!(workspace.recorded_steps(name), [1]);
    }
    begin("--init-from nowhere").failed(1, &["nowhere", "no such folder", "--init-from DIR"]);
    // The model is the run's: no flag can ask for another.
    for flags in ["--layers 3", "--rule delta", "--config first/config.json", "--tokenizer t.json", "--shard 8"] {
        begin(&format!("--init-from first {flags}")).failed(2, &["--init-from", "cannot be used with"]);
    }
    // A stopped run has weights of its own.
    workspace.run(&["train", "--resume", "first", "--init-from", "first"]).failed(2, &["cannot be used with"]);
    workspace.train(&["--best"]).failed(1, &["--best", "--init-from RUN"]);
}

/// Two unless another number is asked for, also of a run that goes on; the number belongs to the run from then on.
#[test]
fn as_many_checkpoints_are_kept_as_were_asked_for() {
    let workspace = Workspace::new();
    let kept = || {
        let entries = fs::read_dir(workspace.path("runs/text")).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.filter(|name| name.starts_with("checkpoint-")).count()
    };
    workspace.train(&["--steps", "6", "--save-every", "1"]).succeeded();
    assert_eq!(kept(), 2);
    // More are kept as they are written; fewer at once.
    for (keep, steps) in [("4", "10"), ("1", "11")] {
        workspace.run(&["train", "--resume", "--keep", keep, "--steps", steps]).succeeded();
        assert_eq!(kept().to_string(), keep);
    }
    workspace.train(&["--keep", "0"]).failed(2, &["--keep"]);
    // A damaged checkpoint is told of with the one before it.
    workspace.run(&["train", "--resume", "--keep", "2", "--steps", "12"]).succeeded();
    fs::write(workspace.path("runs/text/checkpoint-00000012/training.json"), "x").unwrap();
    workspace.run(&["train", "--resume"]).failed(1, &["training.json", "damaged", "to go on from step 11"]);
    fs::remove_dir_all(workspace.path("runs/text/checkpoint-00000012")).unwrap();
    // Made longer again: the checkpoint before is of a run of eleven steps.
    workspace.run(&["train", "--resume", "--steps", "12"]).succeeded();
    assert_eq!(workspace.recorded_steps("runs/text"), (1..=12).collect::<Vec<_>>());
}
