//! What is learned: a text, or examples.

use super::FinetuneArgs;
use crate::{
    error::{Error, Result},
    released, sources,
};
use hecate::{
    Backend,
    models::{
        ChatTemplate, Opened, Vocabulary,
        text::{ExampleForm, Examples, Identity, Stream, Template},
    },
    train::{Material, Settings},
};
use std::path::{Path, PathBuf};

/// What is learned.
pub(crate) enum Data {
    /// A text, what messages call it, and which it is.
    Text(Stream, PathBuf, Identity),
    /// Examples.
    Examples(Examples),
}

impl Data {
    /// As the flags say, for a model.
    pub(super) fn load<B: Backend>(arguments: &FinetuneArgs, opened: &Opened<B>) -> Result<Self> {
        let (vocabulary, ends) = released::words(opened)?;
        // By their names: a text of JSON would be learned as it is.
        if are_lines(&arguments.data)? {
            let template = opened.chat_template().map_err(|error| error.to_string());
            let examples = examples(&arguments.data, (&vocabulary, &ends), &template, arguments.tokens)?;
            return Ok(Self::Examples(examples));
        }
        // Long texts stay on the disk only where a byte is a token.
        let text = sources::load(&arguments.data, None, arguments.memory)?;
        let stream = text.tail(&vocabulary, 1.0)?;
        // Windows, and a token that follows the last of each.
        if stream.tokens.len() <= arguments.tokens {
            let found = stream.tokens.len();
            let why =
                format!("{found} tokens, and a window has {}; give more text, or fewer `--tokens`", arguments.tokens);
            return Err(Error::file(text.name(), why));
        }
        Ok(Self::Text(stream, text.name().to_owned(), text.identity().clone()))
    }

    /// As trainers take it.
    pub(super) fn material(&self) -> Material<'_> {
        match self {
            Self::Text(stream, ..) => (&stream.tokens).into(),
            Self::Examples(examples) => examples.into(),
        }
    }

    /// What messages call it.
    pub(super) fn name(&self) -> &Path {
        match self {
            Self::Text(_, name, _) => name,
            Self::Examples(examples) => examples.name(),
        }
    }

    /// Which it is.
    pub(super) fn identity(&self) -> &Identity {
        match self {
            Self::Text(.., identity) => identity,
            Self::Examples(examples) => examples.identity(),
        }
    }

    /// Tokens that a step reads; of examples as many as they have on average.
    pub(super) fn tokens_per_step(&self, settings: &Settings) -> usize {
        match self {
            Self::Text(..) => settings.tokens_per_step(),
            Self::Examples(examples) => {
                // No pass has just as many; speeds are means all the same.
                let drawn = settings.batch.saturating_mul(settings.accumulate);
                (examples.tokens()[0] / examples.len()).max(1).saturating_mul(drawn)
            }
        }
    }

    /// How much it is.
    pub(super) fn describe(&self) -> String {
        match self {
            Self::Text(stream, ..) => format!("{} tokens of text", stream.tokens.len()),
            Self::Examples(examples) => {
                let [read, learned] = examples.tokens();
                format!("{} examples of {read} tokens, of which {learned} are learned", examples.len())
            }
        }
    }
}

/// The examples of these files. A model's first end token ends texts and completions, its template writes conversations, or there
/// is none for the reason that is told.
pub(crate) fn examples(
    paths: &[PathBuf],
    (vocabulary, ends): (&Vocabulary, &[u32]),
    template: &Result<ChatTemplate, String>,
    longest: usize,
) -> Result<Examples> {
    let template = template.as_ref().map(|template| template as &dyn Template).map_err(String::clone);
    Ok(Examples::open(paths, &ExampleForm { vocabulary, end: ends.first().copied(), longest, template })?)
}

/// Whether files are lines of JSON, by the ends of their names: all of them, or none.
fn are_lines(paths: &[PathBuf]) -> Result<bool> {
    let is_lines = |path: &PathBuf| {
        let ending = path.extension().unwrap_or_default().to_ascii_lowercase();
        ending == "jsonl" || ending == "ndjson"
    };
    let lines = paths.iter().filter(|path| is_lines(path)).count();
    match lines {
        0 => Ok(false),
        all if all == paths.len() => Ok(true),
        _ => Err(Error::flag("--data", "lines of JSON beside texts; give files of one kind")),
    }
}
