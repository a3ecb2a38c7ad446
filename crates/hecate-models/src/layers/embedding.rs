//! From tokens to the residual stream, and back to tokens.

use super::Linear;
use crate::{Builder, Init, ParameterId, Result, Tape, Var};
use hecate_core::{Backend, DType, Tensor};

/// A table with one row a token.
#[derive(Clone, Copy, Debug)]
pub struct Embedding {
    table: ParameterId,
    /// What rows are times.
    factor: f32,
}

impl Embedding {
    /// `weight [vocabulary, hidden]` under `name.weight`.
    ///
    /// # Errors
    /// The device's own failures.
    pub fn new<B: Backend>(build: &mut Builder<'_, B>, name: &str, vocabulary: usize, hidden: usize) -> Result<Self> {
        Ok(Self { table: build.within(name).table("weight", vocabulary, hidden)?, factor: 1.0 })
    }

    /// The same, whose rows are times this factor. A head that is tied to the table has the table as it is.
    pub(crate) fn scaled(self, factor: f32) -> Self {
        Self { factor, ..self }
    }

    /// Token ids `[B,T]` to `[B,T,hidden]`.
    ///
    /// # Errors
    /// Ids outside the vocabulary; the device's own failures.
    pub fn forward<B: Backend>(&self, tape: &Tape<'_, B>, ids: &Tensor<B>) -> Result<Var<B>> {
        if tape.reads_stored(self.table)? {
            // Few rows are made wide, and not all.
            let rows = tape.cast(DType::F32, &tape.embedding(&tape.parameter(self.table)?, ids)?)?;
            return tape.scale(self.factor, &rows);
        }
        tape.scale(self.factor, &tape.embedding(&tape.weight(self.table)?, ids)?)
    }

    /// The map back to logits, `[.., hidden]` to `[.., vocabulary]`: the table itself where `tied`, else a weight of
    /// its own under `name.weight`.
    ///
    /// # Errors
    /// The device's own failures.
    pub fn head<B: Backend>(
        &self,
        build: &mut Builder<'_, B>,
        name: &str,
        (vocabulary, hidden): (usize, usize),
        tied: bool,
    ) -> Result<Linear> {
        if tied { Ok(Linear::tied(self.table)) } else { Linear::new(build, name, hidden, vocabulary, Init::Normal) }
    }
}
