//! Calls of tools in what a model writes.

use super::{
    drawing::random,
    tools::{CLOSES, Choice, OPENS, Tools},
};
use crate::template::Call;
use serde_json::{Map, Value, json};

/// A text that may be calls of tools, as it comes.
///
/// What is shown at once is certain to be no part of a call. The rest is held until the text ends.
#[derive(Clone, Debug)]
pub(super) struct Calls {
    tools: Tools,
    /// What was not shown.
    held: String,
    /// Whether a call has begun, so that all that follows is held.
    has_begun: bool,
}

impl Calls {
    /// Before the first token.
    pub(super) fn new(tools: Tools) -> Self {
        let has_begun = tools.choice == Choice::Required;
        Self { tools, held: String::new(), has_begun }
    }

    /// Takes more of the text; what of it can be shown.
    pub(super) fn push(&mut self, text: &str) -> String {
        self.held.push_str(text);
        if self.has_begun {
            return String::new();
        }
        if let Some(at) = self.held.find(OPENS) {
            self.has_begun = true;
            return self.held.drain(..at).collect();
        }
        // Its last letters may be the first ones of an opening.
        let is_opening = |at: &usize| OPENS.starts_with(&self.held[*at..]);
        let starts = self.held.char_indices().map(|(at, _)| at);
        let shown = starts.filter(|at| at + OPENS.len() > self.held.len()).find(is_opening).unwrap_or(self.held.len());
        self.held.drain(..shown).collect()
    }

    /// The end: what else is shown, and the calls.
    ///
    /// A text that was cut short inside of a call, or has anything in a call's place that is none, is shown as it is.
    pub(super) fn finish(&mut self) -> (String, Vec<Call>) {
        let held = std::mem::take(&mut self.held);
        let found = match self.tools.choice {
            Choice::Required => self.call(&held).map(|call| vec![call]),
            Choice::Auto if self.has_begun => self.blocks(&held),
            Choice::Auto => None,
        };
        match found {
            Some(calls) => (String::new(), calls),
            None => (held, Vec::new()),
        }
    }

    /// Calls each between its opening and its end, with blanks alone around them; none for anything else.
    fn blocks(&self, text: &str) -> Option<Vec<Call>> {
        let (mut rest, mut calls) = (text.trim(), Vec::new());
        while !rest.is_empty() {
            let (call, after) = rest.strip_prefix(OPENS)?.split_once(CLOSES)?;
            calls.push(self.call(call.trim())?);
            rest = after.trim_start();
        }
        Some(calls)
    }

    /// The call that a text of JSON is; none for a function that there is not.
    fn call(&self, text: &str) -> Option<Call> {
        let mut call: Map<String, Value> = serde_json::from_str(text).ok()?;
        let (Value::String(name), Value::Object(arguments)) = (call.remove("name")?, call.remove("arguments")?) else {
            return None;
        };
        let id = format!("call_{:016x}", random());
        self.tools.has(&name).then_some(Call { id, name, arguments })
    }
}

/// A call as clients of conversations read it: its arguments are a text.
pub(super) fn described(Call { id, name, arguments }: &Call) -> Value {
    json!({"id": id, "type": "function", "function": {"name": name, "arguments": written(arguments)}})
}

/// Arguments as a text, in the order in which the model wrote them.
pub(super) fn written(arguments: &Map<String, Value>) -> String {
    Value::Object(arguments.clone()).to_string()
}
