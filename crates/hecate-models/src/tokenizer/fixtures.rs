//! Small tokenizers of all kinds, as files, for tests.

use super::Vocabulary;
use serde_json::{Value, json};
use std::path::Path;

/// What the library reads of this file.
pub(super) fn vocabulary(file: &Value) -> Result<Vocabulary, String> {
    let read = Vocabulary::from_json(Path::new("tokenizer.json"), file.to_string().as_bytes());
    read.map_err(|error| error.to_string())
}

/// A file of these parts.
pub(super) fn file(model: Value, parts: &[(&str, Value)]) -> Value {
    let mut file = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
        "pre_tokenizer": null, "post_processor": null, "decoder": null, "model": model
    });
    parts.iter().for_each(|(name, part)| file[*name] = part.clone());
    file
}

/// A special token.
pub(super) fn special(id: u32, content: &str) -> Value {
    json!({ "id": id, "content": content, "single_word": false, "lstrip": true, "rstrip": false, "normalized": false,
        "special": true })
}

/// Letters that stand for bytes, in their order.
pub(super) fn byte_letters() -> Vec<char> {
    let printable = |byte: u32| matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    let mut spare = 256..;
    let code = |byte| if printable(byte) { byte } else { spare.next().expect("without end") };
    (0..256).map(code).map(|code| char::from_u32(code).expect("a letter")).collect()
}

/// Tokens and their numbers, in this order.
fn numbered(tokens: impl IntoIterator<Item = String>) -> Value {
    Value::Object(tokens.into_iter().zip(0..).map(|(token, number)| (token, json!(number))).collect())
}

/// BPE of these letters, with these merges, each of two tokens that are there.
fn bpe(letters: impl IntoIterator<Item = String>, merges: &[&str], fields: Value) -> Value {
    let merged = merges.iter().map(|merge| merge.replace(' ', ""));
    let mut model = json!({
        "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null, "end_of_word_suffix": null,
        "fuse_unk": false, "byte_fallback": false, "vocab": numbered(letters.into_iter().chain(merged)), "merges": merges
    });
    for (name, field) in fields.as_object().into_iter().flatten() {
        model[name] = field.clone();
    }
    model
}

/// Letters of the texts that are read, and how a word begins in some vocabularies.
fn letters() -> Vec<String> {
    "▁abcdefghilmnoprstuwy.,\n".chars().map(String::from).collect()
}

fn byte_words() -> impl Iterator<Item = String> {
    (0..256).map(|byte| format!("<0x{byte:02X}>"))
}

pub(super) fn byte_level(add_prefix_space: bool) -> Value {
    json!({ "type": "ByteLevel", "add_prefix_space": add_prefix_space, "trim_offsets": true, "use_regex": true })
}

pub(super) fn metaspace(scheme: &str) -> Value {
    json!({ "type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": true })
}

fn llama_decoder() -> Value {
    json!({ "type": "Sequence", "decoders": [
        { "type": "Replace", "pattern": { "String": "▁" }, "content": " " }, { "type": "ByteFallback" },
        { "type": "Fuse" }, { "type": "Strip", "content": " ", "start": 1, "stop": 0 }
    ]})
}

/// Files of the five kinds of models, as they are published, and some that split and normalize in other ways.
pub(super) fn kinds() -> Vec<(&'static str, Value)> {
    let merges = ["t h", "th e", "Ġ the", "a n", "an d", "Ġ and", "Ċ Ċ", "Ġ Ġ", "o l", "ol d"];
    let gpt = bpe(byte_letters().into_iter().map(String::from), &merges, json!({}));
    let merges = ["t h", "th e", "▁ the", "a n", "an d", "▁ and", "▁ ▁", "▁▁ ▁▁", "o l", "ol d", "a a", "aa aa"];
    let fallback = json!({ "byte_fallback": true, "fuse_unk": true, "unk_token": "<unk>" });
    let llama = bpe(["<unk>".to_owned()].into_iter().chain(byte_words()).chain(letters()), &merges, fallback);
    let words = "[UNK] the cat sat on a mat and saw two dogs run old trees by hills . , e";
    let word_level =
        json!({ "type": "WordLevel", "unk_token": "[UNK]", "vocab": numbered(words.split(' ').map(String::from)) });
    let pieces = words.split(' ').map(String::from).chain(letters().into_iter().map(|letter| format!("##{letter}")));
    let word_piece = json!({ "type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
        "max_input_chars_per_word": 100, "vocab": numbered(pieces.chain(letters())) });
    let scored = |(rank, piece): (usize, String)| json!([piece, -1.5 - rank as f64 / 7.0]);
    let pieces = ["▁the", "▁cat", "▁sat", "▁and", "▁old", "s", "at", "▁a", "the", "an"].map(String::from);
    let pieces = pieces.into_iter().chain(letters()).enumerate().map(scored);
    let vocab: Vec<Value> = [json!(["<unk>", 0.0])].into_iter().chain(pieces).collect();
    let unigram = json!({ "type": "Unigram", "unk_id": 0, "byte_fallback": false, "vocab": vocab });
    let spaces = json!({ "type": "Replace", "pattern": { "String": " " }, "content": "▁" });
    let prepended = json!({ "type": "Sequence", "normalizers": [{ "type": "Prepend", "prepend": "▁" }, spaces] });
    let bert = json!({ "type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true, "strip_accents": null,
        "lowercase": true });
    let pattern = "'s|'t| ?\\p{L}+| ?\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
    let split = json!({ "type": "Split", "pattern": { "Regex": pattern }, "behavior": "Isolated", "invert": false });
    let plain = json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false });
    let qwen = json!({ "type": "Sequence", "pretokenizers": [split, plain] });
    let ends = |id| json!([special(id, "</s>")]);
    let word_decoder = json!({ "type": "WordPiece", "prefix": "##", "cleanup": true });
    vec![
        ("byte-level BPE", file(gpt.clone(), &[("pre_tokenizer", byte_level(false)), ("decoder", byte_level(true))])),
        (
            "byte-level BPE with a space before",
            file(
                gpt.clone(),
                &[("pre_tokenizer", byte_level(true)), ("decoder", byte_level(true)), ("added_tokens", ends(266))],
            ),
        ),
        (
            "byte-level BPE by a pattern",
            file(
                gpt,
                &[("normalizer", json!({ "type": "NFC" })), ("pre_tokenizer", qwen), ("decoder", byte_level(true))],
            ),
        ),
        (
            "BPE of the whole",
            file(
                llama.clone(),
                &[("normalizer", prepended), ("decoder", llama_decoder()), ("added_tokens", ends(293))],
            ),
        ),
        ("BPE in words", file(llama, &[("pre_tokenizer", metaspace("first")), ("decoder", llama_decoder())])),
        (
            "WordLevel",
            file(word_level, &[("pre_tokenizer", json!({ "type": "Whitespace" })), ("added_tokens", ends(19))]),
        ),
        (
            "WordPiece",
            file(
                word_piece,
                &[
                    ("normalizer", bert),
                    ("pre_tokenizer", json!({ "type": "BertPreTokenizer" })),
                    ("decoder", word_decoder),
                ],
            ),
        ),
        ("Unigram", file(unigram.clone(), &[("pre_tokenizer", metaspace("always")), ("decoder", metaspace("always"))])),
        ("Unigram of the whole", file(unigram, &[("normalizer", spaces_as_marks()), ("decoder", metaspace("always"))])),
    ]
}

fn spaces_as_marks() -> Value {
    json!({ "type": "Replace", "pattern": { "String": " " }, "content": "▁" })
}

/// Words of which each kind of decoder makes something of its own.
pub(super) const WORDS: [&str; 31] = [
    "the", "##ing", "▁cat", "▁", "▁▁", "a</w>", "</w>b", "sat", "<0x41>", "<0xE2>", "<0x82>", "<0xAC>", "<0xFF>", " .",
    "n't", "H", "HH", "|", "<pad>", "ab", "c", "Ġdog", "â", "Ĥ", "¬", "do not", "\u{fffd}", " ", "  x ", "</s>", "<s>",
];

/// Kinds of decoders, alone and in chains, with what they are called.
pub(super) fn decoders() -> Vec<(&'static str, Value)> {
    let replace = |from: &str, to: &str| json!({ "type": "Replace", "pattern": { "String": from }, "content": to });
    let regex = json!({ "type": "Replace", "pattern": { "Regex": "[aeiou]+" }, "content": "*" });
    let strip = |start: u32, stop: u32| json!({ "type": "Strip", "content": " ", "start": start, "stop": stop });
    let (fuse, bytes) = (json!({ "type": "Fuse" }), json!({ "type": "ByteFallback" }));
    let chain = |decoders: &[&Value]| json!({ "type": "Sequence", "decoders": decoders });
    let bpe = json!({ "type": "BPEDecoder", "suffix": "</w>" });
    let ctc = json!({ "type": "CTC", "pad_token": "<pad>", "word_delimiter_token": "|", "cleanup": true });
    let pieces = |cleanup: bool| json!({ "type": "WordPiece", "prefix": "##", "cleanup": cleanup });
    vec![
        ("none", Value::Null),
        ("ByteLevel", byte_level(true)),
        ("WordPiece", pieces(true)),
        ("WordPiece as it is", pieces(false)),
        ("Metaspace always", metaspace("always")),
        ("Metaspace first", metaspace("first")),
        ("Metaspace never", metaspace("never")),
        ("Llama", llama_decoder()),
        ("ByteFallback, Metaspace", chain(&[&bytes, &metaspace("always")])),
        ("ByteFallback", bytes.clone()),
        ("BPE", bpe.clone()),
        ("BPE of everything", json!({ "type": "BPEDecoder", "suffix": "" })),
        ("CTC", ctc.clone()),
        ("CTC, Metaspace", chain(&[&ctc, &metaspace("always")])),
        ("Strip", json!({ "type": "Strip", "content": "H", "start": 1, "stop": 0 })),
        ("Replace", replace("▁", " ")),
        ("Replace by a pattern", regex.clone()),
        ("Fuse", fuse.clone()),
        ("Fuse, Strip of both ends", chain(&[&fuse, &strip(1, 1)])),
        ("Fuse, Strip of the end", chain(&[&fuse, &strip(0, 2)])),
        ("Fuse, Replace of a letter", chain(&[&fuse, &replace("a", "bcd"), &strip(2, 0)])),
        ("Fuse, Replace of a word", chain(&[&fuse, &replace("ab", "c")])),
        ("Fuse, pattern", chain(&[&fuse, &regex])),
        ("Fuse, WordPiece", chain(&[&fuse, &pieces(true)])),
        ("ByteLevel, Replace of what is lost", chain(&[&byte_level(true), &replace("\u{fffd}", "?")])),
        ("BPE, ByteFallback in a list", chain(&[&bpe, &chain(&[&bytes, &fuse])])),
    ]
}

/// A tokenizer of [`WORDS`] with this decoder.
pub(super) fn of_words(decoder: &Value) -> Value {
    let model = json!({ "type": "WordLevel", "unk_token": "the", "vocab": numbered(WORDS.map(String::from)) });
    let added = json!([special(29, "</s>"), special(30, "<s>")]);
    file(
        model,
        &[("pre_tokenizer", json!({ "type": "Whitespace" })), ("decoder", decoder.clone()), ("added_tokens", added)],
    )
}
