//! How likely tokens were, in OpenAI's two forms.
//!
//! Texts of tokens are made here, on the thread with the connections: the model's thread has more urgent work.

use super::answer::Form;
use crate::{order::Told, refusal::Refusal};
use hecate_models::{Result as Found, Vocabulary};
use serde_json::{Map, Value, json};
use std::fmt::Write;

/// The `logprobs` of a text or of a part of one.
///
/// # Errors
/// 500 where the tokenizer fails.
pub(super) fn logprobs(form: Form, vocabulary: &Vocabulary, tokens: &[Told]) -> Result<Value, Refusal> {
    let value = match form {
        Form::Completion => of_completion(vocabulary, tokens),
        Form::Chat => of_chat(vocabulary, tokens),
    };
    // A token that the model has drawn is in its vocabulary, so what fails here is the server's.
    value.map_err(|error| Refusal::failed(error.to_string()))
}

/// Four lists side by side, in the older of the two forms.
///
/// Of each token the likeliest are an object by their texts, and the token itself is among them.
fn of_completion(vocabulary: &Vocabulary, tokens: &[Told]) -> Found<Value> {
    let (mut texts, mut own, mut top, mut offsets) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for Told { at, likelihood } in tokens {
        let mut all = Map::new();
        for (token, log_probability) in
            likelihood.likeliest.iter().chain([&(likelihood.token, likelihood.log_probability)])
        {
            // Two tokens may have one text: the likelier one stays.
            all.entry(text(&vocabulary.bytes_of(*token)?)).or_insert_with(|| json!(log_probability));
        }
        texts.push(text(&vocabulary.bytes_of(likelihood.token)?));
        own.push(likelihood.log_probability);
        top.push(all);
        offsets.push(at);
    }
    Ok(json!({"tokens": texts, "token_logprobs": own, "top_logprobs": top, "text_offset": offsets}))
}

/// A list of tokens, each with its bytes and those of the likeliest.
///
/// Clients put half characters together by their bytes.
fn of_chat(vocabulary: &Vocabulary, tokens: &[Told]) -> Found<Value> {
    let described = |&(token, log_probability): &(u32, f64)| {
        let bytes = vocabulary.bytes_of(token)?;
        Ok(json!({"token": text(&bytes), "logprob": log_probability, "bytes": bytes}))
    };
    let entry = |Told { likelihood, .. }: &Told| {
        let mut entry = described(&(likelihood.token, likelihood.log_probability))?;
        entry["top_logprobs"] = likelihood.likeliest.iter().map(described).collect::<Found<Vec<_>>>()?.into();
        Ok(entry)
    };
    Ok(json!({"content": tokens.iter().map(entry).collect::<Found<Vec<_>>>()?, "refusal": null}))
}

/// A token's text; of one that is a part of a character its bytes, as OpenAI writes them.
fn text(bytes: &[u8]) -> String {
    if let Ok(text) = str::from_utf8(bytes) {
        return text.to_owned();
    }
    bytes.iter().fold("bytes:".to_owned(), |mut text, byte| {
        let _ = write!(text, "\\x{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_a_character_is_written_as_its_bytes() {
        assert_eq!(text("é".as_bytes()), "é");
        assert_eq!(text(&"é".as_bytes()[..1]), "bytes:\\xc3");
    }
}
