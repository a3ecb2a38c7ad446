//! The messages of a conversation, as requests have them.
//!
//! Nothing is guessed: a message with something that no template is told of is refused by that field's name.

use crate::{
    fields::{Fields, shown},
    refusal::Refusal,
    template::{Call, Message},
};
use serde_json::Value;

/// The messages of a conversation.
///
/// # Errors
/// 400 for none, and for one that says what no template is told of.
pub(super) fn messages(fields: &mut Fields) -> Result<Vec<Message>, Refusal> {
    let expected = "a list of messages, each `{\"role\": …, \"content\": …}`";
    let list = fields.list("messages")?.ok_or_else(|| Refusal::field("messages", "missing", expected))?;
    if list.is_empty() {
        return Err(Refusal::field("messages", "empty", expected));
    }
    list.iter().enumerate().map(|(i, value)| message(&format!("messages[{i}]"), value)).collect()
}

/// A message with a role and a text, or with calls of tools.
fn message(field: &str, value: &Value) -> Result<Message, Refusal> {
    let refuse = |found: &Value, expected: &str| Refusal::field(field, shown(found), expected);
    let object = value.as_object().ok_or_else(|| refuse(value, "an object"))?;
    let found = |name: &str| object.get(name).filter(|value| !value.is_null());
    let role = found("role").and_then(Value::as_str).unwrap_or_default();
    let calls = match found("tool_calls").filter(|_| role == "assistant") {
        Some(calls) => self::calls(&format!("{field}.tool_calls"), calls)?,
        None => Vec::new(),
    };
    let call_id = found("tool_call_id").filter(|_| role == "tool").and_then(Value::as_str).map(str::to_owned);
    // A message that calls tools may say nothing.
    let said = found("content").map_or_else(|| (!calls.is_empty()).then(String::new), |said| content(said, &["text"]));
    let content = said.ok_or_else(|| refuse(value, "a `role`, and a `content` of text"))?;
    check_role(field, role, value)?;
    // What is in a message of another role would be lost.
    let own: &[&str] = match role {
        "assistant" => &["role", "content", "tool_calls"],
        "tool" if call_id.is_some() => &["role", "content", "tool_call_id"],
        _ => &["role", "content"],
    };
    only(field, value, own)?;
    Ok(Message { role: role.to_owned(), content, calls, call_id })
}

/// Refuses whatever an object has beside these.
pub(super) fn only(field: &str, value: &Value, names: &[&str]) -> Result<(), Refusal> {
    let is_other = |(name, value): &(&String, &Value)| !names.contains(&name.as_str()) && !value.is_null();
    match value.as_object().into_iter().flatten().find(is_other) {
        Some((name, _)) => Err(Refusal::unsupported(&format!("{field}.{name}"), "leave it out")),
        None => Ok(()),
    }
}

/// Refuses what is no role, in a message that is `value`.
///
/// A role becomes a part of the text, where a line of its own would be another message.
pub(super) fn check_role(field: &str, role: &str, value: &Value) -> Result<(), Refusal> {
    if role.is_empty() || !role.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_') {
        return Err(Refusal::field(field, shown(value), "a `role` of letters, such as `user`"));
    }
    Ok(())
}

/// A text, or the texts of its parts of these kinds one after another; none for anything else.
pub(super) fn content(value: &Value, kinds: &[&str]) -> Option<String> {
    if let Value::Array(parts) = value {
        let text = |part: &Value| {
            let is_text = part["type"].as_str().is_some_and(|kind| kinds.contains(&kind));
            part["text"].as_str().filter(|_| is_text).map(str::to_owned)
        };
        return parts.iter().map(text).collect();
    }
    value.as_str().map(str::to_owned)
}

/// Calls of tools that the assistant wrote before.
fn calls(field: &str, value: &Value) -> Result<Vec<Call>, Refusal> {
    let expected =
        "a list of `{\"id\": …, \"type\": \"function\", \"function\": {\"name\": …, \"arguments\": \"{…}\"}}`";
    let call = |value: &Value| {
        let function = value["type"].is_null() || value["type"] == "function";
        call(&value["id"], &value["function"]).filter(|_| function)
    };
    let calls = value.as_array().and_then(|list| list.iter().map(call).collect());
    calls.ok_or_else(|| Refusal::field(field, shown(value), expected))
}

/// A call of this name; `function` has the function's `name` and, as a text, the object of its `arguments`. None for anything else.
pub(super) fn call(id: &Value, function: &Value) -> Option<Call> {
    let (id, name) = (id.as_str()?.to_owned(), function["name"].as_str()?.to_owned());
    let arguments = serde_json::from_str(function["arguments"].as_str()?).ok()?;
    Some(Call { id, name, arguments })
}
