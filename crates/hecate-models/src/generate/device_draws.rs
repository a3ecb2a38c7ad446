//! Tokens that a device draws, one after another, without waiting for the host.

use super::SEGMENT;
use crate::{Cache, LanguageModel, Result, Tape, layers::Counts, sampling::Options};
use hecate_core::{
    Backend, Capture, CapturedStep, Tensor,
    primitives::{self, Sampled},
};

/// A token of every text that a device drew.
pub(super) struct Drawn<B: Backend> {
    /// `[batch]`.
    pub(super) tokens: Tensor<B>,
    /// What they were drawn from, `[batch, V]`.
    pub(super) scores: Tensor<B>,
    /// As that of [`LanguageModel::capture`], after them.
    pub(super) state: Vec<Tensor<B>>,
}

impl<B: Backend> LanguageModel<B> {
    /// Tokens drawn one after another from where `cache` stands, captured by the device to be replayed: `count` of every text,
    /// `[count, batch]`, whatever the input. The first thing that is read is `unread [batch]`; a text's draws go on with its row
    /// of `streams`. The state is that of the cache, then the unread tokens `[batch, 1]` and the streams `[batch, 3]`. Refused
    /// where the device gains nothing, or where a mixer does other work at other positions.
    pub(super) fn capture(
        &self,
        cache: &Cache<B>,
        options: &Options,
        (unread, streams): (&[u32], &[[u32; 3]]),
        count: usize,
    ) -> Result<Capture<Box<dyn CapturedStep<B>>>> {
        if let Some(why) = self.why_call_by_call(options) {
            return Ok(Capture::Refused { why });
        }
        let cache = &match self.mixers().iter().map(|mixer| mixer.counts()).max() {
            Some(Counts::Device) => cache.clone().counted_by_device(self.device())?,
            _ => cache.clone(),
        };
        let mut state = cache.arrays();
        state.extend(self.to_draw_from(unread, streams)?);
        let input = Tensor::from_u32(self.device(), [1], vec![0])?;
        let mut step = |mut state: Vec<Tensor<B>>, _: Tensor<B>| {
            let mut tokens = Vec::new();
            for _ in 0..count {
                let next = self.drawn(cache, options, state)?;
                tokens.push(next.tokens.reshape([1, cache.batch()])?);
                state = next.state;
            }
            Ok((state, primitives::concat(&tokens.iter().collect::<Vec<_>>(), 0)?))
        };
        Ok(hecate_core::capture(self.device(), &state, &input, &mut step)?)
    }

    /// Why no captured step draws tokens in this way; none if one does.
    pub(super) fn why_call_by_call(&self, options: &Options) -> Option<String> {
        let layer = || self.mixers().iter().position(|mixer| mixer.counts() == Counts::Host);
        let moving = || layer().map(|layer| format!("the mixer of layer {layer} does other work at other positions"));
        options.why_on_host().map(str::to_owned).or_else(moving)
    }

    /// What a step reads and draws by, beside a cache: the unread tokens `[batch, 1]` and the streams `[batch, 3]`.
    pub(super) fn to_draw_from(&self, unread: &[u32], streams: &[[u32; 3]]) -> Result<[Tensor<B>; 2]> {
        let batch = unread.len();
        Ok([self.ids(unread, batch)?, Tensor::from_u32(self.device(), [batch, 3], streams.concat())?])
    }

    /// The next token of every text, after what the state of [`LanguageModel::capture`] says was drawn before.
    pub(super) fn drawn(&self, cache: &Cache<B>, options: &Options, mut state: Vec<Tensor<B>>) -> Result<Drawn<B>> {
        let batch = cache.batch();
        let drawn = state.split_off(state.len() - 2);
        let mut next = cache.with_arrays(state);
        let scores = self.logits(&Tape::inert(self.parameters()), &drawn[0], Some(&mut next))?.into_value();
        let scores = scores.reshape([batch, scores.shape().last()])?;
        let Sampled { tokens, streams } =
            primitives::sample(&options.draw, &options.known(scores.clone())?, &drawn[1])?;
        next.advance_on_device(1)?;
        let mut state = next.arrays();
        state.extend([tokens.reshape([batch, 1])?, streams]);
        Ok(Drawn { tokens, scores, state })
    }

    /// Makes at once what a first continuation of `prompt` would wait for bit by bit
    /// ([`Device::prepare`](hecate_core::Device::prepare)): `tell` is called with the number of kernels that are compiled.
    ///
    /// # Errors
    /// The device's own failures.
    pub fn prepare(&self, prompt: &[u32], tell: &mut dyn FnMut(usize)) -> Result<()> {
        let mut work = || {
            // The end of the prompt, then a token: what they find means nothing.
            let Some((first, Ok(mut cache))) = prompt.first().map(|first| (*first, self.cache(1))) else { return };
            let whole = prompt.len() / self.group() * self.group();
            for tokens in [&prompt[whole.saturating_sub(SEGMENT)..whole], &[first]] {
                let _ = self.infer(tokens, 1, &mut cache);
            }
        };
        Ok(self.device().prepare(&mut work, tell)?)
    }
}
