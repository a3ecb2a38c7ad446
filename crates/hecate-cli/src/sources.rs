//! Texts to learn and to measure on.

use crate::error::Result;
use hecate_models::text::read_text;
use std::path::{Path, PathBuf};

/// Hecate's own sources, as they were when this program was built.
const OWN: &str = include_str!(concat!(env!("OUT_DIR"), "/sources.txt"));

/// A text and what to call it.
pub(crate) struct NamedText {
    pub(crate) path: PathBuf,
    pub(crate) text: String,
}

/// Reads the file, or takes Hecate's own sources.
pub(crate) fn load(path: Option<&Path>) -> Result<NamedText> {
    Ok(match path {
        Some(path) => NamedText { path: path.to_owned(), text: read_text(path)? },
        None => NamedText { path: PathBuf::from("Hecate's own sources"), text: OWN.to_owned() },
    })
}
