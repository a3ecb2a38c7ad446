//! A response on its way to a client: what it is so far, and events that say how it became so.
//!
//! Both ways to ask for it go through the same events; who asks for no stream gets what the last one says.

use super::super::{
    App, answered,
    calls::{Calls, written},
    drawing::random,
    tools::Tools,
    writing::Ordered,
};
use crate::{
    order::{Event, Reason},
    refusal::Refusal,
    template::Call,
};
use axum::{
    http::StatusCode,
    response::{
        IntoResponse, Response,
        sse::{self, KeepAlive, Sse},
    },
};
use futures_util::stream;
use serde_json::{Map, Value, json};
use std::{
    collections::VecDeque,
    convert::Infallible,
    time::{SystemTime, UNIX_EPOCH},
};

/// A response, up to where it has come.
#[derive(Debug)]
pub(super) struct Report {
    /// What all ids of it end with, and seconds since 1970.
    id: String,
    created: u64,
    /// The model's name for clients.
    model: String,
    /// What it says once more of its request.
    repeated: Map<String, Value>,
    ordered: Ordered,
    /// Calls of tools in the text; none where it can have none.
    calls: Option<Calls>,
    /// `in_progress`, then `completed`, `incomplete` or `failed`.
    status: &'static str,
    /// Why it failed, and what it took; null before that.
    error: Value,
    usage: Value,
    /// What the model says beside its calls; none before its first letter.
    said: Option<String>,
    /// Items that are done.
    output: Vec<Value>,
    /// Events that are ready, by their names, and how many there were before.
    ready: VecDeque<(String, Value)>,
    sequence: usize,
}

impl Report {
    /// Before the first token.
    pub(super) fn new(app: &App, repeated: Map<String, Value>, tools: Option<Tools>, ordered: Ordered) -> Self {
        Self {
            id: format!("{:016x}", random()),
            created: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
            model: app.id.clone(),
            repeated,
            ordered,
            calls: tools.map(Calls::new),
            status: "in_progress",
            error: Value::Null,
            usage: Value::Null,
            said: None,
            output: Vec::new(),
            ready: VecDeque::new(),
            sequence: 0,
        }
    }

    /// Tells it in the end, or each of its steps at once.
    ///
    /// # Errors
    /// What kept the first token from being written; without a stream also any later one.
    pub(super) async fn respond(mut self, stream: bool) -> Result<Response, Refusal> {
        let first = self.event().await?;
        if stream {
            return Ok(self.streamed(first));
        }
        // Events are made and thrown away: what they say is in the response too.
        self.happened(first);
        while !self.is_done() {
            let event = self.event().await?;
            self.happened(event);
            self.ready.clear();
        }
        Ok(answered(StatusCode::OK, &self.response()))
    }

    /// The next of what becomes of the text.
    async fn event(&mut self) -> Result<Event, Refusal> {
        match self.ordered.events.recv().await {
            Some(Event::Failed(refusal)) => Err(refusal),
            Some(event) => Ok(event),
            None => Err(Refusal::stopping()),
        }
    }

    /// Each step as an event of its own name. The stream holds the receiver, so that its end is seen by the model's thread.
    fn streamed(mut self, first: Event) -> Response {
        for name in ["response.created", "response.in_progress"] {
            self.tell(name, json!({"response": self.response()}));
        }
        self.happened(first);
        let parts = stream::unfold(self, async |mut report| {
            while report.ready.is_empty() {
                if report.is_done() {
                    return None;
                }
                match report.event().await {
                    Ok(event) => report.happened(event),
                    Err(refusal) => report.fail(&refusal),
                }
            }
            let (name, value) = report.ready.pop_front()?;
            Some((Ok::<_, Infallible>(sse::Event::default().event(name).data(value.to_string())), report))
        });
        Sse::new(parts).keep_alive(KeepAlive::default()).into_response()
    }

    /// Whether nothing more comes.
    fn is_done(&self) -> bool {
        self.status != "in_progress"
    }

    /// Takes what became of the text.
    fn happened(&mut self, event: Event) {
        match event {
            Event::Text { text, .. } => {
                let shown = self.calls.as_mut().map_or_else(|| text.clone(), |calls| calls.push(&text));
                self.say(&shown);
            }
            Event::Ended { reason, tokens, cached, .. } => self.end(reason, tokens, cached),
            Event::Failed(refusal) => self.fail(&refusal),
        }
    }

    /// The model says this, and may go on.
    fn say(&mut self, text: &str) {
        if text.is_empty() {
            return;
        }
        // An item of no letter would be one that nobody said.
        self.open();
        self.said.get_or_insert_default().push_str(text);
        self.tell_part("response.output_text.delta", json!({"delta": text, "logprobs": []}));
    }

    /// Begins the message, unless that is done.
    fn open(&mut self) {
        if self.said.is_none() {
            self.said = Some(String::new());
            // It is the first item: calls come when the text has ended.
            let item = json!({"id": self.message(), "type": "message", "status": "in_progress", "role": "assistant", "content": []});
            self.tell("response.output_item.added", json!({"output_index": 0, "item": item}));
            self.tell_part("response.content_part.added", json!({"part": part("")}));
        }
    }

    /// The end of the message, if there is one.
    ///
    /// Its text, its part and the item itself end one after another, each as a whole.
    fn close(&mut self, status: &str) {
        let Some(text) = self.said.clone() else { return };
        self.tell_part("response.output_text.done", json!({"text": text, "logprobs": []}));
        self.tell_part("response.content_part.done", json!({"part": part(&text)}));
        let content = [part(&text)];
        let item =
            json!({"id": self.message(), "type": "message", "status": status, "role": "assistant", "content": content});
        self.done(item);
    }

    /// A call of a tool, all at once.
    ///
    /// It is known to be one only when it has ended, so its arguments come as one part.
    fn call(&mut self, Call { id, name, arguments }: &Call) {
        let (item_id, at, arguments) = (format!("fc_{}", &id["call_".len()..]), self.output.len(), written(arguments));
        let item = |status: &str, arguments: &str| json!({"id": item_id, "type": "function_call", "status": status, "call_id": id, "name": name, "arguments": arguments});
        self.tell("response.output_item.added", json!({"output_index": at, "item": item("in_progress", "")}));
        let delta = json!({"item_id": item_id, "output_index": at, "delta": arguments});
        self.tell("response.function_call_arguments.delta", delta);
        let done = json!({"item_id": item_id, "output_index": at, "name": name, "arguments": arguments});
        self.tell("response.function_call_arguments.done", done);
        self.done(item("completed", &arguments));
    }

    /// An item is done, and gets the next number.
    fn done(&mut self, item: Value) {
        self.tell("response.output_item.done", json!({"output_index": self.output.len(), "item": item}));
        self.output.push(item);
    }

    /// The end, after so many tokens, with so many of the prompt that were not read again.
    fn end(&mut self, reason: Reason, tokens: usize, cached: usize) {
        let (rest, calls) = self.calls.as_mut().map(Calls::finish).unwrap_or_default();
        self.say(&rest);
        if calls.is_empty() {
            // Who says nothing has said an empty text.
            self.open();
        }
        let status = if reason == Reason::Stop { "completed" } else { "incomplete" };
        self.close(status);
        calls.iter().for_each(|call| self.call(call));
        self.status = status;
        // Clients ask for a number of tokens that were written to a cache, which nobody pays for here.
        self.usage = json!({
            "input_tokens": self.ordered.read, "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
            "output_tokens": tokens, "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": self.ordered.read + tokens,
        });
        self.tell(&format!("response.{status}"), json!({"response": self.response()}));
    }

    /// The end of a stream that cannot go on. Its status is long sent.
    ///
    /// Clients find the reason in the response.
    fn fail(&mut self, refusal: &Refusal) {
        self.status = "failed";
        self.error = json!({"code": "server_error", "message": refusal.object()["error"]["message"]});
        self.tell("response.failed", json!({"response": self.response()}));
    }

    /// The id of the message.
    fn message(&self) -> String {
        format!("msg_{}", self.id)
    }

    /// Adds an event of the message's only part.
    fn tell_part(&mut self, name: &str, mut value: Value) {
        value["item_id"] = self.message().into();
        (value["output_index"], value["content_index"]) = (0.into(), 0.into());
        self.tell(name, value);
    }

    /// Adds an event, which has its own name and number in it.
    fn tell(&mut self, name: &str, mut value: Value) {
        value["type"] = name.into();
        value["sequence_number"] = self.sequence.into();
        self.sequence += 1;
        self.ready.push_back((name.to_owned(), value));
    }

    /// All of it, so far, as every event that is of no item has it.
    fn response(&self) -> Value {
        let reason = (self.status == "incomplete").then(|| json!({"reason": "max_output_tokens"}));
        let mut all = json!({
            "id": format!("resp_{}", self.id), "object": "response", "created_at": self.created, "status": self.status,
            "error": self.error, "incomplete_details": reason, "model": self.model, "output": self.output, "usage": self.usage,
        });
        all.as_object_mut().into_iter().for_each(|all| all.extend(self.repeated.clone()));
        all
    }
}

/// The only part of a message.
fn part(text: &str) -> Value {
    json!({"type": "output_text", "text": text, "annotations": [], "logprobs": []})
}
