//! Answers bound to a JSON schema.
//!
//! A schema becomes a grammar of bytes, and the grammar says before each token which ones may come ([`Bound`]). Both are work of
//! llguidance. A schema is made a grammar on a thread of its own: the model's thread and connections go on meanwhile.
//!
//! # What is trusted
//!
//! Schemas are not: what is cheap to see is looked at first (`check`), and the library's own limits bound the rest. A schema that
//! leads in circles or doubles with each step runs into them. A panic of the library is caught there and becomes a refusal.

mod bound;
mod check;

pub(crate) use bound::Bound;

use crate::refusal::Refusal;
use hecate_models::{Result as Found, Vocabulary};
use llguidance::{
    JsonCompileOptions, Matcher, ParserFactory,
    api::{ParserLimits, TopLevelGrammar},
    toktrie::{ApproximateTokEnv, TokEnv, TokRxInfo, TokTrie},
};
use serde_json::Value;
use std::{
    fmt,
    sync::{Arc, OnceLock},
    thread::Builder,
    time::{Duration, Instant},
};
use tokio::sync::{Semaphore, oneshot};

/// Schemas that are made grammars at once.
const AT_ONCE: usize = 2;
/// Stack of the thread that does it, bytes: a schema may lead from definition to definition. What is not used takes no memory.
const STACK: usize = 256 << 20;
/// Blanks between two parts of an answer. A model that likes them would otherwise write nothing else.
const BLANKS: &str = r"[\x20\x0A\x0D\x09]{1,32}";
/// Most bytes of a token that a bound text may have; longer ones are runs of the same letter.
const TOKEN: usize = 256;
/// Most letters of the library's reason that a message repeats.
const REASON: usize = 300;
/// How long is looked for the part of a schema that is refused.
const SEARCH: Duration = Duration::from_millis(200);

/// Makes grammars of schemas.
pub(crate) struct Schemas {
    vocabulary: Arc<Vocabulary>,
    /// Tokens that end a text.
    ends: Arc<[u32]>,
    /// The vocabulary's bytes as a tree, made for the first schema; in words why there is none.
    tokens: OnceLock<Result<ParserFactory, String>>,
    places: Arc<Semaphore>,
}

impl fmt::Debug for Schemas {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Schemas").field("ends", &self.ends).finish_non_exhaustive()
    }
}

impl Schemas {
    /// Before the first schema.
    pub(crate) fn new(vocabulary: Arc<Vocabulary>, ends: &[u32]) -> Self {
        Self { vocabulary, ends: ends.into(), tokens: OnceLock::new(), places: Arc::new(Semaphore::new(AT_ONCE)) }
    }

    /// What keeps an answer to this schema, before its first token; `field` is where the request has it.
    ///
    /// # Errors
    /// 400 for a schema that is too large, that is not understood, or that no text meets.
    pub(crate) async fn bind(self: &Arc<Self>, schema: Value, field: &str) -> Result<Bound, Refusal> {
        check::check(&schema, field)?;
        let failed = |why: &dyn fmt::Display| Refusal::failed(format!("the schema cannot be read: {why}"));
        let place = Arc::clone(&self.places).acquire_owned().await.map_err(|error| failed(&error))?;
        let (answer, bound) = oneshot::channel();
        let (all, field) = (Arc::clone(self), field.to_owned());
        let work = move || {
            // Whoever asked may have left; the place is free once the work is done.
            let _ = answer.send(all.bound(&schema, &field));
            drop(place);
        };
        Builder::new().name("schema".to_owned()).stack_size(STACK).spawn(work).map_err(|error| failed(&error))?;
        bound.await.map_err(|error| failed(&error))?
    }

    /// As [`Schemas::bind`], on this thread.
    ///
    /// The tree of tokens is the same for all schemas. Whoever comes while it is made for the first one waits for it.
    fn bound(&self, schema: &Value, field: &str) -> Result<Bound, Refusal> {
        let factory = self.tokens.get_or_init(|| factory(&self.vocabulary, &self.ends));
        let factory = factory.as_ref().map_err(|why| {
            let why = format!("answers of this model cannot be kept to a schema: {why}");
            Refusal::request(format!("{why}; leave `{field}` out"))
        })?;
        let matcher = matcher(factory, schema).map_err(|why| {
            let field = format!("{field}{}", place(factory, schema, &why));
            // After a panic comes where in the library it was.
            let why = why.split("\n<backtrace>").next().unwrap_or_default();
            let why: String = why.chars().take(REASON).collect();
            Refusal::field(&field, format!("a schema that no answer is kept to ({why})"), "one as docs/serving.md says")
        })?;
        Bound::new(matcher, Arc::clone(&self.ends))
    }
}

/// Limits of a grammar, and of what is looked at before each token: milliseconds of a processor, megabytes of memory.
fn limits() -> ParserLimits {
    ParserLimits {
        initial_lexer_fuel: 500_000,
        step_lexer_fuel: 100_000,
        step_max_items: 25_000,
        max_lexer_states: 20_000,
        max_grammar_size: 200_000,
        verbose_errors: false,
        ..ParserLimits::default()
    }
}

/// What makes grammars of this vocabulary's tokens.
///
/// Tokens that end a text, and others without a text of their own, are in no grammar. One number more than the vocabulary has
/// stands for the end of a text.
///
/// # Errors
/// In words, for a vocabulary whose tokens have no bytes that can be told.
fn factory(vocabulary: &Vocabulary, ends: &[u32]) -> Result<ParserFactory, String> {
    let bytes = |token: u32| {
        let is_text = !ends.contains(&token) && vocabulary.has_text(token);
        let bytes = if is_text { vocabulary.bytes_of(token)? } else { Vec::new() };
        // JSON is UTF-8, which never has this byte; to the library it means something else.
        let is_usable = bytes.len() <= TOKEN && !bytes.contains(&TokTrie::SPECIAL_TOKEN_MARKER);
        Ok(if is_usable { bytes } else { Vec::new() })
    };
    let end = vocabulary.size() as u32;
    let words = (0..end).map(bytes).chain([Ok(Vec::new())]).collect::<Found<Vec<_>>>();
    let words = words.map_err(|error| error.to_string())?;
    let tokens: TokEnv = Arc::new(ApproximateTokEnv::new(TokTrie::from(&TokRxInfo::new(end + 1, end), &words)));
    let mut factory = ParserFactory::new_simple(&tokens).map_err(|error| error.to_string())?;
    *factory.quiet().limits_mut() = limits();
    Ok(factory)
}

/// A grammar of a schema that is an object.
///
/// # Errors
/// In the library's words.
fn matcher(factory: &ParserFactory, schema: &Value) -> Result<Matcher, String> {
    // All else is as the schema says: nothing is passed over, and `oneOf` does not become `anyOf`.
    let options = JsonCompileOptions { whitespace_pattern: Some(BLANKS.to_owned()), ..JsonCompileOptions::default() };
    let mut schema = schema.clone();
    options.apply_to(&mut schema);
    let matcher = Matcher::new(factory.create_parser(TopLevelGrammar::from_json_schema(schema)));
    matcher.get_error().map_or(Ok(matcher), Err)
}

/// The innermost part of a schema that is refused for the same reason, as it is found in a short time: the way to it.
///
/// The library says what it refuses and not where. So each part is tried by itself, and the first that is refused alike is gone
/// into. Nothing is found, and the whole is named, where the reason is the size of the whole.
fn place(factory: &ParserFactory, schema: &Value, why: &str) -> String {
    let (began, mut way, mut part) = (Instant::now(), String::new(), schema);
    let is_it = |part: &Value| {
        let Value::Object(fields) = part else { return false };
        let mut fields = fields.clone();
        for name in ["$defs", "definitions"] {
            // What a part refers to is where it was.
            fields.extend(schema.get(name).map(|found| (name.to_owned(), found.clone())));
        }
        began.elapsed() < SEARCH && matcher(factory, &Value::Object(fields)).is_err_and(|other| other == why)
    };
    while let Some((step, inner)) = check::parts(part).into_iter().find(|(_, inner)| is_it(inner)) {
        way.push_str(&step);
        part = inner;
    }
    way
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use tokio::{runtime::Builder, time::timeout};

    #[test]
    fn who_leaves_frees_no_place_of_work_that_goes_on() {
        let schemas = Arc::new(Schemas::new(Arc::new(Vocabulary::Bytes), &[]));
        let runtime = Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            // The whole alphabet before each of many letters takes long to be read.
            let slow = json!({"type": "string", "pattern": format!("^{}$", r"(\w|\d|x){0,200}".repeat(50))});
            let left = timeout(Duration::ZERO, schemas.bind(slow, "s")).await;
            assert!(left.is_err() && schemas.places.available_permits() == AT_ONCE - 1);
            while schemas.places.available_permits() < AT_ONCE {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        });
    }
}
