//! Examples to learn from: texts, prompts with what is to follow them, or conversations, in lines of JSON.

mod conversation;
mod lines;

use super::{Identity, Text, open};
use crate::{
    Packed, Result, Vocabulary,
    files::{Checksum, unmarked},
    tokens::fail,
};
use lines::{Line, Tokens};
use std::{
    fmt::Debug,
    ops::Range,
    path::{Path, PathBuf},
};

/// Endings of files that a folder is searched for.
const ENDINGS: [&str; 2] = ["jsonl", "ndjson"];

/// How lines become examples of a model.
#[derive(Debug)]
pub struct ExampleForm<'a> {
    /// What makes tokens of texts.
    pub vocabulary: &'a Vocabulary,
    /// The token that ends a text. It comes after texts and completions, and is learned.
    pub end: Option<u32>,
    /// Most tokens that are read of an example, at least 1.
    pub longest: usize,
    /// What writes conversations, or why there is nothing that does, in words.
    pub template: Result<&'a dyn Template, String>,
}

/// What writes conversations as a model reads them, as [`ChatTemplate`](crate::ChatTemplate) does.
pub trait Template: Debug {
    /// The text of the first `messages` of a conversation in JSON, and of what comes before an answer where one `opens`.
    ///
    /// # Errors
    /// What the template refuses, in words.
    fn part(&self, conversation: &str, messages: usize, opens: bool) -> Result<String>;
}

/// Examples as tokens, each with what of it is learned.
#[derive(Clone, Debug)]
pub struct Examples {
    name: PathBuf,
    identity: Identity,
    /// Of all examples.
    tokens: Vec<u32>,
    /// Whether each token has a loss.
    learned: Vec<bool>,
    /// Where examples are among them, and bytes of text that the tokens with a loss stand for.
    all: Vec<(Range<usize>, usize)>,
}

impl Examples {
    /// The examples of these files, a line each: `{"text": …}`, all of which is learned, `{"prompt": …, "completion": …}`, of
    /// which the completion is, or `{"messages": [{"role": …, "content": …}, …]}`, of which what the assistant says is, with what
    /// the template ends it with. Of folders the files below them are read whose names end in `.jsonl` or `.ndjson`.
    ///
    /// A text of more than `longest` tokens is cut into several examples. Prompt and completion become tokens apart, as they do
    /// where a model continues a prompt. A conversation becomes tokens as one text, up to its last answer that is learned: answers
    /// with `"weight": 0` are not. What else a line says, such as `tools`, its template is told.
    ///
    /// # Errors
    /// [`Error::Text`](crate::Error::Text) naming file, line and field, also for a template that refuses a conversation or that
    /// writes earlier turns otherwise later on; as [`Vocabulary::encode`].
    pub fn open(paths: &[PathBuf], form: &ExampleForm<'_>) -> Result<Self> {
        let files = open::named_or_ending(paths, &ENDINGS)?;
        let whole = Text::open(&files, usize::MAX)?;
        let mut examples = Self::none(open::name(paths), whole.identity().clone());
        for file in &files {
            let lines = Text::open(std::slice::from_ref(file), usize::MAX)?;
            examples.add(file, &lines.content()?, form)?;
        }
        examples.checked()
    }

    /// As [`Examples::open`], of these lines; `name` is for messages.
    ///
    /// # Errors
    /// As [`Examples::open`].
    pub fn new(name: &Path, lines: &str, form: &ExampleForm<'_>) -> Result<Self> {
        let mut examples = Self::none(name.to_owned(), Identity::of(lines));
        examples.add(name, lines.as_bytes(), form)?;
        examples.checked()
    }

    fn none(name: PathBuf, identity: Identity) -> Self {
        Self { name, identity, tokens: Vec::new(), learned: Vec::new(), all: Vec::new() }
    }

    /// Adds the examples of these lines.
    fn add(&mut self, name: &Path, lines: &[u8], form: &ExampleForm<'_>) -> Result<()> {
        let lines = unmarked(lines).split(|&byte| byte == b'\n').enumerate();
        for (number, line) in lines.filter(|(_, line)| !line.trim_ascii().is_empty()) {
            let at = |why: String| fail(name, format!("line {}: {why}", number + 1));
            let line = Line::read(line, form).map_err(at)?;
            let tokens = line.tokens(form.vocabulary, form.end)?;
            self.add_example(&tokens, form.longest.max(1)).map_err(at)?;
        }
        Ok(())
    }

    /// Adds the examples of a line, or says what is wrong with it.
    fn add_example(&mut self, example: &Tokens, longest: usize) -> Result<(), String> {
        let Tokens { tokens, learned, bytes, whole } = example;
        if !learned.iter().skip(1).any(|learned| *learned) {
            return Err("no token to learn: the first has none before it".to_owned());
        }
        // The last token is not read.
        let read = tokens.len() - 1;
        if !whole && read > longest {
            return Err(format!("{read} tokens, expected at most {longest}; shorten it, or allow more"));
        }
        let (mut start, mut told) = (0, 0);
        while start < read {
            // Each begins with the token that the one before ended with, which is read here and predicted there.
            let last = (start + longest).min(read);
            let upto = bytes * last / read;
            let first = self.tokens.len();
            self.tokens.extend(&tokens[start..=last]);
            self.learned.extend(&learned[start..=last]);
            self.all.push((first..self.tokens.len(), upto - told));
            (start, told) = (last, upto);
        }
        Ok(())
    }

    /// Refuses no example at all, and notes which tokens lines have become.
    fn checked(mut self) -> Result<Self> {
        if self.all.is_empty() {
            return Err(fail(&self.name, "no example in it; give a line of JSON for each"));
        }
        let mut all = Checksum::new(self.tokens.len());
        for (token, learned) in self.tokens.iter().zip(&self.learned) {
            all.take(&token.to_le_bytes());
            all.take(&[u8::from(*learned)]);
        }
        self.identity.tokens = Some(all.digits());
        Ok(self)
    }

    /// What messages call them.
    pub fn name(&self) -> &Path {
        &self.name
    }

    /// Which files they are of, and which tokens their lines have become.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Number of examples, at least 1.
    // There is none without any.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// Tokens that are read of all of them, and tokens with a loss.
    pub fn tokens(&self) -> [usize; 2] {
        let packed = self.packed(&(0..self.len()).collect::<Vec<_>>());
        [packed.tokens(), packed.losses()]
    }

    /// Tokens that are read of the example of this number; 0 where there is none.
    pub fn length(&self, number: usize) -> usize {
        self.all.get(number).map_or(0, |(range, _)| range.len() - 1)
    }

    /// Examples of these numbers, packed. Numbers of none are left out.
    pub fn packed(&self, numbers: &[usize]) -> Packed {
        let mut packed = Packed::default();
        for (range, _) in numbers.iter().filter_map(|&number| self.all.get(number)) {
            packed.push(&self.tokens[range.clone()], &self.learned[range.clone()]);
        }
        packed
    }

    /// Bytes of text that the tokens with a loss stand for, of examples of these numbers. Of a text that was cut, each part counts
    /// as many as it has tokens.
    pub fn bytes(&self, numbers: &[usize]) -> usize {
        numbers.iter().filter_map(|&number| self.all.get(number)).map(|(_, bytes)| bytes).sum()
    }
}
