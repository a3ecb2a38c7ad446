//! Where in its text a layer stands.

use crate::{LayerCache, Result, Tape, Var};
use hecate_core::{Backend, DType, Error, Sequences, Shape, Tensor};

/// Where a call stands in its texts, and what the mixer remembers of the tokens before.
#[derive(Debug)]
pub struct Context<'c, B: Backend> {
    /// How the tokens of the call split into texts.
    pub sequences: Sequences,
    /// Tokens of each text before this call.
    pub position: usize,
    /// The same of each text `[N]`, where they differ or the device counts; then `position` is that of the longest text, or of
    /// the capture.
    pub positions: Option<Tensor<B>>,
    /// What the mixer remembers, and where it leaves what it will; absent: texts start here and end here.
    pub cache: Option<&'c mut LayerCache<B>>,
}

impl<'c, B: Backend> Context<'c, B> {
    /// `batch` texts that start with this call of `tokens` tokens, and of which nothing is kept.
    pub fn whole(batch: usize, tokens: usize) -> Self {
        Self::at(Sequences::batch(batch, tokens), 0, None)
    }

    /// Texts of which `position` tokens each were read, counted by the host.
    pub fn at(sequences: Sequences, position: usize, cache: Option<&'c mut LayerCache<B>>) -> Self {
        Self { sequences, position, positions: None, cache }
    }

    /// Refuses an `x` that does not hold the tokens of the call, `[B,T,hidden]`.
    pub(super) fn check(&self, x: &Var<B>) -> Result<()> {
        let (what, slot, shape) = ("mixer", "x", x.value().shape());
        if shape.rank() != 3 {
            let found = shape.clone();
            return Err(Error::Rank { what, slot, expected: "3 ([B,T,hidden])", found }.into());
        }
        Ok(self.sequences.check(what, slot, shape)?)
    }

    /// The same call for a part of the mixer: the one whose memory of the tokens before has this number.
    pub fn part(&mut self, part: usize) -> Context<'_, B> {
        let Self { sequences, position, positions, cache } = self;
        let cache = cache.as_mut().and_then(|cache| cache.part_mut(part));
        Context { sequences: sequences.clone(), position: *position, positions: positions.clone(), cache }
    }

    /// As [`Context::part`]; where nothing is remembered of the mixer, the part remembers in `own`.
    pub fn part_or<'s>(&'s mut self, part: usize, own: Option<&'s mut LayerCache<B>>) -> Context<'s, B> {
        let part = self.part(part);
        Context { cache: part.cache.or(own), ..part }
    }

    /// The remembered array of this name, or zeros.
    ///
    /// # Errors
    /// The device's own failures.
    pub fn state(&self, device: &B, name: &str, shape: impl Into<Shape>) -> Result<Var<B>> {
        match self.known(name) {
            Some(state) => Ok(state.clone()),
            None => Ok(Var::constant(Tensor::zeros(device, shape, DType::F32)?)),
        }
    }

    /// As [`Context::state`], in the type of the tokens `x`: what a layer remembers of its own inputs.
    ///
    /// # Errors
    /// The device's own failures.
    pub fn inputs(&self, tape: &Tape<'_, B>, name: &str, x: &Var<B>, shape: impl Into<Shape>) -> Result<Var<B>> {
        let dtype = x.value().dtype();
        match self.known(name) {
            Some(state) => tape.cast(dtype, state),
            None => Ok(Var::constant(Tensor::zeros(x.value().device(), shape, dtype)?)),
        }
    }

    /// The remembered array of this name.
    pub(super) fn known(&self, name: &str) -> Option<&Var<B>> {
        self.cache.as_ref()?.var(name)
    }

    /// Remembers an array under this name, if anything is to be remembered.
    pub fn keep(&mut self, name: &'static str, array: &Tensor<B>) {
        self.carry(name, &Var::constant(array.clone()));
    }

    /// As [`Context::keep`], with its history: gradients flow to it from the next call of the same tape.
    pub fn carry(&mut self, name: &'static str, array: &Var<B>) {
        if let Some(cache) = &mut self.cache {
            cache.set(name, array.clone());
        }
    }
}
