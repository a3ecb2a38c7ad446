//! What flags choose, and what is chosen where none is given, as the configuration of a run tells it.
//!
//! Defaults of the command may change; a run written down keeps what it was made with. So every choice is in its file.

use super::harness::Workspace;
use serde_json::Value;
use std::fs;

/// The first mixer in the configuration of a run of one step, with these flags, in the folder `out`.
/// What flags have done is seen there, where later commands read it.
fn written(workspace: &Workspace, out: &str, flags: &str) -> Value {
    let run = ["--steps", "1", "--out", out].into_iter().chain(flags.split(' '));
    workspace.train(&run.collect::<Vec<_>>()).succeeded();
    let text = fs::read_to_string(workspace.path(out).join("config.json")).unwrap();
    let config: Value = serde_json::from_str(&text).unwrap();
    config["layers"][0]["mixer"].clone()
}

/// Momentum near 1 runs away: a token writes no more than without momentum unless somebody wants it otherwise.
#[test]
fn momentum_is_bounded() {
    let workspace = Workspace::new();
    for (out, flags, form, most) in [
        ("a", "--rule titans_mlp", "heavy_ball", 0.9),
        // Either flag is a choice, and the other is as the paper has it.
        ("b", "--rule titans_mlp --momentum 0.5", "heavy_ball", 0.5),
        ("c", "--rule titans_mlp --momentum-form heavy_ball", "heavy_ball", 1.0),
        ("d", "--rule titans", "heavy_ball", 0.9),
        ("f", "--rule titans --momentum 1", "heavy_ball", 1.0),
        ("g", "--rule titans --momentum-form look_ahead", "look_ahead", 1.0),
        ("e", "--rule yaad_momentum", "heavy_ball", 0.9),
        ("h", "--rule delta", "", 1.0),
    ] {
        let mixer = written(&workspace, out, flags);
        assert_eq!(mixer["rule"]["momentum"].as_str().unwrap_or_default(), form, "{flags}: {mixer}");
        assert_eq!(mixer["momentum"].as_f64(), Some(most), "{flags}: {mixer}");
    }
}

/// Networks have groups where their mixer leaves them the choice; one token for itself is no group.
#[test]
fn networks_have_groups() {
    let workspace = Workspace::new();
    for (out, flags, group) in [
        ("a", "--rule titans_mlp", Some(16)),
        ("b", "--rule moneta_matrix --frozen 4", Some(4)),
        ("c", "--rule yaad --frozen 1", None),
        ("d", "--rule titans", None),
        ("e", "--rule memora --writes-per-token 2", None),
        ("f", "--mixer mag --rule yaad", Some(16)),
        ("g", "--mixer mac --rule yaad --segment 32", Some(16)),
        // Groups would not fill a segment.
        ("h", "--mixer mac --rule yaad --segment 8", None),
        // A chunk of a level is a group, and a conductor's levels are exact.
        ("i", "--mixer cms --rule yaad", None),
        ("j", "--mixer conductor --rule yaad", None),
    ] {
        let mixer = written(&workspace, out, flags);
        let rule = mixer.pointer("/memory/rule").unwrap_or(&mixer["rule"]);
        assert_eq!(rule["frozen"].as_u64(), group, "{flags}: {mixer}");
    }
}

/// What a memory in a composition starts from is learned, where its rule can go back to it.
#[test]
fn compositions_go_back_to_their_start() {
    let workspace = Workspace::new();
    for (out, flags, retain) in [
        ("a", "--mixer cms", "initial"),
        ("b", "--mixer conductor --rule titans", "initial"),
        ("c", "--mixer tnt --retain zero", "zero"),
        ("d", "--mixer tnt --locals 2 --shard 4", "initial"),
        // Tokens of a chunk share a gradient point, where dgd cannot go back, and atlas nowhere can.
        ("e", "--mixer cms --rule dgd", "zero"),
        ("f", "--mixer conductor --rule atlas", "zero"),
        // Beside attention the rule's own groups decide.
        ("g", "--mixer mag", "initial"),
        ("h", "--mixer mal --retain zero", "zero"),
        ("i", "--mixer mac --rule dgd --frozen 4", "zero"),
        ("j", "--mixer mac --frozen 4", "initial"),
    ] {
        let mixer = written(&workspace, out, flags);
        assert_eq!(mixer["memory"]["retain"].as_str(), Some(retain), "{flags}: {mixer}");
    }
}

/// One flag sets the taps of a memory and of the attention beside it; attention alone has none unless told.
#[test]
fn attention_beside_a_memory_has_its_taps() {
    let workspace = Workspace::new();
    for (out, flags, parts, taps) in [
        ("a", "--mixer mag", ["/memory/conv", "/attention/conv"], 4),
        ("b", "--mixer mal --conv 2", ["/memory/conv", "/attention/conv"], 2),
        ("c", "--mixer mac --conv 0", ["/memory/conv", "/attention/conv"], 0),
        ("d", "--mixer attention", ["/conv", "/conv"], 0),
    ] {
        let mixer = written(&workspace, out, flags);
        // No convolution is zero taps, and written down as such.
        for part in parts {
            assert_eq!(mixer.pointer(part), Some(&taps.into()), "{flags}, {part}: {mixer}");
        }
    }
}

/// Errors of networks and steps of groups are as they come unless flags say otherwise, and who has none says so.
#[test]
fn errors_are_clipped_and_steps_averaged_where_that_is_asked_for() {
    let workspace = Workspace::new();
    for (out, flags, clip, mean) in [
        ("a", "--rule yaad", None, false),
        ("b", "--rule yaad --clip-errors 2", Some(2.0), false),
        ("c", "--rule titans_mlp --clip-errors 0.5 --frozen 4 --mean", Some(0.5), true),
        ("d", "--rule delta --frozen 4 --mean", None, true),
    ] {
        let mixer = written(&workspace, out, flags);
        // The length is the rule's, the mean is the layer's.
        assert_eq!((mixer["rule"]["clip"].as_f64(), mixer["mean"].as_bool()), (clip, Some(mean)), "{flags}: {mixer}");
    }
    // Lengths go back where that is asked for: an option of the rule.
    let mixer = written(&workspace, "e", "--rule titans_mlp --frozen 4 --renorm");
    assert_eq!(
        (mixer["rule"]["renorm"].as_bool(), mixer["rule"]["momentum"].as_str()),
        (Some(true), Some("heavy_ball")),
        "{mixer}"
    );
    // What is out of range, and what the rule or the mixer does not have, is named.
    for (flags, told) in [
        ("--rule yaad --clip-errors 0", &["yaad", "`clip`", "over 0"][..]),
        ("--rule yaad --clip-errors nan", &["--clip-errors", "NaN", "over 0"]),
        ("--rule delta --clip-errors 2", &["--rule delta", "`clip`"]),
        ("--mixer hope --clip-errors 2", &["--clip-errors", "hope"]),
        ("--rule titans --mean", &["mean", "titans", "frozen"]),
        ("--rule yaad --renorm --frozen 1", &["yaad", "`renorm`", "groups", "frozen"]),
        ("--rule yaad --renorm --frozen 4 --retain zero", &["yaad", "`renorm`", "anchor"]),
        ("--rule moneta --renorm --frozen 4", &["--rule moneta", "`renorm`"]),
        ("--rule delta --renorm --frozen 4", &["--rule delta", "`renorm`"]),
        ("--mixer cms --rule yaad --renorm", &["renorm"]),
        ("--mixer mac --rule yaad --frozen 4 --segment 8 --renorm", &["memory.rule.renorm", "mag"]),
        ("--mixer hope --renorm", &["--renorm", "hope"]),
        ("--mixer attention --mean", &["--mean", "attention"]),
    ] {
        workspace.train(&flags.split(' ').collect::<Vec<_>>()).failed(1, told);
    }
}

/// The lines of a flag in `hecate train --help`, as one.
fn help_of(help: &str, flag: &str) -> String {
    // Other flags' texts name it too, but in the middle of a line.
    let lines = help.lines().skip_while(|line| !line.trim_start().starts_with(&format!("{flag} ")));
    // Up to the next flag.
    let own = lines.enumerate().take_while(|(i, line)| *i == 0 || !line.trim_start().starts_with('-'));
    own.flat_map(|(_, line)| line.split_whitespace()).collect::<Vec<_>>().join(" ")
}

/// Defaults that the help and docs/rules.md tell are those that a run is written down with.
#[test]
fn defaults_of_mixers_are_as_told() {
    let workspace = Workspace::new();
    let help = workspace.run(&["train", "--help"]).stdout;
    let document = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/rules.md")).unwrap();
    // Where each flag ends up in `config.json`.
    for (mixer, flag, field) in [
        ("memory", "--writes-per-token", "/writes_per_token"),
        ("attention", "--window", "/window"),
        ("mag", "--window", "/attention/window"),
        ("mal", "--persistent", "/persistent"),
        ("mac", "--segment", "/segment"),
        ("mac", "--persistent", "/persistent"),
        ("cms", "--periods", "/periods"),
        ("cms", "--wiring", "/wiring"),
        ("conductor", "--periods", "/periods"),
        ("conductor", "--wiring", "/wiring"),
        // One flag for both, with a default for each.
        ("tnt", "--chunk", "/chunk"),
        ("hope", "--chunk", "/chunk"),
        ("tnt", "--locals", "/locals"),
        ("tnt", "--shard", "/shard"),
    ] {
        let written = written(&workspace, &format!("{mixer}{flag}"), &format!("--mixer {mixer}"));
        // Lists as flags have them: without brackets, and without the quotes of words.
        let value = written.pointer(field).unwrap().to_string().replace(['[', ']', '"'], "");
        // Of every mixer that has the flag, of this one, or in words.
        let told = [format!("[default: {value}]"), format!("{value} for {mixer}"), format!("{value} unless given")];
        let help = help_of(&help, flag);
        assert!(told.iter().any(|told| help.contains(told)), "{mixer}: {value} is not in {help}");
        // The document has a row a mixer.
        let row = document.lines().find(|line| line.starts_with(&format!("| `{mixer}`"))).unwrap();
        assert!(row.contains(&format!("`{flag} {value}`")), "{mixer} {flag}: {value} is not in {row}");
    }
}
