//! Texts that go on whenever they are asked to: one by one or several in one pass, from memory or from a file.

mod captured;
mod speculation;
mod together;

pub use speculation::Speculation;

use super::{SEGMENT, read_rows};
use crate::{
    Cache, Error, LanguageModel, Result,
    language_model::POSITION,
    sampling::{Likelihood, Sampler},
};
use captured::replay_together;
use hecate_core::{Backend, Shape, Tensor};
use std::{path::Path, sync::Arc};
use together::{Together, draw_together, read_together};

/// Names of what a session's file has beside a cache.
const FINGERPRINT: &str = "weights";
const SCORES: &str = "scores";
const DRAWN: &str = "drawn";
const GROUP: &str = "group";
const UNREAD: &str = "unread";

/// A text that a model reads and writes, a few tokens at a time: what the model remembers of it, and how its tokens are drawn.
/// It does not hold the model; every call is given it, and refuses another.
///
/// # Example
///
/// ```
/// use hecate_cpu::Cpu;
/// use hecate_models::{
///     Config, LanguageModel, Result,
///     generate::Session,
///     sampling::{Sampler, Sampling},
/// };
///
/// # fn main() -> Result<()> {
/// let model = LanguageModel::new(&Cpu::new(), &Config::uniform("titans", 1, 32, 2)?, 0)?;
/// let sampler = Sampler::new(Sampling::default())?;
/// let mut session = Session::new(&model, sampler.clone())?;
/// session.feed(&model, &b"to be or not to be".map(u32::from))?;
/// // A fork costs nothing, and both go on by themselves.
/// let mut other = session.fork();
/// assert_eq!(session.next(&model)?, other.next(&model)?);
///
/// // Another day, another program: the text goes on as if nothing had been.
/// # let folder = tempfile::tempdir().expect("a folder");
/// # let path = folder.path().join("hamlet.safetensors");
/// session.save(&model, &path)?;
/// let mut restored = Session::restore(&model, &path, sampler)?;
/// assert_eq!(restored.next(&model)?, session.next(&model)?);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Session<B: Backend> {
    memory: Memory<B>,
    /// Read since the cache's position, fewer than a group of the model's frozen rules.
    group: Vec<Vec<u32>>,
    /// Drawn, and not yet read by the model.
    unread: Option<u32>,
    /// Scores of the next token; of a text of which nothing was read none.
    scores: Scores<B>,
    /// Tokens of which the next one is drawn, an entry for each `[V]`; none for all.
    allowed: Option<Vec<bool>>,
    sampler: Sampler,
}

/// What a model remembers of a text: by itself, or as one of several that went on together.
#[derive(Debug)]
enum Memory<B: Backend> {
    Own(Cache<B>),
    Row(Arc<Together<B>>, usize),
}

/// Scores of a text's next token `[V]`: by itself on the host, or as a row of those of several.
#[derive(Debug)]
enum Scores<B: Backend> {
    Own(Vec<f32>),
    Row(Arc<Together<B>>, usize),
}

impl<B: Backend> Scores<B> {
    /// On the host; those of several texts come there together, at the first time that one is asked for.
    fn get(&self) -> Result<&[f32]> {
        match self {
            Self::Own(scores) => Ok(scores),
            Self::Row(all, row) => all.scores_of(*row),
        }
    }
}

impl<B: Backend> Clone for Scores<B> {
    fn clone(&self) -> Self {
        match self {
            Self::Own(scores) => Self::Own(scores.clone()),
            Self::Row(all, row) => Self::Row(Arc::clone(all), *row),
        }
    }
}

impl<B: Backend> Memory<B> {
    /// The cache of this text alone.
    fn own(&self, model: &LanguageModel<B>) -> Result<Cache<B>> {
        match self {
            Self::Own(cache) => Ok(cache.clone()),
            Self::Row(all, row) => all.left()?.cache.text(&model.inert(), *row, all.positions[*row]),
        }
    }

    /// Tokens that were read.
    fn position(&self) -> usize {
        match self {
            Self::Own(cache) => cache.position(),
            Self::Row(all, row) => all.positions[*row],
        }
    }
}

impl<B: Backend> Clone for Memory<B> {
    fn clone(&self) -> Self {
        match self {
            Self::Own(cache) => Self::Own(cache.clone()),
            Self::Row(all, row) => Self::Row(Arc::clone(all), *row),
        }
    }
}

impl<B: Backend> Session<B> {
    /// A text of which nothing was read.
    ///
    /// # Errors
    /// The device's own failures.
    pub fn new(model: &LanguageModel<B>, sampler: Sampler) -> Result<Self> {
        Ok(Self::at(model.cache(1)?, sampler))
    }

    /// A text that stands where its cache does.
    fn at(cache: Cache<B>, sampler: Sampler) -> Self {
        Self {
            memory: Memory::Own(cache),
            group: Vec::new(),
            unread: None,
            scores: Scores::Own(Vec::new()),
            allowed: None,
            sampler,
        }
    }

    /// Reads more of the text, after what was read and drawn so far.
    ///
    /// # Errors
    /// [`Error::Config`] for tokens outside of the vocabulary, or a session of another model; the device's own failures. The
    /// session then stands where it stood.
    pub fn feed(&mut self, model: &LanguageModel<B>, tokens: &[u32]) -> Result<()> {
        let mut next = self.fork();
        next.sampler.read(tokens);
        let unread: Vec<Vec<u32>> = next.unread.take().iter().chain(tokens).map(|&token| vec![token]).collect();
        let mut cache = next.memory.own(model)?;
        for segment in unread.chunks(SEGMENT) {
            let scores = read_rows(model, &mut cache, &mut next.group, segment)?;
            next.scores = Scores::Own(scores.into_iter().next().unwrap_or_default());
        }
        *self = Self { memory: Memory::Own(cache), ..next };
        Ok(())
    }

    /// Draws the next token.
    ///
    /// # Errors
    /// As [`Session::feed`], and [`Sampler::draw`]; [`Error::Config`] before the first token was read.
    pub fn next(&mut self, model: &LanguageModel<B>) -> Result<u32> {
        if self.unread.is_some() {
            self.feed(model, &[])?;
        }
        self.draw()
    }

    /// A token from the scores that are there.
    fn draw(&mut self) -> Result<u32> {
        let scores = self.scores.get()?;
        if scores.is_empty() {
            return Err(Error::config("session", "a text of no token", "one that `feed` was given a token of"));
        }
        let token = match self.allowed.take() {
            Some(allowed) => self.sampler.draw_among(scores, &allowed)?,
            None => self.sampler.draw(scores)?,
        };
        self.unread = Some(token);
        Ok(token)
    }

    /// The same text once more: both go on by themselves. Nothing is copied before one of them does.
    pub fn fork(&self) -> Self {
        let Self { memory, group, unread, scores, allowed, sampler } = self;
        let (memory, group, scores, sampler) = (memory.clone(), group.clone(), scores.clone(), sampler.clone());
        Self { memory, group, unread: *unread, scores, allowed: allowed.clone(), sampler }
    }

    /// Tokens read and drawn so far.
    pub fn position(&self) -> usize {
        self.memory.position() + self.group.len() + usize::from(self.unread.is_some())
    }

    /// What the model remembers, bytes.
    pub fn bytes(&self) -> usize {
        match &self.memory {
            Memory::Own(cache) => cache.bytes(),
            Memory::Row(all, _) => all.bytes_of_one(),
        }
    }

    /// Scores of the next token `[V]`, as the model gave them; none where the last token drawn was not read yet.
    ///
    /// # Errors
    /// The device's own failures: scores of texts that go on together are fetched when one is asked for.
    pub fn scores(&self) -> Result<Option<&[f32]>> {
        if self.unread.is_some() {
            return Ok(None);
        }
        Ok(Some(self.scores.get()?).filter(|scores| !scores.is_empty()))
    }

    /// How likely the model found the token that was drawn last, beside the `count` likeliest; none before a token was drawn,
    /// and once more was read.
    ///
    /// # Errors
    /// As [`Session::scores`].
    pub fn drawn(&self, count: usize) -> Result<Option<Likelihood>> {
        let Some(token) = self.unread else { return Ok(None) };
        Ok(Some(self.sampler.likelihood(self.scores.get()?, token, count)))
    }

    /// From here on tokens are drawn by this sampler. One with a repetition penalty is told of the text before
    /// ([`Sampler::read`]).
    pub fn set_sampler(&mut self, sampler: Sampler) {
        self.sampler = sampler;
    }

    /// The next token, and none after it, is drawn of those alone that are allowed ([`Sampler::draw_among`]).
    pub fn allow(&mut self, allowed: Vec<bool>) {
        self.allowed = Some(allowed);
    }

    /// Writes all that is needed to go on to a safetensors file, which knows the model's configuration and weights. It is there
    /// whole or not at all; one that was there before is replaced.
    ///
    /// # Errors
    /// [`Error::Io`]; the device's own failures.
    pub fn save(&self, model: &LanguageModel<B>, path: impl AsRef<Path>) -> Result<()> {
        let scores = match self.scores.get()? {
            [] => None,
            own => Some((SCORES.to_owned(), Tensor::from_f32(model.device(), [own.len()], own.to_vec())?)),
        };
        let scores: Vec<_> = scores.iter().map(|(name, scores)| (name.clone(), scores)).collect();
        let numbers = |tokens: &[u32]| tokens.iter().map(|&token| token.into()).collect();
        let numbers = [
            (DRAWN, vec![self.sampler.drawn()]),
            (GROUP, numbers(&self.group.concat())),
            (UNREAD, numbers(self.unread.as_slice())),
        ];
        let beside = [(FINGERPRINT, model.fingerprint()?.as_bytes())];
        self.memory.own(model)?.save_with(path.as_ref(), &scores, &numbers, &beside)
    }

    /// The text of a file that [`Session::save`] wrote. With a sampler of the same options and seed it goes on as it would have
    /// without the file, bit by bit where the device is the same. One with a repetition penalty is told of the text before
    /// ([`Sampler::read`]): the file does not have its tokens.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::Checkpoint`] for a file that is damaged, or of another model; the device's own failures.
    pub fn restore(model: &LanguageModel<B>, path: impl AsRef<Path>, sampler: Sampler) -> Result<Self> {
        let (path, vocabulary) = (path.as_ref(), model.vocabulary_size());
        let mut cache = model.cache(1)?;
        // Scores are there once anything was read.
        let scores = |[position, _, group, _]: &[Vec<u64>; 4]| {
            let read = position.first().is_some_and(|&read| read > 0) || !group.is_empty();
            Ok(read.then(|| (SCORES.to_owned(), Shape::from([vocabulary]))).into_iter().collect())
        };
        let fingerprint = (FINGERPRINT, model.fingerprint()?.as_bytes());
        let names = [POSITION, DRAWN, GROUP, UNREAD];
        let (scores, [_, drawn, group, unread]) = cache.load_with(path, names, scores, fingerprint)?;
        let (&[drawn], 0..=1) = (drawn.as_slice(), unread.len()) else {
            let why = format!(
                "`{DRAWN}` has {} numbers and `{UNREAD}` {}, expected 1 and at most 1",
                drawn.len(),
                unread.len()
            );
            return Err(Error::checkpoint(path, why));
        };
        let token = |&token: &u64| match u32::try_from(token) {
            Ok(small) if (small as usize) < vocabulary => Ok(small),
            _ => Err(Error::checkpoint(path, format!("holds token {token}, and the vocabulary has {vocabulary}"))),
        };
        let unread = unread.first().map(token).transpose()?;
        let group: Vec<_> = group.iter().map(|number| Ok(vec![token(number)?])).collect::<Result<_>>()?;
        if group.len() >= model.group() {
            let why = format!("`{GROUP}` has {} tokens, expected fewer than {}", group.len(), model.group());
            return Err(Error::checkpoint(path, why));
        }
        let scores = Scores::Own(scores.into_iter().next().unwrap_or_default());
        Ok(Self { group, unread, scores, ..Self::at(cache, sampler.after(drawn)) })
    }
}

/// Draws the next token of each session; one result a session, in their order. Where all mixers allow it, what is to be read
/// before is read in one pass, of texts of unlike lengths too. Sessions that go on in the same company keep their memories
/// together, so that nothing is copied from call to call, and the device draws for those whose samplers ask for nothing that only
/// the host does. After some calls in one company, of samplers that differ by their seeds alone, a device that captures graphs
/// replays one; texts may then come and go. The tokens are the same in each case.
pub fn next_of_all<B: Backend>(model: &LanguageModel<B>, sessions: &mut [&mut Session<B>]) -> Vec<Result<u32>> {
    let mut drawn: Vec<Option<Result<u32>>> = sessions.iter().map(|_| None).collect();
    let unread = |(_, session): &(usize, &mut Session<B>)| session.unread.is_some();
    let all = sessions.iter_mut().map(|session| &mut **session).enumerate();
    let (places, mut waiting): (Vec<usize>, Vec<&mut Session<B>>) = all.filter(unread).unzip();
    // One text alone gains by a graph, and by nothing else.
    let least = if model.device().captures_work() { 1 } else { 2 };
    if model.takes_unlike_texts() && waiting.len() >= least {
        match go_on_together(model, &mut waiting) {
            Ok(tokens) => places.into_iter().zip(tokens).for_each(|(place, token)| drawn[place] = token),
            // One that cannot go on does not stop the others: each reads its own token below, and has its own error.
            Err(error) => tracing::warn!(%error, "texts are read one by one"),
        }
    }
    let own =
        |(session, drawn): (&mut &mut Session<B>, Option<Result<u32>>)| drawn.unwrap_or_else(|| session.next(model));
    sessions.iter_mut().zip(drawn).map(own).collect()
}

/// Reads what each of the sessions drew last in one pass, and draws of their next tokens what the device can.
fn go_on_together<B: Backend>(
    model: &LanguageModel<B>,
    sessions: &mut [&mut Session<B>],
) -> Result<Vec<Option<Result<u32>>>> {
    if let Some(tokens) = replay_together(model, sessions)? {
        return Ok(tokens.into_iter().map(Some).collect());
    }
    read_together(model, sessions)?;
    Ok(draw_together(sessions))
}
