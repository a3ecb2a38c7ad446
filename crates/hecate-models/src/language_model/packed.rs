//! Texts of unlike lengths in one row, of which some tokens have a loss.

use super::{LanguageModel, LossGradients, loss::mean};
use crate::{Error, NonFinite, Probe, Result, Tape, Var, layers::Context, model::check_rows};
use hecate_core::{Backend, Sequences, Tensor};

/// Texts one after another in a row. Memories, convolutions and attention start afresh at each of them, and there is nothing
/// between them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Packed {
    /// All tokens that are read.
    tokens: Vec<u32>,
    /// Of each text, in their order.
    lengths: Vec<usize>,
    /// Places among `tokens` after which there is a token with a loss.
    rows: Vec<u32>,
    /// Those tokens.
    targets: Vec<u32>,
}

impl Packed {
    /// Appends a text, whose last token is not read; `learned` tells for each token whether it has a loss. The first never has:
    /// nothing comes before it.
    pub fn push(&mut self, text: &[u32], learned: &[bool]) {
        let (Some(read), start) = (text.len().checked_sub(1), self.tokens.len()) else { return };
        if read == 0 {
            return;
        }
        self.tokens.extend(&text[..read]);
        self.lengths.push(read);
        for (place, (&target, _)) in text.iter().zip(learned).enumerate().skip(1).filter(|(_, (_, learned))| **learned)
        {
            self.rows.push((start + place - 1) as u32);
            self.targets.push(target);
        }
    }

    /// Tokens that are read.
    pub fn tokens(&self) -> usize {
        self.tokens.len()
    }

    /// Tokens with a loss.
    pub fn losses(&self) -> usize {
        self.targets.len()
    }
}

impl<B: Backend> LanguageModel<B> {
    /// As [`LanguageModel::pass`], of packed texts: the mean is over the tokens with a loss.
    ///
    /// # Errors
    /// [`Error::Config`] for tokens outside the vocabulary, and where no token has a loss; the device's own failures.
    pub fn pass_packed(&self, packed: &Packed) -> Result<LossGradients<B>> {
        let tape = self.recording(self.fp8_scales.as_ref())?;
        let x = self.packed_stream(&tape, packed)?;
        self.backward(tape, x, &self.packed_targets(packed)?)
    }

    /// The sum of the losses of packed texts, in nats.
    ///
    /// # Errors
    /// As [`LanguageModel::pass_packed`].
    pub fn packed_loss(&self, packed: &Packed) -> Result<f64> {
        let tape = self.inert();
        let x = self.packed_stream(&tape, packed)?;
        Ok(mean(&self.losses(&tape, &x, &self.packed_targets(packed)?)?)? * packed.losses() as f64)
    }

    /// As [`LanguageModel::first_non_finite`], of [`LanguageModel::pass_packed`].
    ///
    /// # Errors
    /// As [`LanguageModel::pass_packed`], if nothing was found before.
    pub fn first_non_finite_packed(&self, packed: &Packed) -> Result<Option<NonFinite>> {
        let probe = Probe::default();
        let outcome = {
            let tape = self.recording(self.fp8_scales.as_ref())?.watched(&probe);
            let x = self.packed_stream(&tape, packed);
            x.and_then(|x| self.backward(tape, x, &self.packed_targets(packed)?)?.read())
        };
        self.found_by(probe, outcome)
    }

    /// What the scores of tokens with a loss are made of, `[rows, hidden]`.
    fn packed_stream(&self, tape: &Tape<'_, B>, packed: &Packed) -> Result<Var<B>> {
        if packed.rows.is_empty() {
            return Err(Error::config("tokens with a loss", 0, "at least 1"));
        }
        let ids = self.ids(&packed.tokens, 1)?;
        let rows = Tensor::from_u32(self.device(), [packed.rows.len()], packed.rows.clone())?;
        let mut context = Context::at(Sequences::packed(&packed.lengths), 0, None);
        let x = self.model.forward_rows(tape, &ids, &rows, &mut context)?;
        check_rows(&x, rows.shape().axes(), None)?;
        Ok(x)
    }

    /// The tokens with a loss on the device, `[rows]`.
    fn packed_targets(&self, packed: &Packed) -> Result<Tensor<B>> {
        let length = self.length("targets", &packed.targets, 1)?;
        Ok(Tensor::from_u32(self.device(), [length], packed.targets.clone())?)
    }
}
