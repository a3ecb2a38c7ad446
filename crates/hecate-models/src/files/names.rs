//! Names in the folder of a model, and of a run.

use crate::{Error, Result};
use std::{fs, io, path::Path};

/// What the model is made of.
pub const CONFIG: &str = "config.json";
/// Its weights.
pub const MODEL: &str = "model.safetensors";
/// The weights of a run with the lowest loss on held-out text.
pub const BEST: &str = "best.safetensors";
/// The tokenizer, if the model does not read bytes.
pub const TOKENIZER: &str = "tokenizer.json";

/// What the names of checkpoints begin with; the step follows.
const PREFIX: &str = "checkpoint-";

/// The name of the checkpoint after `step` steps.
pub fn checkpoint_name(step: u64) -> String {
    format!("{PREFIX}{step:08}")
}

/// The step of a checkpoint of this name; none for names that are never written.
pub fn step_of(name: &str) -> Option<u64> {
    let step = name.strip_prefix(PREFIX)?.parse().ok()?;
    (name == checkpoint_name(step)).then_some(step)
}

/// Names in a folder; none if there is no such folder.
///
/// # Errors
/// [`Error::Io`] for a folder that cannot be read.
pub fn names(folder: &Path) -> Result<Vec<String>> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other.map_err(Error::io("read", folder))?,
    };
    entries
        .map(|entry| Ok(entry.map_err(Error::io("read", folder))?.file_name().to_string_lossy().into_owned()))
        .collect()
}
