//! Where a model's folder has its template, and the texts of its special tokens.

use crate::{
    Error, Result,
    files::{self, JSON, Links, is_there, unmarked},
};
use serde_json::Value;
use std::path::{Path, PathBuf};

/// Bytes of a template; published ones have some 20 thousand.
const TEMPLATE: usize = 1 << 20;
/// Tokens that templates write by these names.
const TOKENS: [&str; 4] = ["bos_token", "eos_token", "pad_token", "unk_token"];

/// A template that nobody has looked into.
pub(super) struct Source {
    /// Its file.
    pub(super) path: PathBuf,
    pub(super) text: String,
    /// Names and texts of special tokens.
    pub(super) tokens: Vec<(String, String)>,
}

impl Source {
    /// Of a model's folder.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::Checkpoint`] where there is none, for one that is too large, and for damaged files.
    pub(super) fn open(folder: &Path) -> Result<Self> {
        let (own, config) = (folder.join("chat_template.jinja"), folder.join("tokenizer_config.json"));
        let fields = fields(&config)?;
        let tokens = TOKENS.into_iter().filter_map(|name| Some((name.to_owned(), token(&fields, name)?.to_owned())));
        let tokens = tokens.collect();
        if is_there(&own) {
            let content = files::read(&own, Links::Follow, TEMPLATE as u64)?;
            let text = String::from_utf8(unmarked(&content).to_vec());
            let text = text.map_err(|error| Error::checkpoint(&own, format!("{error}; save it as UTF-8")))?;
            return Ok(Self { path: own, text, tokens });
        }
        let Some(text) = of_config(fields.get("chat_template")) else {
            let why =
                "no chat template in this folder: the model was not taught to converse; continue texts with it instead";
            return Err(Error::checkpoint(folder, why));
        };
        Ok(Self { text: text.to_owned(), path: config, tokens })
    }

    /// Refuses a template that is too large.
    pub(super) fn check(&self) -> Result<()> {
        if self.text.len() <= TEMPLATE {
            return Ok(());
        }
        let found = format!("the chat template has {} bytes, expected at most {TEMPLATE}", self.text.len());
        Err(Error::checkpoint(&self.path, format!("{found}; use the file as it was published")))
    }
}

/// What `tokenizer_config.json` says; null where there is none.
fn fields(path: &Path) -> Result<Value> {
    if !is_there(path) {
        return Ok(Value::Null);
    }
    let fields = serde_json::from_slice(unmarked(&files::read(path, Links::Follow, JSON)?));
    fields.map_err(|error| Error::checkpoint(path, format!("{error}; use a copy of it as it was published")))
}

/// The text of a special token, which is there itself or in an object with more about it.
fn token<'a>(fields: &'a Value, name: &str) -> Option<&'a str> {
    let token = fields.get(name)?;
    token.as_str().or_else(|| token.get("content")?.as_str())
}

/// The template in `tokenizer_config.json`: a text, or of a list of named ones that named `default`.
fn of_config(found: Option<&Value>) -> Option<&str> {
    match found? {
        Value::Array(named) => named.iter().find(|one| one["name"] == "default")?["template"].as_str(),
        one => one.as_str(),
    }
}
