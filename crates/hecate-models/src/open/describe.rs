//! What `config.json` says of a released model.

use super::in_file;
use crate::{Error, Result, architectures::Family};
use serde_json::{Map, Value};
use std::path::Path;

/// Families that are not built, by the beginnings of their names, and what each needs that there is not.
const NOT_BUILT: [(&str, &str); 14] = [
    (
        "glm5_next",
        "residual streams mixed by hyper-connections, attention by an indexer over pooled keys, clamped SwiGLU, experts",
    ),
    ("kimi_k3", "SiTU, attention over the residuals of blocks, experts in a latent width, a gate on latent attention"),
    ("qwen4_exp", "hyper-connections, hashed n-gram embeddings, attention by an indexer"),
    ("inkling", "layers that nothing public describes"),
    ("dory", "looped blocks of normalised weights, and it has no memory"),
    ("qwen3_next", "experts"),
    ("qwen3_5_moe", "experts"),
    ("lara_mini", "experts"),
    ("nemotron_h", "MLPs of squared rectifiers, experts"),
    ("lfm2_moe", "experts"),
    ("rwkv7", "retention by channel with a low-rank erase"),
    ("kda", "retention by channel"),
    ("kimi_linear", "retention by channel, latent attention, experts"),
    ("bailing_hybrid", "retention by channel, latent attention, experts"),
];

/// What a configuration says.
#[derive(Debug)]
pub(super) struct Description {
    /// The family's name.
    pub(super) model_type: String,
    pub(super) family: Family,
    /// `eos_token_id`, if it is there.
    pub(super) ends: Value,
}

impl Description {
    /// Of a file's content.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] for what is no configuration, and for what is not built yet.
    pub(super) fn read(path: &Path, content: &[u8]) -> Result<Self> {
        let found = serde_json::from_slice(&infinities(crate::files::unmarked(content)));
        let found =
            found.map_err(|error| Error::checkpoint(path, format!("{error}; use a copy of it as it was published")))?;
        let Value::Object(fields) = found else {
            return Err(Error::checkpoint(path, "no object in braces; use a copy of it as it was published"));
        };
        Self::of(path, inner(fields))
    }

    /// Of the fields of a text's model.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] for what is not built yet.
    pub(super) fn of(path: &Path, fields: Map<String, Value>) -> Result<Self> {
        refuse_quantised(&fields).map_err(|error| in_file(path, error))?;
        let Some(Value::String(model_type)) = fields.get("model_type").cloned() else {
            let why = "no `model_type` in it, the name of a family of models; use a copy of it as it was published";
            return Err(Error::checkpoint(path, why));
        };
        let ends = fields.get("eos_token_id").cloned().unwrap_or_default();
        let family = Family::read(&model_type, fields).unwrap_or_else(|| Err(unknown(&model_type)));
        Ok(Self { family: family.map_err(|error| in_file(path, error))?, model_type, ends })
    }
}

/// JSON in which the bare word `Infinity`, as Python writes it, is the object that newer files have in its place.
fn infinities(json: &[u8]) -> Vec<u8> {
    const WORD: &[u8] = b"Infinity";
    let (mut written, mut rest, mut quoted) = (Vec::with_capacity(json.len()), json, false);
    while let [byte, behind @ ..] = rest {
        let taken = match byte {
            b'I' if !quoted && rest.starts_with(WORD) => {
                written.extend_from_slice(br#"{"__float__":"Infinity"}"#);
                rest = &rest[WORD.len()..];
                continue;
            }
            // What follows a backslash ends no text.
            b'\\' if quoted && !behind.is_empty() => 2,
            _ => 1,
        };
        quoted ^= *byte == b'"';
        written.extend_from_slice(&rest[..taken]);
        rest = &rest[taken..];
    }
    written
}

/// The text's fields of a model that sees or hears, else the fields themselves. The outer word on tied embeddings wins, and
/// quantisation is told on either level.
fn inner(mut fields: Map<String, Value>) -> Map<String, Value> {
    let Some(Value::Object(mut text)) = fields.remove("text_config") else { return fields };
    for name in ["tie_word_embeddings", "quantization_config", "model_type", "eos_token_id"] {
        let wins = name == "tie_word_embeddings" || text.get(name).is_none_or(Value::is_null);
        if let Some(outer) = fields.remove(name).filter(|outer| wins && !outer.is_null()) {
            text.insert(name.to_owned(), outer);
        }
    }
    text
}

/// Refuses weights in few bits of others' formats.
fn refuse_quantised(fields: &Map<String, Value>) -> Result<()> {
    let Some(found) = fields.get("quantization_config").filter(|found| !found.is_null()) else { return Ok(()) };
    let method = found.get("quant_method").or_else(|| found.get("format")).unwrap_or(found);
    let expected = "none: quantised weights of others are not read; use the model as it was before it was quantised";
    Err(Error::config("quantization_config", method, expected))
}

/// The error of a family that is not built.
fn unknown(model_type: &str) -> Error {
    // The longest name first: some begin as others do.
    let known = NOT_BUILT.iter().filter(|(name, _)| model_type.starts_with(name)).max_by_key(|(name, _)| name.len());
    let known = known.map_or_else(String::new, |(_, lacks)| format!(", which needs what is not built yet: {lacks}"));
    let names = Family::NAMES.join(", ");
    Error::config("model_type", format!("`{model_type}`{known}"), format!("one of {names}"))
}
