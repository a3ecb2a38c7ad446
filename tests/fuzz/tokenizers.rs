//! Files of tokenizers of all kinds, damaged a little and changed much: they are read or refused, in bounded time and memory.

use crate::{
    damage::{changes, damaged},
    hold, sound,
};
use hecate_models::Vocabulary;
use proptest::{collection::vec, prelude::*, sample::Index};
use serde_json::{Value, json};
use std::{
    path::Path,
    time::{Duration, Instant},
};

/// No file of these takes as long: a case is a file of a few kilobytes and a text of a few words.
const LONGEST: Duration = Duration::from_secs(20);

/// Models of the five kinds, with stages of all sorts around them.
fn files() -> Vec<Value> {
    let bytes: serde_json::Map<String, Value> = ('!'..='~')
        .map(|c| c.to_string())
        .chain(["\u{120}".to_owned(), "ab".to_owned()])
        .zip((0..).map(Value::from))
        .collect();
    let words = json!({ "<s>": 0, "a": 1, "b": 2, "##b": 3, "ab": 4, "[UNK]": 5, "\u{2581}a": 6 });
    let model = |kind: &str, vocab: Value| json!({ "type": kind, "vocab": vocab, "unk_token": "[UNK]" });
    let mut bpe = model("BPE", words.clone());
    bpe["merges"] = json!([["a", "b"]]);
    let mut byte_level = json!({ "type": "BPE", "vocab": bytes, "merges": ["a b"] });
    byte_level["end_of_word_suffix"] = json!("");
    let mut word_piece = model("WordPiece", words.clone());
    (word_piece["continuing_subword_prefix"], word_piece["max_input_chars_per_word"]) = (json!("##"), json!(100));
    let unigram =
        json!({ "type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0.0], ["a", -1.0], ["\u{2581}ab", -2.5]] });
    let replace = json!({ "type": "Replace", "pattern": { "String": "a" }, "content": "b" });
    let regex = json!({ "type": "Replace", "pattern": { "Regex": "a+(?!b)" }, "content": "c" });
    let metaspace =
        json!({ "type": "Metaspace", "replacement": "\u{2581}", "prepend_scheme": "always", "split": true });
    let level = json!({ "type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true });
    let list = |name: &str, parts: &[&Value]| json!({ "type": "Sequence", name: parts });
    let prepend = json!({ "type": "Prepend", "prepend": "_" });
    let split = json!({ "type": "Split", "pattern": { "Regex": " ?[a-z]+" }, "behavior": "Isolated", "invert": false });
    let strip = json!({ "type": "Strip", "content": " ", "start": 1, "stop": 0 });
    let file = |model: &Value, normalizer: Value, pre_tokenizer: Value, decoder: Value| {
        json!({ "version": "1.0", "truncation": null, "padding": null,
            "added_tokens": [{ "id": 0, "content": "<s>", "single_word": false, "lstrip": false, "rstrip": true,
                "normalized": false, "special": true }],
            "normalizer": normalizer, "pre_tokenizer": pre_tokenizer, "decoder": decoder, "model": model,
            "post_processor": { "type": "TemplateProcessing", "pair": [],
                "single": [{ "SpecialToken": { "id": "<s>", "type_id": 0 } }, { "Sequence": { "id": "A", "type_id": 0 } }],
                "special_tokens": { "<s>": { "id": "<s>", "ids": [0], "tokens": ["<s>"] } } } })
    };
    let fuse = json!({ "type": "Fuse" });
    vec![
        file(
            &bpe,
            list("normalizers", &[&prepend, &replace]),
            Value::Null,
            list("decoders", &[&json!({ "type": "ByteFallback" }), &fuse, &strip]),
        ),
        file(&byte_level, json!({ "type": "NFC" }), list("pretokenizers", &[&split, &level]), level.clone()),
        file(
            &word_piece,
            json!({ "type": "Lowercase" }),
            json!({ "type": "BertPreTokenizer" }),
            json!({ "type": "WordPiece", "prefix": "##", "cleanup": true }),
        ),
        file(&unigram, regex, metaspace.clone(), metaspace),
        file(
            &model("WordLevel", words),
            json!({ "type": "StripAccents" }),
            json!({ "type": "Whitespace" }),
            json!({ "type": "CTC", "pad_token": "a", "word_delimiter_token": "|", "cleanup": true }),
        ),
    ]
}

/// What a file may do with a text; a panic or too long a time fails the case.
fn used(file: &[u8]) -> Result<bool, TestCaseError> {
    let began = Instant::now();
    let read = sound("Vocabulary::from_json", || Vocabulary::from_json(Path::new("tokenizer.json"), file))?;
    let taken = read.is_ok();
    if let Ok(vocabulary) = read {
        let _ = sound("Vocabulary::encode", || vocabulary.encode("ab ba\u{e9} <s> aaaa  ab"))?;
        let _ = sound("Vocabulary::decode", || vocabulary.decode(&[1, 3, 4, 0, 1]))?;
        let _ = sound("Vocabulary::decode", || vocabulary.decode(&[1, u32::MAX]))?;
        let mut decoder = vocabulary.decoder();
        let _ = sound("Decoder::skip", || decoder.skip(&[0, 1]))?;
        for token in [3, 4, 4] {
            let _ = sound("Decoder::push", || decoder.push(token))?;
        }
        let _ = sound("Decoder::finish", || decoder.finish())?;
    }
    prop_assert!(began.elapsed() < LONGEST, "{:?}", began.elapsed());
    Ok(taken)
}

#[test]
fn damaged_tokenizers_are_read_or_refused() {
    let files = files();
    for file in &files {
        assert!(used(file.to_string().as_bytes()).expect("sound"), "{file}");
    }
    hold(300, &(any::<Index>(), changes()), |(file, changes)| {
        used(&damaged(file.get(&files).to_string().as_bytes(), &changes)).map(drop)
    });
}

/// What is put in the place of a value, or around it.
#[derive(Clone, Debug)]
enum Change {
    /// A text becomes so many times itself.
    Longer(usize),
    /// A list has so many times its entries, an object so many entries more.
    More(usize),
    /// A stage stands in so many lists of stages.
    Deeper(usize),
    /// A number becomes this one.
    Number(u64),
    /// A stage or a model of another file.
    Other(Index),
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        prop::sample::select(vec![10, 1_000, 100_000]).prop_map(Change::Longer),
        prop::sample::select(vec![3, 40, 2_000]).prop_map(Change::More),
        (2..200_usize).prop_map(Change::Deeper),
        prop::sample::select(vec![0, 1, 1 << 24, u64::from(u32::MAX), 1 << 62, u64::MAX]).prop_map(Change::Number),
        any::<Index>().prop_map(Change::Other),
    ]
}

/// All values inside of a file, by the way to them.
fn places(value: &Value, at: &str, all: &mut Vec<String>) {
    all.push(at.to_owned());
    match value {
        Value::Object(fields) => {
            fields.iter().for_each(|(name, inner)| {
                places(inner, &format!("{at}/{}", name.replace('~', "~0").replace('/', "~1")), all)
            });
        }
        Value::Array(list) => list.iter().enumerate().for_each(|(i, inner)| places(inner, &format!("{at}/{i}"), all)),
        _ => {}
    }
}

fn apply(file: &mut Value, (place, change): &(Index, Change), others: &[Value]) {
    let mut all = Vec::new();
    places(file, "", &mut all);
    let at = place.get(&all).clone();
    let Some(value) = file.pointer_mut(&at) else { return };
    match (change, &mut *value) {
        (Change::Longer(times), Value::String(text)) => *text = text.repeat(*times),
        (Change::More(times), Value::Array(list)) => {
            *list = list.iter().cycle().take(list.len() * times).cloned().collect()
        }
        (Change::More(times), Value::Object(fields)) => {
            let entry = fields.values().next().cloned().unwrap_or(Value::Null);
            (0..*times).for_each(|i| drop(fields.insert(format!("{i}"), entry.clone())));
        }
        (Change::Number(number), Value::Number(_)) => *value = (*number).into(),
        (Change::Deeper(times), _) => {
            let list = ["normalizers", "pretokenizers", "decoders"][times % 3];
            for _ in 0..*times {
                *value = json!({ "type": "Sequence", list: [value.take()] });
            }
        }
        (Change::Other(other), _) => {
            if let Some(found) = other.get(others).pointer(&at) {
                *value = found.clone();
            }
        }
        _ => {}
    }
}

/// Long texts, long lists, deep nests, huge numbers, and parts of other kinds: one to four of them.
#[test]
fn tokenizers_out_of_proportion_are_read_or_refused() {
    let files = files();
    hold(300, &(any::<Index>(), vec((any::<Index>(), change()), 1..5)), |(file, changes)| {
        let mut file = file.get(&files).clone();
        changes.iter().for_each(|change| apply(&mut file, change, &files));
        used(file.to_string().as_bytes()).map(drop)
    });
}
