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
        self.after(tape, &self.linear.forward(tape, x)?, context)
    }

    /// As [`Projection::forward`], of what the linear map made.
    pub(super) fn after<B: Backend>(
        &self,
        tape: &Tape<'_, B>,
        y: &Var<B>,
        context: &mut Context<'_, B>,
    ) -> Result<Var<B>> {
        match &self.conv {
            Some(conv) => self.heads(tape, &conv.forward(tape, y, context)?),
            None if self.activate => self.heads(tape, &tape.map(Map::Silu, y)?),
            None => self.heads(tape, y),
        }
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
        self.after_l2_norm(tape, &self.linear.forward(tape, x)?, epsilon, context)
    }

    /// As [`Projection::forward_l2_norm`], of what the linear map made.
    pub(super) fn after_l2_norm<B: Backend>(
        &self,
        tape: &Tape<'_, B>,
        y: &Var<B>,
        epsilon: f32,
        context: &mut Context<'_, B>,
    ) -> Result<Var<B>> {
        let Some(conv) = &self.conv else {
            return tape.l2_norm(&self.after(tape, y, context)?, epsilon);
        };
        let l2_norm = L2Norm { width: self.width, epsilon };
        self.heads(tape, &conv.forward_to(tape, y, Some(l2_norm), context)?)
    }

    /// [`Projection::after_l2_norm`] of each of these with an epsilon, [`Projection::after`] of the others: all convolutions in
    /// one call.
    pub(super) fn after_each<B: Backend, const N: usize>(
        tape: &Tape<'_, B>,
        each: [(&Self, &Var<B>, Option<f32>); N],
        context: &mut Context<'_, B>,
    ) -> Result<Vec<Var<B>>> {
        let convs: Option<Vec<_>> = each.iter().map(|(map, ..)| map.conv.as_ref()).collect();
        let Some(convs) = convs else {
            let one = |(map, y, epsilon): (&Self, &Var<B>, Option<f32>)| match epsilon {
                Some(epsilon) => map.after_l2_norm(tape, y, epsilon, context),
                None => map.after(tape, y, context),
            };
            return each.into_iter().map(one).collect();
        };
        let calls = convs
            .into_iter()
            .zip(&each)
            .map(|(conv, &(map, y, epsilon))| (conv, y, epsilon.map(|epsilon| L2Norm { width: map.width, epsilon })));
        let calls: Vec<_> = calls.collect();
        let made = ShortConv::forward_each(tape, &calls, context)?;
        made.iter().zip(each).map(|(y, (map, ..))| map.heads(tape, y)).collect()
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
