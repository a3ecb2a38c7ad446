//! How well a model predicts a text.

use crate::monitor::{SlotMonitor, monitor};
use hecate_core::Backend;
pub use hecate_models::generate::SEGMENT;
use hecate_models::{
    At, Cache, Config, Error, LanguageModel, Place, Result,
    text::{Examples, Stream},
};
use std::{
    f64::consts::LN_2,
    ops::ControlFlow,
    time::{Duration, Instant},
};

/// Ends of the ranges of positions in a text that [`evaluate_by_position`] tells apart; the last range has no end.
pub const POSITIONS: [usize; 5] = [256, 1 << 10, 1 << 12, 1 << 14, 1 << 16];

/// The time that a measurement may take, from when it was made on.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    began: Instant,
    limit: Option<Duration>,
}

impl Budget {
    /// So much time from now on; none for as much as it takes.
    pub fn new(limit: Option<Duration>) -> Self {
        Self { began: Instant::now(), limit }
    }

    /// What `progress` of a measurement returns: a break once the time is spent.
    pub fn check(&self) -> ControlFlow<()> {
        match self.limit {
            Some(limit) if self.began.elapsed() >= limit => ControlFlow::Break(()),
            _ => ControlFlow::Continue(()),
        }
    }

    /// What is left of the time; none where there is no limit.
    pub fn left(&self) -> Option<Duration> {
        self.limit.map(|limit| limit.saturating_sub(self.began.elapsed()))
    }
}

/// What a model's predictions cost.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Score {
    /// Sum of the losses of all predicted tokens, in nats.
    pub nats: f64,
    /// Predicted tokens.
    pub tokens: usize,
    /// Bytes of text that they stand for.
    pub bytes: f64,
}

impl Score {
    /// Nats a token.
    pub fn loss(&self) -> f64 {
        self.nats / self.tokens as f64
    }

    /// Bits a byte of text.
    pub fn bits_per_byte(&self) -> f64 {
        self.nats / LN_2 / self.bytes
    }

    /// `e^loss`: among how many equally likely tokens the model might as well have guessed.
    pub fn perplexity(&self) -> f64 {
        self.loss().exp()
    }
}

/// Predicts every token of the stream but the first from all before it, carrying the state from segment to segment.
/// `segment` is rounded up to whole groups of frozen rules. `progress` is told the number of tokens done
/// and may break off: the score is then that of these tokens.
///
/// # Errors
/// [`Error::Config`] for fewer than two tokens or a segment of none, [`Error::NonFinite`] for a loss that is not
/// finite, and the model's own.
pub fn evaluate<B: Backend>(
    model: &LanguageModel<B>,
    stream: &Stream,
    segment: usize,
    progress: impl FnMut(usize) -> ControlFlow<()>,
) -> Result<Score> {
    evaluate_afresh(model, stream, (segment, usize::MAX), progress)
}

/// As [`evaluate`], and what its memories are like after the last token, beside those of a fresh text. Of a model of one's own
/// it is not known which arrays are memories: nothing is said of them.
///
/// # Errors
/// As [`evaluate`].
pub fn evaluate_and_monitor<B: Backend>(
    model: &LanguageModel<B>,
    stream: &Stream,
    segment: usize,
    mut progress: impl FnMut(usize) -> ControlFlow<()>,
) -> Result<(Score, Vec<SlotMonitor>)> {
    let mut score = Score::default();
    let cache = measure(model, stream, (segment, usize::MAX), |at, losses| {
        score.add(stream, at, losses);
        progress(score.tokens)
    })?;
    let score = score.checked()?;
    let monitored = match model.config::<Config>() {
        Ok(config) => monitor(config, &cache, &model.cache(cache.batch())?)?,
        Err(_) => Vec::new(),
    };
    Ok((score, monitored))
}

/// As [`evaluate`], with fresh memories for every `length` tokens: what a token is predicted from starts there, as the
/// sequences of training do. Where a segment holds several such windows, they are read at once.
///
/// # Errors
/// As [`evaluate`]; [`Error::Config`] for a length of none.
pub fn evaluate_afresh<B: Backend>(
    model: &LanguageModel<B>,
    stream: &Stream,
    (segment, length): (usize, usize),
    mut progress: impl FnMut(usize) -> ControlFlow<()>,
) -> Result<Score> {
    let mut score = Score::default();
    measure(model, stream, (segment, length), |at, losses| {
        score.add(stream, at, losses);
        progress(score.tokens)
    })?;
    score.checked()
}

/// As [`evaluate`], the score of each range of positions by itself: of tokens that are predicted from under 256 others, from
/// under 1024, and so on ([`POSITIONS`]). Ranges that the text does not reach have no token.
///
/// # Errors
/// As [`evaluate`].
pub fn evaluate_by_position<B: Backend>(
    model: &LanguageModel<B>,
    stream: &Stream,
    segment: usize,
    mut progress: impl FnMut(usize) -> ControlFlow<()>,
) -> Result<[Score; POSITIONS.len() + 1]> {
    let mut scores = [Score::default(); POSITIONS.len() + 1];
    measure(model, stream, (segment, usize::MAX), |mut at, mut losses| {
        // A call may reach over the end of a range.
        while !losses.is_empty() {
            let range = POSITIONS.partition_point(|&end| end <= at);
            let left = POSITIONS.get(range).map_or(usize::MAX, |end| end - at);
            let (these, others) = losses.split_at(left.min(losses.len()));
            scores[range].add(stream, at, these);
            (at, losses) = (at + these.len(), others);
        }
        progress(at)
    })?;
    scores.iter().try_for_each(|score| score.checked().map(drop))?;
    Ok(scores)
}

/// The score of what examples say is learned, each read by itself; about `segment` tokens are read a call. `progress` is told the
/// number of examples done and may break off: the score is then that of these.
///
/// # Errors
/// [`Error::NonFinite`] for a loss that is not finite, and the model's own.
pub fn evaluate_examples<B: Backend>(
    model: &LanguageModel<B>,
    examples: &Examples,
    segment: usize,
    mut progress: impl FnMut(usize) -> ControlFlow<()>,
) -> Result<Score> {
    let (mut score, mut next) = (Score::default(), 0);
    while next < examples.len() {
        let (mut end, mut read) = (next + 1, examples.length(next));
        while end < examples.len() && read + examples.length(end) <= segment {
            (read, end) = (read + examples.length(end), end + 1);
        }
        let numbers: Vec<_> = (next..end).collect();
        let packed = examples.packed(&numbers);
        score.nats += model.packed_loss(&packed)?;
        score.tokens += packed.losses();
        score.bytes += examples.bytes(&numbers) as f64;
        next = end;
        if progress(next).is_break() {
            break;
        }
    }
    score.checked()
}

/// Makes at once what measurements of this stream would wait for bit by bit ([`Device::prepare`](hecate_core::Device::prepare)):
/// those in windows of `length` with `segment` tokens a call, for each `(segment, length)` of `calls`. `tell` is called with
/// the number of kernels that are compiled.
///
/// # Errors
/// The device's own failures.
pub fn prepare<B: Backend>(
    model: &LanguageModel<B>,
    stream: &Stream,
    calls: &[(usize, usize)],
    tell: &mut dyn FnMut(usize),
) -> Result<()> {
    let mut work = || {
        for &at in calls {
            // One call; what it finds means nothing.
            let _ = measure(model, stream, at, |_, _| ControlFlow::Break(()));
        }
    };
    Ok(model.device().prepare(&mut work, tell)?)
}

/// Predicts the stream's tokens in windows of `length` with fresh memories, at most `segment` tokens a call. `take` gets the
/// losses of each call and where in the stream the first of them is; it may break off. Returns the cache after the last call.
fn measure<B: Backend>(
    model: &LanguageModel<B>,
    stream: &Stream,
    (segment, length): (usize, usize),
    mut take: impl FnMut(usize, &[f32]) -> ControlFlow<()>,
) -> Result<Cache<B>> {
    let predicted = stream.tokens.len().saturating_sub(1);
    if predicted == 0 {
        return Err(Error::config("tokens of text", stream.tokens.len(), "at least 2: one to read, one to predict"));
    }
    if let Some((field, _)) = [("segment", segment), ("fresh", length)].into_iter().find(|&(_, tokens)| tokens == 0) {
        return Err(Error::config(field, 0, "at least 1 token"));
    }
    let (mut start, segment) = (0, segment.min(predicted));
    loop {
        // Whole windows side by side, then what is left of the text.
        let windows = (segment / length).min((predicted - start) / length).max(1);
        let window = length.min(predicted - start);
        let (mut cache, calls) = (model.cache(windows)?, segment.next_multiple_of(model.group()).min(window));
        for first in (0..window).step_by(calls) {
            let count = if windows > 1 { window } else { calls.min(window - first) };
            let text = stream.tokens.read(start + first..start + first + windows * count + 1)?;
            let (inputs, targets) = (&text[..windows * count], &text[1..]);
            if take(start + first, &model.infer_losses(inputs, targets, &mut cache)?.to_f32()?).is_break() {
                return Ok(cache);
            }
        }
        start += windows * window;
        if start >= predicted {
            return Ok(cache);
        }
    }
}

impl Score {
    /// Adds the losses of what follows the stream's token `at` and those after it, with the bytes that just these stand for.
    fn add(&mut self, stream: &Stream, at: usize, losses: &[f32]) {
        self.nats += losses.iter().map(|&x| f64::from(x)).sum::<f64>();
        self.tokens += losses.len();
        self.bytes += stream.bytes_of(at + 1..at + 1 + losses.len());
    }

    /// Refuses losses that are not finite.
    fn checked(self) -> Result<Self> {
        if self.nats.is_finite() { Ok(self) } else { Err(not_a_number(&self)) }
    }
}

/// The error of a loss that is not finite, after the tokens that were predicted.
fn not_a_number(score: &Score) -> Error {
    let way_out = "the weights are damaged or diverged: go back to an earlier checkpoint or train with a lower rate";
    Error::NonFinite {
        what: "the loss".to_owned(),
        place: Place::default(),
        found: score.nats,
        at: At::Token(score.tokens as u64),
        way_out,
    }
}
