//! Decoding as the library does it, numbers with gaps, and files that ask for too much.

use super::{Vocabulary, fixtures::*};
use crate::{
    Random,
    sampling::{Sampler, Sampling},
};
use serde_json::{Value, json};

/// What the library makes of the whole; none where it cannot.
fn library(vocabulary: &Vocabulary, tokens: &[u32]) -> Option<String> {
    let Vocabulary::Tokenizer { tokenizer, .. } = vocabulary else { return None };
    // Some decoders look for a last word where there is none.
    let special = |token: &&u32| tokenizer.id_to_token(**token).is_some_and(|word| word != "</s>" && word != "<s>");
    if tokens.iter().filter(special).count() == 0 {
        return Some(String::new());
    }
    hecate_core::caught(|| tokenizer.decode(tokens, true).ok()).ok().flatten()
}

/// Bytes that both texts begin with.
fn shared(one: &str, other: &str) -> usize {
    one.chars().zip(other.chars()).take_while(|(a, b)| a == b).map(|(letter, _)| letter.len_utf8()).sum()
}

/// A random sequence, with a short alphabet now and then, so that runs come up.
fn sequence(random: &mut Random) -> Vec<u32> {
    let length = random.within(0..12_usize);
    let (from, to) = if random.within(0..3_u32) == 0 { (8, 13) } else { (0, WORDS.len() as u32) };
    (0..length).map(|_| random.within(from..to)).collect()
}

/// Token by token, at once, and after a prompt: always what the library makes of the whole.
#[test]
fn every_decoder_says_what_the_library_says() {
    for (name, decoder) in decoders() {
        let vocabulary = vocabulary(&of_words(&decoder)).unwrap_or_else(|why| panic!("{name}: {why}"));
        let mut random = Random::new(7);
        let mut compared = 0;
        for _ in 0..3000 {
            let tokens = sequence(&mut random);
            let Some(whole) = library(&vocabulary, &tokens) else {
                assert!(vocabulary.decode(&tokens).is_err(), "{name}: {tokens:?}");
                continue;
            };
            assert_eq!(vocabulary.decode(&tokens).ok().as_ref(), Some(&whole), "{name}: {tokens:?}");
            compared += 1;
            let prompt = random.within(0..tokens.len() + 1);
            let before = library(&vocabulary, &tokens[..prompt]);
            for (skipped, before) in [(0, Some(String::new())), (prompt, before)] {
                // What cannot be decoded by itself is no prompt.
                let Some(before) = before else { continue };
                let mut decoder = vocabulary.decoder();
                decoder.skip(&tokens[..skipped]).expect("tokens");
                let mut text = String::new();
                tokens[skipped..].iter().for_each(|&token| text.push_str(&decoder.push(token).expect("a token")));
                text.push_str(&decoder.finish().expect("a text"));
                assert_eq!(text, whole[shared(&whole, &before)..], "{name}: {tokens:?} after {skipped}");
            }
        }
        assert!(compared > 1500, "{name}: {compared} texts");
    }
}

/// What can be shown is shown at once, but for ends that a later token may change.
#[test]
fn words_are_shown_as_they_come() {
    let shown = |name: &str, words: &[&str]| -> Vec<String> {
        let decoder = decoders().into_iter().find(|(known, _)| *known == name).expect("a decoder").1;
        let vocabulary = vocabulary(&of_words(&decoder)).expect("a tokenizer");
        let id = |word: &&str| WORDS.iter().position(|known| known == word).expect("a word") as u32;
        let mut decoder = vocabulary.decoder();
        words.iter().map(|word| decoder.push(id(word)).expect("a token")).collect()
    };
    assert_eq!(shown("none", &["the", "</s>", "sat"]), ["the", "", " sat"]);
    assert_eq!(shown("Llama", &["▁cat", "</s>", "▁cat", "<0x41>", "sat"]), ["cat", "", " cat", "", "Asat"]);
    assert_eq!(shown("WordPiece", &["the", "##ing", "sat"]), ["the", "ing", " sat"]);
    assert_eq!(shown("ByteLevel", &["Ġdog", "â", "Ĥ", "¬"]), [" dog", "", "", "\u{20ac}"]);
    assert_eq!(shown("BPE", &["a</w>", "a</w>", "</w>b"]), ["a", " a", " "]);
    assert_eq!(shown("Fuse, Replace of a letter", &["c", "ab"]), ["c", "bcdb"]);
    assert_eq!(shown("Fuse, Replace of a word", &["c", "ab"]), ["", ""]);
}

/// A text of a thousand tokens keeps a few of them in memory.
#[test]
fn a_long_text_is_let_go() {
    for name in ["Llama", "ByteLevel", "WordPiece", "Metaspace always", "CTC"] {
        let decoder = decoders().into_iter().find(|(known, _)| *known == name).expect("a decoder").1;
        let vocabulary = vocabulary(&of_words(&decoder)).expect("a tokenizer");
        let mut decoder = vocabulary.decoder();
        for token in [0, 2, 20].into_iter().cycle().take(1000) {
            decoder.push(token).expect("a token");
        }
        let kept = format!("{decoder:?}");
        assert!(decoder.kept() <= 2, "{name}: {} words, {}", decoder.kept(), kept.len());
    }
}

/// The vocabulary ends with its largest number, and what lies between is never drawn.
#[test]
fn numbers_may_have_gaps() {
    let model = json!({ "type": "WordLevel", "unk_token": "a", "vocab": { "a": 0, "b": 2, "c": 3, "d": 9 } });
    let vocabulary =
        vocabulary(&file(model, &[("pre_tokenizer", json!({ "type": "Whitespace" }))])).expect("a tokenizer");
    assert_eq!((vocabulary.size(), vocabulary.gaps().to_vec()), (10, vec![1..2, 4..9]));
    let tokens = vocabulary.encode("d b c").expect("tokens");
    assert_eq!((tokens.as_slice(), vocabulary.decode(&tokens).ok()), (&[9, 2, 3][..], Some("d b c".to_owned())));
    assert_eq!(vocabulary.decode(&[9, 5, 2]).ok().as_deref(), Some("d b"));
    assert!(vocabulary.decode(&[10]).is_err());
    let options = Sampling { temperature: 1.0, top_p: 1.0, seed: 3, ..Sampling::default() };
    let mut sampler = Sampler::new(options).expect("a sampler").of(&vocabulary);
    // Numbers of nobody would be the likeliest; so would those after the last.
    let logits: Vec<f32> = (0..12).map(|number| if [0, 2, 3, 9].contains(&number) { 0.0 } else { 9.0 }).collect();
    let mut drawn: Vec<u32> = (0..200).map(|_| sampler.draw(&logits).expect("a token")).collect();
    drawn.sort_unstable();
    drawn.dedup();
    assert_eq!(drawn, [0, 2, 3, 9]);
}

/// Chance and what is put around texts do not count.
#[test]
fn a_text_has_the_same_tokens_each_time() {
    let (_, mut tokenizer) = kinds().into_iter().next().expect("one");
    tokenizer["model"]["dropout"] = json!(0.5);
    let piece = |of: &str| json!({ "Sequence": { "id": of, "type_id": 0 } });
    tokenizer["post_processor"] = json!({ "type": "TemplateProcessing", "single": [piece("A"), piece("A")], "pair": [piece("A"), piece("B")], "special_tokens": {} });
    let vocabulary = vocabulary(&tokenizer).expect("a tokenizer");
    let tokens = vocabulary.encode("the old and the").expect("tokens");
    assert_eq!(vocabulary.decode(&tokens).ok().as_deref(), Some("the old and the"));
    assert!((0..20).all(|_| vocabulary.encode("the old and the").ok().as_ref() == Some(&tokens)));
}

/// Files that would take all memory, all time or all of the stack are refused by what is wrong with them.
#[test]
fn what_is_out_of_proportion_is_refused() {
    let replace = |from: &str, to: &str| json!({ "type": "Replace", "pattern": { "String": from }, "content": to });
    let regex = |pattern: &str| json!({ "type": "Replace", "pattern": { "Regex": pattern }, "content": "" });
    let list = |part: &Value, name: &str, count: usize| json!({ "type": "Sequence", name: vec![part.clone(); count] });
    let nested = (0..60).fold(json!({ "type": "NFC" }), |inner, _| list(&inner, "normalizers", 1));
    let (long, blow) = ("x".repeat(1 << 17), byte_level(false));
    let unigram = |tokens: Vec<Value>| json!({ "type": "Unigram", "unk_id": 0, "vocab": tokens });
    let words = |vocab: Value| json!({ "type": "WordLevel", "unk_token": "a", "vocab": vocab });
    let model = || words(json!({ "a": 0 }));
    let part = |name: &'static str, part: Value| file(model(), &[(name, part)]);
    let table = |bytes: &[u8]| json!({ "type": "Precompiled", "precompiled_charsmap": base64::encode(bytes) });
    let mut long_word = model();
    long_word["max_input_chars_per_word"] = json!(1_u64 << 62);
    let mut long_prefix = model();
    long_prefix["continuing_subword_prefix"] = json!(long);
    let many: Vec<Value> = (0..20_000).map(|i| json!([format!("{i}{}", "y".repeat(1000)), -1.0])).collect();
    for (what, file) in [
        ("131072 bytes", file(unigram(vec![json!([long, 0.0])]), &[])),
        ("all its tokens together", file(unigram(many), &[])),
        ("131072 bytes", part("added_tokens", json!([special(1, &long)]))),
        ("may make", part("normalizer", list(&replace("a", "aa"), "normalizers", 40))),
        ("may make", part("normalizer", list(&json!({ "type": "Prepend", "prepend": long }), "normalizers", 50))),
        ("may make", part("normalizer", replace("", &long))),
        ("may make", part("normalizer", json!({ "prepend": long }))),
        ("may make", part("normalizer", list(&json!({ "type": "ByteLevel" }), "normalizers", 40))),
        ("may make", part("pre_tokenizer", list(&blow, "pretokenizers", 40))),
        ("may make", part("decoder", list(&replace("a", "aa"), "decoders", 40))),
        ("may make", part("decoder", list(&json!({ "type": "BPEDecoder", "suffix": "" }), "decoders", 40))),
        ("more than 64 stages", part("normalizer", list(&json!({ "type": "NFC" }), "normalizers", 100))),
        ("deep", part("normalizer", nested)),
        ("takes time without bound", part("normalizer", regex("(?=(a+)+$)(\\w|\\w\\w|\\w+)*(?<!b)$"))),
        ("takes time without bound", part("normalizer", regex("((\\w*)*)*\\1z"))),
        ("bytes, expected at most", part("normalizer", regex(&long))),
        ("deep in each other", part("normalizer", regex(&("(".repeat(5000) + "a" + &")".repeat(5000))))),
        ("a character that becomes", part("normalizer", table(&[&[0; 4][..], long.as_bytes()].concat()))),
        ("bytes that has fewer", part("normalizer", table(&[255; 9]))),
        ("max_input_chars_per_word", file(long_word, &[])),
        ("continuing_subword_prefix", file(long_prefix, &[])),
        ("expected numbers under", file(words(json!({ "a": 0, "zz": u32::MAX })), &[])),
        ("expected numbers under", part("added_tokens", json!([special(u32::MAX, "b")]))),
    ] {
        let why = vocabulary(&file).expect_err(what);
        assert!(why.contains(what) && why.contains("tokenizer.json"), "{what} is not in {why}");
    }
    // The second of two parts of a name is what counts, for the check and for the library.
    let twice =
        file(model(), &[]).to_string().replacen('{', &format!("{{\"model\":{},", unigram(vec![json!([long, 0.0])])), 1);
    let read = Vocabulary::from_json(std::path::Path::new("t"), twice.as_bytes());
    assert!(read.is_ok(), "{read:?}");
    // A mark in front is no part of a file.
    let marked = format!("\u{feff}{}", file(model(), &[]));
    assert!(Vocabulary::from_json(std::path::Path::new("t"), marked.as_bytes()).is_ok());
}

/// The largest that is accepted does no harm: its tree is built and let go on a small stack.
#[test]
fn what_is_in_proportion_is_read() {
    for (name, file) in kinds() {
        vocabulary(&file).unwrap_or_else(|why| panic!("{name}: {why}"));
    }
    let longest = json!({ "type": "Unigram", "unk_id": 0, "vocab": [["x".repeat(1024), 0.0], ["x", -1.0]] });
    let work =
        move || vocabulary(&file(longest, &[])).expect("a tokenizer").encode(&"x".repeat(5000)).expect("tokens").len();
    let thread = std::thread::Builder::new().stack_size(2 << 20).spawn(work).expect("a thread");
    assert!(thread.join().expect("no overflow") > 0);
}

/// A token's bytes are what it adds to a text: half a character of it too, and the space before a word.
#[test]
fn bytes_of_tokens_are_those_of_the_text() {
    for (name, file) in kinds() {
        let vocabulary = vocabulary(&file).unwrap_or_else(|why| panic!("{name}: {why}"));
        let tokens = vocabulary.encode("the cat sat and the old cat").expect("tokens");
        assert!(tokens.len() > 5, "{name}: {tokens:?}");
        let bytes = |tokens: &[u32]| -> Vec<u8> {
            tokens.iter().flat_map(|&token| vocabulary.bytes_of(token).expect("bytes")).collect()
        };
        let [first, whole] = [1, tokens.len()].map(|count| vocabulary.decode(&tokens[..count]).expect("a text"));
        assert_eq!(bytes(&tokens[1..]), whole.as_bytes()[first.len()..], "{name}: {tokens:?}");
        if name.starts_with("byte-level") {
            (0..=255).for_each(|byte| assert_eq!(bytes(&[byte.into()]), [byte], "{name}"));
        }
        tokens.iter().for_each(|&token| assert!(vocabulary.has_text(token), "{name}: {token}"));
        assert!(!vocabulary.has_text(vocabulary.size() as u32), "{name}");
        if name == "byte-level BPE with a space before" {
            assert_eq!(bytes(&[266]), b"</s>");
            assert!(!vocabulary.has_text(266));
        }
        if name == "BPE in words" {
            assert_eq!(bytes(&[1 + 0xc3]), [0xc3]);
        }
        assert!(vocabulary.bytes_of(vocabulary.size() as u32).is_err(), "{name}");
    }
}
