//! Conversations: from messages to the text that a model continues, by the template that came with it.
//!
//! Templates are in the language of Jinja, as Python's transformers runs it. They are anybody's programs, so the work of one and
//! the depth of its calls are bounded, and it reaches nothing but what it is told.

#[cfg(feature = "tokenizer")]
mod json;
#[cfg(feature = "tokenizer")]
mod program;
mod reading;
mod source;

pub use reading::Reading;

use crate::{Result, text::Template};
use serde::Serialize;
use source::Source;
use std::path::Path;

/// A part of a conversation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Message {
    /// Who speaks: `system`, `user` or `assistant`.
    pub role: String,
    /// What is said.
    pub content: String,
}

impl Message {
    /// What somebody of this role says.
    pub fn new(role: &str, content: &str) -> Self {
        Self { role: role.to_owned(), content: content.to_owned() }
    }
}

/// How a released model writes conversations.
///
/// # Example
///
/// ```
/// use hecate_models::{ChatTemplate, Message, Result};
///
/// # fn main() -> Result<()> {
/// # #[cfg(feature = "tokenizer")] {
/// let source = "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}";
/// let template = ChatTemplate::new("template.jinja".as_ref(), source, &[])?;
/// let hello = Message::new("user", "Hello");
/// assert_eq!(template.prompt(&[hello])?, "<user>Hello\n<assistant>");
/// # }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct ChatTemplate {
    program: Program,
    /// `eos_token`, where the folder says it.
    end: Option<String>,
}

#[cfg(feature = "tokenizer")]
use program::Program;

/// What no build without tokenizers has.
#[cfg(not(feature = "tokenizer"))]
#[derive(Debug)]
enum Program {}

#[cfg(not(feature = "tokenizer"))]
impl Program {
    fn new(source: Source) -> Result<Self> {
        let why = "this build reads bytes only, and no templates; build it with the feature `tokenizer`".into();
        Err(crate::Error::Tokenizer { path: source.path, why })
    }

    fn tell(&mut self, _: &str, _: &str) -> Result<()> {
        match *self {}
    }

    fn render(&self, _: &str, _: Option<(usize, bool)>) -> Result<String> {
        match *self {}
    }
}

impl ChatTemplate {
    /// A template with these special tokens by their names, such as `bos_token`. Messages tell of `path`.
    ///
    /// # Errors
    /// As [`ChatTemplate::open`].
    pub fn new(path: &Path, source: &str, tokens: &[(&str, &str)]) -> Result<Self> {
        let tokens = tokens.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect();
        Self::of(Source { path: path.to_owned(), text: source.to_owned(), tokens })
    }

    /// The template of a model's folder: `chat_template.jinja`, else that in `tokenizer_config.json`, of several the one named
    /// `default`.
    ///
    /// # Errors
    /// [`Error::Io`](crate::Error::Io); [`Error::Checkpoint`](crate::Error::Checkpoint) where there is none, and for one that is
    /// too large or not understood; [`Error::Tokenizer`](crate::Error::Tokenizer) if this build lacks the feature `tokenizer`.
    pub fn open(folder: &Path) -> Result<Self> {
        Self::of(Source::open(folder)?)
    }

    fn of(source: Source) -> Result<Self> {
        source.check()?;
        let end = source.tokens.iter().find(|(name, _)| name == "eos_token").map(|(_, text)| text.clone());
        Ok(Self { program: Program::new(source)?, end })
    }

    /// The same template, which is told in every conversation what a name stands for, in JSON: `tools` are a list,
    /// `enable_thinking` is `false`.
    ///
    /// # Errors
    /// [`Error::Config`](crate::Error::Config) for what is no JSON.
    pub fn told(mut self, name: &str, json: &str) -> Result<Self> {
        self.program.tell(name, json)?;
        Ok(self)
    }

    /// The text of the token with which the model ends what it says, where the folder tells it.
    pub fn end(&self) -> Option<&str> {
        self.end.as_deref()
    }

    /// The text of a conversation.
    ///
    /// # Errors
    /// As [`ChatTemplate::render`].
    pub fn text(&self, messages: &[Message]) -> Result<String> {
        self.render(&serde_json::json!({ "messages": messages, "add_generation_prompt": false }).to_string())
    }

    /// The text of a conversation, and of what comes before an answer.
    ///
    /// # Errors
    /// As [`ChatTemplate::render`].
    pub fn prompt(&self, messages: &[Message]) -> Result<String> {
        self.render(&serde_json::json!({ "messages": messages, "add_generation_prompt": true }).to_string())
    }

    /// The text of a conversation in JSON, with all that the template is told of it: `messages`, `tools`,
    /// `add_generation_prompt`, `enable_thinking`, and others by the names that it has for them. Names keep their order.
    ///
    /// # Errors
    /// [`Error::Config`](crate::Error::Config) for other JSON than an object with a list of messages;
    /// [`Error::Checkpoint`](crate::Error::Checkpoint) for a template that fails, that refuses the conversation, or that takes too
    /// much work, with the line where it does.
    pub fn render(&self, conversation: &str) -> Result<String> {
        self.program.render(conversation, None)
    }
}

/// As [`ChatTemplate::render`], whose errors it has.
impl Template for ChatTemplate {
    fn part(&self, conversation: &str, messages: usize, opens: bool) -> Result<String> {
        self.program.render(conversation, Some((messages, opens)))
    }
}
