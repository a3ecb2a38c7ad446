//! `/v1/chat/completions`: conversations that go on.
//!
//! The model's template makes a prompt of all messages and of the tools. From there on it is a completion, told in another form.

use super::{
    App,
    answer::{Answer, Form},
    body,
    format::Shape,
    messages::messages,
    tools::tools,
    writing::{Manner, encode, tokens},
};
use crate::{fields::Fields, refusal::Refusal};
use axum::{
    extract::{Request, State},
    response::Response,
};
use std::sync::Arc;

/// Answers a conversation.
///
/// All fields are read before any work is done for one of them.
pub(super) async fn completions(State(app): State<Arc<App>>, request: Request) -> Result<Response, Refusal> {
    let mut fields = body::fields(&app, request).await?;
    let (messages, tools) = (messages(&mut fields)?, tools(&mut fields, Shape::Nested)?);
    fields.without("session", "send all messages, or continue a session by /v1/completions")?;
    let most = tokens(&app, &mut fields, &["max_tokens", "max_completion_tokens"])?;
    let mut manner = Manner::take(&app, &mut fields, most)?;
    manner.likeliest = likeliest(&mut fields)?;
    fields.finish()?;
    // Tools change the prompt, and what the answer is kept to.
    let text = manner.prompt(&app, &messages, tools.as_ref())?;
    let prompts = encode(&app, vec![text]).await?;
    let (stream, usage) = (manner.stream, manner.usage);
    let answer = Answer::new(&app, Form::Chat, manner.order(&app, prompts).await?);
    answer.calling(tools).respond(stream, usage).await
}

/// How many of the likeliest tokens are told beside each; none where `logprobs` is not true.
fn likeliest(fields: &mut Fields) -> Result<Option<usize>, Refusal> {
    let (asked, count) = (fields.flag("logprobs")?, fields.whole("top_logprobs", 0..=20)?);
    match count {
        Some(count @ 1..) if !asked => {
            Err(Refusal::field("top_logprobs", count, "0 without `logprobs`; set `logprobs` to true"))
        }
        count => Ok(asked.then_some(count.unwrap_or(0))),
    }
}
