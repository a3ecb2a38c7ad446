//! `/v1/completions`: prompts that go on.

use super::{
    App,
    answer::{Answer, Form},
    body,
    writing::{Manner, encode, tokens},
};
use crate::{
    fields::{Fields, shown},
    refusal::Refusal,
};
use axum::{
    extract::{Request, State},
    response::Response,
};
use hecate_models::Result as Found;
use serde_json::Value;
use std::sync::Arc;

/// Tokens that are written where a request does not say how many, as OpenAI has it.
const TOKENS: usize = 16;
/// Most tokens that are told beside each, as OpenAI has it.
const MOST_LIKELIEST: u64 = 5;

/// Prompts as they came.
#[derive(Debug)]
enum Prompts {
    Texts(Vec<String>),
    Tokens(Vec<Vec<u32>>),
}

/// Continues prompts.
///
/// Whatever a prompt is, what runs has tokens; an echo repeats the text that was sent.
pub(super) async fn completions(State(app): State<Arc<App>>, request: Request) -> Result<Response, Refusal> {
    let mut fields = body::fields(&app, request).await?;
    let prompts = prompts(fields.take("prompt"))?;
    let most = tokens(&app, &mut fields, &["max_tokens"])?;
    let mut manner = Manner::take(&app, &mut fields, Some(most.unwrap_or(TOKENS)))?;
    let echo = fields.flag("echo")?;
    manner.likeliest = likeliest(&mut fields, echo)?;
    fields.without("suffix", "leave it out; the model writes at the end of a text alone")?;
    fields.finish()?;
    let (prompts, texts) = match prompts {
        Prompts::Texts(texts) => (encode(&app, texts.clone()).await?, texts),
        Prompts::Tokens(prompts) if echo => {
            // What is no token is refused before anything is made of it.
            let texts = prompts.iter().map(|prompt| app.vocabulary.decode(prompt)).collect::<Found<Vec<_>>>();
            (prompts, texts?)
        }
        Prompts::Tokens(prompts) => (prompts, Vec::new()),
    };
    let (stream, usage) = (manner.stream, manner.usage);
    let answer = Answer::new(&app, Form::Completion, manner.order(&app, prompts).await?);
    answer.after(if echo { texts } else { Vec::new() }).respond(stream, usage).await
}

/// How many of the likeliest tokens are told beside each; 0 tells of the token alone.
///
/// Not beside an echo, whose tokens are read many at a time: nobody looks how likely they were.
fn likeliest(fields: &mut Fields, echo: bool) -> Result<Option<usize>, Refusal> {
    // As those of conversations say that they want none.
    let found = fields.take("logprobs").filter(|found| found != &Value::Bool(false));
    let Some(found) = found else { return Ok(None) };
    let count = found.as_u64().filter(|count| *count <= MOST_LIKELIEST);
    let Some(count) = count else {
        let expected = format!("a whole number from 0 to {MOST_LIKELIEST}");
        return Err(Refusal::field("logprobs", shown(&found), expected));
    };
    if echo {
        return Err(Refusal::field(
            "logprobs",
            format!("{count} beside `echo`"),
            "one of the two fields; leave the other out",
        ));
    }
    Ok(Some(count as usize))
}

/// A text, a list of texts, tokens, or a list of lists of tokens.
///
/// A list of numbers is one prompt of tokens, and a list of lists has a prompt in each; an empty list is no prompt.
fn prompts(found: Option<Value>) -> Result<Prompts, Refusal> {
    let found = found.ok_or_else(|| Refusal::field("prompt", "missing", "a text to continue"))?;
    let token = |value: &Value| value.as_u64().and_then(|token| u32::try_from(token).ok());
    let prompt = |value: &Value| value.as_array()?.iter().map(token).collect::<Option<Vec<u32>>>();
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let read = match &found {
        Value::String(text) => Some(Prompts::Texts(vec![text.clone()])),
        Value::Array(list) if list.iter().all(Value::is_string) => {
            list.iter().map(text).collect::<Option<_>>().map(Prompts::Texts)
        }
        Value::Array(list) if list.iter().all(Value::is_array) => {
            list.iter().map(prompt).collect::<Option<_>>().map(Prompts::Tokens)
        }
        one => prompt(one).map(|prompt| Prompts::Tokens(vec![prompt])),
    };
    read.ok_or_else(|| {
        Refusal::field("prompt", shown(&found), "a text, a list of texts, tokens, or a list of lists of tokens")
    })
}
