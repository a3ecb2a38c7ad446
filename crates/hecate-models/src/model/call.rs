//! One of several calls in which a text is read.

use crate::{LayerCache, layers::Context};
use hecate_core::{Backend, Sequences, Tensor};

/// One of several calls in which a text is read, one after the other ([`Model::scores_each`](crate::Model::scores_each)).
#[derive(Debug)]
pub struct Call<B: Backend> {
    /// `[1,T]`.
    pub tokens: Tensor<B>,
    /// Tokens of the text before the call.
    pub position: usize,
    /// Number of the earlier call that this one goes on after; without one it goes on from its own `memory`.
    pub after: Option<usize>,
    /// What is remembered, a part for each mixer: before the call, and after it once it ran.
    pub memory: LayerCache<B>,
}

impl<B: Backend> Call<B> {
    /// Where call `number` begins, for a pass through the whole model; the call that it goes on after has run.
    pub fn context(calls: &mut [Self], number: usize) -> Context<'_, B> {
        if let Some(before) = calls[number].after {
            calls[number].memory = calls[before].memory.clone();
        }
        calls[number].own_context()
    }

    /// As [`Call::context`], for the mixer of this number alone: no other part of what is remembered is looked at.
    pub fn part(calls: &mut [Self], number: usize, mixer: usize) -> Context<'_, B> {
        let left = calls[number].after.and_then(|before| calls[before].memory.parts().get(mixer).cloned());
        let call = &mut calls[number];
        if let (Some(left), Some(own)) = (left, call.memory.part_mut(mixer)) {
            *own = left;
        }
        let Context { sequences, position, positions, cache } = call.own_context();
        Context { sequences, position, positions, cache: cache.and_then(|memory| memory.part_mut(mixer)) }
    }

    /// Where the call begins by what it remembers itself.
    fn own_context(&mut self) -> Context<'_, B> {
        let tokens = self.tokens.shape().axes()[1];
        Context::at(Sequences::batch(1, tokens), self.position, Some(&mut self.memory))
    }
}
