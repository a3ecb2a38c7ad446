//! Losses of many tokens over a vocabulary, with the scores of some tokens at a time.
//!
//! Scores `[rows, V]` and their gradient are the largest arrays of a step where `V` is large. They are made for a piece of
//! the rows, their losses and gradients are taken at once, and they are let go before the next piece.

use super::{ALIGNED, LanguageModel, LossGradients};
use crate::{Error, Result, Tape, Var};
use hecate_core::{
    Backend, DType, Tensor,
    primitives::{self, LossBackward, LossInputs, Losses, Operands, Transpose},
};

/// Scores that are made at once, of all rows together: 512 MiB in 16 bits.
pub(crate) const SCORES: usize = 1 << 28;

/// Rows of a piece, where `rows` of so many `columns` are made `most` scores at a time: pieces alike, at least a row each.
pub(crate) fn piece(rows: usize, columns: usize, most: usize) -> usize {
    let pieces = rows.saturating_mul(columns).div_ceil(most.max(1)).clamp(1, rows.max(1));
    rows.div_ceil(pieces).max(1)
}

/// How scores are made: `x [rows, hidden]` times `Wᵀ`, `W [V, hidden]`.
const TIMES_WEIGHT: Transpose = Transpose { a: false, b: true };

impl<B: Backend> LanguageModel<B> {
    /// At most so many scores at once, of all tokens of a pass together, and at least those of one token. Losses and gradients
    /// depend on it by rounding alone. `2²⁸` unless told otherwise.
    pub fn with_scores_at_once(self, most: usize) -> Self {
        Self { scores_at_once: most, ..self }
    }

    /// Losses `[rows]` in 32 bits of all `targets`, where the normed stream `x [.., hidden]` stands; for no gradient.
    pub(super) fn losses(&self, tape: &Tape<'_, B>, x: &Var<B>, targets: &Tensor<B>) -> Result<Tensor<B>> {
        let mut losses = Vec::new();
        self.each_piece(tape, x, targets, |piece| {
            losses.push(primitives::cross_entropy(&piece.inputs())?.losses);
            Ok(())
        })?;
        Ok(primitives::concat(&losses.iter().collect::<Vec<_>>(), 0)?)
    }

    /// Losses of all `targets`, where the normed stream `x [.., hidden]` stands, and the gradients of their mean.
    pub(super) fn backward(&self, tape: Tape<'_, B>, x: Var<B>, targets: &Tensor<B>) -> Result<LossGradients<B>> {
        let count = targets.shape().count();
        let factor = (count as f32).recip();
        let (mut loss, mut dx, mut dweight) = (None, Vec::new(), None);
        let fp8 = tape.fp8().cloned();
        self.each_piece(&tape, &x, targets, |piece| {
            let inputs = piece.inputs();
            let Losses { losses, lse } = primitives::cross_entropy(&inputs)?;
            let dlogits = primitives::cross_entropy_backward(&LossBackward { inputs, lse: &lse, factor })?;
            let sum = primitives::sum(&losses)?;
            loss = Some(loss.take().map_or(Ok(sum.clone()), |loss| primitives::add(&loss, &sum))?);
            let Piece { x, weight, logits, .. } = piece;
            drop(logits);
            let weight = weight.map_or_else(|| Ok(self.head.parameter(&tape)?.into_value()), Ok::<_, Error>)?;
            // The head's gradient gathers in 32 bits.
            let onto = match (dweight.take(), weight.dtype()) {
                (None, DType::F32) => None,
                (None, _) => Some(Tensor::zeros(&self.device, weight.shape().clone(), DType::F32)?),
                (gathered, _) => gathered,
            };
            let onto = Operands { a: None, b: onto };
            let grads = primitives::matmul_backward_onto(&x, &weight, TIMES_WEIGHT, &dlogits, onto)?;
            dx.push(grads.a);
            dweight = Some(grads.b);
            Ok(())
        })?;
        let (Some(loss), Some(dweight)) = (loss, dweight) else {
            return Err(Error::config("targets", "none", "at least one"));
        };
        let dx = primitives::concat(&dx.iter().collect::<Vec<_>>(), 0)?.reshape(x.value().shape().clone())?;
        // Rows that fill the weight up have no gradient.
        let dweight = primitives::narrow(&dweight, 0, 0, self.config.vocabulary_size)?;
        let head = self.head.parameter(&tape)?;
        let gradients = tape.backward_seeded([(x, dx), (head, dweight)])?;
        Ok(LossGradients { loss, count, gradients, fp8: fp8.map(|pass| pass.found()) })
    }

    /// Makes the scores of so many tokens at a time and gives them to `take`.
    fn each_piece(
        &self,
        tape: &Tape<'_, B>,
        x: &Var<B>,
        targets: &Tensor<B>,
        mut take: impl FnMut(Piece<B>) -> Result<()>,
    ) -> Result<()> {
        let (rows, classes) = (targets.shape().count(), self.config.vocabulary_size);
        // Only losses are made of what is padded, and of the vocabulary's columns alone.
        let multiple = if tape.activations() == DType::F32 { 1 } else { ALIGNED };
        // A quantized head is no array.
        let weight = match self.head.is_quantized() {
            true => None,
            false => Some(self.head.padded_weight(tape, x, multiple)?.into_value()),
        };
        let (x, targets) = (x.value().reshape([rows, x.value().shape().last()])?, targets.reshape([rows])?);
        let most = piece(rows, classes, self.scores_at_once);
        for start in (0..rows).step_by(most) {
            tape.check()?;
            let count = most.min(rows - start);
            let [x, targets] = [&x, &targets].map(|all| match count == rows {
                true => Ok(all.clone()),
                false => primitives::narrow(all, 0, start, count),
            });
            let (x, targets) = (x?, targets?);
            let logits = match &weight {
                Some(weight) => Var::constant(primitives::matmul(&x, weight, TIMES_WEIGHT)?),
                None => self.head.forward(tape, &Var::constant(x.clone()))?,
            };
            tape.watch("the score of a token", &logits)?;
            take(Piece { classes, x, weight: weight.clone(), logits: logits.into_value(), targets })?;
        }
        Ok(())
    }
}

/// Some of the tokens of a pass.
struct Piece<B: Backend> {
    /// Tokens of the vocabulary.
    classes: usize,
    /// The normed stream, `[rows, hidden]`.
    x: Tensor<B>,
    /// What makes scores of it, `[V, hidden]`, `V` padded; none of a quantized head.
    weight: Option<Tensor<B>>,
    /// `[rows, V]`.
    logits: Tensor<B>,
    /// `[rows]`.
    targets: Tensor<B>,
}

impl<B: Backend> Piece<B> {
    fn inputs(&self) -> LossInputs<&Tensor<B>> {
        LossInputs { classes: self.classes, logits: &self.logits, targets: &self.targets }
    }
}
