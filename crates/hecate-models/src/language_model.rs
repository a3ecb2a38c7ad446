//! A language model: tokens in, scores of the next token out.

mod loss;
mod scores;

pub(crate) use loss::LossGradients;
pub(crate) use scores::piece;

use crate::{
    Builder, Cache, Config, Error, Interrupt, Masks, Parameters, Precision, Random, Result, Tape, Var,
    bounds::{SIZE, within},
    evaluate::SEGMENT,
    layers::{Block, Context, Counts, Embedding, Linear, RmsNorm},
    sampling::Options,
};
use hecate_core::{
    Backend, Capture, CapturedStep, DType, Sequences, Tensor,
    primitives::{self, ProjectionEnd, Sampled},
};
use std::sync::Arc;

/// Scores of 16 bits come in rows of a multiple of this many.
pub(crate) const ALIGNED: usize = 64;

/// Embedding, blocks, norm, output head.
#[derive(Debug)]
pub struct LanguageModel<B: Backend> {
    device: B,
    config: Arc<Config>,
    parameters: Parameters<B>,
    embeddings: Embedding,
    /// First to last.
    blocks: Vec<Block<B>>,
    /// Of the stream after the last block.
    norm: RmsNorm,
    /// To scores, tied to the embeddings or of its own.
    head: Linear,
    precision: Precision,
    /// Seen by all passes.
    interrupt: Option<Interrupt>,
    /// Of passes that gather gradients.
    masks: Option<Masks>,
    /// Of the 8-bit factors of such passes, by [`FactorKind::index`](crate::tape::FactorKind::index).
    fp8_scales: Option<Tensor<B>>,
    /// Scores that losses are made of at a time, where somebody asked for so many.
    scores_at_once: Option<usize>,
}

impl<B: Backend> LanguageModel<B> {
    /// A fresh model; the same seed gives the same weights on every device.
    ///
    /// # Errors
    /// As [`Config::validate`]; the device's own failures.
    pub fn new(device: &B, config: &Config, seed: u64) -> Result<Self> {
        Self::build(device, config, Some(&mut Random::new(seed)))
    }

    /// A model whose parameters are all 0, to be overwritten.
    pub(crate) fn blank(device: &B, config: &Config) -> Result<Self> {
        Self::build(device, config, None)
    }

    /// All parameters in the order of checkpoints: embeddings, blocks, norm, head. Without `random` they are 0.
    fn build(device: &B, config: &Config, random: Option<&mut Random>) -> Result<Self> {
        config.validate()?;
        let mut parameters = Parameters::new();
        let (deviation, layers) = (config.initializer_range, config.layers.len());
        let mut build = match random {
            Some(random) => Builder::new(device, &mut parameters, random, deviation, layers),
            None => Builder::blank(device, &mut parameters),
        }
        .with_dropout(config.dropout())?
        .with_quantization(config.quantization);
        let (vocabulary, hidden) = (config.vocabulary_size, config.hidden_size);
        let mut model = build.within("model");
        let embeddings = Embedding::new(&mut model, "embeddings", vocabulary, hidden)?;
        let block = |(i, layer)| Block::new(&mut model.within(&format!("layers.{i}")), config, layer);
        let blocks = config.layers.iter().enumerate().map(block).collect::<Result<_>>()?;
        let norm = RmsNorm::new(&mut model, "norm", hidden, config.norm_eps)?;
        let head = embeddings.head(&mut build, "lm_head", (vocabulary, hidden), config.tie_word_embeddings)?;
        let (device, config, precision) = (device.clone(), Arc::new(config.clone()), Precision::default());
        let (interrupt, masks, fp8_scales, scores_at_once) = (None, None, None, None);
        Ok(Self {
            device,
            config,
            parameters,
            embeddings,
            blocks,
            norm,
            head,
            precision,
            interrupt,
            masks,
            fp8_scales,
            scores_at_once,
        })
    }

    /// Elements of all parameters of a model that is not made.
    pub(crate) fn count(device: &B, config: &Config) -> Result<u128> {
        config.validate()?;
        let (mut parameters, mut count) = (Parameters::new(), 0);
        let (vocabulary, hidden) = (config.vocabulary_size, config.hidden_size);
        let mut build = Builder::counting(device, &mut parameters, &mut count).with_quantization(config.quantization);
        let embeddings = Embedding::new(&mut build, "", vocabulary, hidden)?;
        embeddings.head(&mut build, "", (vocabulary, hidden), config.tie_word_embeddings)?;
        RmsNorm::new(&mut build, "", hidden, config.norm_eps)?;
        // Of layers alike one is counted.
        for run in config.layers.chunk_by(|a, b| a == b) {
            let mut layer = 0;
            let build = Builder::counting(device, &mut parameters, &mut layer);
            Block::new(&mut build.with_quantization(config.quantization), config, &run[0])?;
            count = count.saturating_add(layer.saturating_mul(run.len() as u128));
        }
        Ok(count)
    }

    /// The same model, whose passes that gather gradients have activations of this precision.
    pub fn with_precision(self, precision: Precision) -> Self {
        Self { precision, ..self }
    }

    /// The same model to generate with: its matrices, the table of embeddings among them, are stored in 16 bits, and
    /// products may round what meets them. It learns no more.
    ///
    /// # Errors
    /// The device's own failures.
    pub fn stored_in_16_bits(mut self) -> Result<Self> {
        self.parameters.round_matrices(DType::Bf16)?;
        Ok(self)
    }

    /// The same model, whose passes end with [`Error::Stopped`] once `interrupt` was asked for.
    pub fn with_interrupt(self, interrupt: Interrupt) -> Self {
        Self { interrupt: Some(interrupt), ..self }
    }

    /// From here on, passes that gather gradients drop by these masks what the configuration says; none drops nothing, as
    /// in a new model. Whoever learns gives other masks for every pass.
    pub fn set_masks(&mut self, masks: Option<Masks>) {
        self.masks = masks;
    }

    /// From here on, passes that gather gradients round 8-bit factors by these scales; without them by the factors' own maxima, as
    /// in a new model.
    pub(crate) fn set_fp8_scales(&mut self, scales: Option<Tensor<B>>) {
        self.fp8_scales = scales;
    }

    /// Refuses to go on once the model's interrupt was asked for.
    pub(crate) fn check_interrupt(&self) -> Result<()> {
        self.interrupt.as_ref().map_or(Ok(()), Interrupt::check)
    }

    /// Runs `work` on the model, whose passes do not look at the interrupt meanwhile.
    pub(crate) fn uninterrupted<T>(&mut self, work: impl FnOnce(&mut Self) -> T) -> T {
        let interrupt = self.interrupt.take();
        let done = work(self);
        self.interrupt = interrupt;
        done
    }

    /// A tape for a pass that gathers nothing.
    fn inert(&self) -> Tape<'_, B> {
        Tape::inert(&self.parameters).interruptible(self.interrupt.as_ref())
    }

    /// Bits of activations in passes that gather gradients.
    pub fn precision(&self) -> Precision {
        self.precision
    }

    /// What it is made of.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Where it lies.
    pub fn device(&self) -> &B {
        &self.device
    }

    /// What it has learned.
    pub fn parameters(&self) -> &Parameters<B> {
        &self.parameters
    }

    /// What it has learned, to be changed.
    pub fn parameters_mut(&mut self) -> &mut Parameters<B> {
        &mut self.parameters
    }

    /// Calls of [`LanguageModel::infer`] must start at a multiple of this many tokens: 1 unless a rule is frozen.
    pub fn group(&self) -> usize {
        self.blocks.iter().map(|block| block.mixer().group()).fold(1, least_common_multiple)
    }

    /// What is remembered of `batch` texts that are about to start.
    ///
    /// # Errors
    /// [`Error::Config`] for no text at all or too many; the device's own failures.
    pub fn cache(&self, batch: usize) -> Result<Cache<B>> {
        within("batch", batch, 1..=SIZE)?;
        let layers = self.blocks.iter().map(|block| block.mixer().cache(&self.device, &self.parameters, batch));
        Ok(Cache::new(batch, layers.collect::<Result<_>>()?, Arc::clone(&self.config)))
    }

    /// Scores `[batch, T, V]` of the token that follows each of `tokens [batch, T]`. The texts go on where `cache` stands;
    /// then it stands after them. Memory and time a token do not depend on how much was read before. With a frozen rule
    /// ([`LanguageModel::group`]) a caller who goes on token by token has to read the unfinished group again.
    ///
    /// # Errors
    /// [`Error::Config`] for tokens outside the vocabulary, a cache of another model or number of texts, or a
    /// call that starts inside a group of a frozen rule ([`LanguageModel::group`]). The device's own failures. The
    /// cache is then as it was.
    pub fn infer(&self, tokens: &[u32], batch: usize, cache: &mut Cache<B>) -> Result<Tensor<B>> {
        let logits = self.read_on(tokens, batch, cache, |ids, next| self.logits(&self.inert(), ids, Some(next)))?;
        Ok(logits.into_value())
    }

    /// What `read` makes of `tokens [batch, T]` where `cache` stands; then it stands after them.
    fn read_on<T>(
        &self,
        tokens: &[u32],
        batch: usize,
        cache: &mut Cache<B>,
        read: impl FnOnce(&Tensor<B>, &mut Cache<B>) -> Result<T>,
    ) -> Result<T> {
        if batch != cache.batch() {
            let expected = format!("{}, which the cache was made for", cache.batch());
            return Err(Error::config("batch", batch, expected));
        }
        cache.check(&self.config)?;
        self.check_group(cache.position())?;
        // Layers write as they go: a copy keeps the cache whole if one of them fails.
        let mut next = cache.clone();
        let result = read(&self.ids(tokens, batch)?, &mut next)?;
        next.advance(tokens.len() / batch);
        *cache = next;
        Ok(result)
    }

    /// Tokens drawn one after another from where `cache` stands, captured by the device to be replayed: `count` of every text,
    /// `[count, batch]`, whatever the input. The first thing that is read is `unread [batch]`; a text's draws go on with its row
    /// of `streams`. The state is that of the cache, then the unread tokens `[batch, 1]` and the streams `[batch, 3]`. Refused
    /// where the device gains nothing, or where a mixer does other work at other positions.
    pub(crate) fn capture(
        &self,
        cache: &Cache<B>,
        options: &Options,
        (unread, streams): (&[u32], &[[u32; 3]]),
        count: usize,
    ) -> Result<Capture<Box<dyn CapturedStep<B>>>> {
        let counts = |block: &Block<B>| block.mixer().counts();
        if let Some(layer) = self.blocks.iter().position(|block| counts(block) == Counts::Host) {
            let why = format!("the mixer of layer {layer} does other work at other positions");
            return Ok(Capture::Refused { why });
        }
        let cache = &match self.blocks.iter().map(counts).max() {
            Some(Counts::Device) => cache.clone().counted_by_device(&self.device)?,
            _ => cache.clone(),
        };
        let batch = cache.batch();
        let mut state = cache.arrays();
        state.push(self.ids(unread, batch)?);
        state.push(Tensor::from_u32(&self.device, [batch, 3], streams.concat())?);
        let input = Tensor::from_u32(&self.device, [1], vec![0])?;
        let mut step = |mut state: Vec<Tensor<B>>, _: Tensor<B>| {
            let mut tokens = Vec::new();
            for _ in 0..count {
                let token = self.draw(cache, options, state).map_err(into_core)?;
                tokens.push(token.0);
                state = token.1;
            }
            Ok((state, primitives::concat(&tokens.iter().collect::<Vec<_>>(), 0)?))
        };
        Ok(hecate_core::capture(&self.device, &state, &input, &mut step)?)
    }

    /// The next token of every text `[1, batch]` and the state after it, as in [`LanguageModel::capture`].
    fn draw(
        &self,
        cache: &Cache<B>,
        options: &Options,
        mut state: Vec<Tensor<B>>,
    ) -> Result<(Tensor<B>, Vec<Tensor<B>>)> {
        let batch = cache.batch();
        let drawn = state.split_off(state.len() - 2);
        let mut next = cache.with_arrays(state);
        let logits = self.logits(&Tape::inert(&self.parameters), &drawn[0], Some(&mut next))?.into_value();
        let scores = options.known(logits.reshape([batch, logits.shape().last()])?)?;
        let Sampled { tokens, streams } = primitives::sample(&options.draw, &scores, &drawn[1])?;
        next.advance_on_device(1)?;
        let mut state = next.arrays();
        state.extend([tokens.reshape([batch, 1])?, streams]);
        Ok((tokens.reshape([1, batch])?, state))
    }

    /// Makes at once what a first continuation of `prompt` would wait for bit by bit
    /// ([`Device::prepare`](hecate_core::Device::prepare)): `tell` is called with the number of kernels that are compiled.
    ///
    /// # Errors
    /// The device's own failures.
    pub fn prepare(&self, prompt: &[u32], tell: &mut dyn FnMut(usize)) -> Result<()> {
        let mut work = || {
            // The end of the prompt, then a token: what they find means nothing.
            let Some((first, Ok(mut cache))) = prompt.first().map(|first| (*first, self.cache(1))) else { return };
            let whole = prompt.len() / self.group() * self.group();
            for tokens in [&prompt[whole.saturating_sub(SEGMENT)..whole], &[first]] {
                let _ = self.infer(tokens, 1, &mut cache);
            }
        };
        Ok(self.device.prepare(&mut work, tell)?)
    }

    /// Scores `[batch, T, V]` of the tokens that follow `ids [batch, T]`.
    fn logits(&self, tape: &Tape<'_, B>, ids: &Tensor<B>, cache: Option<&mut Cache<B>>) -> Result<Var<B>> {
        let (x, pending) = self.stream(tape, ids, cache)?;
        if pending.is_none() && Linear::projects(tape, &[self.head], &x) {
            return Ok(Linear::projected(tape, &[self.head], (&x, Some(&self.norm)), ProjectionEnd::Each)?.remove(0));
        }
        let [_, normed] = self.norm.after(tape, &x, pending.as_ref())?;
        self.head.forward(tape, &normed)
    }

    /// The residual stream that scores are made of, `[batch, T, hidden]`.
    fn normed(&self, tape: &Tape<'_, B>, ids: &Tensor<B>, cache: Option<&mut Cache<B>>) -> Result<Var<B>> {
        let (x, pending) = self.stream(tape, ids, cache)?;
        let [_, normed] = self.norm.after(tape, &x, pending.as_ref())?;
        Ok(normed)
    }

    /// The residual stream after the last block, `[batch, T, hidden]`, and what is still to be added to it.
    fn stream(
        &self,
        tape: &Tape<'_, B>,
        ids: &Tensor<B>,
        mut cache: Option<&mut Cache<B>>,
    ) -> Result<(Var<B>, Option<Var<B>>)> {
        let [batch, length] = [0, 1].map(|axis| ids.shape().axes()[axis]);
        let position = cache.as_ref().map_or(0, |cache| cache.position());
        let positions = cache.as_ref().and_then(|cache| cache.positions().cloned());
        let (mut x, mut pending) = (self.embeddings.forward(tape, ids)?, None);
        tape.watch("the embedding of a token", &x)?;
        for (i, block) in self.blocks.iter().enumerate() {
            tape.enter(Some(i));
            let cache = cache.as_mut().and_then(|cache| cache.layers_mut().get_mut(i));
            let positions = positions.clone();
            let mut context = Context { positions, ..Context::at(Sequences::batch(batch, length), position, cache) };
            (x, pending) = block.forward_onto(tape, &x, pending.as_ref(), &mut context)?;
        }
        tape.enter(None);
        Ok((x, pending))
    }

    /// Tokens on the device, `[batch, T]`.
    fn ids(&self, tokens: &[u32], batch: usize) -> Result<Tensor<B>> {
        let length = self.length("inputs", tokens, batch)?;
        Ok(Tensor::from_u32(&self.device, [batch, length], tokens.to_vec())?)
    }

    /// Tokens a text, `T`, of `tokens [batch, T]`.
    fn length(&self, field: &str, tokens: &[u32], batch: usize) -> Result<usize> {
        if batch == 0 || tokens.is_empty() || !tokens.len().is_multiple_of(batch) {
            let found = format!("{} tokens in {batch} texts", tokens.len());
            return Err(Error::config(field, found, "equally many tokens in each text, and at least one"));
        }
        let vocabulary = self.config.vocabulary_size;
        match tokens.iter().find(|&&token| token as usize >= vocabulary) {
            Some(token) => Err(Error::config(field, token, format!("tokens under {vocabulary} (vocabulary_size)"))),
            None => Ok(tokens.len() / batch),
        }
    }

    /// Refuses a call that starts inside a group of a frozen rule.
    fn check_group(&self, position: usize) -> Result<()> {
        for (i, block) in self.blocks.iter().enumerate() {
            let group = block.mixer().group();
            if !position.is_multiple_of(group) {
                return Err(Error::config(
                    format!("layers[{i}].mixer.{}frozen", self.config.layers[i].mixer.rule_path()),
                    format!("{group}, and the call starts at token {position}"),
                    format!(
                        "calls that start at a multiple of {group}; keep a clone of the cache from the last multiple \
                         and read again from there, or make the rule exact (`frozen: null`)"
                    ),
                ));
            }
        }
        Ok(())
    }
}

/// An error as a device reports it.
pub(crate) fn into_core(error: Error) -> hecate_core::Error {
    match error {
        Error::Core(error) => error,
        other => hecate_core::Error::Device { backend: "model", context: "a step".into(), source: Box::new(other) },
    }
}

/// The least common multiple, saturating: no text reaches one that is too large to be counted.
fn least_common_multiple(a: usize, b: usize) -> usize {
    let (mut x, mut y) = (a, b);
    while y != 0 {
        (x, y) = (y, x % y);
    }
    (a / x).saturating_mul(b)
}
