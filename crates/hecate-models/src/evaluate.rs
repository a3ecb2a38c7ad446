//! How well a model predicts a text.

use crate::{Error, LanguageModel, Place, Result, text::Stream};
use hecate_core::{
    Backend, Tensor,
    primitives::{LossInputs, cross_entropy},
};
use std::{f64::consts::LN_2, ops::ControlFlow};

/// Tokens a call that [`evaluate`] uses unless told otherwise.
pub const SEGMENT: usize = 512;

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

/// As [`evaluate`], with fresh memories for every `length` tokens: what a token is predicted from starts there, as the
/// sequences of training do.
///
/// # Errors
/// As [`evaluate`]; [`Error::Config`] for a length of none.
pub fn evaluate_afresh<B: Backend>(
    model: &LanguageModel<B>,
    stream: &Stream,
    (segment, length): (usize, usize),
    mut progress: impl FnMut(usize) -> ControlFlow<()>,
) -> Result<Score> {
    let predicted = stream.tokens.len().saturating_sub(1);
    if predicted == 0 {
        return Err(Error::config("tokens of text", stream.tokens.len(), "at least 2: one to read, one to predict"));
    }
    if let Some((field, _)) = [("segment", segment), ("fresh", length)].into_iter().find(|&(_, tokens)| tokens == 0) {
        return Err(Error::config(field, 0, "at least 1 token"));
    }
    let segment = segment.next_multiple_of(model.group());
    let (inputs, targets) = (stream.tokens[..predicted].chunks(length), stream.tokens[1..].chunks(length));
    let mut score = Score::default();
    'texts: for (inputs, targets) in inputs.zip(targets) {
        let mut cache = model.cache(1)?;
        for (inputs, targets) in inputs.chunks(segment).zip(targets.chunks(segment)) {
            let logits = model.infer(inputs, 1, &mut cache)?;
            let targets = Tensor::from_u32(model.device(), [1, targets.len()], targets.to_vec())?;
            let predicted = LossInputs { classes: logits.shape().last(), logits: &logits, targets: &targets };
            score.nats += cross_entropy(&predicted)?.losses.to_f32()?.iter().map(|&x| f64::from(x)).sum::<f64>();
            score.tokens += inputs.len();
            if progress(score.tokens).is_break() {
                break 'texts;
            }
        }
    }
    score.bytes = score.tokens as f64 * stream.bytes_per_token();
    if score.nats.is_finite() { Ok(score) } else { Err(not_a_number(&score)) }
}

/// The error of a loss that is not finite; its step is the number of tokens predicted.
fn not_a_number(score: &Score) -> Error {
    let way_out = "the weights are damaged or diverged: go back to an earlier checkpoint or train with a lower rate";
    Error::NonFinite {
        what: "the loss".to_owned(),
        place: Place::default(),
        found: score.nats,
        step: score.tokens as u64,
        way_out,
    }
}
