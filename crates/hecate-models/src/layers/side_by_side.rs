//! Mixers side by side, which read the same tokens.

use super::{Context, Counts, Mixer};
use crate::{LayerCache, Parameters, Result, Tape, Var};
use hecate_core::Backend;

/// One of the mixers of a [`SideBySide`], with its factors.
#[derive(Debug)]
pub struct SidePart<B: Backend> {
    /// What reads the tokens.
    pub mixer: Box<dyn Mixer<B>>,
    /// What tokens are times where it reads them.
    pub inward: f32,
    /// What it makes is times in the sum.
    pub outward: f32,
}

/// `Σ outward_i · mixer_i(inward_i · x)`. Each mixer remembers in a part of its own.
#[derive(Debug)]
pub struct SideBySide<B: Backend> {
    first: SidePart<B>,
    others: Vec<SidePart<B>>,
}

impl<B: Backend> SideBySide<B> {
    /// One mixer, and those beside it.
    pub fn new(first: SidePart<B>, others: Vec<SidePart<B>>) -> Self {
        Self { first, others }
    }

    /// All of them.
    fn parts(&self) -> impl Iterator<Item = &SidePart<B>> {
        [&self.first].into_iter().chain(&self.others)
    }
}

impl<B: Backend> SidePart<B> {
    /// Its term of the sum, for tokens `x [B,T,hidden]`.
    fn term(&self, tape: &Tape<'_, B>, x: &Var<B>, context: &mut Context<'_, B>) -> Result<Var<B>> {
        tape.scale(self.outward, &self.mixer.forward(tape, &tape.scale(self.inward, x)?, context)?)
    }
}

impl<B: Backend> Mixer<B> for SideBySide<B> {
    fn forward(&self, tape: &Tape<'_, B>, x: &Var<B>, context: &mut Context<'_, B>) -> Result<Var<B>> {
        context.check(x)?;
        let mut sum = self.first.term(tape, x, &mut context.part(0))?;
        for (part, other) in (1..).zip(&self.others) {
            sum = tape.add(&sum, &other.term(tape, x, &mut context.part(part))?)?;
        }
        Ok(sum)
    }

    fn cache(&self, device: &B, parameters: &Parameters<B>, batch: usize) -> Result<LayerCache<B>> {
        let parts = self.parts().map(|part| part.mixer.cache(device, parameters, batch)).collect::<Result<_>>()?;
        Ok(LayerCache::new(Vec::new()).with_parts(parts))
    }

    /// A multiple of the groups of all.
    fn group(&self) -> usize {
        self.parts().map(|part| part.mixer.group()).product()
    }

    fn counts(&self) -> Counts {
        self.others.iter().map(|part| part.mixer.counts()).fold(self.first.mixer.counts(), Ord::max)
    }

    fn takes_unlike_texts(&self) -> bool {
        self.parts().all(|part| part.mixer.takes_unlike_texts())
    }
}
