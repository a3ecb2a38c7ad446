//! Losses of many tokens over a vocabulary, with the scores of some tokens at a time.
//!
//! Scores `[rows, V]` and their gradient are the largest arrays of a step where `V` is large. They are made for a piece of
//! the rows, their losses and gradients are taken at once, and they are let go before the next piece.

use super::{LanguageModel, LossGradients};
use crate::{
    Error, Result, Tape, Var,
    layers::Linear,
    model::check_rows,
    pieces::{ALIGNED, alike, piece},
};
use hecate_core::{
    Backend, DType, Tensor,
    primitives::{self, LossInputs, LossesAndGradient, Operands, Transpose},
};

/// How scores are made: `x [rows, hidden]` times `Wᵀ`, `W [V, hidden]`.
const TIMES_WEIGHT: Transpose = Transpose { a: false, b: true };

impl<B: Backend> LanguageModel<B> {
    /// At most so many scores at once, of all tokens of a pass together, and at least those of one token. Losses and gradients
    /// depend on it by rounding alone. Unless told otherwise, scores at once take at most 256 MiB, and are those of a quarter of
    /// the tokens where the vocabulary has 32,768 tokens or more.
    pub fn with_scores_at_once(self, most: usize) -> Self {
        Self { scores_at_once: Some(most), ..self }
    }

    /// The head whose scores are made in pieces; none where a model has none, or one with a bias.
    fn pieces_head(&self) -> Option<Linear> {
        self.model.head().filter(|head| !head.has_bias())
    }

    /// Scores `[.., V]` of what [`LanguageModel::stream`] gave.
    pub(super) fn scores_of(&self, tape: &Tape<'_, B>, x: Var<B>) -> Result<Var<B>> {
        let scores = match self.model.head() {
            Some(head) => head.forward(tape, &x)?,
            None => x,
        };
        let rows = scores.axes().len() - 1;
        check_rows(&scores, &scores.axes()[..rows], Some(self.vocabulary_size()))?;
        Ok(scores)
    }

    /// Losses `[rows]` in 32 bits of all `targets`, where the stream `x [.., hidden]` stands; for no gradient.
    pub(super) fn losses(&self, tape: &Tape<'_, B>, x: &Var<B>, targets: &Tensor<B>) -> Result<Tensor<B>> {
        let Some(head) = self.pieces_head() else {
            let inputs = self.loss_inputs(&self.scores_of(tape, x.clone())?, targets)?;
            let LossInputs { classes, logits, targets } = &inputs;
            return Ok(primitives::cross_entropy(&LossInputs { classes: *classes, logits, targets })?.losses);
        };
        let mut losses = Vec::new();
        self.each_piece(tape, (x, head), targets, |piece| {
            let Piece { classes, logits, targets, .. } = &piece;
            losses.push(primitives::cross_entropy(&LossInputs { classes: *classes, logits, targets })?.losses);
            Ok(())
        })?;
        Ok(primitives::concat(&losses.iter().collect::<Vec<_>>(), 0)?)
    }

    /// Losses of all `targets`, where the stream `x [.., hidden]` stands, and the gradients of their mean.
    pub(super) fn backward(&self, tape: Tape<'_, B>, x: Var<B>, targets: &Tensor<B>) -> Result<LossGradients<B>> {
        match self.pieces_head() {
            Some(head) => self.backward_in_pieces(tape, (x, head), targets),
            None => self.backward_at_once(tape, x, targets),
        }
    }

    /// [`LanguageModel::backward`] of all scores at once, whatever made them.
    fn backward_at_once(&self, tape: Tape<'_, B>, x: Var<B>, targets: &Tensor<B>) -> Result<LossGradients<B>> {
        let (count, fp8) = (targets.shape().count(), tape.fp8().cloned());
        let scores = self.scores_of(&tape, x)?;
        tape.watch("the score of a token", &scores)?;
        let inputs = self.loss_inputs(&scores, targets)?;
        let LossesAndGradient { losses, dlogits } =
            primitives::cross_entropy_and_gradient((count as f32).recip(), inputs)?;
        let (loss, dlogits) = (primitives::sum(&losses)?, dlogits.reshape(scores.value().shape().clone())?);
        let gradients = tape.backward_seeded([(scores, dlogits)])?;
        Ok(LossGradients { loss, count, gradients, fp8: fp8.map(|pass| pass.found()) })
    }

    /// Scores `[.., V]` and `targets [..]` of all tokens, as rows.
    fn loss_inputs(&self, scores: &Var<B>, targets: &Tensor<B>) -> Result<LossInputs<Tensor<B>>> {
        let (rows, classes) = (targets.shape().count(), self.vocabulary_size());
        Ok(LossInputs { classes, logits: scores.value().reshape([rows, classes])?, targets: targets.reshape([rows])? })
    }

    /// [`LanguageModel::backward`] of some scores at a time, which the head makes of `x [.., hidden]`.
    fn backward_in_pieces(
        &self,
        tape: Tape<'_, B>,
        (x, head): (Var<B>, Linear),
        targets: &Tensor<B>,
    ) -> Result<LossGradients<B>> {
        let count = targets.shape().count();
        let factor = (count as f32).recip();
        let (mut loss, mut dx, mut dweight) = (None, Vec::new(), None);
        let fp8 = tape.fp8().cloned();
        self.each_piece(&tape, (&x, head), targets, |piece| {
            let Piece { classes, x, weight, logits, targets } = piece;
            let inputs = LossInputs { classes, logits, targets };
            let LossesAndGradient { losses, dlogits } = primitives::cross_entropy_and_gradient(factor, inputs)?;
            let sum = primitives::sum(&losses)?;
            loss = Some(loss.take().map_or(Ok(sum.clone()), |loss| primitives::add(&loss, &sum))?);
            let weight = weight.map_or_else(|| Ok(head.parameter(&tape)?.into_value()), Ok::<_, Error>)?;
            if head.is_frozen(&tape) {
                dx.push(primitives::matmul(&dlogits, &weight, Transpose::default())?);
                return Ok(());
            }
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
        let loss = loss.ok_or_else(|| Error::config("targets", "none", "at least one"))?;
        let dx = primitives::concat(&dx.iter().collect::<Vec<_>>(), 0)?.reshape(x.value().shape().clone())?;
        let mut seeds = vec![(x, dx)];
        if let Some(dweight) = dweight {
            // Rows that fill the weight up have no gradient.
            seeds.push((head.parameter(&tape)?, primitives::narrow(&dweight, 0, 0, self.vocabulary_size())?));
        }
        let gradients = tape.backward_seeded(seeds)?;
        Ok(LossGradients { loss, count, gradients, fp8: fp8.map(|pass| pass.found()) })
    }

    /// Makes the scores of so many tokens at a time and gives them to `take`.
    fn each_piece(
        &self,
        tape: &Tape<'_, B>,
        (x, head): (&Var<B>, Linear),
        targets: &Tensor<B>,
        mut take: impl FnMut(Piece<B>) -> Result<()>,
    ) -> Result<()> {
        let (rows, classes) = (targets.shape().count(), self.vocabulary_size());
        // Only losses are made of what is padded, and of the vocabulary's columns alone.
        let multiple = if tape.activations() == DType::F32 { 1 } else { ALIGNED };
        // A quantized head is no array.
        let weight = match head.is_quantized() {
            true => None,
            false => Some(head.padded_weight(tape, x, multiple)?.into_value()),
        };
        let (x, targets) = (x.value().reshape([rows, x.value().shape().last()])?, targets.reshape([rows])?);
        let most = match self.scores_at_once {
            Some(scores) => alike(rows, scores / classes.max(1)),
            None => piece(rows, classes.next_multiple_of(multiple), tape.activations().size()),
        };
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
                None => head.forward(tape, &Var::constant(x.clone()))?,
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
    /// The stream, `[rows, hidden]`.
    x: Tensor<B>,
    /// What makes scores of it, `[V, hidden]`, `V` padded; none of a quantized head.
    weight: Option<Tensor<B>>,
    /// `[rows, V]`.
    logits: Tensor<B>,
    /// `[rows]`.
    targets: Tensor<B>,
}
