//! Running a template.

use super::{json, source::Source};
use crate::{Error, Result};
use hecate_core::caught;
use minijinja::{AutoEscape, Environment, ErrorKind, Value, syntax::SyntaxConfig, value::ValueKind};
use minijinja_contrib::pycompat::unknown_method_callback;
use std::{
    error::Error as _,
    fmt::{self, Write},
    path::PathBuf,
    sync::{Arc, mpsc},
    thread,
    time::Duration,
};

/// Steps of a template. Published ones take some hundred a message, and one for every 64 bytes that they copy, so a template
/// takes under a second and 64 MB.
const STEPS: u64 = 1_000_000;
/// Bytes of the stack that templates run on. A template can put lists into each other, one in four steps, and each takes under
/// a kilobyte when all are let go by recursion. Untouched memory costs nothing.
const STACK: usize = (STEPS / 4 * 1024) as usize;
/// What a template may take, where steps do not tell.
const LONGEST: Duration = Duration::from_secs(30);
/// Calls within each other.
const DEPTH: usize = 100;
/// What the template is called inside of the library.
const NAME: &str = "chat";
/// Names under which messages have what the model thought, the most usual one first.
const THOUGHTS: [&str; 3] = ["reasoning_content", "thinking", "reasoning"];

/// A template that was understood.
#[derive(Debug)]
pub(super) struct Program {
    path: PathBuf,
    environment: Arc<Environment<'static>>,
    /// What it is told beside the conversation.
    told: Vec<(String, Value)>,
}

impl Program {
    /// Of a template's text.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] for a template that is not understood.
    pub(super) fn new(source: Source) -> Result<Self> {
        let Source { path, text, tokens } = source;
        let mut environment = environment();
        let added = environment.add_template_owned(NAME, without_marks(&text));
        added.map_err(|error| failure(&error)).map_err(|why| Error::checkpoint(&path, why))?;
        let told = tokens.into_iter().map(|(name, text)| (name, Value::from(text))).collect();
        Ok(Self { path, environment: Arc::new(environment), told })
    }

    /// Tells it what a name stands for, from here on.
    ///
    /// # Errors
    /// [`Error::Config`] for what is no JSON.
    pub(super) fn tell(&mut self, name: &str, json: &str) -> Result<()> {
        let value = serde_json::from_str(json);
        self.told.push((name.to_owned(), value.map_err(|error| Error::config(name, error, "a value in JSON"))?));
        Ok(())
    }

    /// The text of a conversation in JSON; of a part, that many messages are told, and whether an answer is opened after them.
    pub(super) fn render(&self, conversation: &str, part: Option<(usize, bool)>) -> Result<String> {
        let expected = "an object in JSON with a list of `messages`";
        let conversation: Value =
            serde_json::from_str(conversation).map_err(|error| Error::config("conversation", error, expected))?;
        let messages = conversation.get_attr("messages").unwrap_or_default();
        if messages.kind() != ValueKind::Seq {
            return Err(Error::config("conversation", "without one", expected));
        }
        let count = part.map_or(usize::MAX, |(count, _)| count);
        let messages = messages.try_iter().into_iter().flatten().take(count);
        let messages = messages.map(|message| with_thoughts(&message)).collect::<Result<Vec<_>>>()?;
        let known = self.told.iter().cloned().chain(pairs(&conversation)?).filter(|(name, _)| name != "messages");
        let opens = part.map(|(_, opens)| ("add_generation_prompt".to_owned(), Value::from(opens)));
        // The last value of a name counts.
        let known = Value::from_pairs(known.chain([("messages".to_owned(), Value::from(messages))]).chain(opens));
        self.run(known, LONGEST).map_err(|why| Error::checkpoint(&self.path, why))
    }

    /// What the template makes of all that it is told, or what is wrong, in words. One that does not come to an end is left to
    /// itself: steps pay for nearly all work, and not for that on a list which was added to itself some thirty times.
    fn run(&self, known: Value, longest: Duration) -> Result<String, String> {
        let environment = Arc::clone(&self.environment);
        let work = move || {
            let rendered = environment.get_template(NAME).and_then(|template| template.render(known));
            rendered.map_err(|error| failure(&error))
        };
        let (tell, outcome) = mpsc::channel();
        // Nobody listens any more where it took too long.
        let started = thread::Builder::new().stack_size(STACK).spawn(move || drop(tell.send(caught(work))));
        started.map_err(|error| format!("no stack for the chat template: {error}; free some memory"))?;
        let way_out = "use the one that the model was published with";
        match outcome.recv_timeout(longest) {
            Ok(Ok(rendered)) => rendered,
            Ok(Err(panic)) => Err(format!("what runs the chat template gave up ({panic}); {way_out}")),
            Err(_) => Err(format!("the chat template takes longer than {} seconds; {way_out}", longest.as_secs_f32())),
        }
    }
}

/// What templates may use, as transformers has it.
fn environment() -> Environment<'static> {
    let mut environment = Environment::new();
    // These settings contradict no other, so they are never refused.
    if let Ok(syntax) = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build() {
        environment.set_syntax(syntax);
    }
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_unknown_method_callback(unknown_method_callback);
    environment.set_fuel(Some(STEPS));
    environment.set_recursion_limit(DEPTH);
    environment.add_filter("tojson", json::tojson);
    environment.add_function("raise_exception", |why: String| -> Result<Value, minijinja::Error> {
        Err(minijinja::Error::new(ErrorKind::InvalidOperation, why).with_source(Refused))
    });
    environment.add_function("strftime_now", |format: String| {
        let mut text = String::new();
        // A directive that does not exist is an error of the formatter.
        let written = write!(text, "{}", chrono::Local::now().format(&format));
        let unknown =
            || minijinja::Error::new(ErrorKind::InvalidOperation, format!("no such format of a date: {format}"));
        written.map(|()| text).map_err(|_| unknown())
    });
    environment
}

/// The mark of an error that the template's author wrote.
#[derive(Debug)]
struct Refused;

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("by `raise_exception`")
    }
}

impl std::error::Error for Refused {}

/// An error in words: what fails, in which line, why, and the way out.
fn failure(error: &minijinja::Error) -> String {
    let mut why = error.detail().map_or_else(|| error.kind().to_string(), str::to_owned);
    let (mut refused, mut cause) = (false, error.source());
    while let Some(error) = cause {
        refused |= error.is::<Refused>();
        // A macro's error is the cause of its call's.
        if let Some(inner) = error.downcast_ref::<minijinja::Error>().and_then(minijinja::Error::detail) {
            why = inner.to_owned();
        }
        cause = error.source();
    }
    let (what, way_out) = match error.kind() {
        _ if refused => ("refuses this conversation", "say what it takes, which may be no system message"),
        ErrorKind::OutOfFuel => {
            why = format!("it takes more than {STEPS} steps");
            ("takes too long", "begin a new conversation, or use the template that was published with the model")
        }
        ErrorKind::SyntaxError => ("is not understood", "use the one that was published with the model"),
        _ => ("fails", "use the one that was published with the model"),
    };
    let line = error.line().map_or_else(String::new, |line| format!(" in line {line}"));
    format!("the chat template {what}{line}: {why}; {way_out}")
}

/// Names and values of an object.
fn pairs(object: &Value) -> Result<Vec<(String, Value)>> {
    if object.kind() != ValueKind::Map {
        let found = format!("a {} in the place of an object", object.kind());
        return Err(Error::config("conversation", found, "an object in JSON, and one for each message"));
    }
    let names = object.try_iter().into_iter().flatten();
    Ok(names.map(|name| (name.to_string(), object.get_item(&name).unwrap_or_default())).collect())
}

/// A message without what is null in it, in which what the model thought has the names that templates know it by.
fn with_thoughts(message: &Value) -> Result<Value> {
    let mut told = pairs(message)?;
    told.retain(|(_, value)| !value.is_none());
    let found = |name: &&str| told.iter().find(|(known, _)| known == name).map(|(_, thought)| thought.clone());
    let Some(thought) = THOUGHTS.iter().find_map(found) else { return Ok(Value::from_pairs(told)) };
    // The first place of a name counts, and the last value.
    let before = [("thinking".to_owned(), thought.clone())];
    let after = [("reasoning_content".to_owned(), thought)];
    Ok(Value::from_pairs(before.into_iter().chain(told).chain(after)))
}

/// A template in which the tags around what a model itself said are conditions that always hold: they mark what is to be
/// learned, and only transformers knows them.
fn without_marks(source: &str) -> String {
    let (mut rest, mut plain) = (source, String::with_capacity(source.len()));
    while let Some((before, tag)) = rest.find("{%").map(|at| rest.split_at(at)) {
        let end = tag.find("%}").map_or(tag.len(), |end| end + 2);
        plain.push_str(before);
        plain.push_str(&match tag[2..end].trim_end_matches("%}").trim_matches(['-', '+']).trim() {
            "generation" => tag[..end].replacen("generation", "if true", 1),
            "endgeneration" => tag[..end].replacen("endgeneration", "endif", 1),
            _ => tag[..end].to_owned(),
        });
        rest = &tag[end..];
    }
    plain + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_template_without_an_end_is_left_to_itself() {
        let text = "{% set ns = namespace(a=[1]) %}{% for i in range(99) %}{% set ns.a = ns.a + ns.a %}{% endfor %}x";
        let program = Program::new(Source { path: "t".into(), text: text.into(), tokens: Vec::new() }).unwrap();
        let told = program.run(Value::from(()), Duration::from_millis(50)).unwrap_err();
        assert!(told.contains("longer than 0.05 seconds") || told.contains("steps"), "{told}");
    }
}
