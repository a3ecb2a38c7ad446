//! `generation_config.json`: how a model is to continue texts.

use super::in_file;
use crate::{
    Error, Result,
    files::{self, CONFIG, JSON, Links, is_there},
    sampling::{Sampler, Sampling},
};
use serde_json::Value;
use std::path::Path;

/// The file's name.
const GENERATION: &str = "generation_config.json";
/// Its fields that say how tokens are drawn.
const DRAWS: [&str; 6] = ["do_sample", "temperature", "top_k", "top_p", "min_p", "repetition_penalty"];

/// Tokens that end a text: of the folder's `generation_config.json`, else those of `config.json`.
///
/// # Errors
/// [`Error::Io`]; [`Error::Checkpoint`] for a file that says something else than a token or a list of them.
pub(super) fn ends(folder: &Path, of_config: &Value) -> Result<Vec<u32>> {
    match fields(folder)?.get("eos_token_id").filter(|found| !found.is_null()) {
        Some(found) => tokens(&folder.join(GENERATION), found),
        None => tokens(&folder.join(CONFIG), of_config),
    }
}

/// How the folder's `generation_config.json` says that tokens are drawn; none where it says nothing of it. What it leaves out is
/// then as transformers has it: a temperature of 1, the 50 likeliest tokens, all of them for top-p.
///
/// # Errors
/// [`Error::Io`]; [`Error::Checkpoint`] for values of other types, or out of their ranges.
pub(super) fn sampling(folder: &Path) -> Result<Option<Sampling>> {
    let (fields, path) = (fields(folder)?, folder.join(GENERATION));
    let found = |name: &str| fields.get(name).filter(|found| !found.is_null());
    if DRAWS.iter().all(|name| found(name).is_none()) {
        return Ok(None);
    }
    let wrong = |name: &str, expected: &str| {
        let found = found(name).unwrap_or_default();
        Error::checkpoint(
            &path,
            format!("`{name}` is {found}, expected {expected}; use a copy of it as it was published"),
        )
    };
    let number = |name: &str, otherwise: f32| {
        let number = found(name).map_or(Some(otherwise), |found| found.as_f64().map(|number| number as f32));
        number.ok_or_else(|| wrong(name, "a number"))
    };
    let draws =
        found("do_sample").map_or(Some(true), Value::as_bool).ok_or_else(|| wrong("do_sample", "true or false"))?;
    let top_k = found("top_k").map_or(Some(50), Value::as_u64).and_then(|top_k| usize::try_from(top_k).ok());
    let sampling = Sampling {
        temperature: if draws { number("temperature", 1.0)? } else { 0.0 },
        top_k: top_k.ok_or_else(|| wrong("top_k", "a whole number, 0 for no limit"))?,
        top_p: number("top_p", 1.0)?,
        min_p: number("min_p", 0.0)?,
        repetition_penalty: number("repetition_penalty", 1.0)?,
        ..Sampling::default()
    };
    // A sampler knows the ranges.
    Sampler::new(sampling).map_err(|error| in_file(&path, error))?;
    Ok(Some(sampling))
}

/// The file's content; null where there is none.
fn fields(folder: &Path) -> Result<Value> {
    let path = folder.join(GENERATION);
    if !is_there(&path) {
        return Ok(Value::Null);
    }
    let content = files::read(&path, Links::Follow, JSON)?;
    serde_json::from_slice(files::unmarked(&content))
        .map_err(|error| Error::checkpoint(&path, format!("{error}; use a copy of it as it was published")))
}

/// A token, a list of them, or null for none.
fn tokens(path: &Path, found: &Value) -> Result<Vec<u32>> {
    let all = match found {
        Value::Null => &[],
        Value::Array(all) => &all[..],
        one => std::slice::from_ref(one),
    };
    let token = |found: &Value| {
        let token = found.as_u64().and_then(|token| u32::try_from(token).ok());
        token.ok_or_else(|| Error::checkpoint(path, format!("`eos_token_id` has {found}, expected numbers of tokens")))
    };
    all.iter().map(token).collect()
}
