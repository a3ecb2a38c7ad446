//! GGUF files, as llama.cpp has models: metadata, arrays in blocks, and the tokenizer, in one file.
//!
//! What such a file says is put in the words of the folders that it was converted from: fields of `config.json` and names of
//! arrays ([`dialect`]). From there on both are opened alike. What the converter did to values is undone where they are read
//! ([`Change`]). Source: the converters of llama.cpp (`conversion/`), and the format's description in ggml (`docs/gguf.md`).

mod change;
mod dialect;
mod header;
mod metadata;
mod special;
mod tokenizer;

pub(super) use change::Change;
pub(super) use metadata::Metadata;

use super::{
    arrays::{Array, Arrays},
    damaged,
    describe::Description,
};
use crate::{
    ChatTemplate, Error, Result, Vocabulary,
    files::{self, Links},
};
use dialect::Dialect;
use special::Special;
use std::{collections::HashMap, path::Path};

/// What a file holds, looked through and not read yet.
///
/// # Errors
/// [`Error::Io`]; [`Error::Checkpoint`] for a file that is damaged, and for what is not built yet.
pub(super) fn open(path: &Path) -> Result<(Description, Arrays, Metadata)> {
    let (file, found) = files::open(path, Links::Follow).map_err(Error::io("read", path))?;
    let (header, file) = header::read(path, file, found.len())?;
    let metadata = header.metadata;
    let in_file = |error: Error| super::in_file(path, error);
    let dialect = Dialect::of(&metadata).map_err(in_file)?;
    let fields = dialect.fields(&metadata, &header.arrays).map_err(in_file)?;
    let guessing = dialect.guessing(&metadata).map_err(in_file)?;
    let width = fields.get("head_dim").and_then(serde_json::Value::as_u64).unwrap_or(0) as usize;
    let arrays = header.arrays.into_iter().map(|array| dialect.renamed(array, width, &guessing)).collect::<Vec<_>>();
    check_names(&arrays).map_err(|why| damaged(path, why))?;
    Ok((Description::of(path, fields)?, Arrays::listed(path, file, arrays), metadata))
}

/// Refuses two arrays that are one of the model's.
fn check_names(arrays: &[Array]) -> Result<(), String> {
    let mut known = HashMap::new();
    for array in arrays {
        if let Some(other) = known.insert(&array.name, &array.stored) {
            return Err(format!("`{other}` and `{}` are the same array", array.stored));
        }
    }
    Ok(())
}

/// What tokens mean, of the tokenizer in the metadata.
///
/// # Errors
/// [`Error::Checkpoint`] for a tokenizer of a kind that is not read; as [`Vocabulary::from_json`].
pub(super) fn vocabulary(path: &Path, metadata: &Metadata) -> Result<Vocabulary> {
    let file = tokenizer::file(metadata).map_err(|error| super::in_file(path, error))?;
    Vocabulary::from_json(path, file.to_string().as_bytes())
}

/// How conversations are written: the template in the metadata, with the texts of special tokens.
///
/// # Errors
/// [`Error::Checkpoint`] where there is none, and for special tokens that the file does not have; as [`ChatTemplate::new`].
pub(super) fn chat_template(path: &Path, metadata: &Metadata) -> Result<ChatTemplate> {
    let in_file = |error: Error| super::in_file(path, error);
    let Some(source) = metadata.text("tokenizer.chat_template").map_err(in_file)? else {
        let why = "no chat template in this file: the model was not taught to converse; continue texts with it instead";
        return Err(Error::checkpoint(path, why));
    };
    ChatTemplate::new(path, source, &Special::of(metadata).map_err(in_file)?.named())
}

/// Tokens that end a text.
///
/// # Errors
/// [`Error::Checkpoint`] for what is no number of a token.
pub(super) fn ends(path: &Path, metadata: &Metadata) -> Result<Vec<u32>> {
    let mut ends = Vec::new();
    for key in ["tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id"] {
        let end = metadata.optional_size(key).map_err(|error| super::in_file(path, error))?;
        ends.extend(end.and_then(|end| u32::try_from(end).ok()).filter(|end| !ends.contains(end)));
    }
    Ok(ends)
}
