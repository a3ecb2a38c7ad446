//! Drawing tokens, a workgroup a text.

use crate::{
    Wgpu,
    launch::{Binding, Kernel, PRELUDE, WgslSource},
    parameters::{Parameters, parameters},
};
use hecate_core::{
    Checked, DType, Result, Tensor,
    primitives::{Cut, Sample, Sampled},
};

/// Both greedy choice and draws.
const SOURCE: WgslSource =
    WgslSource { name: "sample", parts: &[PRELUDE, SampleArgs::WGSL, include_str!("sample.wgsl")] };
/// `[B]` tokens and `[B,3]` streams: a workgroup takes one row of scores.
const SAMPLE: Kernel<'static> = Kernel { source: &SOURCE, entry: "sample", constants: &[] };

/// Every kernel of the file.
pub(crate) const KERNELS: &[Kernel<'static>] = &[SAMPLE];

parameters! {
    /// What the choice of tokens is told.
    struct SampleArgs {
        /// Texts.
        batch: u32,
        /// `V`.
        vocabulary: u32,
        /// As in [`Cut`], and so are the rest.
        greedy: u32,
        scale: f32,
        limit: f32,
        top_k: u32,
        top_p: u32,
    }
}

/// Rounds of the loops that a choice among `V` tokens makes: the largest score, the last token of top-k, and 48 draws. Each
/// draw leaves the share of the weight that a uniform number says, so `1 + ln(V)` are usual, and more than 48 have a chance
/// of `10⁻¹²` where all but one of a million equal tokens are cut.
fn rounds(vocabulary: usize, greedy: bool) -> usize {
    let of_invocation = vocabulary.div_ceil(256) + 256;
    let of_lane = vocabulary.div_ceil(1024);
    if greedy { of_invocation } else { 5 * of_invocation + 48 * (2 * of_lane + 16) }
}

impl Sample for Wgpu {
    /// `[B]` tokens of `scores [B,V]` and the streams `[B,3]` after them.
    /// Each text has a stream of its own, so its draws do not depend on the rest of the batch.
    fn sample(
        &self,
        _: Checked<Self>,
        cut: &Cut,
        scores: &Tensor<Self>,
        streams: &Tensor<Self>,
    ) -> Result<Sampled<Tensor<Self>>> {
        let (batch, vocabulary) = (scores.shape().rows(), scores.shape().last());
        self.check_rounds("so many tokens", rounds(vocabulary, cut.greedy))?;
        let scores = self.widened(scores)?;
        let (tokens, next) = (self.empty([batch], DType::U32)?, self.empty(streams.shape().clone(), DType::U32)?);
        let args = SampleArgs {
            batch: batch as u32,
            vocabulary: vocabulary as u32,
            greedy: u32::from(cut.greedy),
            scale: cut.scale,
            limit: cut.limit,
            top_k: cut.top_k,
            top_p: cut.top_p,
        };
        let arrays = [Binding::Read(&scores), Binding::Read(streams), Binding::Write(&tokens), Binding::Write(&next)];
        self.launch(&SAMPLE, (batch, 1, 1), &args, &arrays)?;
        Ok(Sampled { tokens, streams: next })
    }
}
