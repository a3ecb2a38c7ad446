//! A GGUF file's tokenizer in the form of a `tokenizer.json`.
//!
//! Byte-level BPE alone (`tokenizer.ggml.model` is `gpt2`): its tokens and merges are in the metadata, and how texts are cut into
//! words before is a name (`tokenizer.ggml.pre`). SentencePiece's vocabularies (`llama`) and others are refused.

use super::{metadata::Metadata, special::Special};
use crate::{Error, Result, bounds::SIZE};
use serde_json::{Map, Value, json};

/// Kinds of tokens in `tokenizer.ggml.token_type` that are found in a text before it is cut into words: unknown ones, those that
/// control a model and those that users added. The first two have no text of their own.
const UNKNOWN: u64 = 2;
const CONTROL: u64 = 3;
const ADDED: u64 = 4;

/// How a text is cut into words.
enum Words {
    /// As GPT-2 does.
    Gpt2,
    /// Each digit by itself, then as GPT-2 does.
    Digits,
    /// By this pattern.
    Pattern {
        regex: &'static str,
        /// Characters are composed first (NFC).
        compose: bool,
        /// A word that is a token is taken as it is, whatever the merges say.
        whole: bool,
    },
}

/// Llama 3's: digits by three.
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// Qwen 2's: digits one by one.
const QWEN2: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// Qwen 3.5's: marks belong to letters.
const QWEN35: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

impl Words {
    /// The one of this name in files.
    fn named(name: &str) -> Option<Self> {
        let pattern = |regex, compose, whole| Self::Pattern { regex, compose, whole };
        Some(match name {
            "gpt-2" | "phi-2" => Self::Gpt2,
            "smollm" | "starcoder" | "refact" => Self::Digits,
            "llama3" | "llama-v3" | "llama-bpe" | "falcon3" => pattern(LLAMA3, false, true),
            "smaug-bpe" => pattern(LLAMA3, false, false),
            "qwen2" => pattern(QWEN2, true, false),
            "qwen35" => pattern(QWEN35, true, false),
            _ => return None,
        })
    }

    /// The stage that cuts, and then writes bytes as letters.
    fn stage(&self) -> Value {
        let bytes = |words| json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": words });
        let first = match self {
            Self::Gpt2 => return bytes(true),
            Self::Digits => json!({ "type": "Digits", "individual_digits": true }),
            Self::Pattern { regex, .. } => {
                json!({ "type": "Split", "pattern": { "Regex": regex }, "behavior": "Isolated", "invert": false })
            }
        };
        json!({ "type": "Sequence", "pretokenizers": [first, bytes(matches!(self, Self::Digits))] })
    }
}

/// The content of a `tokenizer.json` that does the same.
///
/// # Errors
/// [`Error::Config`] for a kind that is not read, and keys that are missing or of other values than they may have.
pub(super) fn file(metadata: &Metadata) -> Result<Value> {
    let kind = metadata.text("tokenizer.ggml.model")?.unwrap_or("missing");
    if kind != "gpt2" {
        let expected = "`gpt2`, byte-level BPE: other kinds are not read from GGUF files; use the model's own folder";
        return Err(Error::config("tokenizer.ggml.model", format!("`{kind}`"), expected));
    }
    let name = metadata.text("tokenizer.ggml.pre")?.unwrap_or("missing");
    let words = Words::named(name).ok_or_else(|| {
        let expected = "a way to cut words that is known, such as `gpt-2`, `smollm`, `llama-bpe`, `qwen2` or `qwen35`; use the \
                        model's own folder";
        Error::config("tokenizer.ggml.pre", format!("`{name}`"), expected)
    })?;
    if metadata.one("tokenizer.ggml.add_space_prefix")? == Some(&Value::Bool(true)) {
        return Err(Error::config(
            "tokenizer.ggml.add_space_prefix",
            true,
            "false: byte-level BPE puts no space in front",
        ));
    }
    let (vocabulary, added) = tokens(metadata)?;
    let merges = list(metadata, "tokenizer.ggml.merges")?;
    let (compose, whole) = match words {
        Words::Pattern { compose, whole, .. } => (compose, whole),
        Words::Gpt2 | Words::Digits => (false, false),
    };
    Ok(json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": added,
        "post_processor": Special::of(metadata)?.around(metadata, whole)?,
        "normalizer": if compose { json!({ "type": "NFC" }) } else { Value::Null },
        "pre_tokenizer": words.stage(),
        "decoder": { "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false },
        "model": {
            "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": whole,
            "vocab": vocabulary, "merges": merges
        }
    }))
}

/// Values of a list that has to be there.
fn list(metadata: &Metadata, key: &str) -> Result<Vec<Value>> {
    metadata.list(key, SIZE)?.ok_or_else(|| Error::config(key, "missing", "a list; use a copy as it was published"))
}

/// All tokens with their numbers, and those of them that are looked for first.
fn tokens(metadata: &Metadata) -> Result<(Map<String, Value>, Vec<Value>)> {
    let key = "tokenizer.ggml.tokens";
    let tokens = list(metadata, key)?;
    let kinds = metadata.list("tokenizer.ggml.token_type", SIZE)?.unwrap_or_default();
    let (mut vocabulary, mut added) = (Map::new(), Vec::new());
    for (number, token) in tokens.into_iter().enumerate() {
        let Value::String(token) = token else { return Err(Error::config(key, token, "a list of texts")) };
        let kind = kinds.get(number).and_then(Value::as_u64).unwrap_or(0);
        if [UNKNOWN, CONTROL, ADDED].contains(&kind) {
            added.push(json!({
                "id": number, "content": token, "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": kind != ADDED
            }));
        }
        if let Some(before) = vocabulary.insert(token.clone(), number.into()) {
            return Err(Error::config(key, format!("{token:?} as {before} and as {number}"), "different tokens"));
        }
    }
    Ok((vocabulary, added))
}
