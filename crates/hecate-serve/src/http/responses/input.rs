//! What a conversation is made of in this form: messages, calls of tools, and what the tools gave.

use super::super::messages::{call, check_role, content, only};
use crate::{
    fields::{Fields, shown},
    refusal::Refusal,
    template::Message,
};
use serde_json::Value;

/// The messages of a conversation: `instructions` come first, then `input`, which is a text of the user's or a list of items.
///
/// # Errors
/// 400 for no item, and for one that says what no template is told of.
pub(super) fn messages(fields: &mut Fields) -> Result<Vec<Message>, Refusal> {
    // Who says something without a role of its own.
    let says = |role: &str, content: String| Message { role: role.to_owned(), content, ..Message::default() };
    let mut all: Vec<_> = fields.text("instructions")?.map(|text| says("system", text)).into_iter().collect();
    let expected = "a text, or a list of items, each `{\"role\": …, \"content\": …}`";
    match fields.take("input") {
        // The same as a list of one message.
        Some(Value::String(text)) => all.push(says("user", text)),
        Some(Value::Array(items)) if !items.is_empty() => {
            for (i, value) in items.iter().enumerate() {
                item(&mut all, &format!("input[{i}]"), value)?;
            }
        }
        found => {
            let found = found.map_or_else(|| "missing".to_owned(), |value| shown(&value));
            return Err(Refusal::field("input", found, expected));
        }
    }
    Ok(all)
}

/// Adds an item: a message, or a call to the message that it belongs to.
fn item(all: &mut Vec<Message>, field: &str, value: &Value) -> Result<(), Refusal> {
    let refuse = |expected: &str| Refusal::field(field, shown(value), expected);
    match value.get("type").map_or(Some("message"), Value::as_str) {
        Some("message") => {
            // Its id and its status are those of an earlier response.
            only(field, value, &["type", "role", "content", "id", "status"])?;
            let said = content(&value["content"], &["input_text", "output_text"]);
            let (Some(role), Some(content)) = (value["role"].as_str(), said) else {
                return Err(refuse("a message with a `role`, and a `content` of text"));
            };
            check_role(field, role, value)?;
            all.push(Message { role: role.to_owned(), content, ..Message::default() });
        }
        Some("function_call") => {
            only(field, value, &["type", "id", "call_id", "name", "arguments", "status"])?;
            let expected = "a call with `call_id`, `name`, and `arguments` that are a text of a JSON object";
            // Name and arguments are beside the call's id, not in an object of their own.
            let call = call(&value["call_id"], value).ok_or_else(|| refuse(expected))?;
            // Several calls, and what was said before them, are one message of the assistant's.
            match all.last_mut().filter(|last| last.role == "assistant") {
                Some(last) => last.calls.push(call),
                None => {
                    all.push(Message { role: "assistant".to_owned(), calls: vec![call], ..Message::default() });
                }
            }
        }
        Some("function_call_output") => {
            only(field, value, &["type", "id", "call_id", "output", "status"])?;
            let (call_id, found) = (value["call_id"].as_str(), content(&value["output"], &["input_text"]));
            let (Some(call_id), Some(content)) = (call_id, found) else {
                return Err(refuse("a `call_id`, and an `output` of text"));
            };
            // Templates know it as what a tool says.
            let (role, call_id) = ("tool".to_owned(), Some(call_id.to_owned()));
            all.push(Message { role, content, call_id, ..Message::default() });
        }
        _ => return Err(refuse("an item of the type `message`, `function_call` or `function_call_output`")),
    }
    Ok(())
}
