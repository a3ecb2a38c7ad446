//! `/v1/responses`: conversations in OpenAI's newer form.
//!
//! A request becomes the same messages, tools and manner as one of `/v1/chat/completions`. What differs is how it is written, and
//! how the answer is. Nothing of either is kept, so a request brings the whole conversation.

mod input;
mod report;

use super::{
    App, body,
    format::{Shape, text_format},
    tools::tools,
    writing::{Manner, encode, tokens},
};
use crate::{fields::Fields, refusal::Refusal};
use axum::{
    extract::{Request, State},
    response::Response,
};
use report::Report;
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// What the way out is for a conversation that is kept elsewhere.
const WHOLE: &str =
    "no response is kept; send the whole conversation as `input`, or continue a session by /v1/completions";

/// Answers a conversation.
pub(super) async fn responses(State(app): State<Arc<App>>, request: Request) -> Result<Response, Refusal> {
    let mut fields = body::fields(&app, request).await?;
    // Before fields are taken, which is once.
    let repeated = repeated(&fields);
    let (messages, tools) = (input::messages(&mut fields)?, tools(&mut fields, Shape::Flat)?);
    refuse(&mut fields)?;
    let most = tokens(&app, &mut fields, &["max_output_tokens"])?;
    let mut manner = Manner::take(&app, &mut fields, most)?;
    manner.schema = text_format(&mut fields)?;
    // All is read; from here on there is work.
    fields.finish()?;
    let text = manner.prompt(&app, &messages, tools.as_ref())?;
    let (prompts, stream) = (encode(&app, vec![text]).await?, manner.stream);
    Report::new(&app, repeated, tools, manner.order(&app, prompts).await?).respond(stream).await
}

/// What an answer says once more of its request, as OpenAI has it.
fn repeated(fields: &Fields) -> Map<String, Value> {
    let defaults = json!({
        "instructions": null, "max_output_tokens": null, "metadata": {}, "parallel_tool_calls": true, "previous_response_id": null,
        "store": false, "temperature": 1.0, "text": {"format": {"type": "text"}}, "tool_choice": "auto", "tools": [],
        "top_p": 1.0, "truncation": "disabled", "user": null,
    });
    // Null is as if the field were not there.
    let said = |(name, default): (&String, &Value)| {
        let found = fields.look(name).filter(|value| !value.is_null());
        (name.clone(), found.unwrap_or(default).clone())
    };
    defaults.as_object().into_iter().flatten().map(said).collect()
}

/// Refuses what would change the answer, and what other addresses have under these names.
fn refuse(fields: &mut Fields) -> Result<(), Refusal> {
    for name in ["previous_response_id", "conversation", "session", "prompt"] {
        fields.without(name, WHOLE)?;
    }
    // As conversations have it.
    fields.without("response_format", "say it by `text.format`")?;
    for name in ["background", "include", "max_tool_calls", "reasoning", "top_logprobs"] {
        fields.without(name, "leave it out")?;
    }
    // An answer is one text.
    fields.whole("n", 1..=1)?;
    match fields.text("truncation")?.as_deref() {
        None | Some("disabled") => Ok(()),
        Some(_) => Err(Refusal::unsupported("truncation", "leave it out, and send a shorter conversation")),
    }
}
