//! Where in its text a layer stands.

use crate::{LayerCache, Result, Var};
use hecate_core::{Backend, DType, Sequences, Shape, Tensor};

/// Where a call stands in its texts, and what the mixer remembers of the tokens before.
pub struct Context<'c, B: Backend> {
    /// How the tokens of the call split into texts.
    pub sequences: Sequences,
    /// Tokens of each text before this call.
    pub position: usize,
    /// What the mixer remembers, and where it leaves what it will; absent: texts start here and end here.
    pub cache: Option<&'c mut LayerCache<B>>,
}

impl<B: Backend> Context<'_, B> {
    /// `batch` texts that start with this call of `tokens` tokens, and of which nothing is kept.
    pub fn whole(batch: usize, tokens: usize) -> Self {
        Self { sequences: Sequences::batch(batch, tokens), position: 0, cache: None }
    }

    /// The same call for a part of the mixer: the one whose memory of the tokens before has this number.
    pub fn part(&mut self, part: usize) -> Context<'_, B> {
        let Self { sequences, position, cache } = self;
        let cache = cache.as_mut().and_then(|cache| cache.part_mut(part));
        Context { sequences: sequences.clone(), position: *position, cache }
    }

    /// The remembered array of this name, or zeros.
    ///
    /// # Errors
    /// The device's own failures.
    pub fn state(&self, device: &B, name: &str, shape: impl Into<Shape>) -> Result<Var<B>> {
        let known = self.cache.as_ref().and_then(|cache| cache.get(name)).cloned();
        let state = match known {
            Some(state) => state,
            None => Tensor::zeros(device, shape, DType::F32)?,
        };
        Ok(Var::constant(state))
    }

    /// Remembers an array under this name, if anything is to be remembered.
    pub fn keep(&mut self, name: &str, array: &Tensor<B>) {
        if let Some(cache) = &mut self.cache {
            cache.set(name, array.clone());
        }
    }
}
