//! A language model: tokens in, scores of the next token out.

mod blocks;
mod cache;
mod each;
mod loss;
mod packed;
mod scores;

pub(crate) use blocks::Blocks;
pub use cache::Cache;
pub(crate) use cache::POSITION;
pub use loss::LossGradients;
pub use packed::Packed;

use crate::{
    Architecture, Builder, Config, Dropout, Error, Footprint, Interrupt, LayerCache, Lora, Masks, Model, Parameters,
    Precision, Random, Result, Tape, Var,
    bounds::{SIZE, within},
    init::Give,
    layers::{Context, Mixer},
    model::{KeptConfig, check_parts, check_rows},
};
use hecate_core::{Backend, DType, Sequences, Tensor};
use std::{
    collections::HashSet,
    sync::{Arc, OnceLock},
};

/// A [`Model`], its parameters, and how its passes run. What it is made of a [`Config`] says, or an [`Architecture`] of one's own.
///
/// # Example
///
/// ```
/// use hecate_cpu::Cpu;
/// use hecate_models::{Config, LanguageModel, Result};
///
/// # fn main() -> Result<()> {
/// let model = LanguageModel::new(&Cpu::new(), &Config::uniform("titans", 2, 32, 2)?, 0)?;
/// // A text is read in two calls: the second goes on with the memories that the first left.
/// let text: Vec<u32> = b"to be or not to be".map(u32::from).into();
/// let mut cache = model.cache(1)?;
/// model.infer(&text[..10], 1, &mut cache)?;
/// let scores = model.infer(&text[10..], 1, &mut cache)?;
/// assert_eq!(scores.shape().axes(), [1, 8, 256]);
/// assert_eq!(cache.position(), 18);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct LanguageModel<B: Backend> {
    device: B,
    config: Arc<KeptConfig<B>>,
    parameters: Parameters<B>,
    model: Box<dyn Model<B>>,
    precision: Precision,
    /// Seen by all passes.
    interrupt: Option<Interrupt>,
    /// Of passes that gather gradients.
    masks: Option<Masks>,
    /// Of the 8-bit factors of such passes, by [`FactorKind::index`](crate::tape::FactorKind::index).
    fp8_scales: Option<Tensor<B>>,
    /// Scores that losses are made of at a time, where somebody asked for so many.
    scores_at_once: Option<usize>,
    /// Of its weights, once somebody asked for it and as long as they stay.
    fingerprint: OnceLock<String>,
    /// One as long as they stay, and another after they may have changed.
    weights: Arc<()>,
    /// The adapter that learns in the place of the model.
    adapter: Option<Adapted<B>>,
}

/// An adapter, and the configuration of the model without it.
#[derive(Debug)]
struct Adapted<B: Backend> {
    lora: Lora,
    base: Arc<KeptConfig<B>>,
}

impl<B: Backend> LanguageModel<B> {
    /// A fresh model; the same seed gives the same weights on every device.
    ///
    /// # Errors
    /// As [`Architecture::check`], for a [`Config`] [`Config::validate`]; [`Error::Config`] for two parameters of one name; the
    /// device's own failures.
    pub fn new<A: Architecture<B>>(device: &B, config: &A, seed: u64) -> Result<Self> {
        Self::build(device, config, Some(&mut Random::new(seed)))
    }

    /// A model whose parameters are all 0, to be overwritten.
    pub(crate) fn blank<A: Architecture<B>>(device: &B, config: &A) -> Result<Self> {
        Self::build(device, config, None)
    }

    /// A model whose parameters are what `give` has for their names and shapes.
    pub(crate) fn given<A: Architecture<B>>(device: &B, config: &A, give: Give<'_, B>) -> Result<Self> {
        config.check()?;
        let mut parameters = Parameters::new();
        let model = config.build(&mut Builder::given(device, &mut parameters, give).with_dropout(config.dropout())?)?;
        Self::of(device.clone(), KeptConfig::new(config)?, parameters, model)
    }

    /// All parameters in the order of checkpoints. Without `random` they are 0.
    fn build<A: Architecture<B>>(device: &B, config: &A, random: Option<&mut Random>) -> Result<Self> {
        config.check()?;
        let mut parameters = Parameters::new();
        let build = match random {
            Some(random) => Builder::new(device, &mut parameters, random, config.initializer_range(), config.layers()),
            None => Builder::blank(device, &mut parameters),
        };
        let model = config.build(&mut build.with_dropout(config.dropout())?)?;
        Self::of(device.clone(), KeptConfig::new(config)?, parameters, model)
    }

    /// Layers and their parameters.
    fn of(device: B, config: Arc<KeptConfig<B>>, parameters: Parameters<B>, model: Box<dyn Model<B>>) -> Result<Self> {
        let mut names = HashSet::new();
        if let Some(twice) = parameters.iter().find(|parameter| !names.insert(&parameter.name)) {
            let expected = "a name of its own for every parameter: build layers in `build.within(name)`";
            return Err(Error::config("parameters", format!("two named `{}`", twice.name), expected));
        }
        let (precision, interrupt, masks, fp8_scales) = (Precision::default(), None, None, None);
        let (scores_at_once, fingerprint, adapter) = (None, OnceLock::new(), None);
        Ok(Self {
            device,
            config,
            parameters,
            model,
            precision,
            interrupt,
            masks,
            fp8_scales,
            scores_at_once,
            fingerprint,
            weights: Arc::default(),
            adapter,
        })
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
        self.parameters_mut().round_matrices(DType::Bf16)?;
        Ok(self)
    }

    /// The same model, whose parameters learn no more: those of an adapter of this kind are about to be added.
    pub(crate) fn frozen_for(mut self, lora: &Lora) -> Result<Self> {
        let with = self.config.with("adapter", lora)?;
        let base = std::mem::replace(&mut self.config, with);
        self.adapter = Some(Adapted { lora: lora.clone(), base });
        self.parameters_mut().freeze();
        Ok(self)
    }

    /// The adapter that learns in the place of the model, if there is one.
    pub fn lora(&self) -> Option<&Lora> {
        self.adapter.as_ref().map(|adapter| &adapter.lora)
    }

    /// The same model with its adapter, if it has one, added to the maps. It scores as before, but for rounding, and all of its
    /// parameters learn again.
    ///
    /// # Errors
    /// [`Error::Config`] for maps that were rounded to 16 bits; the device's own failures.
    pub fn merged(mut self) -> Result<Self> {
        if let Some(Adapted { base, .. }) = self.adapter.take() {
            self.parameters_mut().merge()?;
            self.config = base;
        }
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
    pub fn set_fp8_scales(&mut self, scales: Option<Tensor<B>>) {
        self.fp8_scales = scales;
    }

    /// Refuses to go on once the model's interrupt was asked for.
    ///
    /// # Errors
    /// [`Error::Stopped`].
    pub fn check_interrupt(&self) -> Result<()> {
        self.interrupt.as_ref().map_or(Ok(()), Interrupt::check)
    }

    /// Runs `work` on the model, whose passes do not look at the interrupt meanwhile.
    pub fn uninterrupted<T>(&mut self, work: impl FnOnce(&mut Self) -> T) -> T {
        let interrupt = self.interrupt.take();
        let done = work(self);
        self.interrupt = interrupt;
        done
    }

    /// A tape for a pass that gathers nothing.
    pub(crate) fn inert(&self) -> Tape<'_, B> {
        Tape::inert(&self.parameters).interruptible(self.interrupt.as_ref())
    }

    /// Bits of activations in passes that gather gradients.
    pub fn precision(&self) -> Precision {
        self.precision
    }

    /// What it is made of.
    ///
    /// # Errors
    /// [`Error::Config`] for another type of configuration than the model was made of.
    pub fn config<A: Architecture<B>>(&self) -> Result<&A> {
        self.config.of()
    }

    /// Content of its `config.json`, whatever type the configuration is of.
    pub fn config_json(&self) -> &[u8] {
        self.config.content()
    }

    /// What layers drop while the model learns.
    pub fn dropout(&self) -> Dropout {
        self.config.dropout()
    }

    /// The mixers, in the order of their parts in a cache.
    pub(crate) fn mixers(&self) -> Vec<&dyn Mixer<B>> {
        self.model.mixers()
    }

    /// Number of its mixers; of Hecate's own models that of blocks.
    pub fn layers(&self) -> usize {
        self.mixers().len()
    }

    /// Number of different tokens.
    pub fn vocabulary_size(&self) -> usize {
        self.model.vocabulary_size()
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
        self.fingerprint.take();
        self.weights = Arc::default();
        &mut self.parameters
    }

    /// 64 bits of all that it has learned, as hexadecimal digits: two models of one configuration and fingerprint are the same.
    /// Weights come to the host once, and again after they changed. Not for security.
    ///
    /// # Errors
    /// The device's own failures.
    pub fn fingerprint(&self) -> Result<&str> {
        if let Some(known) = self.fingerprint.get() {
            return Ok(known);
        }
        let found = self.parameters.checksum()?;
        Ok(self.fingerprint.get_or_init(|| found))
    }

    /// The same as before if the weights are.
    pub(crate) fn weights(&self) -> &Arc<()> {
        &self.weights
    }

    /// What a step of learning costs with `batch` sequences of `tokens` tokens a pass.
    pub fn footprint(&self, batch: usize, tokens: usize) -> Footprint {
        let frozen = self.parameters.frozen().iter().map(|parameter| &parameter.value);
        let (count, bytes) = frozen.fold((0, 0), |(count, bytes), x| {
            let own = x.shape().count();
            (count + own, bytes + own * x.dtype().size())
        });
        let learned = (self.parameters().elements() - count) as u128;
        let footprint = self.config.footprint(learned, self.precision(), [batch, tokens]);
        Footprint { weights: footprint.weights.saturating_add(bytes), ..footprint }
    }

    /// Calls of [`LanguageModel::infer`] must start at a multiple of this many tokens: 1 unless a rule is frozen.
    pub fn group(&self) -> usize {
        self.mixers().iter().map(|mixer| mixer.group()).fold(1, least_common_multiple)
    }

    /// What is remembered of `batch` texts that are about to start.
    ///
    /// # Errors
    /// [`Error::Config`] for no text at all or too many; the device's own failures.
    pub fn cache(&self, batch: usize) -> Result<Cache<B>> {
        within("batch", batch, 1..=SIZE)?;
        let mixers = self.mixers();
        let parts = mixers.iter().map(|mixer| mixer.cache(&self.device, &self.parameters, batch));
        let memory = LayerCache::new(Vec::new()).with_parts(parts.collect::<Result<_>>()?);
        Ok(Cache::new(batch, memory, Arc::clone(&self.config)))
    }

    /// Scores `[batch, T, V]` of the token that follows each of `tokens [batch, T]`. The texts go on where `cache` stands;
    /// then it stands after them. Memory and time a token do not depend on how much was read before, but for
    /// [`FullAttention`](crate::layers::FullAttention). With a frozen rule
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

    /// Whether texts of unlike lengths can go on in one call of a token each.
    pub(crate) fn takes_unlike_texts(&self) -> bool {
        self.mixers().iter().all(|mixer| mixer.takes_unlike_texts())
    }

    /// One cache of these texts, each of its own length.
    pub(crate) fn joined(&self, caches: &[&Cache<B>]) -> Result<Cache<B>> {
        caches.iter().try_for_each(|cache| cache.check(&self.config))?;
        Cache::joined(&self.inert(), self.device(), caches)
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
        let read = tokens.len() / batch;
        next.advance(read);
        // A call has fewer tokens than can be counted in 32 bits.
        next.advance_on_device(read as u32)?;
        *cache = next;
        Ok(result)
    }

    /// Scores `[batch, T, V]` of the tokens that follow `ids [batch, T]`.
    pub(crate) fn logits(&self, tape: &Tape<'_, B>, ids: &Tensor<B>, cache: Option<&mut Cache<B>>) -> Result<Var<B>> {
        let scores = self.in_context(ids, cache, |context| self.model.scores(tape, ids, context))?;
        check_rows(&scores, ids.shape().axes(), Some(self.vocabulary_size()))?;
        Ok(scores)
    }

    /// What scores are made of, `[batch, T, hidden]`; of a model without a head the scores themselves.
    fn stream(&self, tape: &Tape<'_, B>, ids: &Tensor<B>, cache: Option<&mut Cache<B>>) -> Result<Var<B>> {
        let x = self.in_context(ids, cache, |context| self.model.forward(tape, ids, context))?;
        check_rows(&x, ids.shape().axes(), None)?;
        Ok(x)
    }

    /// Runs the model on `ids [batch, T]` where `cache` stands; its mixers remember there.
    fn in_context(
        &self,
        ids: &Tensor<B>,
        mut cache: Option<&mut Cache<B>>,
        run: impl FnOnce(&mut Context<'_, B>) -> Result<Var<B>>,
    ) -> Result<Var<B>> {
        let [batch, length] = [0, 1].map(|axis| ids.shape().axes()[axis]);
        let position = cache.as_ref().map_or(0, |cache| cache.position());
        let positions = cache.as_ref().and_then(|cache| cache.positions().cloned());
        let memory = cache.as_mut().map(|cache| cache.memory_mut());
        let mut context = Context { positions, ..Context::at(Sequences::batch(batch, length), position, memory) };
        let x = run(&mut context)?;
        check_parts(context.cache, self.mixers().len())?;
        Ok(x)
    }

    /// Tokens on the device, `[batch, T]`.
    pub(crate) fn ids(&self, tokens: &[u32], batch: usize) -> Result<Tensor<B>> {
        let length = self.length("inputs", tokens, batch)?;
        Ok(Tensor::from_u32(&self.device, [batch, length], tokens.to_vec())?)
    }

    /// Tokens a text, `T`, of `tokens [batch, T]`.
    fn length(&self, field: &str, tokens: &[u32], batch: usize) -> Result<usize> {
        if batch == 0 || tokens.is_empty() || !tokens.len().is_multiple_of(batch) {
            let found = format!("{} tokens in {batch} texts", tokens.len());
            return Err(Error::config(field, found, "equally many tokens in each text, and at least one"));
        }
        let vocabulary = self.vocabulary_size();
        match tokens.iter().find(|&&token| token as usize >= vocabulary) {
            Some(token) => Err(Error::config(field, token, format!("tokens under {vocabulary} (vocabulary_size)"))),
            None => Ok(tokens.len() / batch),
        }
    }

    /// Refuses a call that starts inside a group of a frozen rule.
    fn check_group(&self, position: usize) -> Result<()> {
        for (i, mixer) in self.mixers().into_iter().enumerate() {
            let group = mixer.group().max(1);
            if !position.is_multiple_of(group) {
                // A model of one's own has no such path in its file.
                let path = self.config::<Config>().ok().map(|config| config.layers[i].mixer.rule_path());
                return Err(Error::config(
                    format!("layers[{i}].mixer.{}frozen", path.unwrap_or("rule.")),
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

/// The least common multiple, saturating: no text reaches one that is too large to be counted.
fn least_common_multiple(a: usize, b: usize) -> usize {
    // No group is one of a token.
    let (a, b) = (a.max(1), b.max(1));
    let (mut x, mut y) = (a, b);
    while y != 0 {
        (x, y) = (y, x % y);
    }
    (a / x).saturating_mul(b)
}
