//! Texts that a smaller model drafts: what is written, saved and said.
//!
//! That they are those of the model alone to the bit, for every kind of model, the tests of the library hold. Here it is the command
//! that is to make nothing else of them.

use super::harness::{Outcome, Workspace};
#[cfg(feature = "tokenizer")]
use super::released::with_words;
use std::fs;

/// A run, and a smaller one of other weights and another rule.
fn runs() -> Workspace {
    let workspace = Workspace::new();
    workspace.train(&["--steps", "8", "--lr", "0.01", "--rule", "titans", "--out", "large"]).succeeded();
    let small = "train --text text.txt --layers 1 --width 8 --heads 1 --tokens 24 --batch 2 --steps 8 --lr 0.01 --warmup=0 --out small";
    workspace.run(&small.split(' ').collect::<Vec<_>>()).succeeded();
    workspace
}

/// What the large run writes with these flags.
fn generate(workspace: &Workspace, flags: &[&str]) -> Outcome {
    let found = workspace.run(&[&["generate", "--run", "large"], flags].concat());
    found.succeeded();
    found
}

/// How many tokens were accepted, drafted and drawn, as the last line says it.
fn told(outcome: &Outcome) -> [usize; 3] {
    let line = outcome.stderr.lines().last().unwrap_or_default();
    assert!(line.ends_with(" tokens/s"), "{outcome:?}");
    let words: Vec<_> = line.split_whitespace().collect();
    // `7 of 12 drafted tokens accepted; 20 tokens drawn in 0.01 s, 2000.0 tokens/s`
    [words[0], words[2], words[6]].map(|word| word.parse().unwrap_or_else(|_| panic!("`{word}` in {outcome:?}")))
}

/// However tokens are drawn, and however far ahead a draft goes.
#[test]
fn a_draft_changes_no_text() {
    let workspace = runs();
    let ways: [&[&str]; 4] = [
        &["--temperature", "0"],
        &["--seed", "1"],
        &["--seed", "2", "--top-k", "5", "--repetition-penalty", "1.2"],
        // It ends in the middle of what was drafted.
        &["--temperature", "0", "--stop", "us"],
    ];
    for way in ways {
        let flags = [&["--prompt", "3 plus ", "--tokens", "40"], way].concat();
        // Nothing is told of a draft where there is none.
        let alone = generate(&workspace, &flags);
        assert!(!alone.stderr.contains("drafted"), "{alone:?}");
        for draft in [&["--draft", "small"][..], &["--draft", "small", "--draft-tokens", "1"], &["--draft", "large"]] {
            let found = generate(&workspace, &[&flags[..], draft].concat());
            assert_eq!(found.stdout, alone.stdout, "{way:?}, {draft:?}");
            let [accepted, drafted, _] = told(&found);
            assert!(drafted > 0 && accepted <= drafted, "{found:?}");
            // A model that drafts for itself guesses right each time.
            assert!(draft[1] != "large" || accepted == drafted, "{found:?}");
        }
    }
    // The first token comes of the prompt; of eight rounds of five the last gives four.
    let found = generate(&workspace, &["--prompt", "3 plus ", "--tokens", "40", "--draft", "large"]);
    assert_eq!(told(&found), [32, 32, 40]);
}

/// Whatever was drawn ahead of a line, or of a text in a file, is not in what comes after it.
#[test]
fn lines_and_files_go_on_with_a_draft() {
    let workspace = runs();
    // Lines, each by itself and one after the other.
    for flags in [&["--interactive"][..], &["--interactive", "--continue"]] {
        let answers = |draft: &[&str]| {
            let fixed = ["generate", "--run", "large", "--tokens", "17"];
            let found = workspace.run_fed(&[&fixed[..], flags, draft].concat(), "1 plus\n2 plus\n3 plus\n");
            found.succeeded();
            found
        };
        let (alone, drafted) = (answers(&[]), answers(&["--draft", "small"]));
        assert_eq!(drafted.stdout, alone.stdout, "{flags:?}");
        assert_eq!((alone.stdout.lines().count() >= 3, told(&drafted)[2]), (true, 3 * 17), "{drafted:?}");
    }
    // A text in a file goes on from call to call, with a draft and without.
    let calls = |file: &str, drafts: [&[&str]; 3]| {
        let text = |draft: &[&str]| {
            let fixed = ["--session", file, "--prompt", "4 plus ", "--tokens", "9", "--seed", "3"];
            generate(&workspace, &[&fixed[..], draft].concat()).stdout
        };
        (drafts.map(text), fs::read(workspace.path(file)).unwrap())
    };
    // To the bit, so that a file does not know whether there was a draft.
    let with = &["--draft", "small"][..];
    let alone = calls("alone", [&[]; 3]);
    assert!(calls("drafted", [with; 3]) == alone && calls("both", [with, &[], with]) == alone);
}

/// Each mistake is told by its flag.
#[test]
fn drafts_that_do_not_fit_are_refused() {
    let workspace = runs();
    let refused = |flags: &[&str], code, told: &[&str]| {
        workspace.run(&[&["generate", "--run", "large", "--prompt", "1"], flags].concat()).failed(code, told);
    };
    refused(&["--draft", "nowhere"], 1, &["nowhere", "no such file or folder", "--draft"]);
    // What is there and is no run.
    refused(&["--draft", "text.txt"], 1, &["text.txt", "no folder", "--draft"]);
    // How far ahead of what, and how far it can be.
    refused(&["--draft-tokens", "2"], 2, &["--draft"]);
    for count in ["0", "65", "-1"] {
        refused(&["--draft", "small", &format!("--draft-tokens={count}")], 2, &["--draft-tokens", "1..=64"]);
    }
}

/// Released models draft for each other, where their tokens are the same.
#[cfg(feature = "tokenizer")]
#[test]
fn a_released_model_has_a_released_draft() {
    let workspace = Workspace::new();
    with_words(&workspace, None);
    let copy = |to: &str, change: fn(String) -> String| {
        fs::create_dir(workspace.path(to)).unwrap();
        for entry in fs::read_dir(workspace.path("model")).unwrap() {
            let entry = entry.unwrap();
            fs::copy(entry.path(), workspace.path(to).join(entry.file_name())).unwrap();
        }
        let tokenizer = workspace.path(to).join("tokenizer.json");
        fs::write(&tokenizer, change(fs::read_to_string(&tokenizer).unwrap())).unwrap();
    };
    // The same words, and two of them under each other's numbers.
    copy("same", |text| text);
    copy("other", |text| text.replace("\"w8\":8", "\"w8\":9").replace("\"w9\":9", "\"w9\":8"));
    let flags = ["generate", "--model", "model", "--prompt", "w3 w5 w7", "--tokens", "20"];
    let (alone, drafted) = (workspace.run(&flags), workspace.run(&[&flags[..], &["--draft", "same"]].concat()));
    [&alone, &drafted].iter().for_each(|found| found.succeeded());
    assert_eq!(drafted.stdout, alone.stdout);
    // A copy of the model guesses right each time.
    let [accepted, all, _] = told(&drafted);
    assert!(accepted == all && all > 0, "{drafted:?}");
    let other = workspace.run(&[&flags[..], &["--draft", "other"]].concat());
    other.failed(1, &["--draft", "other has other tokens than model", "tokenizer"]);
}
