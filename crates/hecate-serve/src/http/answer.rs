//! Texts on their way to a client: all at once, or as they are written.

use super::{
    App, answered,
    calls::{Calls, described},
    drawing::random,
    likelihoods::logprobs,
    tools::Tools,
    writing::Ordered,
};
use crate::{
    order::{Event, Reason, Told},
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
use hecate_models::Vocabulary;
use serde_json::{Value, json};
use std::{
    collections::VecDeque,
    convert::Infallible,
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

/// Which of OpenAI's two forms an answer has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    Completion,
    Chat,
}

impl Form {
    /// What ids begin with, and what an answer and a part of one are called.
    fn names(self) -> [&'static str; 3] {
        match self {
            Self::Completion => ["cmpl", "text_completion", "text_completion"],
            Self::Chat => ["chatcmpl", "chat.completion", "chat.completion.chunk"],
        }
    }

    /// A whole text with the calls in it, and with what is said of its tokens.
    fn whole(self, index: usize, Whole { text, calls, reason, .. }: &Whole, logprobs: &Value) -> Value {
        let reason = ended(*reason, calls);
        if self == Self::Completion {
            return json!({"index": index, "text": text, "logprobs": logprobs, "finish_reason": reason});
        }
        let mut message = json!({"role": "assistant", "content": text, "refusal": null});
        if !calls.is_empty() {
            message["tool_calls"] = calls.iter().map(described).collect();
            // Calls are all that it says.
            if text.is_empty() {
                message["content"] = Value::Null;
            }
        }
        json!({"index": index, "message": message, "logprobs": logprobs, "finish_reason": reason})
    }

    /// A part of a text with what is said of its tokens, or in a word why the text ends.
    fn part(self, index: usize, text: Option<&str>, reason: Option<&str>, logprobs: &Value) -> Value {
        let (name, said) = match (self, text) {
            (Self::Completion, text) => ("text", text.unwrap_or_default().into()),
            (Self::Chat, Some(text)) => ("delta", json!({"content": text})),
            (Self::Chat, None) => ("delta", json!({})),
        };
        json!({"index": index, name: said, "logprobs": logprobs, "finish_reason": reason})
    }
}

/// Why a text ended, in a word that clients know.
///
/// A text that was cut short may lack calls, so it does not count as one that calls tools.
fn ended(reason: Reason, calls: &[Call]) -> &'static str {
    match reason {
        Reason::Stop if !calls.is_empty() => "tool_calls",
        reason => reason.name(),
    }
}

/// All that became of a text.
#[derive(Clone, Debug)]
struct Whole {
    text: String,
    calls: Vec<Call>,
    reason: Reason,
    tokens: Vec<Told>,
}

/// What is said of the texts that were ordered.
///
/// An answer of several texts counts them down: it is done when all have ended, in whatever order.
#[derive(Debug)]
pub(super) struct Answer {
    form: Form,
    id: String,
    created: u64,
    model: String,
    vocabulary: Arc<Vocabulary>,
    ordered: Ordered,
    /// What stands before each text.
    before: Vec<String>,
    /// Calls of tools in each text; none where it has none.
    calls: Vec<Calls>,
    /// Texts that are done, tokens of them, and tokens of their prompts that were not read again.
    done: usize,
    written: usize,
    cached: usize,
    /// Parts of a stream that are ready.
    ready: VecDeque<String>,
}

impl Answer {
    /// Before the first event.
    pub(super) fn new(app: &App, form: Form, ordered: Ordered) -> Self {
        let created = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let (id, model) = (format!("{}-{:016x}", form.names()[0], random()), app.id.clone());
        let (vocabulary, before, calls) = (Arc::clone(&app.vocabulary), Vec::new(), Vec::new());
        let (done, written, cached, ready) = (0, 0, 0, VecDeque::new());
        Self { form, id, created, model, vocabulary, ordered, before, calls, done, written, cached, ready }
    }

    /// The same, with a text before the continuations of each prompt; none at all for none.
    pub(super) fn after(mut self, prompts: Vec<String>) -> Self {
        let each = self.ordered.texts / prompts.len().max(1);
        self.before = prompts.into_iter().flat_map(|prompt| std::iter::repeat_n(prompt, each)).collect();
        self
    }

    /// The same, with calls of these tools looked for in each text.
    pub(super) fn calling(mut self, tools: Option<Tools>) -> Self {
        self.calls = tools.map_or_else(Vec::new, |tools| vec![Calls::new(tools); self.ordered.texts]);
        self
    }

    /// What of a text can be shown, now that it goes on with this.
    ///
    /// A text that can have no calls is shown as it comes.
    fn shown(&mut self, index: usize, text: String) -> String {
        match self.calls.get_mut(index) {
            Some(calls) => calls.push(&text),
            None => text,
        }
    }

    /// What else of a text is shown at its end, and the calls in it.
    fn finished(&mut self, index: usize) -> (String, Vec<Call>) {
        self.calls.get_mut(index).map(Calls::finish).unwrap_or_default()
    }

    /// Tells all texts together, or each token at once.
    ///
    /// # Errors
    /// What kept the first token from being written; without a stream also any later one.
    pub(super) async fn respond(self, stream: bool, usage: bool) -> Result<Response, Refusal> {
        if stream { self.streamed(usage).await } else { self.whole().await }
    }

    /// The next of what becomes of the texts.
    async fn event(&mut self) -> Result<Event, Refusal> {
        match self.ordered.events.recv().await {
            Some(Event::Failed(refusal)) => Err(refusal),
            Some(event) => Ok(event),
            None => Err(Refusal::stopping()),
        }
    }

    /// All texts in one answer. A text that fails later than others were done fails them all.
    async fn whole(mut self) -> Result<Response, Refusal> {
        let none = Whole { text: String::new(), calls: Vec::new(), reason: Reason::Length, tokens: Vec::new() };
        let mut texts = vec![none; self.ordered.texts];
        self.before.iter().zip(&mut texts).for_each(|(before, whole)| whole.text.push_str(before));
        while self.done < self.ordered.texts {
            match self.event().await? {
                Event::Text { index, text, tokens } => {
                    texts[index].text += &self.shown(index, text);
                    texts[index].tokens.extend(tokens);
                }
                Event::Ended { index, reason, tokens, cached } => {
                    let (rest, calls) = self.finished(index);
                    texts[index].text += &rest;
                    (texts[index].calls, texts[index].reason) = (calls, reason);
                    self.count(tokens, cached);
                }
                Event::Failed(refusal) => return Err(refusal),
            }
        }
        let choice = |(i, whole): (usize, &Whole)| Ok(self.form.whole(i, whole, &self.logprobs(&whole.tokens)?));
        let choices = texts.iter().enumerate().map(choice).collect::<Result<Vec<_>, Refusal>>()?;
        let mut value = self.value(self.form.names()[1], choices);
        value["usage"] = self.usage();
        Ok(answered(StatusCode::OK, &value))
    }

    /// Each token as an event, then the end of every text, then `[DONE]`.
    ///
    /// The stream holds the receiver of events: dropped with the connection, it tells the model's thread that nobody reads.
    async fn streamed(mut self, usage: bool) -> Result<Response, Refusal> {
        // A request that comes to nothing before its first token is answered by a status.
        let first = self.event().await?;
        for index in 0..self.ordered.texts {
            match (self.form, self.before.get(index)) {
                (Form::Chat, _) => self.tell(json!({"index": index, "delta": {"role": "assistant", "content": ""}})),
                (Form::Completion, Some(before)) => self.tell(self.form.part(index, Some(before), None, &Value::Null)),
                (Form::Completion, None) => {}
            }
        }
        self.happened(Ok(first), usage);
        let parts = stream::unfold(self, move |mut answer| async move {
            while answer.ready.is_empty() {
                if answer.done == answer.ordered.texts {
                    return None;
                }
                let event = answer.event().await;
                answer.happened(event, usage);
            }
            let part = answer.ready.pop_front()?;
            Some((Ok::<_, Infallible>(sse::Event::default().data(part)), answer))
        });
        Ok(Sse::new(parts).keep_alive(KeepAlive::default()).into_response())
    }

    /// Makes parts of a stream of what became of a text.
    /// Texts of several prompts come mixed, and `index` tells them apart.
    fn happened(&mut self, event: Result<Event, Refusal>, usage: bool) {
        match event {
            Ok(Event::Text { index, text, tokens }) => match self.logprobs(&tokens) {
                Ok(logprobs) => {
                    let shown = self.shown(index, text);
                    // What may be a part of a call is held.
                    if !shown.is_empty() || !tokens.is_empty() {
                        self.tell(self.form.part(index, Some(&shown), None, &logprobs));
                    }
                }
                Err(refusal) => self.fail(&refusal),
            },
            Ok(Event::Ended { index, reason, tokens, cached }) => {
                self.end(index, reason);
                self.count(tokens, cached);
                if self.done == self.ordered.texts {
                    self.finish(usage);
                }
            }
            Ok(Event::Failed(refusal)) | Err(refusal) => self.fail(&refusal),
        }
    }

    /// The end of a text in a stream: what was held of it, calls in it, and why it ends.
    ///
    /// Clients put a call's arguments together of parts. Here each comes as one.
    fn end(&mut self, index: usize, reason: Reason) {
        let (rest, calls) = self.finished(index);
        if !rest.is_empty() {
            self.tell(self.form.part(index, Some(&rest), None, &Value::Null));
        }
        if !calls.is_empty() {
            let part = |(i, call): (usize, &Call)| {
                let mut part = described(call);
                part["index"] = i.into();
                part
            };
            let all: Vec<_> = calls.iter().enumerate().map(part).collect();
            self.tell(json!({"index": index, "delta": {"tool_calls": all}, "logprobs": null, "finish_reason": null}));
        }
        self.tell(self.form.part(index, None, Some(ended(reason, &calls)), &Value::Null));
    }

    /// The end of a stream that cannot go on.
    ///
    /// All texts end with it, also those that could go on by themselves.
    fn fail(&mut self, refusal: &Refusal) {
        // The status is long sent: clients raise what has an error object.
        self.ready.push_back(refusal.object().to_string());
        self.done = self.ordered.texts;
    }

    /// What is said of tokens, where it was asked for.
    ///
    /// A text without tokens then has empty lists.
    fn logprobs(&self, tokens: &[Told]) -> Result<Value, Refusal> {
        match self.ordered.likeliest {
            Some(_) => logprobs(self.form, &self.vocabulary, tokens),
            None => Ok(Value::Null),
        }
    }

    /// The end of a stream.
    fn finish(&mut self, usage: bool) {
        if usage {
            let mut value = self.value(self.form.names()[2], Vec::new());
            value["usage"] = self.usage();
            self.ready.push_back(value.to_string());
        }
        self.ready.push_back("[DONE]".to_owned());
    }

    /// Adds a part to the stream.
    fn tell(&mut self, choice: Value) {
        self.ready.push_back(self.value(self.form.names()[2], vec![choice]).to_string());
    }

    /// Another text is done.
    fn count(&mut self, tokens: usize, cached: usize) {
        self.done += 1;
        self.written += tokens;
        self.cached += cached;
    }

    /// What every answer and every part of one says.
    fn value(&self, object: &str, choices: Vec<Value>) -> Value {
        json!({"id": self.id, "object": object, "created": self.created, "model": self.model, "choices": choices})
    }

    /// Tokens read and written, of all texts together.
    fn usage(&self) -> Value {
        let (read, written) = (self.ordered.read, self.written);
        json!({
            "prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written,
            "prompt_tokens_details": {"cached_tokens": self.cached},
        })
    }
}
