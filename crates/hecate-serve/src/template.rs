//! From the messages of a conversation to the text that a model reads.

use hecate_models::ChatTemplate;
use serde_json::{Value, json};

/// A message of a conversation. Other fields, such as calls of tools, are refused before a template sees them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Who says it: `system`, `user`, `assistant` and such.
    pub role: String,
    /// What they say.
    pub content: String,
}

/// How a model was taught to read conversations.
///
/// # Example
///
/// ```
/// use hecate_serve::{Message, Plain, Template};
///
/// let hello = Message { role: "user".to_owned(), content: "Hello.".to_owned() };
/// assert_eq!(Plain.render(&[hello], &[]).unwrap(), "user: Hello.\nassistant:");
/// ```
pub trait Template: Send + Sync {
    /// The text that the model continues with its answer. `tools` are descriptions of functions, as OpenAI has them.
    ///
    /// # Errors
    /// In words, for messages or tools that the model does not know.
    fn render(&self, messages: &[Message], tools: &[Value]) -> Result<String, String>;

    /// Texts at which an answer ends, beside the model's end tokens.
    fn stops(&self) -> Vec<String> {
        Vec::new()
    }
}

/// For models that were taught no form: a line `role: content` for each message, then `assistant:`. An answer ends where the model
/// begins a line of the user's.
#[derive(Clone, Copy, Debug, Default)]
pub struct Plain;

impl Template for Plain {
    fn render(&self, messages: &[Message], tools: &[Value]) -> Result<String, String> {
        if !tools.is_empty() {
            return Err("this model was taught no tools; leave `tools` out".to_owned());
        }
        let lines: String = messages.iter().map(|Message { role, content }| format!("{role}: {content}\n")).collect();
        Ok(lines + "assistant:")
    }

    fn stops(&self) -> Vec<String> {
        vec!["\nuser:".to_owned()]
    }
}

/// The template that came with a released model.
impl Template for ChatTemplate {
    fn render(&self, messages: &[Message], tools: &[Value]) -> Result<String, String> {
        let messages = messages.iter().map(|Message { role, content }| json!({ "role": role, "content": content }));
        let mut conversation = json!({ "messages": messages.collect::<Vec<_>>(), "add_generation_prompt": true });
        // Templates tell a list of no tools from none.
        if !tools.is_empty() {
            conversation["tools"] = tools.into();
        }
        // The file's place is nobody's business but of those who serve it.
        ChatTemplate::render(self, &conversation.to_string()).map_err(|error| match error {
            hecate_models::Error::Checkpoint { why, .. } => why,
            other => other.to_string(),
        })
    }
}

/// For models without a form that is read: every conversation is refused.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unknown;

impl Template for Unknown {
    fn render(&self, _: &[Message], _: &[Value]) -> Result<String, String> {
        Err("this model has no chat template that is read; write its form yourself and use /v1/completions".to_owned())
    }
}
