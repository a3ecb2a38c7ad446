//! A short convolution between two gates, which mixes a few neighbouring tokens and nothing else.

use super::{Context, Counts, Linear, Mixer, ShortConv};
use crate::{
    Builder, Init, LayerCache, Parameters, Result, Tape, Var,
    bounds::{ELEMENTS, at_most, product},
};
use hecate_core::Backend;

/// `b ‖ c ‖ u = x W_in`, then `y = (c · conv(b · u)) W_out`, with no activation. Parameters `in_proj [3 · hidden, hidden]`, `conv`
/// with its taps, and `out_proj`. Source: LFM2 of Liquid AI, as transformers has it.
#[derive(Clone, Copy, Debug)]
pub struct GatedConv {
    hidden: usize,
    /// To both gates and what passes them.
    inward: Linear,
    conv: ShortConv,
    back: Linear,
}

impl GatedConv {
    /// A convolution of so many taps, at least 2, beside a residual stream.
    ///
    /// # Errors
    /// [`Error::Config`](crate::Error::Config) for fewer taps and sizes that nothing has; the device's own failures.
    pub fn new<B: Backend>(build: &mut Builder<'_, B>, hidden: usize, taps: usize) -> Result<Self> {
        at_most("elements of a map", product(&[3, hidden, hidden]), ELEMENTS)?;
        Ok(Self {
            hidden,
            inward: Linear::new(build, "in_proj", hidden, 3 * hidden, Init::Normal)?,
            conv: ShortConv::linear(build, "conv", hidden, taps)?,
            back: Linear::new(build, "out_proj", hidden, hidden, Init::Residual)?,
        })
    }
}

impl<B: Backend> Mixer<B> for GatedConv {
    fn forward(&self, tape: &Tape<'_, B>, x: &Var<B>, context: &mut Context<'_, B>) -> Result<Var<B>> {
        context.check(x)?;
        let parts = tape.split(&self.inward.forward(tape, x)?, 2, &[self.hidden; 3])?;
        // The first gate is before the convolution, so what is remembered has passed it.
        let y = self.conv.forward(tape, &tape.mul(&parts[0], &parts[2])?, context)?;
        self.back.forward(tape, &tape.mul(&parts[1], &y)?)
    }

    /// The last `taps − 1` inputs of the convolution.
    fn cache(&self, device: &B, _: &Parameters<B>, batch: usize) -> Result<LayerCache<B>> {
        Ok(LayerCache::new(vec![self.conv.cache(device, batch)?]))
    }

    /// The work is the same wherever a call stands.
    fn counts(&self) -> Counts {
        Counts::Nobody
    }
}
