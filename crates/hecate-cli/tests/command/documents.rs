//! Commands that the documents give use subcommands and flags that there are.

use super::harness::Workspace;
use std::{
    collections::HashMap,
    fs,
    path::{Path, PathBuf},
};

/// README.md, CONTRIBUTING.md and what is under `docs`.
fn documents() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut found = vec![root.join("README.md"), root.join("CONTRIBUTING.md")];
    for folder in ["docs", "docs/lab"] {
        let entries = fs::read_dir(root.join(folder)).unwrap().map(|entry| entry.unwrap().path());
        found.extend(entries.filter(|path| path.extension().is_some_and(|extension| extension == "md")));
    }
    found
}

/// The commands that a document gives, in blocks and between backticks.
fn commands(text: &str) -> Vec<Vec<&str>> {
    text.lines().flat_map(|line| line.split('`')).filter_map(command).collect()
}

/// The words after `hecate`, of a line that starts the command.
fn command(line: &str) -> Option<Vec<&str>> {
    let words: Vec<_> = line.split_whitespace().collect();
    // A variable or another program may stand before it.
    let start = words.iter().position(|word| *word == "hecate")?;
    let ends = |word: &&str| !matches!(*word, "|" | ">" | "&&");
    let rest: Vec<_> = words[start + 1..].iter().copied().take_while(ends).collect();
    // What follows a pipe is another program's.
    // A subcommand begins with a small letter; a flag does not.
    rest.first().is_some_and(|word| word.starts_with(char::is_lowercase)).then_some(rest)
}

/// Help of subcommands, each asked for once.
struct Help {
    workspace: Workspace,
    texts: HashMap<Vec<String>, Option<String>>,
}

impl Help {
    /// What `--help` prints of a subcommand; nothing where there is none.
    fn of(&mut self, path: &[&str]) -> Option<&str> {
        let key: Vec<_> = path.iter().map(|&word| word.to_owned()).collect();
        let text = self.texts.entry(key).or_insert_with(|| {
            let outcome = self.workspace.run(&[path, &["--help"]].concat());
            (outcome.code == Some(0)).then_some(outcome.stdout)
        });
        text.as_deref()
    }

    /// What of a command there is not: its subcommand, or flags of it.
    fn unknown(&mut self, command: &[&str]) -> Vec<String> {
        // Not a file's name.
        let is_name = |word: &&&str| word.starts_with(char::is_lowercase) && !word.contains(['.', '/']);
        // These have subcommands of their own.
        let most = if ["bench", "spikes"].contains(&command[0]) { 2 } else { 1 };
        let path: Vec<_> = command.iter().take(most).take_while(is_name).copied().collect();
        let Some(help) = self.of(&path) else { return vec![path.join(" ")] };
        let known: Vec<_> = help.split([' ', '\n', ',', '=', '[']).filter(|word| word.starts_with("--")).collect();
        let flags = command.iter().filter(|word| word.starts_with("--") && word.len() > 2);
        let names = flags.map(|flag| flag.split('=').next().unwrap_or(flag).trim_end_matches([',', '.']));
        names.filter(|name| !known.contains(name)).map(|name| format!("{} {name}", path.join(" "))).collect()
    }
}

/// Whoever renames a flag does not see every document that tells it.
#[test]
fn documented_commands_are_understood() {
    let mut help = Help { workspace: Workspace::new(), texts: HashMap::new() };
    let (mut problems, mut seen) = (Vec::new(), 0);
    for path in documents() {
        let text = fs::read_to_string(&path).unwrap();
        // What only a feature adds is looked at where it is built: by continuous integration.
        let is_built = |command: &Vec<&str>| cfg!(feature = "serve") || command[0] != "serve";
        for command in commands(&text).into_iter().filter(is_built) {
            seen += 1;
            let unknown = help.unknown(&command).into_iter();
            problems.extend(unknown.map(|name| format!("{}: hecate {name}", path.display())));
        }
    }
    assert!(problems.is_empty(), "no such subcommand or flag:\n{}", problems.join("\n"));
    // A change of how documents write commands must not make this test empty.
    assert!(seen > 0, "no document gives a command");
}

/// A program of another build, with other features, would be what runs.
#[test]
fn documents_call_the_command_by_its_name_alone() {
    for path in documents() {
        let text = fs::read_to_string(&path).unwrap();
        // As documents said it before there was one way.
        let others = ["cargo run --release --", "release/hecate", "debug/hecate"];
        let found: Vec<_> = text.lines().filter(|line| others.iter().any(|other| line.contains(other))).collect();
        assert!(found.is_empty(), "{} says it otherwise than `hecate`: {found:#?}", path.display());
    }
}

#[test]
fn unknown_flags_of_documents_are_found() {
    let text = "`hecate train --no-such 1`, `hecate none`\nX=off hecate bench recall --identities --nothing\n";
    let mut help = Help { workspace: Workspace::new(), texts: HashMap::new() };
    let unknown: Vec<_> = commands(text).iter().flat_map(|command| help.unknown(command)).collect();
    assert_eq!(unknown, ["train --no-such", "none", "bench recall --nothing"]);
}
