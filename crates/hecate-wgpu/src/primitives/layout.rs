//! Cutting and joining along an axis: copies of runs of elements, of any type.

use crate::{
    Wgpu,
    error::unsupported,
    launch::{Binding, Kernel, PRELUDE, WgslSource},
    memory::groups,
    parameters::{Parameters, parameters},
};
use hecate_core::{
    Checked, DType, Result, Tensor,
    primitives::{Layout, Span},
};

const SOURCE: WgslSource =
    WgslSource { name: "layout", parts: &[PRELUDE, LayoutArgs::WGSL, include_str!("layout.wgsl")] };

/// An invocation copies one word.
const COPY_RUNS: Kernel<'static> = Kernel { source: &SOURCE, entry: "copy_runs", constants: &[] };

/// Every kernel of the file.
pub(crate) const KERNELS: &[Kernel<'static>] = &[COPY_RUNS];

parameters! {
    /// What copies of runs are told.
    struct LayoutArgs {
        /// Words to be copied.
        count: u32,
        /// Words of a run.
        run: u32,
        /// Where the first run begins in the origin.
        origin_start: u32,
        /// Words from run to run there.
        origin_stride: u32,
        /// Where the first run goes to.
        to_start: u32,
        /// Words from run to run there.
        to_stride: u32,
    }
}

impl Layout for Wgpu {
    /// One copy of `outer` runs.
    fn narrow(&self, _: Checked<Self>, span: Span, x: &Tensor<Self>) -> Result<Tensor<Self>> {
        let (words, dtype) = words(self, x)?;
        let y = self.empty([span.outer, span.count, span.inner], words.dtype())?;
        copy(self, span, &words, &y, Way::Out)?;
        self.rounded(y, dtype)
    }

    /// Zeros first; the copy covers only the part.
    fn narrow_backward(&self, _: Checked<Self>, span: Span, dy: &Tensor<Self>) -> Result<Tensor<Self>> {
        let (words, dtype) = words(self, dy)?;
        let dx = self.zeroed([span.outer, span.length, span.inner], words.dtype())?;
        copy(self, span, &dx, &words, Way::In)?;
        self.rounded(dx, dtype)
    }

    /// A copy for each part, to its place on the axis.
    /// Parts may differ in length along the axis alone, as core has checked.
    fn concat(&self, _: Checked<Self>, outer: usize, inner: usize, parts: &[&Tensor<Self>]) -> Result<Tensor<Self>> {
        let parts = parts.iter().map(|part| words(self, part)).collect::<Result<Vec<_>>>()?;
        let Some((first, dtype)) = parts.first() else {
            return Err(unsupported("concat", "there is nothing to join"));
        };
        // The joined axis is as long as all parts together.
        let length = parts.iter().map(|(part, _)| part.shape().count()).sum::<usize>() / (outer * inner);
        let y = self.empty([outer, length, inner], first.dtype())?;
        let mut span = Span { outer, length, inner, start: 0, count: 0 };
        for (part, _) in &parts {
            span.count = part.shape().count() / (outer * inner);
            copy(self, span, &y, part, Way::In)?;
            span.start += span.count;
        }
        self.rounded(y, *dtype)
    }
}

/// The elements, each in a word of its own, and their type: what moves half a word would have to see to the other half.
fn words(device: &Wgpu, x: &Tensor<Wgpu>) -> Result<(Tensor<Wgpu>, DType)> {
    match x.dtype() {
        // A word each, as they are.
        DType::U32 => Ok((x.clone(), DType::U32)),
        dtype => Ok((device.widened(x)?, dtype)),
    }
}

/// Out of the whole, or into it.
enum Way {
    Out,
    In,
}

/// Copies between the segment of `whole [outer, length, inner]` and `part [outer, count, inner]`.
fn copy(device: &Wgpu, span: Span, whole: &Tensor<Wgpu>, part: &Tensor<Wgpu>, way: Way) -> Result<()> {
    // `outer` runs of `count inner` words, one in each row of the whole.
    let (start, stride, run) =
        ((span.start * span.inner) as u32, (span.length * span.inner) as u32, (span.count * span.inner) as u32);
    let count = span.outer * run as usize;
    let args = LayoutArgs {
        count: count as u32,
        run,
        origin_start: start,
        origin_stride: stride,
        to_start: 0,
        to_stride: run,
    };
    match way {
        Way::Out => {
            let bindings = [Binding::Write(part), Binding::Read(whole)];
            device.launch(&COPY_RUNS, groups(count), &args, &bindings)
        }
        Way::In => {
            let args = LayoutArgs { origin_start: 0, origin_stride: run, to_start: start, to_stride: stride, ..args };
            let bindings = [Binding::Write(whole), Binding::Read(part)];
            device.launch(&COPY_RUNS, groups(count), &args, &bindings)
        }
    }
}
