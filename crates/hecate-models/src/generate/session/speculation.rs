//! A text that a large model writes with a small one ahead of it (Leviathan et al., "Fast inference from transformers via
//! speculative decoding").
//!
//! The draft draws a few tokens. The model reads them in one pass and draws each of these tokens itself, with its own scores and
//! the random numbers of their places. As far as both drew the same, the pass has read the text as it goes on; what was read
//! after that is dropped. So the draft decides how long it takes, and never what is written.

use super::{Memory, Scores, Session};
use crate::{Error, LanguageModel, Result, bounds::within, generate::last_rows};
use hecate_core::Backend;
use std::{collections::VecDeque, fmt};

/// Most tokens that a draft is ahead: what the model remembers after each of them is held at once.
const MOST: usize = 64;

/// A [`Session`] of a model whose next tokens another one drafts. It draws the tokens that the session draws alone, bit for bit.
///
/// The draft draws with the model's sampler, so where both models agree on how likely tokens are, they draw the same one.
///
/// # Example
///
/// ```
/// use hecate_cpu::Cpu;
/// use hecate_models::{
///     Config, LanguageModel, Result,
///     generate::{Session, Speculation},
///     sampling::{Sampler, Sampling},
/// };
///
/// # fn main() -> Result<()> {
/// let cpu = Cpu::new();
/// let [model, draft] = [(2, 32), (1, 8)].map(|(layers, width)| {
///     LanguageModel::new(&cpu, &Config::uniform("delta", layers, width, 2)?, 0)
/// });
/// let (model, draft) = (model?, draft?);
/// let mut alone = Session::new(&model, Sampler::new(Sampling::default())?)?;
/// let mut ahead = Speculation::new(&model, alone.fork(), &draft, 4)?;
/// let prompt = b"to be or not to be".map(u32::from);
/// alone.feed(&model, &prompt)?;
/// ahead.feed(&prompt)?;
/// for _ in 0..20 {
///     assert_eq!(ahead.next_token()?, alone.next(&model)?);
/// }
/// println!("{} of {} tokens that were drafted are in the text", ahead.accepted(), ahead.drafted());
/// # Ok(())
/// # }
/// ```
pub struct Speculation<'a, B: Backend> {
    model: &'a LanguageModel<B>,
    draft: &'a LanguageModel<B>,
    /// Tokens that are drafted at a time.
    ahead: usize,
    /// Numbers of tokens that both models know.
    tokens: usize,
    now: Pair<B>,
    /// Where the text goes on, a token at a time; the model has read what is needed for it.
    ready: VecDeque<Pair<B>>,
    drafted: usize,
    accepted: usize,
}

/// Where a text stands: as the model reads it, and as its draft does. Both have drawn the same token last.
struct Pair<B: Backend> {
    text: Session<B>,
    guess: Session<B>,
}

impl<'a, B: Backend> Speculation<'a, B> {
    /// Goes on with the text of `session`, whose next tokens `draft` guesses, `ahead` at a time. Of what the session has read before,
    /// the draft knows nothing.
    ///
    /// # Errors
    /// [`Error::Config`] for `ahead` outside of 1 to 64, and for a draft that lacks tokens which the session's sampler draws
    /// ([`Sampler::of`](crate::sampling::Sampler::of)); the device's own failures.
    pub fn new(
        model: &'a LanguageModel<B>,
        session: Session<B>,
        draft: &'a LanguageModel<B>,
        ahead: usize,
    ) -> Result<Self> {
        within("tokens that are drafted at a time", ahead, 1..=MOST)?;
        let tokens = session.sampler.tokens().min(model.vocabulary_size());
        if draft.vocabulary_size() < tokens {
            let expected =
                format!("at least {tokens}, as many tokens as the model draws: both must have one vocabulary");
            return Err(Error::config("vocabulary_size of the draft", draft.vocabulary_size(), expected));
        }
        // A token that the session drew and did not read is the first that the draft reads.
        let guess = Session { unread: session.unread, ..Session::new(draft, session.sampler.clone())? };
        let now = Pair { text: session, guess };
        Ok(Self { model, draft, ahead, tokens, now, ready: VecDeque::new(), drafted: 0, accepted: 0 })
    }

    /// As [`Session::feed`]: reads more of the text, after what was read and drawn so far.
    ///
    /// # Errors
    /// As [`Session::feed`], of either model; the text then stands where it stood.
    pub fn feed(&mut self, tokens: &[u32]) -> Result<()> {
        let Pair { text, guess } = &self.now;
        let mut next = Pair { text: text.fork(), guess: guess.fork() };
        next.text.feed(self.model, tokens)?;
        next.guess.feed(self.draft, tokens)?;
        // What was to come was of a text that went on otherwise.
        self.ready.clear();
        self.now = next;
        Ok(())
    }

    /// Draws the next token: what [`Session::next`] draws.
    ///
    /// # Errors
    /// As [`Session::next`], of either model; the text then stands where it stood.
    pub fn next_token(&mut self) -> Result<u32> {
        if self.ready.is_empty() {
            self.ready = self.round()?;
        }
        if let Some(next) = self.ready.pop_front() {
            self.now = next;
        }
        // A round ends with an error or has a token.
        self.now.text.unread.ok_or_else(|| Error::config("round", "no token", "at least one"))
    }

    /// The text as it is after what was drawn: what it would be without a draft, to be saved or forked.
    pub fn session(&self) -> &Session<B> {
        &self.now.text
    }

    /// Tokens that were drafted so far.
    pub fn drafted(&self) -> usize {
        self.drafted
    }

    /// How many of them the model drew too.
    pub fn accepted(&self) -> usize {
        self.accepted
    }

    /// The next tokens, at least one, each with where both models stand after it.
    fn round(&mut self) -> Result<VecDeque<Pair<B>>> {
        let Some(unread) = self.now.text.unread else {
            // The first token comes of scores that are there, and of no draft.
            let Pair { text, guess } = &self.now;
            let (mut text, guess) = (text.fork(), guess.fork());
            let token = text.draw()?;
            return Ok([Pair { text, guess: guess.at_token(token) }].into());
        };
        let guesses = self.guess()?;
        let drafted: Vec<u32> = guesses.iter().filter_map(|guess| guess.unread).collect();
        let read = self.now.text.after_each(self.model, &[&[unread], &drafted[..]].concat())?;
        let next = self.drawn_after(read, &guesses)?;
        self.drafted += drafted.len();
        self.accepted += next.iter().zip(drafted).filter(|(pair, guess)| pair.text.unread == Some(*guess)).count();
        Ok(next)
    }

    /// What the model draws after each of the tokens that it read, up to the first that was not drafted.
    fn drawn_after(&self, read: Vec<Session<B>>, guesses: &[Session<B>]) -> Result<VecDeque<Pair<B>>> {
        let (mut sampler, mut next) = (self.now.text.sampler.clone(), VecDeque::new());
        for (i, text) in read.into_iter().enumerate() {
            let mut text = Session { sampler, ..text };
            let token = match text.draw() {
                Ok(token) => token,
                // An error is told when the text has come to it, after the tokens before.
                Err(_) if i > 0 => break,
                Err(error) => return Err(error),
            };
            sampler = text.sampler.clone();
            let guess = match guesses.get(i) {
                Some(guess) => guess.fork(),
                None => self.all_read(guesses)?,
            };
            let as_drafted = guess.unread == Some(token);
            next.push_back(Pair { text, guess: guess.at_token(token) });
            if !as_drafted {
                break;
            }
        }
        Ok(next)
    }

    /// The draft after each of the tokens that it draws next, which it has not read yet.
    fn guess(&self) -> Result<Vec<Session<B>>> {
        // The random numbers and the penalties of the text's next tokens.
        let sampler = self.now.text.sampler.clone().among(self.tokens);
        let (mut guess, mut all) = (Session { sampler, ..self.now.guess.fork() }, Vec::new());
        for _ in 0..self.ahead {
            match guess.next(self.draft) {
                Ok(_) => all.push(guess.fork()),
                // Penalties or a bias leave nothing to draw. Whether the text comes that far is for the model to say.
                Err(Error::NonFinite { .. })
                    if !guess.scores.get()?.iter().any(|x| x.is_nan() || *x == f32::INFINITY) =>
                {
                    break;
                }
                Err(error) => return Err(of_the_draft(error)),
            }
        }
        Ok(all)
    }

    /// The draft once it has read all that it drew.
    fn all_read(&self, guesses: &[Session<B>]) -> Result<Session<B>> {
        let mut guess = guesses.last().unwrap_or(&self.now.guess).fork();
        guess.feed(self.draft, &[])?;
        Ok(guess)
    }
}

/// An error of a draft whose scores are not finite, by the draft's name.
fn of_the_draft(error: Error) -> Error {
    match error {
        Error::NonFinite { place, found, at, .. } => Error::NonFinite {
            what: "a logit of the draft".to_owned(),
            place,
            found,
            at,
            way_out: "the draft's weights are damaged: take another draft, or none",
        },
        other => other,
    }
}

impl<B: Backend> fmt::Debug for Speculation<'_, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Speculation")
            .field("position", &self.now.text.position())
            .field("ahead", &self.ahead)
            .field("ready", &self.ready.len())
            .field("drafted", &self.drafted)
            .field("accepted", &self.accepted)
            .finish_non_exhaustive()
    }
}

impl<B: Backend> Session<B> {
    /// The same place, where another token was drawn.
    fn at_token(self, token: u32) -> Self {
        Self { unread: Some(token), ..self }
    }

    /// The text after each of `tokens`, as if `feed` had read one after the other: bit for bit, in one pass.
    fn after_each(&self, model: &LanguageModel<B>, tokens: &[u32]) -> Result<Vec<Self>> {
        let (mut group, mut calls) = (self.group.concat(), Vec::new());
        for &token in tokens {
            group.push(token);
            calls.push(group.clone());
            if group.len().is_multiple_of(model.group()) {
                group.clear();
            }
        }
        let read = model.infer_each(&calls, &self.memory.own(model)?)?;
        // What is allowed is so for the next token alone, which is drawn after the first of these.
        let mut allowed = self.allowed.clone();
        let text = |(call, (scores, cache)): (Vec<u32>, _)| {
            let unfinished = !call.len().is_multiple_of(model.group());
            let group = call.into_iter().filter(|_| unfinished).map(|token| vec![token]).collect();
            let scores = Scores::Own(last_rows(&scores)?.into_iter().next().unwrap_or_default());
            let (allowed, sampler) = (allowed.take(), self.sampler.clone());
            Ok(Self { memory: Memory::Own(cache), group, unread: None, scores, allowed, sampler })
        };
        calls.into_iter().zip(read).map(text).collect()
    }
}
