//! Texts to learn and to measure on.

use crate::{
    error::{Error, Result},
    progress,
};
use hecate_models::text::{IN_MEMORY, Text};
use std::{
    io::{Read, stdin},
    path::{Path, PathBuf},
};

/// Hecate's own sources, as they were when this program was built.
const OWN: &str = include_str!(concat!(env!("OUT_DIR"), "/sources.txt"));
/// Stands for standard input.
pub(crate) const STDIN: &str = "-";

/// The text of these files and folders, or of standard input for a dash; without any, Hecate's own sources.
pub(crate) fn load(paths: &[PathBuf]) -> Result<Text> {
    match paths {
        [] => Ok(Text::new("Hecate's own sources", OWN.to_owned())),
        [path] if is_stdin(path) => read_stdin(),
        // Where it would stand among files could not be found again.
        _ if paths.iter().any(|path| is_stdin(path)) => {
            Err(Error::flag("--text", "`-` is standard input and goes with no other text; name files, or `-` alone"))
        }
        _ => {
            let text = Text::open(paths, IN_MEMORY)?;
            introduce(&text);
            Ok(text)
        }
    }
}

/// Whether this is no file but standard input.
pub(crate) fn is_stdin(path: &Path) -> bool {
    path == Path::new(STDIN)
}

/// All of standard input.
fn read_stdin() -> Result<Text> {
    // Read to its end: the last part of it is held out.
    let mut text = String::new();
    // An error here is what a file that is not UTF-8 is.
    stdin().read_to_string(&mut text).map_err(|error| {
        Error::flag("--text -", format!("standard input cannot be read: {error}; give a text in UTF-8"))
    })?;
    if text.is_empty() {
        return Err(Error::flag("--text -", "standard input is empty; pipe a text into it, or name a file"));
    }
    Ok(Text::new("standard input", text))
}

/// Says what a text of several files is made of, and what was left out.
fn introduce(text: &Text) {
    // One file needs no line: what is trained on is told below.
    if text.files() > 1 || !text.skipped().is_empty() {
        progress::say(&format!("{} bytes of text in {} files", text.bytes(), text.files()));
    }
    // One of them shows what kind they are; a folder may have thousands.
    if let Some(first) = text.skipped().first() {
        let (count, first) = (text.skipped().len(), first.display());
        progress::say(&format!("{count} files skipped, empty or no text in UTF-8, such as {first}"));
    }
}
