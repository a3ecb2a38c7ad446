//! From the messages of a conversation to the text that a model reads.

use hecate_models::ChatTemplate;
use serde_json::{Map, Value, json};

/// A message of a conversation. Fields that are not here are refused before a template sees them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Message {
    /// Who says it: `system`, `user`, `assistant`, `tool` and such.
    pub role: String,
    /// What they say, or what a tool gave.
    pub content: String,
    /// Tools that the assistant calls beside what it says.
    pub calls: Vec<Call>,
    /// Of a tool: the call that it answers.
    pub call_id: Option<String>,
}

/// A call of a tool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// What an answer to it is told by.
    pub id: String,
    /// The function.
    pub name: String,
    /// Its arguments, by their names.
    pub arguments: Map<String, Value>,
}

impl Call {
    /// As models are taught to write it: an object with `name` and `arguments`.
    fn written(&self) -> Value {
        json!({"name": self.name, "arguments": self.arguments})
    }
}

/// How a model was taught to read conversations.
///
/// # Example
///
/// ```
/// use hecate_serve::{Message, Plain, Template};
///
/// let hello = Message { role: "user".to_owned(), content: "Hello.".to_owned(), ..Message::default() };
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
/// begins a line of the user's. A call of a tool is a line of the assistant's, as JSON.
#[derive(Clone, Copy, Debug, Default)]
pub struct Plain;

impl Template for Plain {
    fn render(&self, messages: &[Message], tools: &[Value]) -> Result<String, String> {
        if !tools.is_empty() {
            return Err("this model was taught no tools; leave `tools` out".to_owned());
        }
        let mut text = String::new();
        for Message { role, content, calls, .. } in messages {
            // Calls are all that most messages with calls have.
            let said = Some(content.clone()).filter(|content| calls.is_empty() || !content.is_empty());
            let lines = said.into_iter().chain(calls.iter().map(|call| call.written().to_string()));
            lines.for_each(|line| text += &format!("{role}: {line}\n"));
        }
        Ok(text + "assistant:")
    }

    fn stops(&self) -> Vec<String> {
        vec!["\nuser:".to_owned()]
    }
}

/// The template that came with a released model.
impl Template for ChatTemplate {
    fn render(&self, messages: &[Message], tools: &[Value]) -> Result<String, String> {
        let messages = messages.iter().map(told);
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

/// A message as templates of released models are told it: a call's arguments are an object there, not its text.
fn told(Message { role, content, calls, call_id }: &Message) -> Value {
    let mut message = json!({ "role": role, "content": content });
    if !calls.is_empty() {
        let call = |call: &Call| json!({ "id": call.id, "type": "function", "function": call.written() });
        message["tool_calls"] = calls.iter().map(call).collect();
    }
    if let Some(id) = call_id {
        message["tool_call_id"] = id.as_str().into();
    }
    message
}

/// For models without a form that is read: every conversation is refused.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unknown;

impl Template for Unknown {
    fn render(&self, _: &[Message], _: &[Value]) -> Result<String, String> {
        Err("this model has no chat template that is read; write its form yourself and use /v1/completions".to_owned())
    }
}
