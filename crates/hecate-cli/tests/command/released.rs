//! Models that others released: `info --model` and `generate --model`.

use super::harness::Workspace;
use hecate::models::Vocabulary;
#[cfg(feature = "tokenizer")]
use std::fs;
use std::path::Path;

/// A small model of another family, as its own code wrote it.
fn folder(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/released/models").join(name);
    path.to_str().expect("a path of letters").to_owned()
}

/// What a folder is, without its weights; and what is wrong where it cannot be used.
#[test]
fn a_folder_is_told_and_not_changed() {
    let workspace = Workspace::new();
    let told = workspace.run(&["info", "--model", &folder("qwen3_5")]);
    told.succeeded();
    // Family, sizes, types, and what the model has no use for.
    for part in ["qwen3_5_text in 3 layers", "41 in f32, of 1 file", "2 arrays of 34 bytes", "end tokens  2"] {
        assert!(told.stdout.contains(part), "`{part}` is not in {told:?}");
    }
    workspace.run(&["info", "--model", "nowhere"]).failed(1, &["nowhere", "no such folder", "--model"]);
    // Tokens cannot be made of a prompt here.
    let without = folder("llama");
    workspace.run(&["generate", "--model", &without, "--prompt", "a"]).failed(1, &["tokenizer.json", "missing"]);
    workspace.run(&["generate", "--model", &without, "--run", "a", "--prompt", "a"]).failed(2, &["--model", "--run"]);
}

/// A GGUF file has everything in it, a tokenizer too.
#[test]
fn a_gguf_file_is_told_and_goes_on() {
    let workspace = Workspace::new();
    let file = |name: &str| folder(&format!("../gguf/{name}.gguf"));
    let told = workspace.run(&["info", "--model", &file("blocks")]);
    told.succeeded();
    for part in ["llama in 2 layers", "2 in q4_k, 1 in q5_0", "of 1 file", "end tokens  2"] {
        assert!(told.stdout.contains(part), "`{part}` is not in {told:?}");
    }
    // The name inside of the file is another than that of folders.
    let told = workspace.run(&["info", "--model", &file("qwen3_5_text")]);
    assert!(told.stdout.contains("qwen3_5_text in 3 layers"), "{told:?}");
    let generate = |name: &str| {
        workspace.run(&[
            "generate",
            "--model",
            &file(name),
            "--prompt",
            "the cat",
            "--temperature",
            "0",
            "--tokens",
            "9",
        ])
    };
    // One was written without a tokenizer.
    generate("llama").failed(1, &["tokenizer.ggml.model", "missing"]);
    let text = generate("blocks");
    // Without the feature the command says what it lacks.
    if Vocabulary::READS_TOKENIZERS {
        text.succeeded();
        assert!(text.stdout.starts_with("the cat"), "{text:?}");
    } else {
        text.failed(1, &["tokenizer"]);
    }
    // What is no file, and what is another one.
    workspace.run(&["info", "--model", "/dev/null"]).failed(1, &["/dev/null"]);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
    workspace.run(&["info", "--model", script.to_str().unwrap()]).failed(1, &["no GGUF file"]);
}

/// A copy of a model beside a tokenizer whose words are `w0` to `w36`, of which `end` ends texts.
#[cfg(feature = "tokenizer")]
pub(crate) fn with_words(workspace: &Workspace, end: Option<u64>) {
    let to = workspace.path("model");
    fs::create_dir_all(&to).unwrap();
    let from = folder("llama");
    let from = Path::new(&from);
    fs::copy(from.join("model.safetensors"), to.join("model.safetensors")).unwrap();
    // Its own end token would do as well.
    let config = fs::read_to_string(from.join("config.json")).unwrap();
    fs::write(to.join("config.json"), config.replace("\"eos_token_id\": 2", "\"eos_token_id\": null")).unwrap();
    let vocab: serde_json::Map<_, _> = (0..37).map(|i| (format!("w{i}"), i.into())).collect();
    let file = serde_json::json!({
        "version": "1.0", "truncation": null, "padding": null, "normalizer": null, "post_processor": null, "decoder": null,
        "added_tokens": [], "pre_tokenizer": { "type": "WhitespaceSplit" },
        "model": { "type": "WordLevel", "unk_token": "w0", "vocab": vocab }
    });
    fs::write(to.join("tokenizer.json"), file.to_string()).unwrap();
    fs::write(to.join("generation_config.json"), serde_json::json!({ "eos_token_id": end }).to_string()).unwrap();
}

/// The likeliest words, and the same ones up to the first that ends texts.
#[cfg(feature = "tokenizer")]
#[test]
fn a_text_goes_on_until_an_end_token() {
    let workspace = Workspace::new();
    let flags = ["generate", "--model", "model", "--prompt", "w3 w5 w7", "--temperature", "0", "--tokens", "20"];
    with_words(&workspace, None);
    let whole = workspace.run(&flags);
    whole.succeeded();
    let words: Vec<_> = whole.stdout.split_whitespace().collect();
    assert_eq!((&words[..3], words.len()), (&["w3", "w5", "w7"][..], 23), "{whole:?}");
    // A word of the continuation that was not written before.
    let (at, end) = words.iter().enumerate().skip(4).find(|(i, word)| !words[3..*i].contains(word)).unwrap();
    with_words(&workspace, end[1..].parse().ok());
    let ended = workspace.run(&flags);
    ended.succeeded();
    assert_eq!(ended.stdout.split_whitespace().collect::<Vec<_>>(), words[..at], "{ended:?}");
}
