//! Conversations as examples: the text that a chat template writes of one, and where in it the assistant speaks.
//!
//! A template is a program, so where an answer stands is found by running it twice: on what was said before the answer, with what
//! opens an answer, as a model reads it that is asked; and on that and the answer. What the second text has more is the answer's.

use super::{Template, lines::Tokens};
use crate::{Result, Vocabulary};
use serde_json::Value;
use std::ops::Range;

/// Who speaks in a conversation.
const ROLES: [&str; 5] = ["system", "developer", "user", "assistant", "tool"];
/// Whose turns are learned.
const LEARNED: &str = "assistant";

/// A conversation up to its last answer that is learned.
pub(super) struct Conversation {
    text: String,
    /// Bytes of the answers that are learned, each with what the template ends it with, in order.
    answers: Vec<Range<usize>>,
}

impl Conversation {
    /// The conversation of a line that has these messages, or what is wrong with it.
    pub(super) fn read(line: &str, messages: &Value, template: &dyn Template) -> Result<Self, String> {
        let messages = messages.as_array().filter(|messages| !messages.is_empty());
        let messages = messages.ok_or("`messages` is no list of objects with `role` and `content`")?;
        let (mut text, mut answers) = (String::new(), Vec::new());
        for (at, message) in messages.iter().enumerate() {
            let in_message = |why: String| format!("message {}: {why}", at + 1);
            if !is_learned(message).map_err(in_message)? {
                continue;
            }
            let write = |count, opens| template.part(line, count, opens).map_err(|error| in_message(error.to_string()));
            let (before, after) = (write(at, true)?, write(at + 1, false)?);
            // Answers of before are learned after the words that stand before them in this text.
            if !before.starts_with(&text) {
                return Err(in_message(rewritten("an earlier answer, or what is before it, otherwise")));
            }
            match after.strip_prefix(&before) {
                None => return Err(in_message(rewritten("what is before this answer otherwise once it is given"))),
                Some("") => return Err(in_message("the chat template writes nothing of it; leave it out".to_owned())),
                Some(_) => answers.push(before.len()..after.len()),
            }
            text = after;
        }
        if answers.is_empty() {
            return Err(format!("no message of the role `{LEARNED}` to learn, and no other is learned; add an answer"));
        }
        Ok(Self { text, answers })
    }

    /// Its tokens, made of the whole text, as a model reads it. One is learned where it ends within an answer.
    pub(super) fn tokens(&self, vocabulary: &Vocabulary) -> Result<Tokens> {
        let made = vocabulary.encode_passage(self.text.as_str())?;
        let (mut end, mut learned) = (0, Vec::with_capacity(made.len()));
        for token in 0..made.len() {
            // Texts that are encoded here know their bytes.
            end += made.bytes_of(token..token + 1).unwrap_or(0) as usize;
            learned.push(self.answers.iter().any(|answer| answer.start < end && end <= answer.end));
        }
        let bytes = self.answers.iter().map(Range::len).sum();
        Ok(Tokens { tokens: made.to_vec()?, learned, bytes, whole: false })
    }
}

/// What is wrong with a template that is no continuation of itself.
fn rewritten(what: &str) -> String {
    format!(
        "the chat template writes {what}, so no one text has both; give a line for each answer, in which the answers \
         before it have `\"weight\": 0`"
    )
}

/// Whether a message is learned: the assistant's are, but for those whose `weight` is 0. Or what is wrong with it.
fn is_learned(message: &Value) -> Result<bool, String> {
    let fields = message.as_object().ok_or_else(|| format!("{message} is no object with `role` and `content`"))?;
    let role = fields.get("role").ok_or("no field `role`")?;
    if !ROLES.iter().any(|known| role == known) {
        return Err(format!("`role` is {role}, expected one of {}", ROLES.join(", ")));
    }
    let calls =
        role == LEARNED && fields.get("tool_calls").and_then(Value::as_array).is_some_and(|all| !all.is_empty());
    match fields.get("content").filter(|content| !content.is_null()) {
        Some(Value::String(text)) if calls || !text.trim().is_empty() => {}
        Some(Value::String(_)) => return Err("`content` is empty; leave the message out".to_owned()),
        Some(_) => return Err("`content` is no text".to_owned()),
        // An assistant that calls a tool need not speak.
        None if calls => {}
        None => return Err("no field `content`".to_owned()),
    }
    match fields.get("weight") {
        _ if role != LEARNED => Ok(false),
        None => Ok(true),
        Some(weight) if weight.as_f64() == Some(1.0) => Ok(true),
        Some(weight) if weight.as_f64() == Some(0.0) => Ok(false),
        Some(weight) => Err(format!("`weight` is {weight}, expected 0 or 1")),
    }
}
