//! What an unknown flag may have been meant for: other programs have other names for the same things.
//!
//! clap suggests the flag whose letters are most alike, which for `--seq-len` is `--segment`. Here known names lead to their
//! flag, and of what is alike only slips of the fingers and flags with a word in common are kept.

use clap::{
    Arg, Command,
    error::{ContextKind, ContextValue, Error, ErrorKind},
};

/// Of so many letters that are typed one may be wrong in a flag that is meant.
const LETTERS_A_SLIP: usize = 3;

/// Flags, each with its names elsewhere. Where several rows have a name, the first whose flag the subcommand has counts.
/// Letters are small and joints are dashes, as what was typed is compared.
const NAMES: [(&str, &[&str]); 41] = [
    // What is read and written.
    ("text", &["f", "file", "input", "data", "dataset", "train-data", "train-file", "corpus", "data-dir"]),
    ("prompt", &["p", "text", "input"]),
    ("prompt-file", &["f", "file"]),
    ("interactive", &["i", "chat", "conversation", "repl"]),
    ("out", &["o", "output", "output-dir", "out-dir", "save-dir", "run-dir", "log-dir", "save", "run"]),
    // A model that is there: `train` has no such flag, so it goes on to further rows.
    ("run", &["m", "model", "model-path", "checkpoint", "ckpt", "weights", "from", "load"]),
    ("resume", &["continue", "resume-from", "resume-from-checkpoint", "ckpt", "checkpoint"]),
    ("init-from", &["from-pretrained", "pretrained", "finetune", "init", "load", "weights"]),
    ("overwrite", &["force", "yes"]),
    ("tokenizer", &["vocab", "vocab-file", "vocab-size", "spm", "bpe"]),
    // What a model is made of. Elsewhere a rule is a whole model.
    ("rule", &["m", "model", "model-type", "arch", "architecture", "attn", "layer-type"]),
    ("rules", &["rule", "model", "models", "arch"]),
    ("models", &["rule", "rules", "model", "mixer", "arch"]),
    ("mixer", &["layer", "block-type", "composition"]),
    // How large it is, by the names of configurations and of papers.
    ("layers", &["n-layers", "n-layer", "num-layers", "num-hidden-layers", "depth", "n-blocks", "blocks"]),
    (
        "width",
        &["hidden", "hidden-size", "hidden-dim", "d-model", "dim", "n-embd", "embed-dim", "embedding-dim", "model-dim"],
    ),
    ("heads", &["n-heads", "n-head", "num-heads", "num-attention-heads", "nhead"]),
    ("mlp", &["d-ff", "ffn", "ffn-dim", "mlp-dim", "intermediate-size", "hidden-ratio", "mlp-ratio"]),
    ("key-dim", &["head-dim", "head-size", "d-head", "d-k", "expand-k", "state-size", "d-state"]),
    ("value-dim", &["d-v", "expand-v"]),
    ("conv", &["conv-size", "d-conv", "kernel-size", "use-short-conv"]),
    // What attention sees, and what shares a gradient.
    ("window", &["sliding-window", "window-size", "local-window"]),
    ("frozen", &["mini-batch-size", "inner-batch"]),
    ("algorithm", &["chunk-size", "chunk", "kernel", "impl", "fuse"]),
    // How much is learned at once, or written.
    ("batch", &["batch-size", "bs", "per-device-train-batch-size", "micro-batch-size", "mbs"]),
    (
        "tokens",
        &[
            "ctx",
            "ctx-size",
            "context",
            "context-length",
            "seq-len",
            "seq-length",
            "sequence-length",
            "seqlen",
            "max-seq-len",
            "max-length",
            "block-size",
            "n-ctx",
            "n-predict",
            "max-tokens",
            "max-new-tokens",
            "length",
        ],
    ),
    // Benchmarks have several lengths, and shapes of whole calls.
    ("lengths", &["seq-len", "sequence-length", "context-length", "tokens"]),
    ("shapes", &["seq-len", "batch", "batch-size", "tokens", "heads", "head-dim", "width"]),
    // For how long. There are no epochs: a run counts its steps.
    (
        "steps",
        &["epochs", "num-epochs", "num-train-epochs", "iters", "iterations", "max-iters", "max-steps", "num-steps"],
    ),
    ("accumulate", &["grad-accum", "accum", "gradient-accumulation-steps", "accumulation-steps"]),
    // How it is learned; benchmarks try several rates.
    ("lr", &["rate", "rates", "learning-rate", "max-lr", "peak-lr"]),
    ("rates", &["lr", "lrs", "learning-rate", "rate"]),
    ("warmup", &["warmup-steps", "warmup-iters", "lr-warmup", "warmup-ratio"]),
    ("weight-decay", &["wd", "decay", "l2"]),
    ("clip", &["grad-clip", "clip-grad", "clip-grad-norm", "max-grad-norm", "gradient-clip-val", "grad-norm"]),
    ("precision", &["dtype", "amp", "bf16", "fp16", "fp8", "half", "mixed-precision", "quantize"]),
    // What is measured and kept on the way.
    (
        "holdout",
        &["val", "val-split", "val-data", "validation", "validation-split", "valid", "test-size", "eval-split"],
    ),
    ("eval-every", &["eval-interval", "eval-steps", "val-every", "val-interval", "log-interval", "logging-steps"]),
    ("save-every", &["save-interval", "save-steps", "checkpoint-every", "checkpoint-interval"]),
    // Where it is computed.
    ("device", &["gpu", "gpus", "cuda", "wgpu", "cpu", "backend", "accelerator", "ngl", "n-gpu-layers"]),
    ("threads", &["t", "n-threads", "num-threads", "num-workers", "workers", "cores", "jobs"]),
];

/// The error with a suggestion that helps, or with none; `words` are those that were typed, without the program's name.
pub(crate) fn explained(mut error: Error, command: &Command, words: impl Iterator<Item = String>) -> Error {
    if error.kind() != ErrorKind::UnknownArgument {
        return error;
    }
    // Anything else, such as a number out of its range, says itself what helps.
    // The subcommand whose flags there are.
    let command = words.map_while({
        let mut at = command;
        move |word| {
            at = at.find_subcommand(word)?;
            Some(at)
        }
    });
    let Some(command) = command.last() else { return error };
    // A name without what differs between programs: dashes before it, capitals, and what joins words.
    let text = |value: Option<&ContextValue>| match value {
        Some(ContextValue::String(text)) => Some(text.trim_start_matches('-').to_lowercase().replace('_', "-")),
        _ => None,
    };
    let Some(typed) = text(error.get(ContextKind::InvalidArg)) else { return error };
    // What clap found is a last resort.
    let alike = text(error.get(ContextKind::SuggestedArg)).filter(|alike| is_near(&typed, alike));
    // Either there is a better tip, or none.
    // Its usage is that of the flag whose letters are alike.
    error.remove(ContextKind::Usage);
    match by_name(&typed, command).map(str::to_owned).or(alike) {
        Some(flag) => error.insert(ContextKind::SuggestedArg, ContextValue::String(format!("--{flag}"))),
        None => error.remove(ContextKind::SuggestedArg),
    };
    error
}

/// The flag of a subcommand that goes by this name elsewhere.
fn by_name(typed: &str, command: &Command) -> Option<&'static str> {
    // Rows whose flag the subcommand does not have are for others.
    let has = |flag: &str| command.get_arguments().filter_map(Arg::get_long).any(|long| long == flag);
    NAMES.into_iter().find(|(flag, names)| names.contains(&typed) && has(flag)).map(|(flag, _)| flag)
}

/// Whether a flag is what was typed but for a slip, or has a word of it.
fn is_near(typed: &str, flag: &str) -> bool {
    // Two letters that changed places count as one slip.
    strsim::damerau_levenshtein(typed, flag) <= typed.len() / LETTERS_A_SLIP
        || typed.split('-').any(|word| flag.split('-').any(|x| x == word))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    /// What the tip of an error names; nothing without a tip.
    fn told(line: &str) -> Option<String> {
        // As a shell would part it: no word here has a blank.
        let words = || line.split(' ').map(str::to_owned);
        let command = crate::Command::command();
        let error = command.clone().try_get_matches_from(std::iter::once("hecate".to_owned()).chain(words()));
        let error = explained(error.expect_err("an unknown flag"), &command, words()).to_string();
        assert!(!error.contains("Usage:"), "{error}");
        // The sentence is clap's own.
        let (_, tip) = error.split_once("tip: a similar argument exists: '")?;
        Some(tip.split('\'').next()?.to_owned())
    }

    /// Whole lines: a name means what the subcommand that it is given to has for it.
    #[test]
    fn names_of_other_programs_lead_to_flags() {
        for (line, flag) in [
            // The commonest ones, spelled in all the ways that there are.
            ("train --seq-len 512", "--tokens"),
            ("train --seq_len=512", "--tokens"),
            ("train --context 512", "--tokens"),
            ("train --learning-rate 1e-3", "--lr"),
            ("train --epochs 3", "--steps"),
            ("train --hidden 64", "--width"),
            ("train --d-model 64", "--width"),
            ("train --n-layers 2", "--layers"),
            ("train --model titans", "--rule"),
            ("train --gpu 0", "--device"),
            // The same name is another flag for another subcommand.
            ("generate --checkpoint runs/a", "--run"),
            ("generate -m runs/a", "--run"),
            ("generate --max-new-tokens 9", "--tokens"),
            ("eval --checkpoint runs/a", "--run"),
            ("bench recall --lr 1e-3", "--rates"),
            ("bench text --rule delta", "--models"),
            // A slip, and a word in common.
            ("train --bacth 3", "--batch"),
            ("train --warmups 3", "--warmup"),
        ] {
            assert_eq!(told(line).as_deref(), Some(flag), "{line}");
        }
    }

    /// A wrong suggestion costs more than none: somebody tries it, and trains another model.
    #[test]
    fn what_only_looks_alike_is_not_suggested() {
        // Letters in common, and no more.
        for line in ["train --sequences 3", "train --persist 3", "eval --bits 3", "generate --tempo 3"] {
            assert_eq!(told(line), None, "{line}");
        }
    }

    /// Every subcommand, with the words that lead to it.
    fn subcommands(command: &Command, path: &str, found: &mut Vec<(String, Command)>) {
        for one in command.get_subcommands() {
            let path = format!("{path}{} ", one.get_name());
            subcommands(one, &path, found);
            found.push((path, one.clone()));
        }
    }

    /// The table against the flags that there are: neither a renamed flag nor an order of rows breaks it unseen.
    #[test]
    fn every_name_leads_to_the_first_flag_that_there_is() {
        let mut all = Vec::new();
        subcommands(&crate::Command::command(), "", &mut all);
        // Rows that some subcommand led to.
        let mut used = vec![false; NAMES.len()];
        for (path, command) in &all {
            // Its own flags need no other name.
            let flags: Vec<_> = command.get_arguments().filter_map(Arg::get_long).collect();
            for name in NAMES.iter().flat_map(|(_, names)| *names).filter(|name| !flags.contains(name)) {
                let row = NAMES.iter().position(|(flag, names)| names.contains(name) && flags.contains(flag));
                // One letter is typed with one dash.
                let Some(row) = row.filter(|_| name.len() > 1) else { continue };
                used[row] = true;
                assert_eq!(told(&format!("{path}--{name} 1")), Some(format!("--{}", NAMES[row].0)), "{path}--{name}");
            }
        }
        // A row that nothing leads to is a flag that was renamed.
        let unused: Vec<_> = used.iter().zip(NAMES).filter(|(used, _)| !**used).map(|(_, (flag, _))| flag).collect();
        assert!(unused.is_empty(), "no subcommand has {unused:?}");
    }
}
