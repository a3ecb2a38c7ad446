//! Models that read the tokens of a tokenizer.

use super::harness::{Outcome, Workspace};
use std::fs;

/// With `<unk>` and `</s>` the whole vocabulary. No word is two others joined, so that a lost space shows.
const WORDS: [&str; 12] = ["the", "cat", "sat", "on", "a", "mat", "and", "saw", "two", "dogs", "run", "past"];
/// One layer of width 16, which learns in a build without optimization too; all of the held-out text is measured.
const TRAIN: &str = "train --text words.txt --tokenizer tokenizer.json --layers 1 --width 16 --heads 2 --tokens 16 --batch 2 \
                     --steps 30 --lr 0.02 --measure all";

/// A workspace with a text of words, a special token after every fifth, and a tokenizer whose numbers have a gap.
/// Numbers are 0, 1 and 60 to 71: as many rows as there are words would be too few for the largest.
fn words() -> Workspace {
    let workspace = Workspace::new();
    // Squares modulo 13: an order that comes again, and that a small model learns.
    let word = |i: usize| if i % 6 == 5 { "</s>\n" } else { WORDS[i * i % 13 % 12] };
    let text: Vec<_> = (0..900).map(word).collect();
    fs::write(workspace.path("words.txt"), text.join(" ")).unwrap();
    let vocab: serde_json::Map<String, serde_json::Value> = ["<unk>", "</s>"]
        .iter()
        .chain(&WORDS)
        .zip([0, 1].into_iter().chain(60..))
        .map(|(word, id)| ((*word).to_owned(), id.into()))
        .collect();
    // No decoder: spaces between words are then up to whoever puts texts together.
    let file = serde_json::json!({
        "version": "1.0", "truncation": null, "padding": null, "normalizer": null, "post_processor": null, "decoder": null,
        "added_tokens": [{ "id": 1, "content": "</s>", "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": true }],
        "pre_tokenizer": { "type": "WhitespaceSplit" },
        "model": { "type": "WordLevel", "unk_token": "<unk>", "vocab": vocab }
    });
    fs::write(workspace.path("tokenizer.json"), file.to_string()).unwrap();
    workspace
}

/// Every word of a line, of which none is glued to another.
/// Words that were joined are not in the list. `<unk>` is there where a model was unsure.
fn known(line: &str) -> usize {
    let words: Vec<_> = line.split_whitespace().collect();
    assert!(words.iter().all(|word| WORDS.contains(word) || *word == "<unk>"), "{line}");
    words.len()
}

/// Lines of standard output; the command must have succeeded.
fn lines(found: &Outcome) -> Vec<String> {
    found.succeeded();
    found.stdout.lines().map(str::to_owned).collect()
}

/// A space stands between all words: after a prompt, after a special token, after each line of a conversation, and in the sample.
/// Tokens that are decoded a few at a time lose the space where a piece begins.
#[test]
fn words_are_apart_wherever_a_text_goes_on() {
    let workspace = words();
    let trained = workspace.run(&TRAIN.split_whitespace().collect::<Vec<_>>());
    trained.succeeded();
    // The largest number is 71, and the vocabulary has one more.
    let config: serde_json::Value =
        serde_json::from_slice(&fs::read(workspace.path("runs/words/config.json")).unwrap()).unwrap();
    assert_eq!(config["vocab_size"].as_u64().or(config["vocabulary_size"].as_u64()), Some(72));
    let sample = trained.stdout.split("sample, after the prompt ").nth(1).expect("a sample");
    let (prompt, text) = sample.split_once(":\n\n").expect("a prompt and a text");
    assert!(text.starts_with(prompt.trim_matches('"')), "{sample}");
    assert!(known(text) > 50);
    // At a temperature of 2 unlikely words are drawn too, so that many pairs have their chance to be joined.
    let generated = workspace.run(&["generate", "--prompt", "the cat sat", "--tokens", "40", "--temperature", "2"]);
    let text = lines(&generated).join(" ");
    assert!(text.starts_with("the cat sat ") && known(&text) > 20, "{text}");
    for more in [&[][..], &["--continue"][..]] {
        let flags = [&["generate", "--interactive", "--tokens", "12", "--temperature", "2"][..], more].concat();
        let answers = lines(&workspace.run_fed(&flags, "the cat\nthe cat\n\nsaw two\n"));
        assert_eq!(answers.len(), 3, "{answers:?}");
        assert!(answers.iter().all(|answer| answer.starts_with(' ') && known(answer) > 2), "{answers:?}");
        // Draws go on from answer to answer: the same line is not answered alike.
        assert_ne!(answers[0], answers[1]);
    }
}

/// A line that is no text is told of, and the next one is answered.
/// `ff` is in no UTF-8; the lines before and after it are plain words.
#[test]
fn a_bad_byte_ends_no_conversation() {
    let workspace = words();
    workspace.run(&TRAIN.split_whitespace().collect::<Vec<_>>()).succeeded();
    fs::write(workspace.path("lines"), b"the cat\nca\xff\nthe mat\n").unwrap();
    let mut command = workspace.command(&["generate", "--interactive", "--tokens", "5"]);
    let found = Outcome::new(command.stdin(fs::File::open(workspace.path("lines")).unwrap()).output().unwrap());
    found.succeeded();
    assert_eq!(found.stdout.lines().count(), 2, "{found:?}");
    assert!(found.stderr.contains("line 2 is not UTF-8 at byte 2"), "{found:?}");
}

/// Figures of a text in one piece and in many are those of the bytes of its tokens, and memory stays in bounds.
#[cfg(target_os = "linux")]
#[test]
fn a_long_text_takes_bounded_room() {
    let workspace = words();
    let text = fs::read_to_string(workspace.path("words.txt")).unwrap();
    // Some ten megabytes, of which a step learns 32 tokens.
    fs::write(workspace.path("words.txt"), text.repeat(3_000)).unwrap();
    let bytes = fs::metadata(workspace.path("words.txt")).unwrap().len();
    let flags = "--steps 1 --measure 0.1 --overwrite --threads 1";
    let peak =
        super::texts::peak_of(workspace.spawn(&TRAIN.split_whitespace().chain(flags.split(' ')).collect::<Vec<_>>()));
    // The text and its tokens; a window of a quarter of a megabyte, however long the text is; and the program itself.
    assert!((peak as u64) < 4 * bytes + 150_000_000, "{peak} for {bytes}");
}
