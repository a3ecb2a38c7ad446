//! Windows give the tokens of the whole.

use super::*;
use crate::{
    Random, Vocabulary,
    tokenizer::fixtures::{kinds, vocabulary},
};

/// Lines of words, with runs of spaces, of one letter and of line ends, characters of several bytes, and special tokens.
fn text(random: &mut Random, bytes: usize) -> String {
    const PARTS: [&str; 18] = [
        "the",
        "cat",
        "sat",
        "old",
        "and",
        "trees",
        "</s>",
        "\n",
        "\n\n",
        "   ",
        ".",
        ",",
        "\u{20ac}",
        "e\u{301}",
        "1234567",
        "aaaaaaa",
        "\u{4e2d}\u{6587}",
        "zebra",
    ];
    let mut text = String::new();
    while text.len() < bytes {
        text.push_str(PARTS[random.within(0..PARTS.len())]);
        if random.within(0..6_u32) > 0 {
            text.push(' ');
        }
    }
    text
}

/// Tokens and the bytes of each: those of the text in windows of so many bytes.
fn read(vocabulary: &Vocabulary, text: &str, window: usize) -> (Vec<u32>, Vec<u64>) {
    let Vocabulary::Tokenizer { path, tokenizer, growth, .. } = vocabulary else { panic!("a tokenizer") };
    let reader = Reader { window, ..Reader::new(path, tokenizer, *growth, text) };
    let tokens = reader.read().expect("tokens").finish(text.len());
    let bytes = (0..tokens.len()).map(|token| tokens.bytes_of(token..token + 1).expect("known")).collect();
    (tokens.to_vec().expect("tokens"), bytes)
}

#[test]
fn windows_have_the_tokens_of_the_whole() {
    for (name, file) in kinds() {
        let vocabulary = vocabulary(&file).unwrap_or_else(|why| panic!("{name}: {why}"));
        let mut random = Random::new(3);
        for bytes in [0, 1, 3_000, 20_000] {
            let text = text(&mut random, bytes);
            let whole = read(&vocabulary, &text, usize::MAX);
            assert_eq!(whole.1.iter().sum::<u64>(), if whole.0.is_empty() { 0 } else { text.len() as u64 }, "{name}");
            for window in [1_000, 4_099] {
                let found = read(&vocabulary, &text, window);
                assert!(found == whole, "{name}: {bytes} bytes in windows of {window}");
            }
        }
    }
}

/// A run of one letter has borders that depend on where it begins, and a word of WordPiece has none: windows become longer.
#[test]
fn texts_without_a_border_are_read_in_longer_windows() {
    for (name, file) in kinds() {
        let vocabulary = vocabulary(&file).unwrap_or_else(|why| panic!("{name}: {why}"));
        for part in ["a", "    ", "z", "\n", "\u{20ac}"] {
            let text = format!("the cat {} sat on the mat {}", part.repeat(3001), "the old trees ".repeat(400));
            assert!(read(&vocabulary, &text, 1_000) == read(&vocabulary, &text, usize::MAX), "{name}: {part:?}");
        }
    }
}

/// Pieces of so many letters depend on all that is before them: they agree nowhere, or where they are right.
#[test]
fn what_depends_on_the_start_is_read_right() {
    let (_, mut file) = kinds().into_iter().find(|(name, _)| *name == "BPE in words").expect("it");
    file["pre_tokenizer"] = serde_json::json!({ "type": "FixedLength", "length": 7 });
    let vocabulary = vocabulary(&file).expect("a tokenizer");
    let text = text(&mut Random::new(5), 20_000);
    assert!(read(&vocabulary, &text, 1_000) == read(&vocabulary, &text, usize::MAX));
}
