//! What is learned of a line of JSON: a text, a completion of a prompt, or the answers of a conversation.

use super::{ExampleForm, conversation::Conversation};
use crate::{Result, Vocabulary};
use serde_json::{Map, Value};

/// A line that was understood.
pub(super) enum Line {
    /// All of it is learned.
    Text(String),
    /// A prompt, and the completion, which alone is learned. They become tokens apart, as where a model continues a prompt.
    Completion(String, String),
    /// Its answers are learned.
    Conversation(Conversation),
}

/// A line as tokens.
pub(super) struct Tokens {
    pub(super) tokens: Vec<u32>,
    /// Whether each token has a loss.
    pub(super) learned: Vec<bool>,
    /// Bytes of text that the tokens with a loss stand for.
    pub(super) bytes: usize,
    /// Whether it may be cut into several examples.
    pub(super) whole: bool,
}

impl Line {
    /// A line in JSON, or what is wrong with it.
    pub(super) fn read(line: &[u8], form: &ExampleForm<'_>) -> Result<Self, String> {
        let line = str::from_utf8(line).map_err(|error| format!("not UTF-8 ({error}); convert the file"))?;
        let object: Value = serde_json::from_str(line).map_err(|error| format!("no JSON ({error})"))?;
        let fields = object.as_object().ok_or("no object; each line is to be one, in braces")?;
        if let Some(messages) = fields.get("messages") {
            let template = form.template.as_ref().map_err(|why| {
                format!(
                    "`messages` need a chat template, and there is none ({why}); put it into the model's folder as \
                     `chat_template.jinja`, or give `prompt` and `completion`"
                )
            })?;
            return Conversation::read(line, messages, *template).map(Self::Conversation);
        }
        if fields.contains_key("prompt") || fields.contains_key("completion") {
            return Ok(Self::Completion(text(fields, "prompt")?, text(fields, "completion")?));
        }
        Ok(Self::Text(text(fields, "text")?))
    }

    /// Its tokens. The end of a text follows those of texts and completions; a conversation has what its template writes.
    pub(super) fn tokens(&self, vocabulary: &Vocabulary, end: Option<u32>) -> Result<Tokens> {
        let (prompt, text) = match self {
            Self::Text(text) => ("", text),
            Self::Completion(prompt, completion) => (&prompt[..], completion),
            Self::Conversation(conversation) => return conversation.tokens(vocabulary),
        };
        let mut tokens = vocabulary.encode(prompt)?;
        let mut learned = vec![false; tokens.len()];
        tokens.extend(vocabulary.encode(text)?);
        tokens.extend(end);
        learned.resize(tokens.len(), true);
        Ok(Tokens { tokens, learned, bytes: text.len(), whole: matches!(self, Self::Text(_)) })
    }
}

/// The text in a field.
fn text(fields: &Map<String, Value>, name: &str) -> Result<String, String> {
    match fields.get(name) {
        Some(Value::String(text)) => Ok(text.clone()),
        Some(_) => Err(format!("`{name}` is no text")),
        None => {
            let mut known: Vec<_> = fields.keys().map(String::as_str).collect();
            known.sort_unstable();
            let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
            let expected = "expected `text`, `prompt` and `completion`, or `messages`";
            Err(format!("no field `{name}`; there are {known}, {expected}"))
        }
    }
}
