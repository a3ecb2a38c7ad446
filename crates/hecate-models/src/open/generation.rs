//! `generation_config.json`: how a model is to continue texts.

use crate::{
    Error, Result,
    files::{self, JSON, Links, is_there},
};
use serde_json::Value;
use std::path::Path;

/// Tokens that end a text: of the folder's `generation_config.json`, else those of `config.json`.
///
/// # Errors
/// [`Error::Io`]; [`Error::Checkpoint`] for a file that says something else than a token or a list of them.
pub(super) fn ends(folder: &Path, of_config: &Value) -> Result<Vec<u32>> {
    let path = folder.join("generation_config.json");
    if is_there(&path) {
        let content = files::read(&path, Links::Follow, JSON)?;
        let found: Value = serde_json::from_slice(crate::files::unmarked(&content))
            .map_err(|error| Error::checkpoint(&path, format!("{error}; use a copy of it as it was published")))?;
        if let Some(found) = found.get("eos_token_id").filter(|found| !found.is_null()) {
            return tokens(&path, found);
        }
    }
    tokens(&folder.join("config.json"), of_config)
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
