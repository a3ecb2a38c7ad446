//! Continuing texts.

mod device_draws;
mod session;
mod stops;

pub use session::{Session, Speculation, next_of_all};
pub use stops::Stops;

use crate::{Cache, Error, LanguageModel, Result, sampling::Sampler};
use hecate_core::{Backend, Capture, CapturedStep, Host, Tensor};
use std::{collections::VecDeque, fmt, iter::FusedIterator};

/// Tokens of a text that are read in one call: of a prompt, and of a text that is measured unless told otherwise.
pub const SEGMENT: usize = 512;

/// Tokens of a text that a device draws before the host looks at them. Fewer come to a terminal more smoothly, and more cost
/// less: a few milliseconds on a GPU.
const AHEAD: usize = 16;

/// An endless stream of tokens that continue a prompt, ended by the first error. Time and memory a token do not grow
/// with the text, but where attention sees all of it. Where rules are frozen in groups of `G` ([`LanguageModel::group`]), each
/// token also reads again the up to `G − 1` tokens of its group.
pub struct Generation<'a, B: Backend> {
    texts: Texts<'a, B>,
}

/// As [`Generation`], of several texts side by side: each item is a token of every text, in their order.
pub struct Texts<'a, B: Backend> {
    model: &'a LanguageModel<B>,
    cache: Cache<B>,
    /// One a text.
    samplers: Vec<Sampler>,
    /// Logits of the next token of every text, `[V]` each.
    logits: Vec<Vec<f32>>,
    /// Read since the cache's position, which is a multiple of the frozen rules' groups; empty without such rules. A token of
    /// every text at a time.
    group: Vec<Vec<u32>>,
    /// Draws more tokens as the device captured it; the cache is not moved on then.
    captured: Option<Box<dyn CapturedStep<B>>>,
    /// Whether the device was asked to capture.
    asked: bool,
    /// Why it did not.
    refusal: Option<String>,
    /// Drawn by the device, and not yet handed out.
    ahead: VecDeque<Vec<u32>>,
    /// Handed out, but not yet read by the model; with a captured step all since the state that its last run began from.
    unread: Vec<Vec<u32>>,
    /// After an error there is no further token.
    failed: bool,
}

/// Reads the prompt; the iterator returned draws the tokens that follow it.
///
/// # Errors
/// [`Error::Config`] for a prompt of no token, and the model's own.
///
/// # Example
///
/// ```
/// use hecate_cpu::Cpu;
/// use hecate_models::{
///     Config, LanguageModel, Result, Vocabulary,
///     generate::generate,
///     sampling::{Sampler, Sampling},
/// };
///
/// # fn main() -> Result<()> {
/// let model = LanguageModel::new(&Cpu::new(), &Config::uniform("delta", 1, 16, 2)?, 0)?;
/// let sampler = Sampler::new(Sampling { temperature: 0.7, top_k: 20, ..Sampling::default() })?;
/// let prompt = Vocabulary::Bytes.encode("to be or ")?;
/// // The text has no end: as many tokens are drawn as are asked for.
/// let tokens = generate(&model, &prompt, sampler)?.take(8).collect::<Result<Vec<u32>>>()?;
/// assert_eq!(tokens.len(), 8);
/// # Ok(())
/// # }
/// ```
pub fn generate<'a, B: Backend>(
    model: &'a LanguageModel<B>,
    prompt: &[u32],
    sampler: Sampler,
) -> Result<Generation<'a, B>> {
    Ok(Generation { texts: generate_all(model, &[prompt], vec![sampler])? })
}

/// As [`generate`], of a text that was read before: goes on where `cache` stands ([`LanguageModel::infer`],
/// [`Cache::load`](crate::Cache::load)) and reads `tokens` first.
///
/// # Errors
/// As [`generate`]; [`Error::Config`] for a cache of another model, of several texts, or inside a group of a frozen rule.
pub fn generate_from<'a, B: Backend>(
    model: &'a LanguageModel<B>,
    cache: Cache<B>,
    tokens: &[u32],
    sampler: Sampler,
) -> Result<Generation<'a, B>> {
    Ok(Generation { texts: Texts::begin(model, cache, &[tokens], vec![sampler])? })
}

/// As [`generate`] for prompts of the same length, with a sampler for each. All texts are read and drawn together.
///
/// # Errors
/// [`Error::Config`] for no prompt, one of no token or of another length, another number of samplers, or samplers that differ by
/// more than their seed. The model's own.
pub fn generate_all<'a, B: Backend>(
    model: &'a LanguageModel<B>,
    prompts: &[&[u32]],
    samplers: Vec<Sampler>,
) -> Result<Texts<'a, B>> {
    Texts::begin(model, model.cache(prompts.len().max(1))?, prompts, samplers)
}

/// Tokens that each of the prompts has, where there is a sampler for each.
fn length_of(prompts: &[&[u32]], samplers: &[Sampler]) -> Result<usize> {
    let length = prompts.first().map_or(0, |prompt| prompt.len());
    if length == 0 {
        return Err(Error::config("prompt", "empty", "at least one token"));
    }
    if let Some(other) = prompts.iter().find(|prompt| prompt.len() != length) {
        return Err(Error::config("prompt", format!("{} tokens", other.len()), format!("{length}, as the first has")));
    }
    if samplers.len() != prompts.len() || samplers.windows(2).any(|two| two[0].options() != two[1].options()) {
        let expected = format!("one for each of {} prompts, which differ by their seeds alone", prompts.len());
        return Err(Error::config("samplers", samplers.len(), expected));
    }
    Ok(length)
}

impl<B: Backend> fmt::Debug for Texts<'_, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Texts")
            .field("position", &self.cache.position())
            .field("samplers", &self.samplers)
            .field("captured", &self.captured.is_some())
            .field("failed", &self.failed)
            .finish_non_exhaustive()
    }
}

impl<B: Backend> fmt::Debug for Generation<'_, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Generation").field("texts", &self.texts).finish()
    }
}

impl<B: Backend> Generation<'_, B> {
    /// Reads more text after what was read and drawn so far; the tokens that follow are drawn from there.
    ///
    /// # Errors
    /// [`Error::Config`] after an error of the generation itself, and the model's own.
    pub fn read_on(&mut self, tokens: &[u32]) -> Result<()> {
        if self.texts.failed {
            return Err(Error::config("generation", "ended by an error", "one that can go on"));
        }
        let read = self.texts.read_on(tokens);
        self.texts.failed = read.is_err();
        read
    }

    /// What is remembered of the text so far, all tokens that were drawn included; the generation can go on. With a frozen rule
    /// it is of whole groups ([`LanguageModel::group`]): [`Cache::position`] tells of how many tokens.
    ///
    /// # Errors
    /// As [`Generation::read_on`].
    pub fn cache(&mut self) -> Result<Cache<B>> {
        self.read_on(&[])?;
        Ok(self.texts.cache.clone())
    }
}

impl<'a, B: Backend> Texts<'a, B> {
    /// Reads the prompts where `cache` stands.
    fn begin(
        model: &'a LanguageModel<B>,
        cache: Cache<B>,
        prompts: &[&[u32]],
        mut samplers: Vec<Sampler>,
    ) -> Result<Self> {
        let length = length_of(prompts, &samplers)?;
        samplers.iter_mut().zip(prompts).for_each(|(sampler, prompt)| sampler.read(prompt));
        let (logits, group, unread) = (Vec::new(), Vec::new(), Vec::new());
        let (captured, asked, refusal, ahead, failed) = (None, false, None, VecDeque::new(), false);
        let mut texts = Self { model, cache, samplers, logits, group, captured, asked, refusal, ahead, unread, failed };
        // A token of every text at a time.
        let columns: Vec<Vec<u32>> = (0..length).map(|i| prompts.iter().map(|prompt| prompt[i]).collect()).collect();
        columns.chunks(SEGMENT).try_for_each(|segment| texts.read(segment))?;
        Ok(texts)
    }
}

impl<B: Backend> Texts<'_, B> {
    /// Whether the device replays a captured step; false before the second token.
    pub fn is_captured(&self) -> bool {
        self.captured.is_some()
    }

    /// Why tokens are drawn call by call, in words; none before the second token, and where a captured step is replayed.
    pub fn why_call_by_call(&self) -> Option<&str> {
        self.refusal.as_deref()
    }

    /// Reads tokens and keeps the last ones' logits.
    fn read(&mut self, tokens: &[Vec<u32>]) -> Result<()> {
        self.logits = read_rows(self.model, &mut self.cache, &mut self.group, tokens)?;
        Ok(())
    }

    /// [`Generation::read_on`], of one text.
    fn read_on(&mut self, tokens: &[u32]) -> Result<()> {
        self.samplers.iter_mut().for_each(|sampler| sampler.read(tokens));
        if let Some(captured) = self.captured.take() {
            // The device is further than what was handed out: back to where it last began, and call by call from there.
            let mut state = captured.before()?;
            state.truncate(state.len() - 2);
            self.cache = self.cache.with_arrays(state).counted_by_host()?;
            self.ahead.clear();
            self.asked = false;
        }
        let mut text = std::mem::take(&mut self.unread);
        text.extend(tokens.iter().map(|&token| vec![token]));
        text.chunks(SEGMENT).try_for_each(|segment| self.read(segment))
    }

    /// Reads the tokens drawn before, if any, and draws the next.
    fn draw(&mut self) -> Result<Vec<u32>> {
        if !self.asked && !self.unread.is_empty() {
            let streams: Vec<_> = self.samplers.iter().map(Sampler::stream).collect();
            let options = self.samplers[0].options();
            match self.model.capture(&self.cache, &options, (&self.unread[0], &streams), AHEAD)? {
                Capture::Graph(step) => (self.captured, self.refusal) = (Some(step), None),
                Capture::Refused { why } => {
                    tracing::info!(why, "tokens are drawn call by call");
                    self.refusal = Some(why);
                }
            }
            self.asked = true;
        }
        if self.captured.is_some() {
            return self.replayed();
        }
        if !self.unread.is_empty() {
            let unread = std::mem::take(&mut self.unread);
            self.read(&unread)?;
        }
        let draws = self.samplers.iter_mut().zip(&self.logits);
        let tokens = draws.map(|(sampler, logits)| sampler.draw(logits)).collect::<Result<Vec<u32>>>()?;
        self.unread.push(tokens.clone());
        Ok(tokens)
    }

    /// The next of the tokens that the device draws ahead.
    fn replayed(&mut self) -> Result<Vec<u32>> {
        if let (true, Some(captured)) = (self.ahead.is_empty(), &mut self.captured) {
            // The last token is what the step reads first.
            self.unread.drain(..self.unread.len() - 1);
            let Host::U32(tokens) = captured.step(Host::U32(vec![0]))? else {
                return Err(Error::config("captured step", "other than tokens", "tokens"));
            };
            self.ahead = tokens.chunks_exact(self.samplers.len()).map(<[u32]>::to_vec).collect();
        }
        let drawn = self.ahead.pop_front().unwrap_or_default();
        let tokens = self.samplers.iter_mut().zip(drawn).map(|(sampler, token)| sampler.accept(token));
        let tokens = tokens.collect::<Result<Vec<u32>>>()?;
        self.unread.push(tokens.clone());
        Ok(tokens)
    }
}

/// The logits after `tokens`, one or more of every text at a time. The cache moves on by whole groups; the tokens of an
/// unfinished `group` are read from a copy of it.
fn read_rows<B: Backend>(
    model: &LanguageModel<B>,
    cache: &mut Cache<B>,
    group: &mut Vec<Vec<u32>>,
    tokens: &[Vec<u32>],
) -> Result<Vec<Vec<f32>>> {
    group.extend_from_slice(tokens);
    let unfinished = group.split_off(group.len() / model.group() * model.group());
    let whole = std::mem::replace(group, unfinished);
    let (batch, mut logits) = (cache.batch(), Vec::new());
    if !whole.is_empty() {
        logits = last_rows(&model.infer(&by_text(&whole, batch), batch, cache)?)?;
    }
    if !group.is_empty() {
        logits = last_rows(&model.infer(&by_text(group, batch), batch, &mut cache.clone())?)?;
    }
    Ok(logits)
}

/// Tokens as the model takes them, `[batch, T]`, of one of every text at a time.
fn by_text(columns: &[Vec<u32>], batch: usize) -> Vec<u32> {
    (0..batch).flat_map(|text| columns.iter().map(move |column| column[text])).collect()
}

/// The last token's logits of every text, of `[batch, T, V]`.
fn last_rows<B: Backend>(logits: &Tensor<B>) -> Result<Vec<Vec<f32>>> {
    let (vocabulary, length) = (logits.shape().last(), logits.shape().axes()[1]);
    let logits = logits.to_f32()?;
    let texts = logits.chunks_exact(vocabulary * length);
    Ok(texts.map(|text| text[text.len() - vocabulary..].to_vec()).collect())
}

impl<B: Backend> Iterator for Texts<'_, B> {
    type Item = Result<Vec<u32>>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed {
            return None;
        }
        let tokens = self.draw();
        self.failed = tokens.is_err();
        Some(tokens)
    }
}

impl<B: Backend> Iterator for Generation<'_, B> {
    type Item = Result<u32>;

    fn next(&mut self) -> Option<Result<u32>> {
        Some(self.texts.next()?.map(|tokens| tokens[0]))
    }
}

impl<B: Backend> FusedIterator for Texts<'_, B> {}
impl<B: Backend> FusedIterator for Generation<'_, B> {}
