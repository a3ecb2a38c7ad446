//! `hecate quantize`, and what takes a quantized model or refuses it.

use super::harness::Workspace;
use std::fs;

/// A run whose matrices have rows of 256 values.
fn run(workspace: &Workspace) {
    workspace.train(&["--steps", "2", "--width", "256", "--mlp", "256", "--heads", "2", "--layers", "1"]).succeeded();
}

#[test]
fn a_run_is_quantized_evaluated_and_continued() {
    let workspace = Workspace::new();
    run(&workspace);
    for format in ["q8_0", "q6_k", "q5_k", "q4_k"] {
        let out = format!("runs/text-{format}");
        // Beside the run unless `--out` says otherwise.
        let done = workspace.run(&["quantize", "--run", "runs/text", "--to", format]);
        done.succeeded();
        assert!(done.stdout.contains(&out) && done.stdout.contains(format), "{done:?}");
        let size = |run: &str| fs::metadata(workspace.path(run).join("model.safetensors")).unwrap().len();
        assert!(size(&out) < size("runs/text") / 2, "{format}: {} of {}", size(&out), size("runs/text"));
        let info = |run: &str| {
            let info = workspace.run(&["info", run]);
            info.succeeded();
            let line = |name: &str| info.stdout.lines().find(|line| line.starts_with(name)).unwrap().to_owned();
            (line("parameters"), line("model"))
        };
        // As many weights as before, of another format.
        assert_eq!(info(&out).0, info("runs/text").0);
        assert!(info(&out).1.ends_with(&format!(", in {format}")), "{:?}", info(&out));
        // The folder is all that other commands need.
        workspace.run(&["generate", "--run", &out, "--prompt", "a", "--tokens", "5"]).succeeded();
        // What is not quantized is rounded to 16 bits.
        let rounded = ["generate", "--run", &out, "--prompt", "a", "--tokens", "5", "--precision", "bf16"];
        workspace.run(&rounded).succeeded();
        let eval = workspace.run(&["eval", "--run", &out, "--text", "text.txt", "--fresh", "16", "--tail", "0.2"]);
        eval.succeeded();
        assert!(eval.stdout.contains("bits/byte"), "{eval:?}");
    }
    // Listed like any run, but never the one that was trained last.
    assert!(workspace.run(&["runs"]).stdout.contains("text-q4_k"));
    let again = workspace.run(&["quantize", "--to", "q4_k", "--out", "again"]);
    again.succeeded();
    assert!(again.stdout.contains("again"), "{again:?}");
    workspace.run(&["train", "--resume", "--steps", "3"]).succeeded();
}

#[test]
fn what_cannot_be_is_refused_by_name() {
    let workspace = Workspace::new();
    run(&workspace);
    let known = ["q3_k", "q8_0", "q6_k", "q5_k", "q4_k"];
    // Unknown formats are told the list, by the parser of flags.
    workspace.run(&["quantize", "--run", "runs/text", "--to", "q3_k"]).failed(2, &known);
    workspace.run(&["quantize", "--run", "nowhere", "--to", "q4_k"]).failed(1, &["nowhere", "no such folder"]);
    workspace.run(&["quantize", "--run", "runs/text", "--to", "q4_k", "--out", "small"]).succeeded();
    // What is there is not written over.
    let taken = workspace.run(&["quantize", "--run", "runs/text", "--to", "q8_0", "--out", "small"]);
    taken.failed(1, &["small", "config.json", "another folder"]);
    // Nor is a file taken for a folder.
    let file = workspace.run(&["quantize", "--run", "runs/text", "--to", "q8_0", "--out", "text.txt"]);
    file.failed(1, &["--out", "text.txt is a file"]);
    // Errors of both formats would add up.
    let again = workspace.run(&["quantize", "--run", "small", "--to", "q8_0", "--out", "other"]);
    again.failed(1, &["quantization", "q4_k"]);
    // It learns no more, whoever begins with it.
    workspace.run(&["train", "--resume", "small"]).failed(1, &["small", "q4_k", "learns no more"]);
    let from = ["train", "--text", "text.txt", "--init-from", "small", "--out", "more", "--steps", "1"];
    workspace.run(&from).failed(1, &["quantization", "q4_k", "32 bits"]);
    // It has one set of weights.
    let best = ["generate", "--run", "small", "--best", "--prompt", "a"];
    workspace.run(&best).failed(1, &["--best", "small", "quantized copy", "hecate quantize --best"]);
    // A flipped bit in the middle of the blocks.
    let weights = workspace.path("small").join("model.safetensors");
    let mut bytes = fs::read(&weights).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&weights, bytes).unwrap();
    let prompt = ["generate", "--run", "small", "--prompt", "a", "--tokens", "1"];
    workspace.run(&prompt).failed(1, &["model.safetensors", "damaged", "checksum"]);
}

/// Rows of 256 values, of 96 inside of the MLP, and of 80 values of all heads: three ways to store them, told in a table.
#[test]
fn matrices_that_a_format_does_not_fit_take_the_next() {
    let workspace = Workspace::new();
    let sizes = ["--steps", "1", "--out", "mixed", "--width", "256", "--mlp", "96", "--heads", "2", "--layers", "1"];
    workspace.train(&[&sizes[..], &["--value-dim", "40"]].concat()).succeeded();
    let done = workspace.run(&["quantize", "--run", "mixed", "--to", "q4_k"]);
    done.succeeded();
    for told in ["stored as", "rows of 96, no multiple of 256", "rows of 80, no multiple of 256", "tables, norms"] {
        assert!(done.stdout.contains(told), "`{told}` is not in {done:?}");
    }
    let info = workspace.run(&["info", "mixed-q4_k"]);
    info.succeeded();
    let arrays = info.stdout.lines().find(|line| line.starts_with("arrays")).expect("a line").to_owned();
    assert!(["1 in bf16", "1 in q8_0", " in q4_k", " in f32"].iter().all(|part| arrays.contains(part)), "{arrays}");
    let parameters = |run: &str| {
        let info = workspace.run(&["info", run]);
        info.stdout.lines().find(|line| line.starts_with("parameters")).expect("a line").to_owned()
    };
    assert_eq!(parameters("mixed"), parameters("mixed-q4_k"));
    for precision in ["f32", "bf16"] {
        let prompt = ["generate", "--run", "mixed-q4_k", "--prompt", "a", "--tokens", "5", "--precision", precision];
        workspace.run(&prompt).succeeded();
    }
    workspace.run(&["eval", "--run", "mixed-q4_k", "--text", "text.txt", "--fresh", "16", "--tail", "0.2"]).succeeded();
    // Nothing is in blocks: what was rounded learns no more either.
    workspace.train(&["--steps", "1", "--out", "narrow"]).succeeded();
    workspace.run(&["quantize", "--run", "narrow", "--to", "q8_0"]).succeeded();
    let from = ["train", "--text", "text.txt", "--init-from", "narrow-q8_0", "--out", "more", "--steps", "1"];
    workspace.run(&from).failed(1, &["bf16", "learn in 32 bits"]);
}
