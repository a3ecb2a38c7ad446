//! A language model: tokens in, scores of the next token out.

use crate::{
    Builder, Cache, Config, Error, Finding, Gradients, Parameters, Place, Precision, Probe, Result, Tape, Var,
    bounds::{SIZE, within},
    layers::{Block, Context, Embedding, Linear, RmsNorm},
    probe::last_gradient,
};
use hecate_core::{Backend, DType, Recording, Sequences, Tensor, primitives};
use rand_chacha::ChaCha8Rng;

/// Scores of 16 bits come in rows of a multiple of this many.
pub(crate) const ALIGNED: usize = 64;

/// Embedding, blocks, norm, output head.
#[derive(Debug)]
pub struct LanguageModel<B: Backend> {
    device: B,
    config: Config,
    parameters: Parameters<B>,
    embeddings: Embedding,
    blocks: Vec<Block<B>>,
    norm: RmsNorm,
    head: Linear,
    precision: Precision,
}

impl<B: Backend> LanguageModel<B> {
    /// A fresh model; the same seed gives the same weights on every device.
    ///
    /// # Errors
    /// As [`Config::validate`]; the device's own failures.
    pub fn new(device: &B, config: &Config, seed: u64) -> Result<Self> {
        Self::build(device, config, Some(&mut Builder::<B>::stream(seed)))
    }

    /// A model whose parameters are all 0, to be overwritten.
    pub(crate) fn blank(device: &B, config: &Config) -> Result<Self> {
        Self::build(device, config, None)
    }

    fn build(device: &B, config: &Config, random: Option<&mut ChaCha8Rng>) -> Result<Self> {
        config.validate()?;
        let mut parameters = Parameters::new();
        let (deviation, layers) = (config.initializer_range, config.layers.len());
        let mut build = match random {
            Some(random) => Builder::new(device, &mut parameters, random, deviation, layers),
            None => Builder::blank(device, &mut parameters),
        };
        let (vocabulary, hidden) = (config.vocabulary_size, config.hidden_size);
        let mut model = build.within("model");
        let embeddings = Embedding::new(&mut model, "embeddings", vocabulary, hidden)?;
        let block = |(i, layer)| Block::new(&mut model.within(&format!("layers.{i}")), config, layer);
        let blocks = config.layers.iter().enumerate().map(block).collect::<Result<_>>()?;
        let norm = RmsNorm::new(&mut model, "norm", hidden, config.norm_eps)?;
        let head = embeddings.head(&mut build, "lm_head", (vocabulary, hidden), config.tie_word_embeddings)?;
        let (device, config, precision) = (device.clone(), config.clone(), Precision::default());
        Ok(Self { device, config, parameters, embeddings, blocks, norm, head, precision })
    }

    /// The same model, whose passes that gather gradients have activations of this precision.
    pub fn with_precision(self, precision: Precision) -> Self {
        Self { precision, ..self }
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

    /// Mean loss in nats a token, of `batch` texts that start here: `inputs`, `targets` `[batch, T]`, row-major.
    ///
    /// # Errors
    /// [`Error::Config`] for tokens outside the vocabulary or lengths that do not fit; the device's own failures.
    pub fn loss(&self, inputs: &[u32], targets: &[u32], batch: usize) -> Result<f64> {
        let tape = Tape::inert(&self.parameters);
        let logits = self.logits(&tape, &self.ids(inputs, batch)?, None)?;
        let targets = self.targets(inputs, targets, batch)?;
        Ok(mean(&primitives::cross_entropy(self.config.vocabulary_size, logits.value(), &targets)?.0)?)
    }

    /// As [`LanguageModel::loss`], and its gradients by all parameters.
    ///
    /// # Errors
    /// As [`LanguageModel::loss`].
    pub fn loss_and_gradients(&self, inputs: &[u32], targets: &[u32], batch: usize) -> Result<(f64, Gradients<B>)> {
        self.pass(inputs, targets, batch)?.read()
    }

    /// As [`LanguageModel::loss_and_gradients`], nothing waited for.
    pub(crate) fn pass(&self, inputs: &[u32], targets: &[u32], batch: usize) -> Result<Pass<B>> {
        let tape = self.recording();
        let logits = self.logits(&tape, &self.ids(inputs, batch)?, None)?;
        let targets = self.targets(inputs, targets, batch)?;
        turn_around(tape, self.config.vocabulary_size, logits, &targets)
    }

    /// As [`LanguageModel::loss_and_gradients`], of texts that go on where `cache` stands; then it stands behind them.
    /// Gradients do not flow to what is remembered.
    ///
    /// # Errors
    /// As [`LanguageModel::infer`]. The cache is then as it was.
    pub fn loss_and_gradients_behind(
        &self,
        inputs: &[u32],
        targets: &[u32],
        cache: &mut Cache<B>,
    ) -> Result<(f64, Gradients<B>)> {
        self.pass_behind(inputs, targets, cache)?.read()
    }

    /// As [`LanguageModel::loss_and_gradients_behind`], nothing waited for.
    pub(crate) fn pass_behind(&self, inputs: &[u32], targets: &[u32], cache: &mut Cache<B>) -> Result<Pass<B>> {
        let (batch, mut next) = (cache.batch(), cache.clone());
        self.check_group(cache.position())?;
        let tape = self.recording();
        let logits = self.logits(&tape, &self.ids(inputs, batch)?, Some(&mut next))?;
        let pass = turn_around(tape, self.config.vocabulary_size, logits, &self.targets(inputs, targets, batch)?)?;
        next.advance(inputs.len() / batch);
        next.settle();
        *cache = next;
        Ok(pass)
    }

    /// Computes [`LanguageModel::loss_and_gradients`] again, or with a cache
    /// [`LanguageModel::loss_and_gradients_behind`] it, and tells where, in the order of the computation, forward and
    /// backward, the first number appears that is not one: the block and, in its mixer, the head. None if there is none.
    ///
    /// # Errors
    /// As [`LanguageModel::loss_and_gradients`], if nothing was found before.
    pub fn first_non_finite(
        &self,
        inputs: &[u32],
        targets: &[u32],
        batch: usize,
        cache: Option<&Cache<B>>,
    ) -> Result<Option<Finding>> {
        let (probe, mut next) = (Probe::default(), cache.cloned());
        let outcome = {
            let tape = self.recording().watched(&probe);
            let logits = self.ids(inputs, batch).and_then(|ids| self.logits(&tape, &ids, next.as_mut()));
            logits.and_then(|logits| {
                turn_around(tape, self.config.vocabulary_size, logits, &self.targets(inputs, targets, batch)?)?.read()
            })
        };
        // A kernel may have refused what was found in front of it.
        if let Some(finding) = probe.into_finding() {
            return Ok(Some(finding));
        }
        let (found, gradients) = outcome?;
        if !found.is_finite() {
            return Ok(Some(Finding { what: "the loss".to_owned(), place: Place::default(), found }));
        }
        last_gradient(&self.parameters, &gradients)
    }

    /// A tape for a pass that gathers gradients.
    fn recording(&self) -> Tape<'_, B> {
        Tape::recording(&self.parameters).with_activations(self.precision.dtype())
    }

    /// Mean loss in nats a question, and its gradients by all parameters, where only some tokens have a target: `rows`
    /// among the `batch × T` tokens of `inputs`, one of `targets` behind each.
    ///
    /// # Errors
    /// [`Error::Config`] for tokens outside the vocabulary, rows that are not there, or lengths that do not fit; the
    /// device's own failures.
    pub fn answer_loss_and_gradients(
        &self,
        inputs: &[u32],
        batch: usize,
        rows: &[u32],
        targets: &[u32],
    ) -> Result<(f64, Gradients<B>)> {
        let tape = self.recording();
        let logits = self.logits_at(&tape, inputs, batch, rows)?;
        let targets = self.targets(rows, targets, 1)?.reshape([rows.len()])?;
        turn_around(tape, self.config.vocabulary_size, logits, &targets)?.read()
    }

    /// Scores `[rows, V]` of the token behind some tokens: `rows` among the `batch × T` tokens of `inputs`.
    ///
    /// # Errors
    /// As [`LanguageModel::answer_loss_and_gradients`].
    pub fn answer_scores(&self, inputs: &[u32], batch: usize, rows: &[u32]) -> Result<Tensor<B>> {
        Ok(self.logits_at(&Tape::inert(&self.parameters), inputs, batch, rows)?.into_value())
    }

    /// What is remembered of `batch` texts that are about to start.
    ///
    /// # Errors
    /// [`Error::Config`] for no text at all or too many; the device's own failures.
    pub fn cache(&self, batch: usize) -> Result<Cache<B>> {
        within("batch", batch, 1..=SIZE)?;
        let layers = self.blocks.iter().map(|block| block.mixer().cache(&self.device, &self.parameters, batch));
        Ok(Cache::new(batch, layers.collect::<Result<_>>()?))
    }

    /// Scores `[batch, T, V]` of the token behind each of `tokens [batch, T]`, which go on where `cache` stands; then
    /// it stands behind them. Memory and time a token do not depend on how much was read before; in front of a frozen
    /// rule ([`LanguageModel::group`]) a caller who goes on token by token has to read the unfinished group again.
    ///
    /// # Errors
    /// [`Error::Config`] for tokens outside the vocabulary, another number of texts than the cache was made for, or a
    /// call that starts inside a group of a frozen rule ([`LanguageModel::group`]); the device's own failures. The
    /// cache is then as it was.
    pub fn infer(&self, tokens: &[u32], batch: usize, cache: &mut Cache<B>) -> Result<Tensor<B>> {
        if batch != cache.batch() {
            let expected = format!("{}, which the cache was made for", cache.batch());
            return Err(Error::config("batch", batch, expected));
        }
        self.check_group(cache.position())?;
        // Layers write as they go: a copy keeps the cache whole if one of them fails.
        let mut next = cache.clone();
        let logits = self.logits(&Tape::inert(&self.parameters), &self.ids(tokens, batch)?, Some(&mut next))?;
        next.advance(tokens.len() / batch);
        *cache = next;
        Ok(logits.into_value())
    }

    /// Reading token by token from where `cache` stands, as a device repeats it: ids `[batch]` in, scores
    /// `[batch, 1, V]` out. None where the device gains nothing, or where a mixer does other work at other positions.
    pub(crate) fn recorded(&self, cache: &Cache<B>) -> Result<Option<Box<dyn Recording>>> {
        if !self.blocks.iter().all(|block| block.mixer().steady()) {
            return Ok(None);
        }
        let ids = self.ids(&vec![0; cache.batch()], cache.batch())?;
        let mut step = |state, ids: Tensor<B>| {
            let mut next = cache.with_arrays(state);
            let logits = self.logits(&Tape::inert(&self.parameters), &ids, Some(&mut next)).map_err(into_core)?;
            Ok((next.arrays(), logits.into_value()))
        };
        Ok(self.device.record(&cache.arrays(), &ids, &mut step)?)
    }

    /// Scores `[batch, T, V]` behind the tokens `ids [batch, T]`; of 16 bits with columns behind the vocabulary's.
    fn logits(&self, tape: &Tape<'_, B>, ids: &Tensor<B>, cache: Option<&mut Cache<B>>) -> Result<Var<B>> {
        let x = self.stream(tape, ids, cache)?;
        let x = self.norm.forward(tape, &x)?;
        let logits = match tape.activations() {
            DType::F32 => self.head.forward(tape, &x)?,
            // Only losses are made of these, and of the vocabulary's columns alone.
            _ => self.head.forward_padded(tape, &x, ALIGNED)?,
        };
        tape.watch("the score of a token", &logits)?;
        Ok(logits)
    }

    /// As [`LanguageModel::logits`], of some rows alone: `[rows, V]`.
    fn logits_at(&self, tape: &Tape<'_, B>, tokens: &[u32], batch: usize, rows: &[u32]) -> Result<Var<B>> {
        if rows.is_empty() {
            return Err(Error::config("rows", "none", "at least one"));
        }
        if let Some(row) = rows.iter().find(|&&row| row as usize >= tokens.len()) {
            return Err(Error::config("rows", row, format!("under {}, the number of tokens", tokens.len())));
        }
        let x = self.stream(tape, &self.ids(tokens, batch)?, None)?;
        let x = tape.reshape(&x, [tokens.len(), self.config.hidden_size])?;
        // A row of a table is a row of anything.
        let x = tape.embedding(&x, &Tensor::from_u32(&self.device, [rows.len()], rows.to_vec())?)?;
        self.head.forward(tape, &self.norm.forward(tape, &x)?)
    }

    /// The residual stream behind the last block, `[batch, T, hidden]`.
    fn stream(&self, tape: &Tape<'_, B>, ids: &Tensor<B>, mut cache: Option<&mut Cache<B>>) -> Result<Var<B>> {
        let [batch, length] = [0, 1].map(|axis| ids.shape().axes()[axis]);
        let position = cache.as_ref().map_or(0, |cache| cache.position());
        let mut x = self.embeddings.forward(tape, ids)?;
        tape.watch("the embedding of a token", &x)?;
        for (i, block) in self.blocks.iter().enumerate() {
            tape.enter(Some(i));
            let cache = cache.as_mut().and_then(|cache| cache.layers_mut().get_mut(i));
            let mut context = Context { sequences: Sequences::batch(batch, length), position, cache };
            x = block.forward(tape, &x, &mut context)?;
        }
        tape.enter(None);
        Ok(x)
    }

    /// Tokens on the device, `[batch, T]`.
    fn ids(&self, tokens: &[u32], batch: usize) -> Result<Tensor<B>> {
        let length = self.length("inputs", tokens, batch)?;
        Ok(Tensor::from_u32(&self.device, [batch, length], tokens.to_vec())?)
    }

    fn targets(&self, inputs: &[u32], targets: &[u32], batch: usize) -> Result<Tensor<B>> {
        if inputs.len() != targets.len() {
            return Err(Error::config("targets", targets.len(), format!("{} tokens, one an input", inputs.len())));
        }
        let length = self.length("targets", targets, batch)?;
        Ok(Tensor::from_u32(&self.device, [batch, length], targets.to_vec())?)
    }

    /// Tokens a text.
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

/// A pass that was turned around, its loss still on the device.
pub(crate) struct Pass<B: Backend> {
    /// Sum of the losses, `[1]`.
    pub(crate) loss: Tensor<B>,
    /// Number of losses.
    pub(crate) count: usize,
    pub(crate) gradients: Gradients<B>,
}

impl<B: Backend> Pass<B> {
    /// The mean loss, and its gradients.
    fn read(self) -> Result<(f64, Gradients<B>)> {
        let sum: f32 = self.loss.to_f32()?.iter().sum();
        Ok((f64::from(sum) / self.count as f64, self.gradients))
    }
}

/// Loss of scores of so many classes, and the gradients of its mean.
fn turn_around<B: Backend>(tape: Tape<'_, B>, classes: usize, logits: Var<B>, targets: &Tensor<B>) -> Result<Pass<B>> {
    let count = targets.shape().count();
    let (losses, lse) = primitives::cross_entropy(classes, logits.value(), targets)?;
    let dlogits = primitives::cross_entropy_backward(classes, logits.value(), targets, &lse, (count as f32).recip())?;
    Ok(Pass { loss: primitives::sum(&losses)?, count, gradients: tape.backward([(logits, dlogits)])? })
}

/// An error as a device reports it.
fn into_core(error: Error) -> hecate_core::Error {
    match error {
        Error::Core(error) => error,
        other => hecate_core::Error::Device { backend: "model", context: "a step".into(), source: Box::new(other) },
    }
}

/// Mean of losses, summed in 64 bits.
fn mean<B: Backend>(losses: &Tensor<B>) -> hecate_core::Result<f64> {
    let losses = losses.to_f32()?;
    Ok(losses.iter().copied().map(f64::from).sum::<f64>() / losses.len() as f64)
}

/// Where it is too large to be counted, no text reaches it.
fn least_common_multiple(a: usize, b: usize) -> usize {
    let (mut x, mut y) = (a, b);
    while y != 0 {
        (x, y) = (y, x % y);
    }
    (a / x).saturating_mul(b)
}
