//! Examples to learn from: texts, or prompts with what is to follow them, in lines of JSON.

use super::{Identity, Text, open};
use crate::{Packed, Result, Vocabulary, files::unmarked, tokens::fail};
use serde_json::{Map, Value};
use std::{
    ops::Range,
    path::{Path, PathBuf},
};

/// Endings of files that a folder is searched for.
const ENDINGS: [&str; 2] = ["jsonl", "ndjson"];

/// A piece of an example: its text, and whether its tokens are learned. A conversation is pieces of either kind in turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The text.
    pub text: String,
    /// Whether its tokens have a loss.
    pub learned: bool,
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
    /// The examples of these files, a line each: `{"text": …}`, all of which is learned, or `{"prompt": …, "completion": …}`, of
    /// which the completion is. `end`, the token that ends a text, comes after each and is learned. Of folders the files below
    /// them are read whose names end in `.jsonl` or `.ndjson`.
    ///
    /// A text of more than `longest` tokens, at least 1, is cut into several examples. Prompt and completion become tokens apart,
    /// as they do where a model continues a prompt.
    ///
    /// # Errors
    /// [`Error::Text`](crate::Error::Text) naming file, line and field; as [`Vocabulary::encode`].
    pub fn open(paths: &[PathBuf], vocabulary: &Vocabulary, end: Option<u32>, longest: usize) -> Result<Self> {
        let files = open::named_or_ending(paths, &ENDINGS)?;
        let whole = Text::open(&files, usize::MAX)?;
        let mut examples = Self::none(open::name(paths), whole.identity().clone());
        for file in &files {
            let lines = Text::open(std::slice::from_ref(file), usize::MAX)?;
            examples.add(file, &lines.content()?, (vocabulary, end, longest.max(1)))?;
        }
        examples.checked()
    }

    /// As [`Examples::open`], of these lines; `name` is for messages.
    ///
    /// # Errors
    /// As [`Examples::open`].
    pub fn new(name: &Path, lines: &str, vocabulary: &Vocabulary, end: Option<u32>, longest: usize) -> Result<Self> {
        let mut examples = Self::none(name.to_owned(), Identity::of(lines));
        examples.add(name, lines.as_bytes(), (vocabulary, end, longest.max(1)))?;
        examples.checked()
    }

    fn none(name: PathBuf, identity: Identity) -> Self {
        Self { name, identity, tokens: Vec::new(), learned: Vec::new(), all: Vec::new() }
    }

    /// Adds the examples of these lines.
    fn add(&mut self, name: &Path, lines: &[u8], how: (&Vocabulary, Option<u32>, usize)) -> Result<()> {
        let lines = unmarked(lines).split(|&byte| byte == b'\n').enumerate();
        for (number, line) in lines.filter(|(_, line)| !line.trim_ascii().is_empty()) {
            let at = |why: String| fail(name, format!("line {}: {why}", number + 1));
            let pieces = pieces(line).map_err(at)?;
            self.add_example(&pieces, how)?.map_err(at)?;
        }
        Ok(())
    }

    /// Adds an example of these pieces, or says what is wrong with it.
    fn add_example(
        &mut self,
        pieces: &[Piece],
        (vocabulary, end, longest): (&Vocabulary, Option<u32>, usize),
    ) -> Result<Result<(), String>> {
        let (mut tokens, mut learned) = (Vec::new(), Vec::new());
        for piece in pieces {
            tokens.extend(vocabulary.encode(&piece.text)?);
            learned.resize(tokens.len(), piece.learned);
        }
        tokens.extend(end);
        learned.resize(tokens.len(), true);
        if !learned.iter().skip(1).any(|learned| *learned) {
            return Ok(Err("no token to learn: the first has none before it".to_owned()));
        }
        let whole = pieces.iter().all(|piece| piece.learned);
        // The last token is not read.
        let read = tokens.len() - 1;
        if !whole && read > longest {
            let why = format!("{read} tokens, expected at most {longest}; shorten it, or allow more");
            return Ok(Err(why));
        }
        let bytes = pieces.iter().filter(|piece| piece.learned).map(|piece| piece.text.len()).sum::<usize>();
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
        Ok(Ok(()))
    }

    /// Refuses no example at all.
    fn checked(self) -> Result<Self> {
        match self.all.is_empty() {
            true => Err(fail(&self.name, "no example in it; give a line of JSON for each")),
            false => Ok(self),
        }
    }

    /// What messages call them.
    pub fn name(&self) -> &Path {
        &self.name
    }

    /// Which files they are of.
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

/// The pieces of a line, or what is wrong with it.
fn pieces(line: &[u8]) -> Result<Vec<Piece>, String> {
    let object: Value = serde_json::from_slice(line).map_err(|error| format!("no JSON ({error})"))?;
    let fields = object.as_object().ok_or("no object; each line is to be one, in braces")?;
    if fields.contains_key("messages") {
        let why =
            "`messages` are learned through a chat template, which is not built yet; give `prompt` and `completion`";
        return Err(why.to_owned());
    }
    if fields.contains_key("prompt") || fields.contains_key("completion") {
        let [prompt, completion] = [text(fields, "prompt")?, text(fields, "completion")?];
        return Ok(vec![Piece { text: prompt, learned: false }, Piece { text: completion, learned: true }]);
    }
    Ok(vec![Piece { text: text(fields, "text")?, learned: true }])
}

/// The text in a field.
fn text(fields: &Map<String, Value>, name: &str) -> Result<String, String> {
    match fields.get(name) {
        Some(Value::String(text)) => Ok(text.clone()),
        Some(_) => Err(format!("`{name}` is no text")),
        None => {
            let known: Vec<_> = fields.keys().map(String::as_str).collect();
            let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
            Err(format!("no field `{name}`; there are {known}, expected `text`, or `prompt` and `completion`"))
        }
    }
}
