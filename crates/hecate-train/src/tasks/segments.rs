//! Answers after long sequences, which are read in segments.

use super::{Questions, TaskModel, is_likeliest};
use hecate_core::Backend;
use hecate_models::{
    Error, Result,
    bounds::{SIZE, within},
};
use std::ops::Range;

impl<B: Backend> TaskModel<B> {
    /// As [`TaskModel::right`], reading at most `segment` tokens of each sequence at once and carrying the model's state:
    /// what that takes does not grow with the length, beyond the tokens themselves. `segment` is rounded up to whole
    /// groups of frozen rules.
    ///
    /// # Errors
    /// [`Error::Config`] for a segment of none, sequences of different lengths, and rows without a token or an answer; the
    /// model's own.
    pub fn right_by_segments(&self, questions: &Questions, segment: usize) -> Result<Vec<bool>> {
        within("segment", segment, 1..=SIZE)?;
        let length = questions.length()?;
        let segment = segment.next_multiple_of(self.model.group());
        let (mut cache, mut right) = (self.model.cache(questions.batch)?, vec![false; questions.rows.len()]);
        for start in (0..length).step_by(segment) {
            let part = start..length.min(start.saturating_add(segment));
            let scores = self.model.infer(&questions.tokens(length, part.clone()), questions.batch, &mut cache)?;
            // Most segments ask nothing, and then no score is fetched.
            let asked = questions.asked(length, &part);
            let scores = if asked.is_empty() { Vec::new() } else { scores.to_f32()? };
            for (question, row) in asked {
                let width = self.model.vocabulary_size();
                right[question] = is_likeliest(&scores[row * width..][..width], questions.answers[question]);
            }
        }
        Ok(right)
    }
}

impl Questions {
    /// Tokens of a sequence, `T`, of questions that anybody may have made.
    fn length(&self) -> Result<usize> {
        let Self { batch, inputs, rows, answers } = self;
        within("batch", *batch, 1..=inputs.len())?;
        if !inputs.len().is_multiple_of(*batch) {
            let found = format!("{} in {batch} sequences", inputs.len());
            return Err(Error::config("inputs", found, "equally many tokens in each sequence"));
        }
        if rows.len() != answers.len() {
            return Err(Error::config("answers", answers.len(), format!("{}, one a row", rows.len())));
        }
        match rows.iter().find(|&&row| row as usize >= inputs.len()) {
            Some(row) => Err(Error::config("rows", row, format!("under {}, the number of tokens", inputs.len()))),
            None => Ok(inputs.len() / batch),
        }
    }

    /// These tokens of every sequence, `[batch, part]`.
    fn tokens(&self, length: usize, part: Range<usize>) -> Vec<u32> {
        self.inputs.chunks(length).flat_map(|sequence| &sequence[part.clone()]).copied().collect()
    }

    /// Questions after these tokens of a sequence, and each one's row among `[batch, part]`.
    fn asked(&self, length: usize, part: &Range<usize>) -> Vec<(usize, usize)> {
        let places = self.rows.iter().map(|&row| (row as usize / length, row as usize % length));
        let inside = places.enumerate().filter(|(_, (_, place))| part.contains(place));
        inside.map(|(i, (sequence, place))| (i, sequence * part.len() + place - part.start)).collect()
    }
}
