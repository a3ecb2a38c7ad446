//! Reading JSON without being generous: what is an object must be one in the file.

use crate::{Error, Result};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;
use std::path::Path;

/// The text without the byte-order mark that some editors put in front.
pub(crate) fn unmarked(content: &[u8]) -> &[u8] {
    content.strip_prefix("\u{feff}".as_bytes()).unwrap_or(content)
}

/// What the text says. Lists in the place of objects are refused, which serde would fill fields from by their order: `[]`
/// would be a value of defaults.
pub(crate) fn from_slice<T: DeserializeOwned + Serialize>(content: &[u8]) -> Result<T, String> {
    let content = unmarked(content);
    let value: T = serde_json::from_slice(content).map_err(|error| error.to_string())?;
    let found: Value = serde_json::from_slice(content).map_err(|error| error.to_string())?;
    let expected = serde_json::to_value(&value).map_err(|error| error.to_string())?;
    compare(&found, &expected, "")?;
    Ok(value)
}

/// What a JSON file says; `path` is for messages.
///
/// # Errors
/// [`Error::Checkpoint`] for text that says something else.
pub fn parse_json<T: DeserializeOwned + Serialize>(path: &Path, content: &[u8]) -> Result<T> {
    from_slice(content).map_err(|error| Error::checkpoint(path, format!("{error}; correct it, or use a copy of it")))
}

/// A value as indented JSON; `path` is for messages.
///
/// # Errors
/// [`Error::Checkpoint`] for a value that JSON cannot hold.
pub fn to_json<T: Serialize>(path: &Path, value: &T) -> Result<Vec<u8>> {
    let mut text = serde_json::to_vec_pretty(value).map_err(|error| Error::checkpoint(path, error.to_string()))?;
    text.push(b'\n');
    Ok(text)
}

/// Refuses lists where the value as it would be written has objects; `path` says where.
fn compare(found: &Value, expected: &Value, path: &str) -> Result<(), String> {
    match (found, expected) {
        (Value::Array(_), Value::Object(_)) => {
            let place = if path.is_empty() { "the file" } else { path };
            Err(format!("{place} is a list, expected an object in braces"))
        }
        (Value::Object(found), Value::Object(expected)) => {
            let dot = if path.is_empty() { "" } else { "." };
            // Names that are not written again are other words for those that are.
            let both = found.iter().filter_map(|(name, value)| Some((name, value, expected.get(name)?)));
            both.into_iter().try_for_each(|(name, value, known)| compare(value, known, &format!("{path}{dot}{name}")))
        }
        (Value::Array(found), Value::Array(expected)) => {
            let mut both = found.iter().zip(expected).enumerate();
            both.try_for_each(|(i, (value, known))| compare(value, known, &format!("{path}[{i}]")))
        }
        _ => Ok(()),
    }
}
