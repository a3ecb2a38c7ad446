//! A tokenizer out of its file.

use super::{Vocabulary, around, limits};
use crate::{
    Error, Result,
    bounds::SIZE,
    files::{JSON, unmarked},
};
use hecate_core::caught;
use serde_json::Value;
use std::{ops::Range, path::Path};
use tokenizers::Tokenizer;

/// What [`Vocabulary::from_json`] does.
pub(super) fn read(path: &Path, bytes: &[u8]) -> Result<Vocabulary> {
    let refuse = |why: String| {
        let why = format!("not a tokenizer.json: {why}; use a copy of it, or another one");
        Error::Tokenizer { path: path.to_owned(), why }
    };
    if bytes.len() as u64 > JSON {
        return Err(refuse(format!("{} bytes, expected at most {JSON}", bytes.len())));
    }
    let file: Value = serde_json::from_slice(unmarked(bytes)).map_err(|error| refuse(error.to_string()))?;
    let around = around::of_file(&file["post_processor"]);
    let (file, growth) = limits::checked(file).map_err(refuse)?;
    // What was checked is what the library reads: a name that stands twice in the file is there once.
    let tokenizer = guarded(|| Ok(serde_json::from_value::<Tokenizer>(file)?)).map_err(refuse)?;
    let (size, gaps) = numbers(&tokenizer).map_err(refuse)?;
    let (path, tokenizer, gaps) = (path.to_owned(), Box::new(tokenizer), gaps.into());
    Ok(Vocabulary::Tokenizer { path, tokenizer, size, gaps, growth, around })
}

/// The largest number of a token and one more, and the numbers below it that no token has.
fn numbers(tokenizer: &Tokenizer) -> Result<(usize, Vec<Range<u32>>), String> {
    let vocabulary = guarded(|| Ok(tokenizer.get_vocab(true)))?;
    let largest = vocabulary.iter().max_by_key(|(_, number)| **number);
    let Some((token, &largest)) = largest else { return Err("it has no token".to_owned()) };
    if largest as usize >= SIZE {
        return Err(format!("the token {token:?} has the number {largest}, expected numbers under {SIZE}"));
    }
    let mut known = vec![false; largest as usize + 1];
    vocabulary.values().for_each(|&number| known[number as usize] = true);
    let (mut gaps, mut at) = (Vec::new(), 0);
    for run in known.chunk_by(|one, other| one == other) {
        let end = at + run.len() as u32;
        if !run[0] {
            gaps.push(at..end);
        }
        at = end;
    }
    Ok((known.len(), gaps))
}

/// What a tokenizer does with a file or text of the user's; its panics are errors like others.
pub(super) fn guarded<T>(work: impl FnOnce() -> tokenizers::Result<T>) -> Result<T, String> {
    let outcome = caught(work).unwrap_or_else(|panic| Err(format!("what reads it gave up ({panic})").into()));
    outcome.map_err(|error| error.to_string())
}
