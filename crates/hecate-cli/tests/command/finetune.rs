//! `finetune` of models that others released, and `eval` of them.

use super::harness::Workspace;
#[cfg(feature = "tokenizer")]
use super::released::with_words;
use std::{fs, path::Path};

fn llama() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/released/models/llama");
    path.to_str().expect("a path of letters").to_owned()
}

#[test]
fn flags_that_make_no_sense_are_refused() {
    let (workspace, model) = (Workspace::new(), llama());
    let base = ["finetune", "--model", &model, "--data", "lines.jsonl", "--out", "out"];
    let refused = |more: &[&str], status, told: &[&str]| workspace.run(&[&base, more].concat()).failed(status, told);
    refused(&["--lora-alpha", "3"], 2, &["--lora"]);
    refused(&["--merge"], 2, &["--lora"]);
    refused(&["--lora", "0"], 1, &["rank"]);
    refused(&["--lora", "2", "--lora-alpha", "nan"], 1, &["alpha"]);
    refused(&["--steps", "0"], 1, &["steps"]);
    refused(&["--resume"], 1, &["out", "training", "no such folder"]);
    refused(&[], 1, &["tokenizer.json", "missing"]);
    fs::create_dir(workspace.path("out")).unwrap();
    fs::write(workspace.path("out/notes.txt"), "mine").unwrap();
    refused(&[], 1, &["out", "empty folder", "--out"]);
    let both = ["eval", "--model", &model, "--run", "a", "--text", "a"];
    workspace.run(&both).failed(2, &["--model", "--run"]);
    workspace.run(&["eval", "--adapter", "a", "--text", "a"]).failed(2, &["--model"]);
    workspace.run(&["eval", "--model", &model, "--text", "a", "--data", "b"]).failed(2, &["--text", "--data"]);
}

/// Losses of `eval`, nats a token.
#[cfg(feature = "tokenizer")]
fn loss(workspace: &Workspace, flags: &[&str]) -> f64 {
    let told = workspace.run(&[&["eval", "--data", "lines.jsonl"], flags].concat());
    told.succeeded();
    assert!(told.stdout.contains("2 examples"), "{told:?}");
    let line = told.stdout.lines().find(|line| line.starts_with("what is learned")).unwrap();
    let words: Vec<_> = line.split_whitespace().collect();
    assert_eq!(&words[words.len() - 3..], ["5", "of", "5"], "{line}");
    words[3].parse().unwrap()
}

#[cfg(feature = "tokenizer")]
fn workspace() -> Workspace {
    let workspace = Workspace::new();
    with_words(&workspace, Some(2));
    let lines = "{\"prompt\": \"w3 w5\", \"completion\": \"w7\"}\n{\"text\": \"w9 w9 w9\"}\n";
    fs::write(workspace.path("lines.jsonl"), lines).unwrap();
    workspace
}

/// An adapter, and the same one merged: both score alike, better than the model. A stop changes nothing.
#[cfg(feature = "tokenizer")]
#[test]
fn an_adapter_learns_and_is_merged() {
    let workspace = workspace();
    let flags = "finetune --model model --data lines.jsonl --lora 2 --lora-targets q_proj,mlp.up_proj,down_proj --batch 2 --lr 0.02";
    let tune = |more: &str| {
        let all: Vec<_> = flags.split(' ').chain(more.split(' ')).collect();
        workspace.run(&all)
    };
    tune("--out a --steps 20").succeeded();
    let config = fs::read_to_string(workspace.path("a/adapter_config.json")).unwrap();
    assert!(config.contains("\"mlp.up_proj\"") && config.contains("\"r\": 2"), "{config}");
    tune("--out merged --steps 20 --merge").succeeded();
    let before = loss(&workspace, &["--model", "model"]);
    let after = loss(&workspace, &["--model", "model", "--adapter", "a"]);
    assert!(after < 0.8 * before, "{before} and {after}");
    assert!((loss(&workspace, &["--model", "merged"]) - after).abs() <= 1e-4);
    // Twice the steps are another run's; what is done is not done again.
    tune("--out a --steps 20").failed(1, &["a", "empty folder"]);
    for file in ["adapter_config.json", "adapter_model.safetensors"] {
        fs::rename(workspace.path(&format!("a/{file}")), workspace.path(file)).unwrap();
    }
    tune("--out a --steps 20").failed(1, &["training", "--resume"]);
    tune("--out a --steps 20 --resume --seed 4").failed(1, &["began with another"]);
    let other = tune("--out a --steps 20 --resume --lora-alpha 9");
    other.failed(1, &["another model or adapter"]);
    tune("--out a --steps 20 --resume").succeeded();
    let read = |path: &str| fs::read(workspace.path(path)).unwrap();
    assert!(read("a/adapter_model.safetensors") == read("adapter_model.safetensors"));
    fs::write(workspace.path("lines.jsonl"), "{\"text\": \"w1 w2\"}\n{\"messages\": []}\n").unwrap();
    tune("--out b --steps 1").failed(1, &["lines.jsonl", "line 2", "messages"]);
}

/// The whole model, of a text.
#[cfg(feature = "tokenizer")]
#[test]
fn a_model_learns_a_text() {
    let workspace = workspace();
    fs::write(workspace.path("text.txt"), "w4 w8 w15 w16 w23 ".repeat(40)).unwrap();
    let tune = |more: &str| {
        let flags =
            format!("finetune --model model --data text.txt --out whole --tokens 16 --batch 2 --lr 0.01 {more}");
        workspace.run(&flags.split(' ').collect::<Vec<_>>())
    };
    tune("--steps 8").succeeded();
    for file in ["model.safetensors", "config.json", "tokenizer.json", "generation_config.json"] {
        assert!(workspace.path(&format!("whole/{file}")).exists(), "{file}");
    }
    let measure = |model: &str| {
        let told = workspace.run(&["eval", "--model", model, "--text", "text.txt", "--fresh", "16"]);
        told.succeeded();
        let line = told.stdout.lines().find(|line| line.starts_with("fresh windows")).unwrap().to_owned();
        line.split_whitespace().nth(4).unwrap().parse::<f64>().unwrap()
    };
    let (before, after) = (measure("model"), measure("whole"));
    assert!(after < 0.8 * before, "{before} and {after}");
    tune("--steps 8 --out other --data lines.jsonl text.txt").failed(1, &["--data", "one kind"]);
}
