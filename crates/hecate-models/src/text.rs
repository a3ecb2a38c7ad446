//! Text to learn from: reading it, splitting it, drawing windows of it.

mod examples;
mod json_lines;
mod open;

pub use crate::tokens::{TokenSource, Tokens};
pub use examples::{ExampleForm, Examples, Template};
pub use json_lines::JsonLines;

use crate::{
    Error, Random, Result, Vocabulary,
    bounds::{SIZE, at_most, product},
    files::{self, Checksum, Links, checksum, write_whole_with},
    tokenizer::Passage,
    tokens::{BLOCK, Source, fail},
};
use hecate_core::memory;
use serde::{Deserialize, Serialize};
use std::{
    borrow::Cow,
    ops::Range,
    path::{Path, PathBuf},
    sync::Arc,
};

/// Bytes of text that [`Text::open`] is told to hold in memory unless somebody knows better; longer texts stay on the disk.
pub const IN_MEMORY: usize = 1 << 30;

/// Reads a UTF-8 file.
///
/// # Errors
/// [`Error::Text`] if it is missing, empty or not UTF-8, [`Error::Io`] if it cannot be read.
pub fn read_text(path: &Path) -> Result<String> {
    let bytes = match files::read(path, Links::Follow, u64::MAX) {
        Err(Error::Io { source, .. }) => return Err(open::unreadable(path, source)),
        other => other?,
    };
    if bytes.is_empty() {
        return Err(open::empty(path));
    }
    String::from_utf8(bytes).map_err(|error| open::not_utf8(path, error.utf8_error().valid_up_to()))
}

/// A text in UTF-8, of one file or of several. It is in memory, or read from the disk where it is needed. Clones share it.
///
/// # Example
///
/// ```
/// use hecate_models::{
///     Result, Vocabulary,
///     text::{Corpus, IN_MEMORY, Text},
/// };
///
/// # fn main() -> Result<()> {
/// # let folder = tempfile::tempdir().expect("a folder");
/// # let path = folder.path().join("book.txt");
/// # std::fs::write(&path, "In the beginning was the word. ".repeat(20)).expect("a file");
/// let text = Text::open(&[path], IN_MEMORY)?;
/// // A tenth is held out; what is left has room for windows of 64 tokens.
/// let corpus = Corpus::of(&text, &Vocabulary::Bytes, 0.1, 64)?;
/// assert_eq!((corpus.train.bytes, corpus.held_out.bytes), (558, 62));
/// assert_eq!(corpus.train.tokens.read(0..2)?, [73, 110]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Text {
    /// For messages.
    name: PathBuf,
    source: Arc<Source>,
    identity: Identity,
    files: usize,
    skipped: Vec<PathBuf>,
}

impl Text {
    /// A text that is there already, and is not copied; `name` is for messages.
    pub fn new(name: impl Into<PathBuf>, text: impl Into<Cow<'static, str>>) -> Self {
        let text = text.into();
        let identity = Identity::of(&text);
        let bytes = match text {
            Cow::Borrowed(text) => text.as_bytes().into(),
            Cow::Owned(text) => text.into_bytes().into(),
        };
        let source = Arc::new(Source::Memory(bytes));
        Self { name: name.into(), source, identity, files: 1, skipped: Vec::new() }
    }

    /// The files of these paths in their order, with a newline between two. Of a folder all files below it are read in the
    /// order of their paths, but for those that are hidden, empty or no text in UTF-8. A text of more than `in_memory`
    /// bytes stays on the disk; [`IN_MEMORY`] is a good limit.
    ///
    /// # Errors
    /// [`Error::Text`] if a file that is named is missing, empty or not UTF-8, or a folder holds no text, or it does not
    /// fit into memory. [`Error::Io`] if a file cannot be read.
    pub fn open(paths: &[PathBuf], in_memory: usize) -> Result<Self> {
        open::open(paths, in_memory)
    }

    /// What of its first megabyte is learned though nobody may want it: whether it has a byte-order mark, and how many lines end
    /// in CR LF.
    ///
    /// # Errors
    /// Those of a text on the disk that cannot be read.
    pub fn oddities(&self) -> Result<(bool, usize)> {
        let mut start = Vec::new();
        self.source.read(0..self.bytes().min(BLOCK), &mut start)?;
        let start = String::from_utf8_lossy(&start);
        Ok((start.contains('\u{feff}'), start.matches("\r\n").count()))
    }

    /// What messages call it.
    pub fn name(&self) -> &Path {
        &self.name
    }

    /// Its length.
    pub fn bytes(&self) -> usize {
        self.source.len()
    }

    /// Which text it is.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Number of files that it is made of.
    pub fn files(&self) -> usize {
        self.files
    }

    /// Files of folders that are empty or no text in UTF-8, and so not part of it.
    pub fn skipped(&self) -> &[PathBuf] {
        &self.skipped
    }

    /// All of it, in memory.
    ///
    /// # Errors
    /// Those of a text on the disk that cannot be read.
    pub fn whole(&self) -> Result<String> {
        self.string(0..self.bytes())
    }

    /// The bytes of all of it: borrowed where they are in memory.
    ///
    /// # Errors
    /// As [`Text::whole`].
    pub fn content(&self) -> Result<Cow<'_, [u8]>> {
        match &*self.source {
            Source::Memory(bytes) => Ok(Cow::Borrowed(bytes)),
            Source::Files(_) => Ok(self.whole()?.into_bytes().into()),
        }
    }

    /// Writes it into a file, whole or not at all.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::Text`] if it has changed on the disk.
    pub fn save(&self, path: &Path) -> Result<()> {
        write_whole_with(path, |write| self.source.for_each_block(write))
    }

    /// Where the last `fraction` of its bytes begins; the cut moves back to the start of a character.
    fn cut(&self, fraction: f32) -> Result<usize> {
        self.source.character_start(cut(self.bytes(), fraction))
    }

    /// Its last `fraction` of bytes; the cut moves back to the start of a character.
    ///
    /// # Errors
    /// Those of [`Vocabulary::encode`], and of a text on the disk that cannot be read.
    pub fn tail(&self, vocabulary: &Vocabulary, fraction: f32) -> Result<Stream> {
        self.part(vocabulary, self.cut(fraction)?..self.bytes())
    }

    /// These bytes as tokens, from one start of a character to another.
    fn part(&self, vocabulary: &Vocabulary, range: Range<usize>) -> Result<Stream> {
        let bytes = range.len();
        if matches!(vocabulary, Vocabulary::Bytes) {
            return Ok(Stream { tokens: Tokens::bytes(Arc::clone(&self.source), range), bytes });
        }
        Ok(Stream { tokens: vocabulary.encode_passage(&Part { text: self, range })?, bytes })
    }

    /// These bytes, from one start of a character to another.
    fn string(&self, range: Range<usize>) -> Result<String> {
        let mut part = Vec::new();
        self.source.read(range, &mut part)?;
        let changed = "changed while it was being read from the disk; begin again with a copy of it";
        String::from_utf8(part).map_err(|_| fail(&self.name, changed))
    }
}

/// A part of a text, which is read where it is needed.
struct Part<'a> {
    text: &'a Text,
    range: Range<usize>,
}

impl Passage for Part<'_> {
    fn bytes(&self) -> usize {
        self.range.len()
    }

    #[cfg(feature = "tokenizer")]
    fn character_start(&self, at: usize) -> Result<usize> {
        Ok(self.text.source.character_start(self.range.start + at)?.max(self.range.start) - self.range.start)
    }

    fn read(&self, range: Range<usize>) -> Result<String> {
        self.text.string(self.range.start + range.start..self.range.start + range.end)
    }
}

/// Where the last `fraction` of so many bytes begins.
fn cut(bytes: usize, fraction: f32) -> usize {
    bytes.saturating_sub((bytes as f64 * f64::from(fraction)).round() as usize)
}

/// Tokens in order, and the number of bytes of text that they stand for.
#[derive(Clone, Debug)]
pub struct Stream {
    /// Tokens.
    pub tokens: Tokens,
    /// Bytes of the text.
    pub bytes: usize,
}

impl Stream {
    /// The text as tokens.
    ///
    /// # Errors
    /// Those of [`Vocabulary::encode`].
    pub fn encode(vocabulary: &Vocabulary, text: &str) -> Result<Self> {
        Ok(Self { tokens: vocabulary.encode_passage(text)?, bytes: text.len() })
    }

    /// Bytes of text a token; 1 for byte-level text.
    pub fn bytes_per_token(&self) -> f64 {
        self.bytes as f64 / self.tokens.len().max(1) as f64
    }

    /// Bytes of the text that these tokens stand for; as many a token as all have on average, where it is not known what each
    /// was made of.
    pub fn bytes_of(&self, tokens: Range<usize>) -> f64 {
        let average = || self.bytes_per_token() * tokens.len() as f64;
        self.tokens.bytes_of(tokens.clone()).map_or_else(average, |bytes| bytes as f64)
    }

    /// Its first tokens, at most `count`.
    pub fn head(&self, count: usize) -> Self {
        let tokens = self.tokens.head(count);
        let bytes = self.bytes_of(0..tokens.len()).round() as usize;
        Self { tokens, bytes }
    }
}

/// Which text a run learns, so that resuming with another one is noticed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Identity {
    /// Length.
    pub bytes: usize,
    /// Checksum of the bytes, in hexadecimal digits.
    pub checksum: String,
    /// Checksum of the tokens that lines became, and of which of them are learned: a template and a tokenizer decide on both.
    /// None of a text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<String>,
}

impl Identity {
    /// Of this text.
    pub fn of(text: &str) -> Self {
        Self { bytes: text.len(), checksum: checksum(text.as_bytes()), tokens: None }
    }

    /// Of a text that may be on the disk.
    fn of_source(source: &Source) -> Result<Self> {
        let mut all = Checksum::new(source.len());
        source.for_each_block(|block| {
            all.take(block);
            Ok(())
        })?;
        Ok(Self { bytes: source.len(), checksum: all.digits(), tokens: None })
    }
}

/// A text split into a part to learn and a part to measure on.
#[derive(Clone, Debug)]
pub struct Corpus {
    /// The first part: windows are drawn from it.
    pub train: Stream,
    /// The last part: never learned.
    pub held_out: Stream,
    /// Which text it is.
    pub identity: Identity,
}

impl Corpus {
    /// As [`Corpus::of`] of a text in memory, which is copied; `path` is for messages.
    ///
    /// # Errors
    /// As [`Corpus::of`].
    pub fn new(path: &Path, text: &str, vocabulary: &Vocabulary, fraction: f32, length: usize) -> Result<Self> {
        Self::of(&Text::new(path, text.to_owned()), vocabulary, fraction, length)
    }

    /// Holds out the last `fraction` of the text's bytes (the cut moves back to the start of a character); both
    /// parts must be longer than `length` tokens.
    ///
    /// # Errors
    /// [`Error::Config`] for a fraction outside `(0, 1)`, [`Error::Text`] if a part is too short, and those of a text on
    /// the disk that cannot be read.
    pub fn of(text: &Text, vocabulary: &Vocabulary, fraction: f32, length: usize) -> Result<Self> {
        if !(fraction > 0.0 && fraction < 1.0) {
            return Err(Error::config("held-out fraction", fraction, "above 0 and under 1"));
        }
        let cut = text.cut(fraction)?;
        let part = |name: &str, range, needed: usize| {
            let stream = text.part(vocabulary, range)?;
            if stream.tokens.len() >= needed {
                return Ok(stream);
            }
            let found = stream.tokens.len();
            let why = format!(
                "too short: the {name} part holds {found} tokens, one sequence needs {needed}; \
                 give more text, shorter sequences or another held-out fraction"
            );
            Err(fail(text.name(), why))
        };
        Ok(Self {
            train: part("training", 0..cut, length.saturating_add(1))?,
            held_out: part("held-out", cut..text.bytes(), 2)?,
            identity: text.identity().clone(),
        })
    }
}

/// The text without its last `fraction` of bytes, and that; the cut moves back to the start of a character.
pub fn split(text: &str, fraction: f32) -> (&str, &str) {
    let mut cut = cut(text.len(), fraction);
    while !text.is_char_boundary(cut) {
        cut -= 1;
    }
    text.split_at(cut)
}

/// Random windows of a text. Saved and loaded, it goes on where it was.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Windows {
    random: Random,
}

impl Windows {
    /// At the start of the random numbers of `seed`, on another stream than the weights'.
    pub fn new(seed: u64) -> Self {
        Self { random: Random::stream(seed, 1) }
    }

    /// `batch` windows of `length` tokens, and the tokens that follow each of theirs: `(inputs, targets)`, both
    /// `[batch, length]`.
    ///
    /// # Errors
    /// As [`Windows::starts`], for more tokens than fit into a pass, and as [`Tokens::read`].
    pub fn draw<'a>(
        &mut self,
        text: impl Into<TokenSource<'a>>,
        batch: usize,
        length: usize,
    ) -> Result<(Vec<u32>, Vec<u32>)> {
        let text = text.into();
        at_most("batch × sequence length", product(&[batch, length]), SIZE as u128)?;
        let starts = self.starts(text, batch, length)?;
        windows(text, starts, length)
    }

    /// Where `batch` windows of `length` tokens start.
    ///
    /// # Errors
    /// [`Error::Config`] if the text holds no window, and for more of them than any pass has.
    pub fn starts<'a>(&mut self, text: impl Into<TokenSource<'a>>, batch: usize, length: usize) -> Result<Vec<usize>> {
        at_most("batch", batch as u128, SIZE as u128)?;
        let tokens = text.into().len();
        let starts = tokens.saturating_sub(length) as u64;
        if starts == 0 {
            let expected = format!(
                "more than {length}: the sequence length, times the sequences that memories are carried through"
            );
            return Err(Error::config("tokens of text", tokens, expected));
        }
        Ok(memory::collect("windows", (0..batch).map(|_| self.random.within(0..starts) as usize))?)
    }

    /// Numbers of `batch` of so many examples, at least 1.
    pub fn examples(&mut self, count: usize, batch: usize) -> Vec<usize> {
        (0..batch).map(|_| self.random.within(0..count as u64) as usize).collect()
    }
}

/// The windows of `length` tokens that start there, and the tokens that follow each of theirs: `(inputs, targets)`, one
/// window after another.
///
/// # Errors
/// As [`Tokens::read`].
pub fn windows(
    text: TokenSource<'_>,
    starts: impl IntoIterator<Item = usize>,
    length: usize,
) -> Result<(Vec<u32>, Vec<u32>)> {
    let (mut inputs, mut targets) = (Vec::new(), Vec::new());
    for start in starts {
        for tokens in [&mut inputs, &mut targets] {
            // At least as much again as there is, so that tokens are seldom copied.
            let room = if tokens.capacity() - tokens.len() < length { length.max(tokens.len()) } else { 0 };
            memory::reserve("windows", tokens, room)?;
        }
        let window = text.read(start..start + length + 1)?;
        inputs.extend(&window[..length]);
        targets.extend(&window[1..]);
    }
    Ok((inputs, targets))
}
