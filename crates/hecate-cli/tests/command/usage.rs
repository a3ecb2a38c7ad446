//! What the command writes, what it says, how it fails.
//!
//! Each test runs the program as it was built, in a folder of its own, on a model of two heads of width 8.

use super::harness::Workspace;
use std::fs;

/// Train, generate and eval by default names: every file is there, and samples repeat by seed.
#[test]
fn a_run_trains_and_is_used() {
    let workspace = Workspace::new();
    let trained = workspace.train(&["--steps", "6"]);
    trained.succeeded();
    assert!(trained.stdout.contains("held out") && trained.stdout.contains("sample, after the prompt"));
    assert!(trained.stderr.contains("step 6/6") && trained.stderr.contains("tokens/s"));
    for name in ["config.json", "model.safetensors", "best.safetensors", "metrics.jsonl", "loss.svg"] {
        assert!(workspace.path("runs/text").join(name).is_file(), "{name}");
    }
    assert_eq!(workspace.recorded_steps("runs/text"), (1..=6).collect::<Vec<_>>());
    let picture = fs::read_to_string(workspace.path("runs/text/loss.svg")).unwrap();
    assert!(picture.contains("bits per byte") && picture.contains("Memories, RMS by layer"));

    // Without `--run` it is the run trained last: the only one here.
    let generate = |seed| {
        let found = workspace.run(&["generate", "--prompt", "two plus ", "--tokens", "20", "--seed", seed]);
        found.succeeded();
        found.stdout
    };
    // The prompt itself is printed too.
    assert!(generate("1").starts_with("two plus "));
    assert_eq!(generate("1"), generate("1"));
    assert_ne!(generate("1"), generate("2"));

    // With the folder named, and below without it.
    let whole = workspace.run(&["eval", "--text", "text.txt", "--run", "runs/text"]);
    whole.succeeded();
    let parts = ["nats/token", "bits/byte", "perplexity", "fresh windows of 24", "one pass"];
    assert!(parts.iter().all(|name| whole.stdout.contains(name)), "{}", whole.stdout);
}

/// `--best` measures as the lowest entry of the record did, and without it the last one.
#[test]
fn the_best_weights_can_be_asked_for() {
    let workspace = Workspace::new();
    // At this rate the loss goes up and down: the last of thirty measurements is not the lowest.
    let flags = "--steps 30 --eval-every 1 --lr 0.3 --min-lr 0.3";
    workspace.train(&flags.split(' ').collect::<Vec<_>>()).succeeded();
    let record = fs::read_to_string(workspace.path("runs/text/metrics.jsonl")).unwrap();
    let losses: Vec<f64> = record
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap()["held_out_loss"].as_f64())
        .collect();
    // What `best.safetensors` must have been written at.
    let lowest = losses.iter().copied().fold(f64::INFINITY, f64::min);
    assert!(lowest < *losses.last().unwrap(), "the last weights are the best: {losses:?}");
    let loss = |flags: &[&str]| -> f64 {
        let found = workspace.run(&[&["eval", "--text", "text.txt", "--tail", "0.1"], flags].concat());
        found.succeeded();
        // What is measured on the way is one pass too.
        let line = found.stdout.lines().find(|line| line.starts_with("one pass")).unwrap();
        line.split_whitespace().nth(2).unwrap().parse().unwrap()
    };
    // Figures are printed with four digits, so they agree to half of the last one.
    approx::assert_abs_diff_eq!(loss(&["--best"]), lowest, epsilon = 6e-5);
    approx::assert_abs_diff_eq!(loss(&[]), *losses.last().unwrap(), epsilon = 6e-5);
    workspace.run(&["generate", "--prompt", "1", "--tokens", "5", "--best"]).succeeded();
    // Asked for and missing is an error that names the way out, not the last weights without a word.
    fs::remove_file(workspace.path("runs/text/best.safetensors")).unwrap();
    workspace.run(&["generate", "--prompt", "1", "--best"]).failed(1, &["best.safetensors", "last weights"]);
}

/// A resumed run keeps its number type, and refuses another.
#[test]
fn the_precision_belongs_to_the_run() {
    let workspace = Workspace::new();
    let trained = workspace.train(&["--steps", "4", "--precision", "bf16"]);
    trained.succeeded();
    assert!(trained.stderr.contains(" MB expected to learn in bf16"), "{}", trained.stderr);
    // Finished already: it measures again, in the number type of the run.
    let resumed = workspace.run(&["train", "--resume"]);
    resumed.succeeded();
    assert!(resumed.stderr.contains(" MB expected to learn in bf16"), "{}", resumed.stderr);
    let refused = workspace.run(&["train", "--resume", "--precision", "f32"]);
    assert!(refused.stderr.contains("cannot be used with"), "{}", refused.stderr);
    // A number type of arrays that no training has.
    let unknown = workspace.train(&["--precision", "f16"]);
    assert!(unknown.stderr.contains("f32, bf16"), "{}", unknown.stderr);
    // One that this device does not have, and none that matrices are stored in.
    workspace
        .train(&["--precision", "fp8", "--device", "cpu", "--overwrite"])
        .failed(1, &["8-bit floats", "8.9", "bf16"]);
    let unknown = workspace.run(&["generate", "--prompt", "1", "--precision", "fp8"]);
    assert!(unknown.stderr.contains("f32, bf16"), "{}", unknown.stderr);
}

/// The program carries a text of its own, for a first run without any file.
#[test]
fn own_sources_are_learned_without_a_text() {
    let workspace = Workspace::new();
    // As small as a model can be: the text is what is tested.
    let line = "train --steps 1 --layers 1 --width 8 --heads 1 --batch 1 --tokens 16 --holdout 0.001";
    let trained = workspace.run(&line.split(' ').collect::<Vec<_>>());
    trained.succeeded();
    // The sample continues what looks like code.
    assert!(trained.stdout.contains("pub fn "));
    assert!(workspace.path("runs/default/model.safetensors").is_file());
}

/// Rules, options and compositions by flags, and the same model by `--config`.
#[test]
fn every_kind_of_model_can_be_asked_for() {
    let workspace = Workspace::new();
    for (i, flags) in [
        "--rule hebbian --read before",
        "--rule delta --erase decayed --conv 0",
        "--rule titans --key-dim 6 --value-dim 5 --frozen 4",
        "--rule dgd --objective dot --clip 0 --accumulate 2",
        "--mixer attention --window 8 --threads 1",
        "--mixer lmm --rule titans --dropout 0.1",
        "--mixer mag --window 8 --persistent 0",
        "--mixer mal --rule dgd --persistent 3",
        "--mixer mac --rule delta --frozen 4 --segment 8",
        // Both ways of rules that have both.
        "--rule yaad --retain zero",
        "--rule lattice --retain initial",
        "--rule delta --retain initial",
        "--mixer mac --rule titans --segment 8 --retain initial",
        "--mixer hope --retain zero",
        "--mixer hope",
    ]
    .iter()
    .enumerate()
    {
        let out = format!("run{i}");
        let flags: Vec<&str> = ["--steps", "2", "--out", &out].into_iter().chain(flags.split(' ')).collect();
        workspace.train(&flags).succeeded();
        // Decoding has a path of its own in every mixer.
        workspace.run(&["generate", "--prompt", "1", "--tokens", "9", "--run", &out]).succeeded();
    }
    // `--dropout` is that of attention, of MLPs and of the residual stream.
    let config: serde_json::Value =
        serde_json::from_str(&fs::read_to_string(workspace.path("run5/config.json")).unwrap()).unwrap();
    for share in ["attention_dropout", "activation_dropout", "hidden_dropout"] {
        assert_eq!(config[share].as_f64().map(|share| share as f32), Some(0.1), "{share} in {config}");
    }
    // The third run, whose configuration has options of a rule and widths of its own.
    let line = "train --text text.txt --config run2/config.json --tokens 16 --batch 1 --steps 1 --out same";
    workspace.run(&line.split(' ').collect::<Vec<_>>()).succeeded();
    assert_eq!(
        fs::read(workspace.path("same/config.json")).unwrap(),
        fs::read(workspace.path("run2/config.json")).unwrap()
    );
}

/// Vocabularies of released models are often padded: tokens that nobody can read are not drawn.
#[test]
fn a_model_may_know_more_tokens_than_there_are() {
    let workspace = Workspace::new();
    workspace.train(&["--steps", "1"]).succeeded();
    let config = fs::read_to_string(workspace.path("runs/text/config.json")).unwrap();
    // Of so many nearly all have no meaning, and a fresh model draws any of them.
    let padded = config.replace("\"vocabulary_size\": 256", "\"vocabulary_size\": 5000");
    assert_ne!(padded, config);
    fs::write(workspace.path("padded.json"), padded).unwrap();
    // The sample at the end draws as `generate` does.
    let line = "train --text text.txt --config padded.json --tokens 16 --batch 1 --steps 1 --out padded";
    let trained = workspace.run(&line.split(' ').collect::<Vec<_>>());
    trained.succeeded();
    assert!(trained.stdout.contains("sample, after the prompt"), "{trained:?}");
    // Hot, so that all are about as likely.
    let hot = ["generate", "--run", "padded", "--tokens", "50", "--temperature", "10", "--top-p", "1"];
    workspace.run(&[&hot[..], &["--prompt", "1"]].concat()).succeeded();
    // Line by line, with a sampler for each.
    workspace.run_fed(&[&hot[..], &["--interactive"]].concat(), "1 plus\n").succeeded();
}

/// Neither by a second run, nor by one that `--overwrite` allowed and its flags broke.
#[test]
fn a_run_is_not_overwritten_unasked() {
    let workspace = Workspace::new();
    workspace.train(&["--steps", "1"]).succeeded();
    let before = fs::read(workspace.path("runs/text/model.safetensors")).unwrap();
    // All three ways out are named.
    workspace.train(&["--steps", "1", "--seed", "9"]).failed(1, &["--resume runs/text", "--overwrite", "--out"]);
    assert_eq!(fs::read(workspace.path("runs/text/model.safetensors")).unwrap(), before);
    // The flag is refused before the old run is touched.
    workspace.train(&["--steps", "1", "--seed", "9", "--overwrite", "--clip", "-1"]).failed(1, &["clip"]);
    assert_eq!(fs::read(workspace.path("runs/text/model.safetensors")).unwrap(), before);
    workspace.train(&["--steps", "2", "--seed", "9", "--overwrite"]).succeeded();
    assert_ne!(fs::read(workspace.path("runs/text/model.safetensors")).unwrap(), before);
    assert_eq!(workspace.recorded_steps("runs/text"), [1, 2]);
}

/// Every second text begins where another ended: the first step is the same, the second is not.
#[test]
fn texts_begin_with_the_states_of_others() {
    let workspace = Workspace::new();
    let losses = |out: &str, flags: &str| {
        let line = format!("--steps 3 --out {out} {flags}");
        let trained = workspace.train(&line.split_whitespace().collect::<Vec<_>>());
        trained.succeeded();
        (workspace.record(out).iter().map(|line| line["loss"].as_f64().unwrap()).collect::<Vec<_>>(), trained.stderr)
    };
    let (fresh, _) = losses("fresh", "--first-states fresh");
    let (other, told) = losses("other", "--first-states other");
    assert_eq!(fresh[0], other[0]);
    assert_ne!(fresh[1], other[1]);
    assert!(told.contains("losses of steps are of windows of 24, every second text after another"), "{told}");
    // What a checkpoint decides is not asked for again.
    workspace.run(&["train", "--resume", "other", "--steps", "5"]).succeeded();
    let conflict = workspace.run(&["train", "--resume", "other", "--first-states", "fresh"]);
    conflict.failed(2, &["--first-states", "cannot be used with"]);
    workspace.train(&["--first-states", "mine"]).failed(2, &["mine", "fresh", "other"]);
}

/// At every measurement, and at no other step.
#[test]
fn memories_are_recorded_as_text_is_measured() {
    let workspace = Workspace::new();
    // A rule with momentum and a learned start.
    workspace.train(&["--steps", "6", "--eval-every", "2", "--rule", "titans_mlp"]).succeeded();
    for line in workspace.record("runs/text") {
        // Both come from the same pass over the text.
        let measured = line["held_out_loss"].is_f64();
        assert_eq!(line["states"].is_array(), measured, "{line}");
        assert_eq!(measured, line["step"].as_u64().unwrap().is_multiple_of(2));
        for state in line["states"].as_array().into_iter().flatten() {
            // Two heads; networks know how far they are from their start, momentum how large it is beside them.
            assert_eq!(state["rms"].as_array().unwrap().len(), 2, "{state}");
            let momentum = state["slot"].as_str().unwrap().starts_with('s');
            assert_eq!([state["from_start"].is_array(), state["over_memory"].is_array()], [!momentum, momentum]);
        }
    }
    // Lines of an older record are drawn as they were, and the run goes on.
    let path = workspace.path("runs/text/metrics.jsonl");
    let older: String = workspace.record("runs/text").into_iter().fold(String::new(), |text, mut line| {
        line.as_object_mut().unwrap().remove("states");
        text + &format!("{line}\n")
    });
    fs::write(&path, older).unwrap();
    workspace.run(&["info"]).succeeded();
    workspace.run(&["train", "--resume", "--steps", "7"]).succeeded();
    assert_eq!(workspace.recorded_steps("runs/text"), (1..=7).collect::<Vec<_>>());
    // Attention has no memory, so its picture has none.
    workspace.train(&["--steps", "2", "--mixer", "attention", "--out", "attention"]).succeeded();
    assert!(!fs::read_to_string(workspace.path("attention/loss.svg")).unwrap().contains("Memories"));
}

/// A folder with a model of somebody else's is left as it is, whatever is asked for.
#[test]
fn no_file_of_others_is_replaced() {
    // All that a run would write beside its checkpoints.
    for name in ["config.json", "model.safetensors", "best.safetensors", "tokenizer.json", "metrics.jsonl", "loss.svg"]
    {
        let workspace = Workspace::new();
        fs::create_dir(workspace.path("hf")).unwrap();
        let path = workspace.path("hf").join(name);
        fs::write(&path, "mine").unwrap();
        for flags in [&["--steps", "1", "--out", "hf"][..], &["--steps", "1", "--out", "hf", "--overwrite"]] {
            workspace.train(flags).failed(1, &[name, "not written by Hecate", "--out"]);
            assert_eq!(fs::read(&path).unwrap(), b"mine");
            assert_eq!(fs::read_dir(workspace.path("hf")).unwrap().count(), 1, "a refused run leaves nothing behind");
        }
    }
}

/// The lock is the file's, so a killed process holds none.
#[test]
fn a_run_is_trained_by_one_process() {
    let workspace = Workspace::new();
    workspace.train(&["--steps", "1"]).succeeded();
    // Held by this test, as another process would hold it.
    let lock = fs::File::open(workspace.path("runs/text/.lock")).unwrap();
    lock.try_lock().unwrap();
    let told = ["runs/text", "this run is being trained by another process"];
    workspace.run(&["train", "--resume", "runs/text"]).failed(1, &told);
    workspace.train(&["--steps", "1", "--overwrite"]).failed(1, &told);
    drop(lock);
    workspace.run(&["train", "--resume", "runs/text"]).succeeded();
}

/// A text in a file goes on as one that is read and written in one call of the command, for its own model only.
#[test]
fn a_session_goes_on_from_its_file() {
    let workspace = Workspace::new();
    workspace.train(&["--steps", "2"]).succeeded();
    let generate = |prompt: &str, file: &str| {
        let told = workspace.run(&["generate", "--prompt", prompt, "--tokens", "9", "--seed", "3", "--session", file]);
        told.succeeded();
        told.stdout.strip_prefix(prompt).expect("the prompt").to_owned()
    };
    // Lines of one conversation are such a text as well.
    let (first, second) = ("1 plus 2\n", "3 plus\n");
    let flags = ["generate", "--interactive", "--continue", "--tokens", "9", "--seed", "3"];
    let whole = workspace.run_fed(&flags, &[first, second].concat());
    let parts = [generate(first, "a.safetensors"), generate(second, "a.safetensors")];
    assert_eq!(whole.stdout, parts.concat(), "{whole:?}");
    // A copy is a fork.
    fs::copy(workspace.path("a.safetensors"), workspace.path("b.safetensors")).unwrap();
    assert_eq!(generate(second, "b.safetensors"), generate(second, "a.safetensors"));
    // What others wrote stays as it is: another model's text, and what is none.
    let before = fs::read(workspace.path("a.safetensors")).unwrap();
    workspace.train(&["--steps", "3", "--out", "runs/other"]).succeeded();
    let other = ["generate", "--run", "runs/other", "--prompt", "a", "--session", "a.safetensors"];
    workspace.run(&other).failed(1, &["a.safetensors", "another model"]);
    assert!(fs::read(workspace.path("a.safetensors")).unwrap() == before);
    workspace.run(&["generate", "--prompt", "a", "--session", "text.txt"]).failed(1, &["text.txt"]);
    workspace.run(&["generate", "--interactive", "--session", "a"]).failed(2, &["--session", "--interactive"]);
}

/// The text is known by its checksum, not by its path.
#[test]
fn another_text_cannot_be_resumed_with() {
    let workspace = Workspace::new();
    workspace.train(&["--steps", "2"]).succeeded();
    // Longer, so its checksum differs; the path is the same.
    fs::write(workspace.path("text.txt"), workspace.text() + "more").unwrap();
    workspace.run(&["train", "--resume"]).failed(1, &["text.txt", "is not the text"]);
    // The same text under another name is the same text.
    fs::write(workspace.path("moved.txt"), workspace.text()).unwrap();
    workspace.run(&["train", "--resume", "--text", "moved.txt"]).succeeded();
}

/// Half a model, and a training state of one byte.
#[test]
fn a_damaged_run_is_refused() {
    let workspace = Workspace::new();
    workspace.train(&["--steps", "1"]).succeeded();
    let model = workspace.path("runs/text/model.safetensors");
    let whole = fs::read(&model).unwrap();
    fs::write(&model, &whole[..whole.len() / 2]).unwrap();
    workspace.run(&["generate", "--prompt", "a"]).failed(1, &["model.safetensors", "damaged"]);
    // The checkpoint is whole: who goes on has the model's files written again.
    workspace.run(&["train", "--resume", "runs/text"]).succeeded();
    assert!(fs::read(&model).unwrap() == whole);
    let moments = workspace.path("runs/text/checkpoint-00000001/training.safetensors");
    fs::write(&moments, b"x").unwrap();
    workspace.run(&["train", "--resume", "runs/text"]).failed(1, &["training.safetensors", "damaged"]);
}

/// The whole suite on the CPU.
#[test]
fn every_cell_is_checked() {
    let found = Workspace::new().run(&["check"]);
    found.succeeded();
    // A rule, a primitive, the heading, the verdict.
    assert!(["titans", "matmul", "gradient", "0 failed"].iter().all(|part| found.stdout.contains(part)));
    // Options that are not as by default, as configurations have them.
    let line = |options: &str| found.stdout.lines().any(|line| line.ends_with(options));
    assert!(line("as by default") && line("erase decayed") && line("frozen 16"), "{}", found.stdout);
    assert!(!["None", "Some", "::", "{", "Before"].iter().any(|word| found.stdout.contains(word)), "{}", found.stdout);
    // On the terminals that there are.
    assert!(found.stdout.lines().all(|line| line.chars().count() <= 80), "{}", found.stdout);
}

/// A screen of flags by `-h`, all of them by `--help`; of every subcommand.
#[test]
fn help_is_short_or_whole() {
    let workspace = Workspace::new();
    // A line that begins with a flag is that flag's.
    let flags = |help: &str| help.lines().filter(|line| line.trim_start().starts_with("--")).count();
    let [short, long] = ["-h", "--help"].map(|flag| workspace.run(&["train", flag]).stdout);
    assert!(flags(&short) <= 25 && flags(&long) >= 55, "{} of {}", flags(&short), flags(&long));
    assert!(short.lines().count() <= 62 && short.lines().all(|line| line.chars().count() <= 100), "{short}");
    // In both under the same headings.
    for heading in ["Text and run:", "Model:", "Training:", "Measuring and saving:", "Device:", "Examples:"] {
        assert!(short.contains(heading) && long.contains(heading), "{heading}");
    }
    // Lists are for those who ask for all.
    assert!(long.contains("Mixers:") && !short.contains("Mixers:"));
}

/// The CPU is on every machine.
#[test]
fn devices_are_listed() {
    let found = Workspace::new().run(&["devices"]);
    found.succeeded();
    assert!(found.stdout.contains("cpu") && found.stdout.contains("threads"));
}

/// Forms that are listed are kernels, and what is printed is text for an assembler.
#[test]
fn kernels_are_written() {
    let workspace = Workspace::new();
    let list = workspace.run(&["kernels"]);
    list.succeeded();
    assert!(list.stdout.lines().any(|line| line == "softmax_warp:rows,length"), "{list:?}");
    assert!(list.stdout.lines().any(|line| line == "div_c128"), "{list:?}");
    let text = workspace.run(&["kernels", "--ptx", "softmax_warp:1024,4096"]);
    text.succeeded();
    assert!(text.stdout.contains(".version ") && text.stdout.contains(".entry softmax_warp("), "{text:?}");
    workspace.run(&["kernels", "--ptx", "softmax_warp:7"]).failed(1, &["softmax_warp:7", "softmax_warp:rows,length"]);
    workspace.run(&["kernels", "--ptx", "gemm_tiled:1,1,1,7"]).failed(1, &["tile", "32"]);
    workspace.run(&["kernels", "--ptx", "gem"]).failed(1, &["gem", "gemm_naive"]);
}

/// The message names step, block and a way out; the first checkpoint still generates.
#[test]
fn a_run_that_diverges_says_where_and_keeps_its_checkpoint() {
    let workspace = Workspace::new();
    let told = ["layer", "counted from 0", "at step", "checkpoint", "learning rate"];
    // No checkpoint but the first: the weights are not finite after a step or two.
    workspace.train(&["--steps", "20", "--lr", "1e30", "--save-every", "1000"]).failed(1, &told);
    let entries = fs::read_dir(workspace.path("runs/text")).unwrap();
    let names: Vec<String> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    assert!(names.contains(&"checkpoint-00000000".to_owned()), "{names:?}");
    workspace.run(&["generate", "--prompt", "1", "--tokens", "3"]).succeeded();
}

/// A completion knows the subcommands and their flags.
#[test]
fn shells_complete_the_command() {
    // Every shell that clap can write for.
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        let found = Workspace::new().run(&["completions", shell]);
        found.succeeded();
        for word in ["hecate", "train", "devices", "resume"] {
            assert!(found.stdout.contains(word), "{shell} does not know `{word}`");
        }
    }
    Workspace::new().run(&["completions", "abacus"]).failed(2, &["abacus", "bash"]);
}

/// Where there is a GPU it is taken; a test machine has one in software at most.
#[test]
fn the_best_device_is_taken_and_said_to_be_no_gpu_where_it_is_none() {
    let workspace = Workspace::new();
    let found = workspace.train(&["--steps", "1", "--device", "best"]);
    found.succeeded();
    let listed = workspace.run(&["devices"]);
    listed.succeeded();
    // Which device is best depends on the machine and on the features that were built.
    let on_cpu = listed.stdout.contains("best: cpu");
    assert_eq!(found.stderr.contains("no GPU is used"), on_cpu, "{found:?}");
    workspace.run(&["generate", "--prompt", "1", "--tokens", "3", "--device", "reference"]).succeeded();
}

/// On standard error, and only where a variable asks for them.
#[test]
fn events_are_shown_where_they_are_asked_for() {
    let workspace = Workspace::new();
    // The harness takes the variable away, so nothing is asked for.
    let quiet = workspace.train(&["--steps", "1"]);
    quiet.succeeded();
    assert!(!quiet.stderr.contains("opened the CPU"), "{quiet:?}");
    let told = workspace.run_with(&["generate", "--prompt", "1", "--tokens", "1"], ("HECATE_LOG", "info"));
    told.succeeded();
    assert!(told.stderr.contains("opened the CPU"), "{told:?}");
    // A filter that cannot be read is an error: events would go missing without a word.
    let told = workspace.run_with(&["devices"], ("HECATE_LOG", "loud=very"));
    told.failed(1, &["HECATE_LOG", "loud=very", "trace"]);
}

/// Forms compute the same, so runs of one seed have the same text.
#[test]
fn every_form_of_the_linear_rules_learns_and_writes_the_same() {
    let workspace = Workspace::new();
    let mut written = Vec::new();
    // A chunk of 5 tokens divides neither the sequences nor a chunk of 64.
    for algorithm in ["auto", "scan", "chunk", "chunk:5"] {
        workspace.train(&["--steps", "3", "--overwrite", "--algorithm", algorithm]).succeeded();
        // At temperature 0 the likeliest token is taken, so equal texts mean nearly equal logits.
        let greedy =
            ["generate", "--prompt", "1 plus", "--tokens", "8", "--temperature", "0", "--algorithm", algorithm];
        let found = workspace.run(&greedy);
        found.succeeded();
        written.push(found.stdout);
    }
    written.dedup();
    assert_eq!(written.len(), 1, "{written:?}");
    workspace.train(&["--steps", "1", "--algorithm", "chunk:0"]).failed(2, &["chunk:0", "at least 1"]);
    workspace.train(&["--steps", "1", "--algorithm", "leap"]).failed(2, &["leap", "scan"]);
    // The reference has one form.
    let chunks = ["--steps", "1", "--overwrite", "--device", "reference", "--algorithm", "chunk"];
    workspace.train(&chunks).failed(1, &["the reference", "`scan`", "`cpu`"]);
}

/// README.md: against learning a small text by heart. Ten kilobytes are learned some twenty times over.
#[test]
fn dropout_helps_a_small_text() {
    let workspace = Workspace::new();
    fs::copy(concat!(env!("CARGO_MANIFEST_DIR"), "/LICENSE-APACHE"), workspace.path("text.txt")).unwrap();
    // Losses of the last step and of the held-out text, in nats a token.
    let losses = |share: &str| {
        let flags = "train --text text.txt --layers 1 --width 64 --heads 2 --tokens 64 --batch 8 --steps 400 --holdout 0.2 \
                     --measure all --eval-every 400 --save-every 400 --overwrite --dropout";
        let line: Vec<_> = flags.split_whitespace().chain([share]).collect();
        workspace.run(&line).succeeded();
        let last = workspace.record("runs/text").pop().unwrap();
        ["loss", "held_out_loss"].map(|name| last[name].as_f64().unwrap())
    };
    let ([learned, held_out], [learned_less, held_out_less]) = (losses("0"), losses("0.2"));
    // By heart without it; with seeds 0, 1 and 2 the held-out losses are 0.21 to 0.29 apart.
    assert!(learned < 1.0 && learned_less > learned + 0.3, "{learned} without, {learned_less} with");
    assert!(held_out_less < held_out - 0.1, "{held_out} without, {held_out_less} with");
}
