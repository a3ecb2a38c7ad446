//! Flags in a file, and the record as a table.

use super::harness::{TINY, Workspace};
use std::fs;

/// A file says what flags say; those that are given count before it. A run writes down its own, for others to be like it.
#[test]
fn flags_come_from_a_file() {
    let workspace = Workspace::new();
    // The harness's tiny model, which flags can say too; lists are arrays, and a switch that is off is `false`.
    let settings = r#"{"text": ["text.txt"], "layers": 1, "width": 16, "heads": 2, "tokens": 24, "batch": 2, "warmup": 0,
        "steps": 2, "lr": 0.003, "rule": "titans", "horizon": [4, 64], "out": "runs/file", "mean": false}"#;
    fs::write(workspace.path("settings.json"), settings).unwrap();
    workspace.run(&["train", "--settings", "settings.json", "--lr", "0.002"]).succeeded();
    // The same run by flags alone, in another folder.
    let flags = "--steps 2 --lr 0.002 --rule titans --horizon 4,64 --out runs/flags";
    workspace.train(&flags.split(' ').collect::<Vec<_>>()).succeeded();
    // To the last bit: nothing in the same run leaves room for rounding.
    let weights = |run: &str| fs::read(workspace.path(run).join("model.safetensors")).unwrap();
    assert!(weights("runs/file") == weights("runs/flags"));
    // What each wrote down says the same, and makes a third that is alike.
    let read = |run: &str| -> serde_json::Value {
        serde_json::from_slice(&fs::read(workspace.path(run).join("settings.json")).unwrap()).unwrap()
    };
    assert_eq!((read("runs/file"), &read("runs/flags")["lr"]), (read("runs/flags"), &serde_json::json!(0.002)));
    // A folder is one call's own: with it in the file, a run like this one would be written over it.
    assert!(read("runs/file").get("out").is_none());
    workspace.run(&["train", "--settings", "runs/flags/settings.json", "--out", "runs/again"]).succeeded();
    assert!(weights("runs/again") == weights("runs/flags"));
    // The flag and the file are named, and what is wrong in it. Settings name no further settings.
    for (content, expected) in [
        (r#"{"rul": "delta"}"#, "`rul` is no flag"),
        (r#"{"settings": "a"}"#, "`settings` is no flag"),
        (r#"{"rule": {"name": "delta"}}"#, "expected a text"),
        ("[1]", "no object"),
        ("{", "EOF"),
    ] {
        fs::write(workspace.path("bad.json"), content).unwrap();
        workspace.run(&["train", "--settings", "bad.json"]).failed(1, &["--settings", "bad.json", expected]);
    }
    workspace.run(&["train", "--settings", "none.json"]).failed(1, &["--settings", "none.json"]);
    // Values are checked as those of flags are.
    fs::write(workspace.path("bad.json"), r#"{"rule": "none"}"#).unwrap();
    workspace.run(&["train", "--settings", "bad.json"]).failed(2, &["none", "delta"]);
}

/// A line a step, with its time and with the figures of the record.
#[test]
fn the_record_is_a_table_too() {
    let workspace = Workspace::new();
    workspace.train(&["--steps", "4", "--eval-every", "2", "--out", "run"]).succeeded();
    let table = fs::read_to_string(workspace.path("run/metrics.csv")).unwrap();
    let mut lines = table.lines().map(|line| line.split(',').collect::<Vec<_>>());
    let names = lines.next().unwrap();
    assert_eq!(&names[..3], ["step", "time", "loss"]);
    let record = workspace.record("run");
    let lines: Vec<_> = lines.collect();
    assert_eq!((lines.len(), record.len()), (4, 4));
    // A figure that a step does not have is an empty cell, so that columns stay in place.
    for (line, record) in lines.iter().zip(&record) {
        for (name, cell) in names.iter().zip(line) {
            let expected = record.get(*name).map_or_else(String::new, ToString::to_string);
            assert_eq!(*cell, expected, "{name}");
        }
        // After 2020, and in order.
        assert!(record["time"].as_f64().unwrap() > 1.577e9, "{record}");
    }
    // Measured every second step: the first line has no such figure.
    let held_out = names.iter().position(|name| *name == "held_out_loss").unwrap();
    assert!(lines[0][held_out].is_empty() && !lines[1][held_out].is_empty());
    assert!(record.windows(2).all(|two| two[0]["time"].as_f64() <= two[1]["time"].as_f64()));
}

/// Documents in JSON are learned, found again where the run goes on, and measured.
#[test]
fn documents_of_json_are_learned() {
    let workspace = Workspace::new();
    // A second field beside the text, which must not be learned.
    let lines: Vec<_> =
        workspace.text().lines().map(|line| serde_json::json!({ "text": line, "n": line.len() }).to_string()).collect();
    fs::write(workspace.path("lines.jsonl"), lines.join("\n")).unwrap();
    let flags = TINY.replace("text.txt", "lines.jsonl");
    // Joined by line ends, the documents are the text but for its last line end.
    let flags = flags.split(' ').chain(["--jsonl", "text", "--border", "\n", "--steps", "2", "--out", "json"]);
    workspace.run(&flags.collect::<Vec<_>>()).succeeded();
    fs::write(workspace.path("text.txt"), workspace.text().trim_end()).unwrap();
    workspace.train(&["--steps", "2", "--out", "plain"]).succeeded();
    let weights = |run: &str| fs::read(workspace.path(run).join("model.safetensors")).unwrap();
    assert!(weights("json") == weights("plain"));
    // Going on reads the files again, by what the checkpoint says of them.
    for run in ["json", "plain"] {
        workspace.run(&["train", "--resume", run, "--steps", "3"]).succeeded();
    }
    assert!(weights("json") == weights("plain"));
    let eval = |flags: &[&str]| workspace.run(&[&["eval", "--run", "plain", "--text"], flags].concat());
    let [one, other] = [eval(&["lines.jsonl", "--jsonl", "text", "--border", "\n"]), eval(&["text.txt"])];
    one.succeeded();
    let table = |found: &str| found.split("\n\n").nth(1).map(str::to_owned);
    assert_eq!(table(&one.stdout), table(&other.stdout));
    eval(&["lines.jsonl", "--jsonl", "body"]).failed(1, &["lines.jsonl", "line 1", "no field `body`", "n, text"]);
    eval(&["lines.jsonl", "--border", "x"]).failed(2, &["--jsonl"]);
    workspace.run(&["train", "--resume", "json", "--jsonl", "text"]).failed(1, &["--jsonl"]);
}
