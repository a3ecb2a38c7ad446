//! Tokens that stand in front of every text.

use super::{Context, Mixer};
use crate::{Builder, Init, LayerCache, ParameterId, Result, Tape, Var};
use hecate_core::{Backend, Sequences};

/// Learned rows that stand in front of every text: what a mixer knows without having read anything.
#[derive(Clone, Copy, Debug)]
pub struct Persistent {
    rows: ParameterId,
    count: usize,
    hidden: usize,
}

impl Persistent {
    /// `persistent [count, hidden]`, as large as a normalised stream; none for a count of 0.
    ///
    /// # Errors
    /// The device's own failures.
    pub fn new<B: Backend>(build: &mut Builder<'_, B>, count: usize, hidden: usize) -> Result<Option<Self>> {
        if count == 0 {
            return Ok(None);
        }
        let rows = build.memory("persistent", [count, hidden], Init::Spread(1.0))?;
        Ok(Some(Self { rows, count, hidden }))
    }

    /// `[1, count, hidden]`.
    ///
    /// # Errors
    /// The device's own failures.
    pub fn rows<B: Backend>(&self, tape: &Tape<'_, B>) -> Result<Var<B>> {
        tape.reshape(&tape.weight(self.rows)?, [1, self.count, self.hidden])
    }

    /// What a memory makes of the rows `[1, count, hidden]`, and what it then remembers, for each of `batch` texts.
    ///
    /// # Errors
    /// The device's own failures.
    pub fn read<B: Backend>(
        &self,
        tape: &Tape<'_, B>,
        memory: &dyn Mixer<B>,
        batch: usize,
    ) -> Result<(Var<B>, LayerCache<B>)> {
        let mut cache = LayerCache::new(Vec::new());
        let sequences = Sequences::batch(1, self.count);
        let mut context = Context::at(sequences, 0, Some(&mut cache));
        let y = memory.forward(tape, &self.rows(tape)?, &mut context)?;
        Ok((y, cache.repeated(tape, batch)?))
    }
}
