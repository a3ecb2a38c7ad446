//! Cutting and joining along an axis: copies of runs of elements, of any type.

use crate::{
    Wgpu,
    error::unsupported,
    launch::{Binding, Kernel, PRELUDE, Source},
    memory::groups,
};
use hecate_core::{
    DType, Result, Tensor,
    primitives::{Layout, Span},
};

const SOURCE: Source = Source { name: "layout", parts: &[PRELUDE, include_str!("layout.wgsl")] };

const COPY_RUNS: Kernel<'static> = Kernel { source: &SOURCE, entry: "copy_runs", constants: &[] };

/// Every kernel of the file.
pub(crate) const KERNELS: &[Kernel<'static>] = &[COPY_RUNS];

#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
struct Args {
    count: u32,
    run: u32,
    origin_start: u32,
    origin_stride: u32,
    to_start: u32,
    to_stride: u32,
    unused: [u32; 2],
}

impl Layout for Wgpu {
    fn narrow(&self, span: Span, x: &Tensor<Self>) -> Result<Tensor<Self>> {
        let (words, dtype) = words(self, x)?;
        let y = self.empty([span.outer, span.count, span.inner], words.dtype())?;
        copy(self, span, &words, &y, Way::Out)?;
        self.rounded(y, dtype)
    }

    fn narrow_backward(&self, span: Span, dy: &Tensor<Self>) -> Result<Tensor<Self>> {
        let (words, dtype) = words(self, dy)?;
        let dx = self.zeroed([span.outer, span.length, span.inner], words.dtype())?;
        copy(self, span, &dx, &words, Way::In)?;
        self.rounded(dx, dtype)
    }

    fn concat(&self, outer: usize, inner: usize, parts: &[&Tensor<Self>]) -> Result<Tensor<Self>> {
        let parts = parts.iter().map(|part| words(self, part)).collect::<Result<Vec<_>>>()?;
        let Some((first, dtype)) = parts.first() else {
            return Err(unsupported("concat", "there is nothing to join"));
        };
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
        // Widening and rounding take them as they are.
        DType::U32 => Ok((x.clone(), DType::F32)),
        dtype => Ok((device.widened(x)?, dtype)),
    }
}

/// Out of the whole, or into it.
enum Way {
    Out,
    In,
}

/// Copies between the stretch of `whole [outer, length, inner]` and `part [outer, count, inner]`.
fn copy(device: &Wgpu, span: Span, whole: &Tensor<Wgpu>, part: &Tensor<Wgpu>, way: Way) -> Result<()> {
    let (start, stride, run) =
        ((span.start * span.inner) as u32, (span.length * span.inner) as u32, (span.count * span.inner) as u32);
    let count = span.outer * run as usize;
    let args = Args {
        count: count as u32,
        run,
        origin_start: start,
        origin_stride: stride,
        to_start: 0,
        to_stride: run,
        unused: [0; 2],
    };
    match way {
        Way::Out => {
            let bindings = [Binding::Write(part), Binding::Read(whole)];
            device.launch(&COPY_RUNS, groups(count), &args, &bindings)
        }
        Way::In => {
            let args = Args { origin_start: 0, origin_stride: run, to_start: start, to_stride: stride, ..args };
            let bindings = [Binding::Write(whole), Binding::Read(part)];
            device.launch(&COPY_RUNS, groups(count), &args, &bindings)
        }
    }
}
