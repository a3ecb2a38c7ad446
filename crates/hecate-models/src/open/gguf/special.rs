//! Tokens with a meaning of their own in a GGUF file, by their numbers: those around a prompt, and those that templates write.

use super::metadata::Metadata;
use crate::{Error, Result, bounds::SIZE};
use serde_json::{Value, json};

/// What templates call special tokens, and the keys of their numbers.
const NAMED: [(&str, &str); 4] = [
    ("bos_token", "tokenizer.ggml.bos_token_id"),
    ("eos_token", "tokenizer.ggml.eos_token_id"),
    ("unk_token", "tokenizer.ggml.unknown_token_id"),
    ("pad_token", "tokenizer.ggml.padding_token_id"),
];

/// The special tokens of a file.
pub(super) struct Special {
    /// In the order of [`NAMED`]: number and text of each that the file has.
    tokens: [Option<(u64, String)>; 4],
}

impl Special {
    /// # Errors
    /// [`Error::Config`] for a number that no token has, and a list of tokens that is none of texts.
    pub(super) fn of(metadata: &Metadata) -> Result<Self> {
        let texts = metadata.list("tokenizer.ggml.tokens", SIZE)?.unwrap_or_default();
        let mut tokens = [const { None }; 4];
        for (token, (_, key)) in tokens.iter_mut().zip(NAMED) {
            let Some(number) = metadata.optional_size(key)? else { continue };
            let text = usize::try_from(number).ok().and_then(|number| texts.get(number)?.as_str());
            let wrong = || Error::config(key, number, format!("the number of one of the {} tokens", texts.len()));
            *token = Some((number, text.ok_or_else(wrong)?.to_owned()));
        }
        Ok(Self { tokens })
    }

    /// Names and texts, as templates have them.
    pub(super) fn named(&self) -> Vec<(&'static str, &str)> {
        let named = NAMED.iter().zip(&self.tokens);
        named.filter_map(|((name, _), token)| Some((*name, token.as_ref()?.1.as_str()))).collect()
    }

    /// The `post_processor` that puts the same tokens around a prompt as llama.cpp does: the first and the last of a text, where
    /// the file asks for them. `begins` says whether a file that does not tell has the first.
    ///
    /// # Errors
    /// [`Error::Config`] for a file that asks for a token which it does not have, or says neither yes nor no.
    pub(super) fn around(&self, metadata: &Metadata, begins: bool) -> Result<Value> {
        let [bos, eos, ..] = &self.tokens;
        let asked = [("tokenizer.ggml.add_bos_token", bos, begins), ("tokenizer.ggml.add_eos_token", eos, false)];
        let mut pieces = [None, None];
        for ((key, token, untold), piece) in asked.into_iter().zip(&mut pieces) {
            let told = metadata.one(key)?;
            let wrong = |found: &Value, expected: &str| Error::config(key, found, expected.to_owned());
            let wanted = told.map_or(Ok(untold), |told| told.as_bool().ok_or_else(|| wrong(told, "true or false")))?;
            *piece = match (token, told) {
                (Some(token), _) if wanted => Some(token),
                (None, Some(told)) if wanted => {
                    return Err(wrong(told, "false: the file says no number of that token"));
                }
                _ => None,
            };
        }
        let special = |token: &(u64, String)| json!({ "SpecialToken": { "id": token.1, "type_id": 0 } });
        let entry = |token: &(u64, String)| {
            let (number, text) = token;
            (text.clone(), json!({ "id": text, "ids": [number], "tokens": [text] }))
        };
        let text = json!({ "Sequence": { "id": "A", "type_id": 0 } });
        let [before, after] = pieces;
        let single: Vec<_> = before.map(special).into_iter().chain([text]).chain(after.map(special)).collect();
        let tokens: serde_json::Map<_, _> = pieces.into_iter().flatten().map(entry).collect();
        Ok(json!({ "type": "TemplateProcessing", "single": single, "pair": [], "special_tokens": tokens }))
    }
}
