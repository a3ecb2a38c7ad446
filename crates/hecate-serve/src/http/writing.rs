//! What completions of prompts and of conversations have in common: how texts are written.

use super::{
    App,
    drawing::samplers,
    format::{Schema, response_format},
    tools::{Choice, Tools},
};
use crate::{
    fields::{Fields, shown},
    name::Name,
    order::{Event, Order, Writing},
    refusal::Refusal,
    template::Message,
};
use hecate_models::{Result as Found, sampling::Sampler};
use serde_json::Value;
use std::{sync::Arc, time::Instant};
use tokio::{
    sync::mpsc::{UnboundedReceiver, unbounded_channel},
    task::spawn_blocking,
};

/// Most stop texts, and most bytes of each: every token is compared with all of them.
const STOPS: usize = 16;
const STOP: usize = 1024;
/// What the way out is for fields that change what is answered.
const ANSWER: &str = "leave it out";

/// How texts are written and told.
#[derive(Debug)]
pub(super) struct Manner {
    /// One for each continuation of a prompt.
    samplers: Vec<Sampler>,
    stops: Vec<String>,
    /// What every text is kept to.
    pub(super) schema: Option<Schema>,
    tokens: usize,
    /// How many of the likeliest tokens are told beside each; none where no likelihood is.
    pub(super) likeliest: Option<usize>,
    session: Option<Name>,
    /// Whether each token is told at once.
    pub(super) stream: bool,
    /// Whether a stream tells the number of tokens in the end.
    pub(super) usage: bool,
}

impl Manner {
    /// Takes all fields that both kinds of request know; `tokens` are written where the request does not say how many.
    ///
    /// # Errors
    /// 400 by the field's name; 404 for another model.
    pub(super) fn take(app: &App, fields: &mut Fields, tokens: Option<usize>) -> Result<Self, Refusal> {
        if let Some(id) = fields.text("model")? {
            check_model(app, &id)?;
        }
        let samplers = samplers(app, fields)?;
        let stops = stops(fields.take("stop"))?;
        let schema = response_format(fields)?;
        let session = fields.text("session")?.map(|name| Name::parse("session", &name)).transpose()?;
        let tokens = tokens.unwrap_or(app.limits.tokens).min(app.limits.tokens);
        let (stream, usage) = (fields.flag("stream")?, usage(fields)?);
        for other in ["store", "tools", "functions", "modalities"] {
            fields.without(other, ANSWER)?;
        }
        // They say who asks, or how quickly it should be done.
        fields.forget(&["user", "metadata", "safety_identifier", "prompt_cache_key", "service_tier"]);
        Ok(Self { samplers, stops, schema, tokens, likeliest: None, session, stream, usage })
    }

    /// The text that a model continues with its answer to a conversation, or with a call of one of the tools.
    ///
    /// An answer that has to be a call is kept to a schema of calls.
    ///
    /// # Errors
    /// 400 for a conversation or tools that the model's template does not know, and for tools beside another schema.
    pub(super) fn prompt(&mut self, app: &App, messages: &[Message], tools: Option<&Tools>) -> Result<String, Refusal> {
        self.stops.extend(app.template.stops());
        let Some(tools) = tools else { return app.template.render(messages, &[]).map_err(Refusal::request) };
        if let Some(Schema { field, .. }) = &self.schema {
            let expected = "one of the two; leave the other out, or say `tool_choice` `none`";
            return Err(Refusal::field(field, "beside `tools`", expected));
        }
        self.schema = (tools.choice == Choice::Required).then(|| tools.schema());
        tools.prompt(app, messages)
    }

    /// Orders continuations of these prompts; what becomes of them comes by the channel.
    ///
    /// # Errors
    /// 400 for what the server's limits forbid and for a schema that is not understood, 429 where there is no room.
    pub(super) async fn order(self, app: &App, prompts: Vec<Vec<u32>>) -> Result<Ordered, Refusal> {
        let (texts, places) = (prompts.len() * self.samplers.len(), app.limits.texts);
        if !(1..=places).contains(&texts) {
            let found = format!("{} prompts, and `n` {}", prompts.len(), self.samplers.len());
            return Err(Refusal::field("prompt", found, format!("1 to {places} texts altogether")));
        }
        if self.session.is_some() && texts > 1 {
            return Err(Refusal::field("session", "that of several texts", "one prompt with `n` 1; fork the session"));
        }
        check_prompts(app, &prompts)?;
        let read = prompts.iter().map(Vec::len).sum();
        let permits = u32::try_from(texts).map_err(|_| Refusal::full())?;
        let places = Arc::clone(&app.places).try_acquire_many_owned(permits).map_err(|_| Refusal::full())?;
        let (sender, events) = unbounded_channel();
        let arrived = Instant::now();
        let Self { samplers, stops, schema, tokens, likeliest, session, .. } = self;
        let bound = match schema {
            Some(Schema { value, field }) => Some(app.schemas.bind(value, &field).await?),
            None => None,
        };
        app.order(Order::Write(Writing {
            prompts,
            samplers,
            stops,
            bound,
            tokens,
            likeliest,
            session,
            events: sender,
            places,
            arrived,
        }))?;
        Ok(Ordered { events, texts, read, likeliest })
    }
}

/// Texts that were ordered.
#[derive(Debug)]
pub(super) struct Ordered {
    pub(super) events: UnboundedReceiver<Event>,
    /// How many there are.
    pub(super) texts: usize,
    /// Tokens of all prompts.
    pub(super) read: usize,
    /// As [`Manner::likeliest`].
    pub(super) likeliest: Option<usize>,
}

/// The most tokens that a request asks for under any of these names.
///
/// # Errors
/// 400 for more than the server writes.
pub(super) fn tokens(app: &App, fields: &mut Fields, names: &[&str]) -> Result<Option<usize>, Refusal> {
    let mut found = None;
    for name in names {
        found = fields.whole(name, 1..=app.limits.tokens)?.or(found);
    }
    Ok(found)
}

/// The tokens of texts, off the thread that has the connections.
///
/// # Errors
/// 500 where the tokenizer fails.
pub(super) async fn encode(app: &App, texts: Vec<String>) -> Result<Vec<Vec<u32>>, Refusal> {
    let vocabulary = Arc::clone(&app.vocabulary);
    let encoded = spawn_blocking(move || texts.iter().map(|text| vocabulary.encode(text)).collect::<Found<Vec<_>>>());
    Ok(encoded.await.map_err(|error| Refusal::failed(format!("the tokenizer failed: {error}")))??)
}

/// 404 for the name of another model.
pub(super) fn check_model(app: &App, id: &str) -> Result<(), Refusal> {
    if id == app.id {
        return Ok(());
    }
    let found = shown(&Value::from(id));
    Err(Refusal::missing(format!("there is no model {found}; this server has `{}`", app.id), "model_not_found"))
}

/// Stop texts: one, or a list.
///
/// An empty one would end every text before it begins, and is refused.
fn stops(found: Option<Value>) -> Result<Vec<String>, Refusal> {
    let expected = format!("a text, or a list of up to {STOPS}, each of 1 to {STOP} bytes");
    let found = match found {
        None => return Ok(Vec::new()),
        Some(Value::Array(list)) => list,
        Some(one) => vec![one],
    };
    let text = |stop: &Value| stop.as_str().filter(|stop| (1..=STOP).contains(&stop.len())).map(str::to_owned);
    let stops: Option<Vec<String>> = found.iter().map(text).collect();
    stops
        .filter(|stops| stops.len() <= STOPS)
        .ok_or_else(|| Refusal::field("stop", shown(&Value::from(found)), expected))
}

/// Whether a stream ends with the number of tokens.
/// The options of a stream are an object of their own, of which every field counts as those of the request do.
fn usage(fields: &mut Fields) -> Result<bool, Refusal> {
    let Some(mut options) = fields.object("stream_options")? else { return Ok(false) };
    let usage = options.flag("include_usage")?;
    // Padding against listeners, which a stream may have or not.
    options.forget(&["include_obfuscation"]);
    options.finish()?;
    Ok(usage)
}

/// Refuses prompts of no token, of too many, or of tokens that nobody knows.
///
/// Tokens under the vocabulary's size may still be none that a tokenizer knows; the model has scores for them all.
fn check_prompts(app: &App, prompts: &[Vec<u32>]) -> Result<(), Refusal> {
    let (most, size) = (app.limits.prompt, app.vocabulary.size());
    let tokens: usize = prompts.iter().map(Vec::len).sum();
    if tokens > most {
        return Err(Refusal::field("prompt", format!("{tokens} tokens"), format!("up to {most}")));
    }
    if prompts.iter().any(Vec::is_empty) {
        return Err(Refusal::field("prompt", "empty", "at least one token"));
    }
    match prompts.iter().flatten().find(|&&token| token as usize >= size) {
        Some(token) => Err(Refusal::field("prompt", format!("token {token}"), format!("tokens under {size}"))),
        None => Ok(()),
    }
}
