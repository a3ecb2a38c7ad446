//! What the command writes, what it says, how it fails.

use super::harness::Workspace;
use std::fs;

#[test]
fn a_run_trains_and_is_used() {
    let workspace = Workspace::new();
    let trained = workspace.train(&["--steps", "6"]);
    trained.succeeded();
    assert!(trained.stdout.contains("held out: loss") && trained.stdout.contains("sample, after the prompt"));
    assert!(trained.stderr.contains("step 6/6") && trained.stderr.contains("tokens/s"));
    for name in ["config.json", "model.safetensors", "metrics.jsonl", "loss.svg"] {
        assert!(workspace.path("runs/text").join(name).is_file(), "{name}");
    }
    assert_eq!(workspace.recorded_steps("runs/text"), (1..=6).collect::<Vec<_>>());
    assert!(fs::read_to_string(workspace.path("runs/text/loss.svg")).unwrap().contains("bits per byte"));

    let generate = |seed| {
        let found = workspace.run(&["generate", "--prompt", "two plus ", "--tokens", "20", "--seed", seed]);
        found.succeeded();
        found.stdout
    };
    assert!(generate("1").starts_with("two plus "));
    assert_eq!(generate("1"), generate("1"));
    assert_ne!(generate("1"), generate("2"));

    let whole = workspace.run(&["eval", "--text", "text.txt", "--run", "runs/text"]);
    whole.succeeded();
    assert!(["loss", "bits/byte", "perplexity"].iter().all(|name| whole.stdout.contains(name)), "{}", whole.stdout);
    let tail = workspace.run(&["eval", "--text", "text.txt", "--tail", "0.1"]);
    tail.succeeded();
    let figure = |text: &str, after: &str| -> f64 {
        let rest = &text[text.find(after).unwrap() + after.len()..];
        rest.split_whitespace().next().unwrap().parse().unwrap()
    };
    assert_eq!(figure(&tail.stdout, "loss"), figure(&trained.stdout, "held out: loss"));
}

#[test]
fn the_precision_belongs_to_the_run() {
    let workspace = Workspace::new();
    let trained = workspace.train(&["--steps", "4", "--precision", "bf16"]);
    trained.succeeded();
    assert!(trained.stderr.contains(" MB expected to learn in bf16"), "{}", trained.stderr);
    let resumed = workspace.run(&["train", "--resume"]);
    resumed.succeeded();
    assert!(resumed.stderr.contains(" MB expected to learn in bf16"), "{}", resumed.stderr);
    let refused = workspace.run(&["train", "--resume", "--precision", "f32"]);
    assert!(refused.stderr.contains("cannot be used with"), "{}", refused.stderr);
    let unknown = workspace.train(&["--precision", "f16"]);
    assert!(unknown.stderr.contains("f32, bf16"), "{}", unknown.stderr);
}

#[test]
fn own_sources_are_learned_without_a_text() {
    let workspace = Workspace::new();
    let trained = workspace.run(&[
        "train",
        "--steps",
        "1",
        "--layers",
        "1",
        "--width",
        "8",
        "--heads",
        "1",
        "--batch",
        "1",
        "--tokens",
        "16",
        "--holdout",
        "0.001",
    ]);
    trained.succeeded();
    assert!(trained.stdout.contains("pub fn "));
    assert!(workspace.path("runs/default/model.safetensors").is_file());
}

#[test]
fn every_kind_of_model_can_be_asked_for() {
    let workspace = Workspace::new();
    for (i, flags) in [
        "--rule hebbian --read before",
        "--rule delta --erase decayed --conv 0",
        "--rule titans --key-dim 6 --value-dim 5 --frozen 4",
        "--rule dgd --objective dot --clip 0 --accumulate 2",
        "--mixer attention --window 8 --threads 1",
        "--mixer lmm --rule titans",
        "--mixer mag --window 8 --persistent 0",
        "--mixer mal --rule dgd --persistent 3",
        "--mixer mac --rule delta --frozen 4 --segment 8",
    ]
    .iter()
    .enumerate()
    {
        let out = format!("run{i}");
        let flags: Vec<&str> = ["--steps", "2", "--out", &out].into_iter().chain(flags.split(' ')).collect();
        workspace.train(&flags).succeeded();
        workspace.run(&["generate", "--prompt", "1", "--tokens", "9", "--run", &out]).succeeded();
    }
    workspace
        .run(&[
            "train",
            "--text",
            "text.txt",
            "--config",
            "run2/config.json",
            "--tokens",
            "16",
            "--batch",
            "1",
            "--steps",
            "1",
            "--out",
            "same",
        ])
        .succeeded();
    assert_eq!(
        fs::read(workspace.path("same/config.json")).unwrap(),
        fs::read(workspace.path("run2/config.json")).unwrap()
    );
}

#[test]
fn a_run_is_not_overwritten_unasked() {
    let workspace = Workspace::new();
    workspace.train(&["--steps", "1"]).succeeded();
    let before = fs::read(workspace.path("runs/text/model.safetensors")).unwrap();
    workspace.train(&["--steps", "1", "--seed", "9"]).failed(1, &["--resume runs/text", "--overwrite", "--out"]);
    assert_eq!(fs::read(workspace.path("runs/text/model.safetensors")).unwrap(), before);
    workspace.train(&["--steps", "1", "--seed", "9", "--overwrite", "--clip", "-1"]).failed(1, &["clip"]);
    assert_eq!(fs::read(workspace.path("runs/text/model.safetensors")).unwrap(), before);
    workspace.train(&["--steps", "2", "--seed", "9", "--overwrite"]).succeeded();
    assert_ne!(fs::read(workspace.path("runs/text/model.safetensors")).unwrap(), before);
    assert_eq!(workspace.recorded_steps("runs/text"), [1, 2]);
}

#[test]
fn no_file_of_a_model_is_replaced_unasked() {
    for name in ["config.json", "model.safetensors", "tokenizer.json", "metrics.jsonl", "loss.svg"] {
        let workspace = Workspace::new();
        fs::create_dir(workspace.path("hf")).unwrap();
        let path = workspace.path("hf").join(name);
        fs::write(&path, "mine").unwrap();
        workspace.train(&["--steps", "1", "--out", "hf"]).failed(1, &[name, "--overwrite", "--out"]);
        assert_eq!(fs::read(&path).unwrap(), b"mine");
        assert_eq!(fs::read_dir(workspace.path("hf")).unwrap().count(), 1, "a refused run leaves nothing behind");
        workspace.train(&["--steps", "1", "--out", "hf", "--overwrite"]).succeeded();
        assert!(fs::read(&path).map_or(name == "tokenizer.json", |found| found != b"mine"), "{name}");
    }
}

#[test]
fn a_run_is_trained_by_one_process() {
    let workspace = Workspace::new();
    workspace.train(&["--steps", "1"]).succeeded();
    let lock = fs::File::open(workspace.path("runs/text/.lock")).unwrap();
    lock.try_lock().unwrap();
    let told = ["runs/text", "this run is being trained by another process"];
    workspace.run(&["train", "--resume", "runs/text"]).failed(1, &told);
    workspace.train(&["--steps", "1", "--overwrite"]).failed(1, &told);
    drop(lock);
    workspace.run(&["train", "--resume", "runs/text"]).succeeded();
}

#[test]
fn mistakes_are_named_with_a_way_out() {
    let workspace = Workspace::new();
    fs::write(workspace.path("empty.txt"), "").unwrap();
    fs::write(workspace.path("latin.txt"), b"caf\xe9").unwrap();
    fs::write(workspace.path("short.txt"), "short").unwrap();
    fs::write(
        workspace.path("bad.json"),
        "{\"layers\": [{\"mixer\": {\"kind\": \"memory\", \"rule\": {\"name\": \"gamma\"}}}]}",
    )
    .unwrap();
    let cases: &[(i32, &str, &[&str])] = &[
        (1, "train --text nowhere.txt", &["nowhere.txt", "no such file"]),
        (1, "train --text empty.txt", &["empty.txt", "empty"]),
        (1, "train --text latin.txt", &["latin.txt", "byte 3", "iconv"]),
        (1, "train --text short.txt", &["short.txt", "too short"]),
        (1, "train --text text.txt --config bad.json", &["bad.json", "gamma", "titans"]),
        (1, "train --text text.txt --config nowhere.json", &["nowhere.json", "missing"]),
        (1, "train --text text.txt --heads 3", &["heads", "128"]),
        (1, "train --text text.txt --lr 0", &["learning rate"]),
        (1, "train --text text.txt --lr nan", &["learning rate", "NaN"]),
        (1, "train --text text.txt --holdout 1", &["held-out fraction"]),
        (1, "train --text text.txt --batch 0", &["batch", "at least 1"]),
        (1, "train --text text.txt --batch 1000000000000000000", &["batch", "at most"]),
        (1, "train --text text.txt --tokens 18446744073709551615", &["sequence length", "at most"]),
        (1, "train --text text.txt --accumulate 18446744073709551615", &["accumulate", "at most"]),
        (1, "train --text text.txt --layers 1000000000000", &["layers", "at most"]),
        (1, "train --text text.txt --width 2305843009213693952", &["hidden_size", "at most"]),
        (1, "train --text text.txt --width 1048576 --heads 1024", &["number of parameters", "at most"]),
        (1, "train --text text.txt --width 1048576 --heads 65536", &["numbers of the gates", "at most"]),
        (1, "train --text text.txt --key-dim 18446744073709551615", &["key_dim", "at most"]),
        (1, "train --text text.txt --conv 18446744073709551615", &["conv", "at most"]),
        (1, "train --text text.txt --mixer attention --window 18446744073709551615", &["window", "at most"]),
        (1, "train --text text.txt --save-every 0", &["save every"]),
        (1, "train --text text.txt --rule titans --erase decayed", &["--rule titans", "erase", "frozen"]),
        (1, "train --text text.txt --mixer attention --frozen 4", &["--frozen", "--mixer memory"]),
        (1, "train --text text.txt --mixer hope --momentum 0.9", &["--momentum", "--mixer memory"]),
        (1, "train --text text.txt --rule delta --momentum 0.9", &["mixer.momentum", "only titans"]),
        (1, "train --text text.txt --frozen 0", &["frozen"]),
        (1, "train --text text.txt --window 5", &["--window", "--mixer attention"]),
        (1, "train --text text.txt --persistent 2", &["--persistent", "mag, mal and mac"]),
        (1, "train --text text.txt --mixer mag --segment 8", &["--segment", "--mixer mac"]),
        (1, "train --text text.txt --mixer mac --segment 8 --frozen 3", &["layers[0].mixer.segment", "multiple of 3"]),
        (1, "train --text text.txt --mixer mag --window 1", &["layers[0].mixer.attention.window", "at least 2"]),
        (1, "train --text text.txt --periods 2,4", &["--periods", "memory", "cms or conductor"]),
        (1, "train --text text.txt --mixer cms --shard 4", &["--shard", "cms", "tnt"]),
        (1, "train --text text.txt --mixer hope --read before", &["--read", "hope", "--mixer memory"]),
        (1, "train --text text.txt --mixer cms --periods 4,2", &["periods[1]", "more than", "4"]),
        (1, "train --text text.txt --mixer conductor --frozen 4", &["memory.rule.frozen", "null"]),
        (1, "train --text text.txt --mixer tnt --locals 3 --shard 8", &["locals[0]", "divisor of shard = 8"]),
        (1, "train --text text.txt --tokenizer nowhere.json", &["nowhere.json"]),
        (1, "train --resume", &["runs", "no trained run", "--resume DIR"]),
        (1, "train --resume nowhere", &["nowhere", "no checkpoint"]),
        (1, "generate --prompt a", &["runs", "hecate train", "--run DIR"]),
        (1, "generate --prompt a --run nowhere", &["nowhere", "no such folder"]),
        (1, "generate --prompt a --temperature -1", &["temperature"]),
        (1, "generate --prompt a --top-p 2", &["top-p"]),
        (1, "eval --tail 0", &["--tail"]),
        (2, "train --rule gamma", &["gamma", "hebbian"]),
        (2, "train --steps 0", &["--steps"]),
        (2, "train --steps many", &["--steps", "many"]),
        (2, "train --resume x --lr 1", &["--resume", "--lr"]),
        (2, "train --resume x --layers 3", &["--resume", "--layers"]),
        (2, "train --resume x --shard 3", &["--resume", "--shard"]),
        (2, "train --device abacus", &["abacus", "cpu"]),
        (2, "generate", &["--prompt"]),
        (2, "juggle", &["juggle"]),
    ];
    for (code, line, told) in cases {
        workspace.run(&line.split(' ').collect::<Vec<_>>()).failed(*code, told);
    }
    assert!(!workspace.path("runs").exists(), "a refused run leaves nothing behind");
}

#[test]
fn another_text_cannot_be_resumed_with() {
    let workspace = Workspace::new();
    workspace.train(&["--steps", "2"]).succeeded();
    fs::write(workspace.path("text.txt"), workspace.text() + "more").unwrap();
    workspace.run(&["train", "--resume"]).failed(1, &["text.txt", "is not the text"]);
    fs::write(workspace.path("moved.txt"), workspace.text()).unwrap();
    workspace.run(&["train", "--resume", "--text", "moved.txt"]).succeeded();
}

#[test]
fn a_damaged_run_is_refused() {
    let workspace = Workspace::new();
    workspace.train(&["--steps", "1"]).succeeded();
    let model = workspace.path("runs/text/model.safetensors");
    let whole = fs::read(&model).unwrap();
    fs::write(&model, &whole[..whole.len() / 2]).unwrap();
    workspace.run(&["generate", "--prompt", "a"]).failed(1, &["model.safetensors", "damaged"]);
    let moments = workspace.path("runs/text/checkpoint-00000001/training.safetensors");
    fs::write(&moments, b"x").unwrap();
    workspace.run(&["train", "--resume", "runs/text"]).failed(1, &["training.safetensors", "damaged"]);
}

#[test]
fn every_cell_is_checked() {
    let found = Workspace::new().run(&["check"]);
    found.succeeded();
    assert!(["titans", "matmul", "gradient error", "0 failed"].iter().all(|part| found.stdout.contains(part)));
}

#[test]
fn devices_are_listed() {
    let found = Workspace::new().run(&["devices"]);
    found.succeeded();
    assert!(found.stdout.contains("cpu") && found.stdout.contains("threads"));
}

#[test]
fn a_run_that_diverges_says_where_and_keeps_its_checkpoint() {
    let workspace = Workspace::new();
    let told = ["layer", "counted from 0", "at step", "checkpoint", "learning rate"];
    workspace.train(&["--steps", "20", "--lr", "1e30", "--save-every", "1000"]).failed(1, &told);
    let entries = fs::read_dir(workspace.path("runs/text")).unwrap();
    let names: Vec<String> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    assert!(names.contains(&"checkpoint-00000000".to_owned()), "{names:?}");
    workspace.run(&["generate", "--prompt", "1", "--tokens", "3"]).succeeded();
}
