//! `/v1/chat/completions`: conversations that go on.

use super::{
    App,
    answer::{Answer, Form},
    body,
    writing::{Manner, encode, tokens},
};
use crate::{
    fields::{Fields, shown},
    refusal::Refusal,
    template::Message,
};
use axum::{
    extract::{Request, State},
    response::Response,
};
use serde_json::Value;
use std::sync::Arc;

/// Answers a conversation.
pub(super) async fn completions(State(app): State<Arc<App>>, request: Request) -> Result<Response, Refusal> {
    let mut fields = body::fields(&app, request).await?;
    let messages = messages(&mut fields)?;
    fields.without("session", "send all messages, or continue a session by /v1/completions")?;
    let most = tokens(&app, &mut fields, &["max_tokens", "max_completion_tokens"])?;
    let mut manner = Manner::take(&app, &mut fields, most)?;
    manner.stops.extend(app.template.stops());
    manner.likeliest = likeliest(&mut fields)?;
    check_choice(&mut fields)?;
    fields.finish()?;
    let text = app.template.render(&messages, &[]).map_err(Refusal::request)?;
    let prompts = encode(&app, vec![text]).await?;
    let (stream, usage) = (manner.stream, manner.usage);
    Answer::new(&app, Form::Chat, manner.order(&app, prompts).await?).respond(stream, usage).await
}

/// How many of the likeliest tokens are told beside each; none where `logprobs` is not true.
fn likeliest(fields: &mut Fields) -> Result<Option<usize>, Refusal> {
    let (asked, count) = (fields.flag("logprobs")?, fields.whole("top_logprobs", 0..=20)?);
    match count {
        Some(count @ 1..) if !asked => {
            Err(Refusal::field("top_logprobs", count, "0 without `logprobs`; set `logprobs` to true"))
        }
        count => Ok(asked.then_some(count.unwrap_or(0))),
    }
}

/// The messages of a conversation.
///
/// Nothing is guessed: a message with something that no template is told of is refused by that field's name.
fn messages(fields: &mut Fields) -> Result<Vec<Message>, Refusal> {
    let expected = "a list of messages, each `{\"role\": …, \"content\": …}`";
    let list = fields.list("messages")?.ok_or_else(|| Refusal::field("messages", "missing", expected))?;
    if list.is_empty() {
        return Err(Refusal::field("messages", "empty", expected));
    }
    list.iter().enumerate().map(|(i, value)| message(&format!("messages[{i}]"), value)).collect()
}

/// A message with a role and a text, and nothing else that means something.
fn message(field: &str, value: &Value) -> Result<Message, Refusal> {
    let refuse = |found: &Value, expected: &str| Refusal::field(field, shown(found), expected);
    let object = value.as_object().ok_or_else(|| refuse(value, "an object"))?;
    let role = object.get("role").and_then(Value::as_str);
    let content = object.get("content").and_then(content);
    let (Some(role), Some(content)) = (role, content) else {
        return Err(refuse(value, "a `role`, and a `content` of text"));
    };
    // A role becomes a part of the text, where a line of its own would be another message.
    if role.is_empty() || !role.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_') {
        return Err(refuse(value, "a `role` of letters, such as `user`"));
    }
    match object.iter().find(|(name, value)| !["role", "content"].contains(&name.as_str()) && !value.is_null()) {
        Some((name, _)) => Err(Refusal::unsupported(&format!("{field}.{name}"), "leave it out")),
        None => Ok(Message { role: role.to_owned(), content, ..Message::default() }),
    }
}

/// A text, or the texts of its parts one after another.
fn content(value: &Value) -> Option<String> {
    if let Value::Array(parts) = value {
        let text = |part: &Value| {
            let is_text = part.get("type").and_then(Value::as_str) == Some("text");
            part.get("text").and_then(Value::as_str).filter(|_| is_text).map(str::to_owned)
        };
        return parts.iter().map(text).collect();
    }
    value.as_str().map(str::to_owned)
}

/// Takes a choice that is made already: no tool.
fn check_choice(fields: &mut Fields) -> Result<(), Refusal> {
    let none = fields.take("tool_choice").is_none_or(|choice| choice == "none" || choice == "auto");
    if !none {
        return Err(Refusal::unsupported("tool_choice", "leave it out"));
    }
    // Without tools there is nothing to call at once.
    fields.forget(&["parallel_tool_calls"]);
    Ok(())
}
