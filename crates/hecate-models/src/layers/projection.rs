//! From the residual stream to heads.

use super::{Context, Linear, ShortConv};
use crate::{Builder, Init, Result, Tape, Var};
use hecate_core::{
    Backend, ConvInput, Tensor,
    primitives::{L2Norm, Map},
};

/// A linear map to `heads × width`, followed by a short convolution or SiLU where asked for.
#[derive(Clone, Copy, Debug)]
pub struct Projection {
    linear: Linear,
    conv: Option<ShortConv>,
    activate: bool,
    heads: usize,
    width: usize,
}

/// What follows the linear map.
#[derive(Clone, Copy, Debug)]
pub struct ProjectionTail {
    /// Taps of the convolution, which ends in SiLU; 0 for none.
    pub taps: usize,
    /// Whether there is SiLU also without a convolution.
    pub activate: bool,
}

impl Projection {
    /// Parameters `proj.weight` and, with a convolution, `conv.weight`.
    ///
    /// # Errors
    /// The device's own failures.
    pub fn new<B: Backend>(
        build: &mut Builder<'_, B>,
        (proj, conv): (&str, &'static str),
        hidden: usize,
        (heads, width): (usize, usize),
        ProjectionTail { taps, activate }: ProjectionTail,
    ) -> Result<Self> {
        let outputs = heads.saturating_mul(width);
        let linear = Linear::new(build, proj, hidden, outputs, Init::Normal)?;
        let conv = if taps == 0 { None } else { Some(ShortConv::new(build, conv, outputs, taps)?) };
        Ok(Self { linear, conv, activate, heads, width })
    }

    /// `x [B,T,hidden]` to `[B,T,heads,width]`.
    ///
    /// # Errors
    /// An `x` of another width; the device's own failures.
    pub fn forward<B: Backend>(&self, tape: &Tape<'_, B>, x: &Var<B>, context: &mut Context<'_, B>) -> Result<Var<B>> {
        let y = self.linear.forward(tape, x)?;
        let y = match &self.conv {
            Some(conv) => conv.forward(tape, &y, context)?,
            None if self.activate => tape.map(Map::Silu, &y)?,
            None => y,
        };
        self.heads(tape, &y)
    }

    /// As [`Projection::forward`], each head divided by its L2 norm plus `epsilon`; fused with the convolution where there is
    /// one.
    pub(super) fn forward_l2_norm<B: Backend>(
        &self,
        tape: &Tape<'_, B>,
        x: &Var<B>,
        epsilon: f32,
        context: &mut Context<'_, B>,
    ) -> Result<Var<B>> {
        let Some(conv) = &self.conv else {
            return tape.l2_norm(&self.forward(tape, x, context)?, epsilon);
        };
        let l2_norm = L2Norm { width: self.width, epsilon };
        let y = conv.forward_to(tape, &self.linear.forward(tape, x)?, Some(l2_norm), context)?;
        self.heads(tape, &y)
    }

    /// `y [.., heads · width]` as `[.., heads, width]`.
    fn heads<B: Backend>(&self, tape: &Tape<'_, B>, y: &Var<B>) -> Result<Var<B>> {
        let outer = &y.axes()[..y.axes().len() - 1];
        tape.reshape(y, [outer, &[self.heads, self.width][..]].concat())
    }

    /// The linear map alone.
    pub(super) fn linear(&self) -> Linear {
        self.linear
    }

    /// The arguments of a fused decode: what the linear map made, `x [B,1,heads · width]`, and the convolution's weight
    /// and last inputs. The kernel applies SiLU.
    pub(super) fn parts<B: Backend>(
        &self,
        tape: &Tape<'_, B>,
        x: Var<B>,
        context: &Context<'_, B>,
    ) -> Result<ConvInput<Tensor<B>>> {
        let conv = self.conv.as_ref().map(|conv| conv.parts(tape, &x, context)).transpose()?;
        let conv = conv.map(|(weight, last)| (weight.into_value(), last.into_value()));
        Ok(ConvInput { x: x.into_value(), conv })
    }

    /// The convolution, which has an array in the cache.
    pub fn conv(&self) -> Option<&ShortConv> {
        self.conv.as_ref()
    }
}
