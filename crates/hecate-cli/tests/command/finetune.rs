//! `finetune` of models that others released, and `eval` of them.

use super::harness::Workspace;
#[cfg(feature = "tokenizer")]
use super::released::with_words;
use std::{fs, path::Path};

/// A small model of the family `llama`, which has no tokenizer.
fn llama() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/released/models/llama");
    path.to_str().expect("a path of letters").to_owned()
}

/// Each is told before weights are read, with the flag that mends it.
#[test]
fn flags_that_make_no_sense_are_refused() {
    let (workspace, model) = (Workspace::new(), llama());
    let base = ["finetune", "--model", &model, "--data", "lines.jsonl", "--out", "out"];
    let refused = |more: &[&str], status, told: &[&str]| workspace.run(&[&base, more].concat()).failed(status, told);
    // Flags of an adapter need one.
    refused(&["--lora-alpha", "3"], 2, &["--lora"]);
    refused(&["--merge"], 2, &["--lora"]);
    // Numbers that nothing learns with.
    refused(&["--lora", "0"], 1, &["rank"]);
    refused(&["--lora", "2", "--lora-alpha", "nan"], 1, &["alpha"]);
    refused(&["--steps", "0"], 1, &["steps"]);
    // There is nothing to go on from.
    refused(&["--resume"], 1, &["out", "training", "no such folder"]);
    // Texts cannot become tokens.
    refused(&[], 1, &["tokenizer.json", "missing"]);
    // What others put into the folder stays there.
    fs::create_dir(workspace.path("out")).unwrap();
    fs::write(workspace.path("out/notes.txt"), "mine").unwrap();
    refused(&[], 1, &["out", "empty folder", "--out"]);
    // A measurement is of one model, on one kind of data.
    let both = ["eval", "--model", &model, "--run", "a", "--text", "a"];
    workspace.run(&both).failed(2, &["--model", "--run"]);
    workspace.run(&["eval", "--adapter", "a", "--text", "a"]).failed(2, &["--model"]);
    workspace.run(&["eval", "--model", &model, "--text", "a", "--data", "b"]).failed(2, &["--text", "--data"]);
}

/// What could be learned and not be written is refused before anything is learned: a folder is not even made.
#[test]
fn all_of_a_gguf_file_is_not_taught() {
    let workspace = Workspace::new();
    let file = llama().replace("models/llama", "gguf/llama.gguf");
    let tune = |more: &[&str]| {
        let base = ["finetune", "--model", &file, "--data", "text.txt", "--out", "out"];
        workspace.run(&[&base, more].concat())
    };
    // All of the model, and an adapter that is added to it.
    for whole in [&[][..], &["--lora", "2", "--merge"]] {
        tune(whole).failed(1, &["llama.gguf", "GGUF", "safetensors", "`--lora RANK` without `--merge`"]);
    }
    // An adapter could be: what is missing in this file is another thing.
    tune(&["--lora", "2"]).failed(1, &["tokenizer"]);
    assert!(!workspace.path("out").exists());
}

/// Losses of `eval`, nats a token.
#[cfg(feature = "tokenizer")]
fn loss(workspace: &Workspace, flags: &[&str]) -> f64 {
    let told = workspace.run(&[&["eval", "--data", "lines.jsonl"], flags].concat());
    told.succeeded();
    // Both lines were read.
    assert!(told.stdout.contains("2 examples"), "{told:?}");
    let line = told.stdout.lines().find(|line| line.starts_with("what is learned")).unwrap();
    let words: Vec<_> = line.split_whitespace().collect();
    // Of the first line the completion and its end count, of the second the whole text and its end but for its first token.
    assert_eq!(&words[words.len() - 3..], ["5", "of", "5"], "{line}");
    words[3].parse().unwrap()
}

/// A model with a tokenizer, and two examples: a prompt with what follows it, and a text.
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
    // Targets are named with and without the module that they are in.
    let flags = "finetune --model model --data lines.jsonl --lora 2 --lora-targets q_proj,mlp.up_proj,down_proj --batch 2 --lr 0.02";
    let tune = |more: &str| {
        let all: Vec<_> = flags.split(' ').chain(more.split(' ')).collect();
        workspace.run(&all)
    };
    tune("--out a --steps 20").succeeded();
    // Other programs find there what they need.
    let config = fs::read_to_string(workspace.path("a/adapter_config.json")).unwrap();
    assert!(config.contains("\"mlp.up_proj\"") && config.contains("\"r\": 2"), "{config}");
    tune("--out merged --steps 20 --merge").succeeded();
    // What was learned shows, beside the model and added to it.
    let before = loss(&workspace, &["--model", "model"]);
    let after = loss(&workspace, &["--model", "model", "--adapter", "a"]);
    assert!(after < 0.8 * before, "{before} and {after}");
    assert!((loss(&workspace, &["--model", "merged"]) - after).abs() <= 1e-4);
    // Twice the steps are another run's; what is done is not done again.
    tune("--out a --steps 20").failed(1, &["a", "empty folder"]);
    // The result is put aside: the checkpoints alone are left.
    for file in ["adapter_config.json", "adapter_model.safetensors"] {
        fs::rename(workspace.path(&format!("a/{file}")), workspace.path(file)).unwrap();
    }
    tune("--out a --steps 20").failed(1, &["training", "--resume"]);
    // Nothing goes on as another run than it began.
    tune("--out a --steps 20 --resume --seed 4").failed(1, &["began with another"]);
    let other = tune("--out a --steps 20 --resume --lora-alpha 9");
    other.failed(1, &["another model or adapter"]);
    tune("--out a --steps 20 --resume").succeeded();
    // All steps were done, so the result is the same to the bit.
    let read = |path: &str| fs::read(workspace.path(path)).unwrap();
    assert!(read("a/adapter_model.safetensors") == read("adapter_model.safetensors"));
    // A line that is not understood is named by its number.
    fs::write(workspace.path("lines.jsonl"), "{\"text\": \"w1 w2\"}\n{\"messages\": []}\n").unwrap();
    tune("--out b --steps 1").failed(1, &["lines.jsonl", "line 2", "messages"]);
}

/// What an assistant says is learned as the model's template writes it, so that `chat` then says it.
#[cfg(feature = "tokenizer")]
#[test]
fn a_model_learns_what_an_assistant_says() {
    let workspace = workspace();
    let said = |role: &str, content: &str| serde_json::json!({ "role": role, "content": content });
    // Two answers, so that the first is learned after its question alone.
    let messages = [said("user", "w3 w5"), said("assistant", "w7"), said("user", "w11"), said("assistant", "w13 w15")];
    let lines = serde_json::json!({ "messages": messages }).to_string();
    fs::write(workspace.path("talks.jsonl"), lines).unwrap();
    // An adapter that is added to the model, so that `chat` opens the result.
    let tune = || {
        let flags =
            "finetune --model model --data talks.jsonl --out out --lora 4 --merge --batch 1 --lr 0.03 --steps 60";
        workspace.run(&flags.split(' ').collect::<Vec<_>>())
    };
    // The way out is a template, or lines that need none.
    let told = ["line 1", "no chat template", "chat_template.jinja", "`prompt` and `completion`"];
    tune().failed(1, &told);
    let measure = ["eval", "--model", "model", "--data", "talks.jsonl"];
    workspace.run(&measure).failed(1, &told);
    fs::write(workspace.path("model/chat_template.jinja"), super::chat::TEMPLATE).unwrap();
    // `w7 w9` and `w13 w15 w9`: each answer with its end.
    let measured = workspace.run(&measure);
    measured.succeeded();
    assert!(measured.stdout.lines().any(|line| line.ends_with("5 of 5")), "{measured:?}");
    tune().succeeded();
    // The words of the conversation, and what the template ends an answer with.
    let flags = ["chat", "--model", "out", "--temperature", "0", "--tokens", "2"];
    let answered = workspace.run_fed(&flags, "w3 w5\n");
    answered.succeeded();
    assert_eq!(answered.stdout.trim(), "w7 w9", "{answered:?}");
}

/// Lines that a template writes otherwise since a stop are other lines, whatever their file says.
#[cfg(feature = "tokenizer")]
#[test]
fn a_run_goes_on_with_the_template_that_it_began_with() {
    let workspace = workspace();
    let messages = serde_json::json!([{ "role": "user", "content": "w3" }, { "role": "assistant", "content": "w7" }]);
    fs::write(workspace.path("talks.jsonl"), serde_json::json!({ "messages": messages }).to_string()).unwrap();
    let template = |text: &str| fs::write(workspace.path("model/chat_template.jinja"), text).unwrap();
    let tune = |more: &str| {
        let flags = format!("finetune --model model --data talks.jsonl --out out --lora 2 --batch 1 {more}");
        let tuned = workspace.run(&flags.split(' ').collect::<Vec<_>>());
        // The result is put aside, so that the run can go on.
        for file in ["adapter_config.json", "adapter_model.safetensors"] {
            let _ = fs::remove_file(workspace.path(&format!("out/{file}")));
        }
        tuned
    };
    template(super::chat::TEMPLATE);
    tune("--steps 2").succeeded();
    // As many tokens, of which one is another.
    template(&super::chat::TEMPLATE.replace("'user': 'w2'", "'user': 'w5'"));
    tune("--steps 4 --resume").failed(1, &["talks.jsonl", "chat template", "put back", "--out"]);
    // With its own it goes on.
    template(super::chat::TEMPLATE);
    tune("--steps 4 --resume").succeeded();
}

/// The whole model, of a text.
#[cfg(feature = "tokenizer")]
#[test]
fn a_model_learns_a_text() {
    let workspace = workspace();
    // Five words that follow one another are soon known by heart.
    fs::write(workspace.path("text.txt"), "w4 w8 w15 w16 w23 ".repeat(40)).unwrap();
    let tune = |more: &str| {
        let flags =
            format!("finetune --model model --data text.txt --out whole --tokens 16 --batch 2 --lr 0.01 {more}");
        workspace.run(&flags.split(' ').collect::<Vec<_>>())
    };
    tune("--steps 8").succeeded();
    // The folder is as the model came, and can be opened as it was.
    for file in ["model.safetensors", "config.json", "tokenizer.json", "generation_config.json"] {
        assert!(workspace.path(&format!("whole/{file}")).exists(), "{file}");
    }
    // Bits a byte of windows that begin with fresh memories.
    let measure = |model: &str| {
        let told = workspace.run(&["eval", "--model", model, "--text", "text.txt", "--fresh", "16"]);
        told.succeeded();
        let line = told.stdout.lines().find(|line| line.starts_with("fresh windows")).unwrap().to_owned();
        line.split_whitespace().nth(4).unwrap().parse::<f64>().unwrap()
    };
    let (before, after) = (measure("model"), measure("whole"));
    assert!(after < 0.8 * before, "{before} and {after}");
    // Texts and examples are not learned in one run.
    tune("--steps 8 --out other --data lines.jsonl text.txt").failed(1, &["--data", "one kind"]);
}
