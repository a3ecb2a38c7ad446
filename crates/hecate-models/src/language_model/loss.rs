//! Losses of a model, their gradients, and where they stop to be finite.

use super::{Cache, LanguageModel};
use crate::{
    Dropout, Error, Gradients, NonFinite, Place, Precision, Probe, Result, Tape, Var,
    model::check_rows,
    tape::{Fp8Found, Fp8Pass},
};
use hecate_core::{Backend, Tensor};

/// What a forward and a backward pass leave on the device; nothing waited for them.
#[derive(Debug)]
pub struct LossGradients<B: Backend> {
    /// Sum of the losses, `[1]`.
    pub loss: Tensor<B>,
    /// Number of losses.
    pub count: usize,
    /// Of the mean of the losses, by all parameters.
    pub gradients: Gradients<B>,
    /// Of products with 8-bit factors.
    pub fp8: Option<Fp8Found<B>>,
}

impl<B: Backend> LossGradients<B> {
    /// The mean loss in nats, and its gradients; waits for the device.
    pub(super) fn read(self) -> Result<(f64, Gradients<B>)> {
        let sum: f32 = self.loss.to_f32()?.iter().sum();
        Ok((f64::from(sum) / self.count as f64, self.gradients))
    }
}

impl<B: Backend> LanguageModel<B> {
    /// Mean loss in nats a token, of `batch` texts that start here: `inputs`, `targets` `[batch, T]`, row-major.
    ///
    /// # Errors
    /// [`Error::Config`] for tokens outside the vocabulary or lengths that do not fit; the device's own failures.
    pub fn loss(&self, inputs: &[u32], targets: &[u32], batch: usize) -> Result<f64> {
        let tape = self.inert();
        let x = self.stream(&tape, &self.ids(inputs, batch)?, None)?;
        Ok(mean(&self.losses(&tape, &x, &self.targets(inputs, targets, batch)?)?)?)
    }

    /// As [`LanguageModel::loss`], and its gradients by all parameters.
    ///
    /// # Errors
    /// As [`LanguageModel::loss`].
    pub fn loss_and_gradients(&self, inputs: &[u32], targets: &[u32], batch: usize) -> Result<(f64, Gradients<B>)> {
        self.pass(inputs, targets, batch)?.read()
    }

    /// As [`LanguageModel::loss_and_gradients`], nothing waited for.
    ///
    /// # Errors
    /// As [`LanguageModel::loss`].
    pub fn pass(&self, inputs: &[u32], targets: &[u32], batch: usize) -> Result<LossGradients<B>> {
        let tokens = (&self.ids(inputs, batch)?, &self.targets(inputs, targets, batch)?);
        self.pass_of(tokens, self.fp8_scales.as_ref())
    }

    /// As [`LanguageModel::pass`], of tokens and targets that lie on the device: both `[batch, T]`, and checked. 8-bit factors
    /// are rounded by these scales.
    ///
    /// # Errors
    /// The device's own failures.
    pub fn pass_of(
        &self,
        (ids, targets): (&Tensor<B>, &Tensor<B>),
        fp8_scales: Option<&Tensor<B>>,
    ) -> Result<LossGradients<B>> {
        let tape = self.recording(fp8_scales)?;
        let x = self.stream(&tape, ids, None)?;
        self.backward(tape, x, targets)
    }

    /// Refuses tokens of a pass that [`LanguageModel::pass`] refuses.
    ///
    /// # Errors
    /// [`Error::Config`].
    pub fn check_tokens(&self, inputs: &[u32], targets: &[u32], batch: usize) -> Result<()> {
        if inputs.len() != targets.len() {
            return Err(Error::config("targets", targets.len(), format!("{} tokens, one an input", inputs.len())));
        }
        self.length("inputs", inputs, batch)?;
        self.length("targets", targets, batch).map(drop)
    }

    /// As [`LanguageModel::loss_and_gradients`], of texts that go on where `cache` stands; then it stands after them.
    /// Gradients do not flow to what is remembered.
    ///
    /// # Errors
    /// As [`LanguageModel::infer`]. The cache is then as it was.
    pub fn loss_and_gradients_with_cache(
        &self,
        inputs: &[u32],
        targets: &[u32],
        cache: &mut Cache<B>,
    ) -> Result<(f64, Gradients<B>)> {
        self.pass_with_cache(inputs, targets, cache)?.read()
    }

    /// As [`LanguageModel::loss_and_gradients_with_cache`], nothing waited for.
    ///
    /// # Errors
    /// As [`LanguageModel::infer`]. The cache is then as it was.
    pub fn pass_with_cache(&self, inputs: &[u32], targets: &[u32], cache: &mut Cache<B>) -> Result<LossGradients<B>> {
        let (batch, mut next) = (cache.batch(), cache.clone());
        cache.check(&self.config)?;
        self.check_group(cache.position())?;
        let tape = self.recording(self.fp8_scales.as_ref())?;
        let x = self.stream(&tape, &self.ids(inputs, batch)?, Some(&mut next))?;
        let pass = self.backward(tape, x, &self.targets(inputs, targets, batch)?)?;
        next.advance(inputs.len() / batch);
        next.settle();
        *cache = next;
        Ok(pass)
    }

    /// Losses `[batch · T]` in nats of texts that go on where `cache` stands; then it stands after them.
    ///
    /// # Errors
    /// As [`LanguageModel::infer`], and for targets outside the vocabulary or not one an input. The cache is then as it was.
    pub fn infer_losses(&self, inputs: &[u32], targets: &[u32], cache: &mut Cache<B>) -> Result<Tensor<B>> {
        let (tape, batch) = (self.inert(), cache.batch());
        let targets = self.targets(inputs, targets, batch)?;
        self.read_on(inputs, batch, cache, |ids, next| {
            self.losses(&tape, &self.stream(&tape, ids, Some(next))?, &targets)
        })
    }

    /// Moves `cache` past the first tokens of its texts. What is carried was dropped as in the pass over them: by the same masks,
    /// but where persistent tokens have a part of these.
    ///
    /// # Errors
    /// As [`LanguageModel::infer`]. The cache is then as it was.
    pub fn carry(&self, inputs: &[u32], cache: &mut Cache<B>) -> Result<()> {
        let batch = cache.batch();
        if self.masks.is_none() || self.dropout() == Dropout::default() {
            return self.infer(inputs, batch, cache).map(drop);
        }
        // A tape drops only while it records; each draws the masks of a pass anew.
        let mut next = cache.clone();
        self.stream(&self.recording(self.fp8_scales.as_ref())?, &self.ids(inputs, batch)?, Some(&mut next))?;
        next.advance(inputs.len() / batch);
        next.settle();
        *cache = next;
        Ok(())
    }

    /// Computes [`LanguageModel::loss_and_gradients`] again, or with a cache
    /// [`LanguageModel::loss_and_gradients_with_cache`]. Tells where, in the order of the computation, forward and backward,
    /// the first element appears that is not finite: the block and, in its mixer, the head. None if there is none.
    ///
    /// # Errors
    /// As [`LanguageModel::loss_and_gradients`], if nothing was found before.
    pub fn first_non_finite(
        &self,
        inputs: &[u32],
        targets: &[u32],
        batch: usize,
        cache: Option<&Cache<B>>,
    ) -> Result<Option<NonFinite>> {
        cache.map_or(Ok(()), |cache| cache.check(&self.config))?;
        let (probe, mut next) = (Probe::default(), cache.cloned());
        let outcome = {
            let tape = self.recording(self.fp8_scales.as_ref())?.watched(&probe);
            let x = self.ids(inputs, batch).and_then(|ids| self.stream(&tape, &ids, next.as_mut()));
            x.and_then(|x| self.backward(tape, x, &self.targets(inputs, targets, batch)?)?.read())
        };
        self.found_by(probe, outcome)
    }

    /// What a probe found, or else what is not finite of the pass that it watched.
    pub(super) fn found_by(&self, probe: Probe, outcome: Result<(f64, Gradients<B>)>) -> Result<Option<NonFinite>> {
        // A kernel may have refused what the probe found before it.
        if let Some(non_finite) = probe.into_non_finite() {
            return Ok(Some(non_finite));
        }
        let (found, gradients) = outcome?;
        if !found.is_finite() {
            return Ok(Some(NonFinite { what: "the loss".to_owned(), place: Place::default(), found }));
        }
        NonFinite::in_gradients(&self.parameters, &gradients)
    }

    /// A tape for a pass that gathers gradients, with activations of the model's precision.
    pub(super) fn recording(&self, fp8_scales: Option<&Tensor<B>>) -> Result<Tape<'_, B>> {
        let tape = Tape::recording(&self.parameters).with_activations(self.precision.dtype());
        let tape = tape.interruptible(self.interrupt.as_ref());
        let fp8 = (self.precision == Precision::Fp8)
            .then(|| Fp8Pass::new(&self.device, self.parameters.len(), fp8_scales.cloned()))
            .transpose()?;
        let tape = tape.with_fp8(fp8);
        Ok(match self.masks {
            Some(masks) => tape.with_dropout(masks),
            None => tape,
        })
    }

    /// Mean loss in nats a question, and its gradients by all parameters, where only some tokens have a target: `rows`
    /// among the `batch × T` tokens of `inputs`, each followed by one of `targets`.
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
        let tape = self.recording(self.fp8_scales.as_ref())?;
        let x = self.stream_at(&tape, inputs, batch, rows)?;
        self.backward(tape, x, &self.targets(rows, targets, 1)?)?.read()
    }

    /// Scores `[rows, V]` of the token that follows some tokens: `rows` among the `batch × T` tokens of `inputs`.
    ///
    /// # Errors
    /// As [`LanguageModel::answer_loss_and_gradients`].
    pub fn answer_scores(&self, inputs: &[u32], batch: usize, rows: &[u32]) -> Result<Tensor<B>> {
        let tape = self.inert();
        let x = self.stream_at(&tape, inputs, batch, rows)?;
        Ok(self.scores_of(&tape, x)?.into_value())
    }

    /// As [`LanguageModel::stream`], of some rows alone: `[rows, hidden]`.
    fn stream_at(&self, tape: &Tape<'_, B>, tokens: &[u32], batch: usize, rows: &[u32]) -> Result<Var<B>> {
        if rows.is_empty() {
            return Err(Error::config("rows", "none", "at least one"));
        }
        if let Some(row) = rows.iter().find(|&&row| row as usize >= tokens.len()) {
            return Err(Error::config("rows", row, format!("under {}, the number of tokens", tokens.len())));
        }
        let ids = self.ids(tokens, batch)?;
        let rows = Tensor::from_u32(&self.device, [rows.len()], rows.to_vec())?;
        let x = self.in_context(&ids, None, |context| self.model.forward_rows(tape, &ids, &rows, context))?;
        check_rows(&x, rows.shape().axes(), None)?;
        Ok(x)
    }

    /// Targets on the device, `[batch, T]`, one an input.
    fn targets(&self, inputs: &[u32], targets: &[u32], batch: usize) -> Result<Tensor<B>> {
        if inputs.len() != targets.len() {
            return Err(Error::config("targets", targets.len(), format!("{} tokens, one an input", inputs.len())));
        }
        let length = self.length("targets", targets, batch)?;
        Ok(Tensor::from_u32(&self.device, [batch, length], targets.to_vec())?)
    }
}

/// Mean of losses, summed in 64 bits.
pub(super) fn mean<B: Backend>(losses: &Tensor<B>) -> hecate_core::Result<f64> {
    let losses = losses.to_f32()?;
    Ok(losses.iter().copied().map(f64::from).sum::<f64>() / losses.len() as f64)
}
