//! Text: reading, splitting, windows, tokens and back.

use hecate_models::{
    Error, Vocabulary,
    text::{Corpus, Identity, Windows, read_text, split},
};
use proptest::prelude::*;
use std::{collections::BTreeMap, fs, path::Path};

fn why(result: hecate_models::Result<impl std::fmt::Debug>) -> String {
    match result {
        Err(error @ Error::Text { .. }) => error.to_string(),
        other => panic!("{other:?} is not about a text"),
    }
}

#[test]
fn unusable_files_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("text.txt");
    assert!(why(read_text(&path)).contains("no such file"));
    assert!(matches!(read_text(folder.path()), Err(Error::Io { .. })));
    fs::write(&path, "").unwrap();
    assert!(why(read_text(&path)).contains("empty"));
    fs::write(&path, b"caf\xc3\xa9 caf\xe9 latin").unwrap();
    let message = why(read_text(&path));
    assert!(message.contains("byte 9") && message.contains("text.txt"), "{message}");
    fs::write(&path, "caf\u{e9}").unwrap();
    assert_eq!(read_text(&path).unwrap(), "caf\u{e9}");
}

#[test]
fn a_corpus_needs_a_sequence_to_learn_and_something_to_measure() {
    let corpus =
        |text: &str, fraction, length| Corpus::new(Path::new("a.txt"), text, &Vocabulary::Bytes, fraction, length);
    let message = why(corpus(&"x".repeat(50), 0.1, 45));
    assert!(message.contains("45 tokens") && message.contains("46"), "{message}");
    assert!(why(corpus("0123456789", 0.1, 4)).contains("held-out"));
    for fraction in [0.0, 1.0, -1.0, f32::NAN] {
        assert!(matches!(corpus("0123456789", fraction, 2), Err(Error::Config { .. })));
    }
    assert!(why(corpus("0123456789", 0.1, usize::MAX)).contains("too short"));
    let corpus = corpus(&"x".repeat(50), 0.1, 44).unwrap();
    assert_eq!((corpus.train.tokens.len(), corpus.held_out.tokens.len()), (45, 5));
}

#[test]
fn identity_tells_texts_apart() {
    let text = "the quick brown fox jumps";
    for at in 0..text.len() {
        let mut other = text.as_bytes().to_vec();
        other[at] ^= 1;
        assert_ne!(Identity::of(text), Identity::of(std::str::from_utf8(&other).unwrap()));
    }
    assert_eq!(Identity::of(text), Identity::of(text));
    assert_ne!(Identity::of("a\0"), Identity::of("a"));
}

#[test]
fn windows_are_followed_by_their_targets_and_go_on_after_saving() {
    let text: Vec<u32> = (0..100).collect();
    let mut windows = Windows::new(1);
    let mut starts = std::collections::BTreeSet::new();
    for _ in 0..200 {
        let (inputs, targets) = windows.draw(&text, 3, 10).unwrap();
        assert!(inputs.iter().zip(&targets).all(|(input, target)| input + 1 == *target));
        starts.extend(inputs.chunks(10).map(|window| window[0]));
    }
    assert_eq!((starts.first(), starts.last()), (Some(&0), Some(&89)), "both ends of the text are learned");
    let mut loaded: Windows = serde_json::from_str(&serde_json::to_string(&windows).unwrap()).unwrap();
    assert_eq!(loaded.draw(&text, 5, 7).unwrap(), windows.draw(&text, 5, 7).unwrap());
    assert!(matches!(windows.draw(&text[..10], 1, 10), Err(Error::Config { .. })));
    assert!(matches!(windows.draw(&text, usize::MAX, 10), Err(Error::Config { .. })));
}

proptest! {
    #[test]
    fn splitting_keeps_every_character(text in "\\PC{1,40}", fraction in 0.0_f32..1.0) {
        let (head, tail) = split(&text, fraction);
        prop_assert_eq!(format!("{head}{tail}"), text.clone());
        prop_assert!(tail.len() as f32 >= (text.len() as f32 * fraction).floor());
    }

    #[test]
    fn bytes_decode_as_text_does(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
        let tokens: Vec<u32> = bytes.iter().map(|&byte| byte.into()).collect();
        let decoded = Vocabulary::Bytes.decode(&tokens).unwrap();
        prop_assert_eq!(decoded, String::from_utf8_lossy(&bytes).into_owned());
    }

    #[test]
    fn tokens_come_back_as_their_text(text in "\\PC{0,40}") {
        for vocabulary in [Vocabulary::Bytes, tokenizer()] {
            let tokens = vocabulary.encode(&text).unwrap();
            prop_assert_eq!(vocabulary.decode(&tokens).unwrap(), text.clone());
        }
    }
}

#[test]
fn text_may_end_with_what_stands_for_lost_characters() {
    for vocabulary in [Vocabulary::Bytes, tokenizer()] {
        let text = "a\u{fffd}\u{fffd}";
        assert_eq!(vocabulary.decode(&vocabulary.encode(text).unwrap()).unwrap(), text);
    }
}

#[test]
fn half_a_character_waits_for_the_rest() {
    for vocabulary in [Vocabulary::Bytes, tokenizer()] {
        let mut decoder = vocabulary.decoder();
        let tokens = vocabulary.encode("a\u{20ac}b").unwrap();
        let pieces: Vec<String> = tokens.iter().map(|&token| decoder.push(token).unwrap()).collect();
        assert_eq!(pieces, ["a", "", "", "\u{20ac}", "b"]);
        decoder.push(tokens[1]).unwrap();
        assert_eq!(decoder.finish(), "\u{fffd}");
        assert!(matches!(decoder.push(100_000), Err(Error::Config { .. })));
    }
}

#[test]
fn a_file_that_is_no_tokenizer_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tokenizer.json");
    assert!(matches!(Vocabulary::from_file(&path), Err(Error::Io { .. })));
    fs::write(&path, "{\"version\": 3}").unwrap();
    assert!(matches!(Vocabulary::from_file(&path), Err(Error::Tokenizer { .. })));
}

/// A byte-level tokenizer in the form of GPT-2's, without merges.
fn tokenizer() -> Vocabulary {
    let printable = |byte: u32| matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    let mut spare = 256..;
    let symbol = |byte: u32| if printable(byte) { byte } else { spare.next().unwrap() };
    let symbols = (0..256).map(symbol).map(|code| char::from_u32(code).unwrap().to_string());
    let vocabulary: BTreeMap<String, u32> = symbols.zip(0..).collect();
    let bytes = serde_json::json!({
        "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false
    });
    let json = serde_json::json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
        "pre_tokenizer": bytes, "post_processor": null, "decoder": bytes,
        "model": { "type": "BPE", "vocab": vocabulary, "merges": [] }
    });
    Vocabulary::from_json(Path::new("tokenizer.json"), json.to_string().as_bytes()).unwrap()
}
