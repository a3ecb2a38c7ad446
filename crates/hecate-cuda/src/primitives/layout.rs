//! Cutting and joining along an axis: copies of runs of elements, of any type.

use crate::{
    Cuda,
    error::unsupported,
    launch::{Grid, Pointer, Source, kernels, source},
};
use hecate_core::{
    Result, Tensor,
    primitives::{Layout, Span},
};

pub(crate) const SOURCE: Source = source!("layout", "layout.cu");

kernels! { SOURCE {
    "copy_runs" CopyRuns {
        from: Pointer, to: Pointer, runs: u64, run: u64, from_stride: u64, to_stride: u64, size: u32
    }
} }

impl Layout for Cuda {
    fn narrow(&self, span: Span, x: &Tensor<Self>) -> Result<Tensor<Self>> {
        let y = self.empty([span.outer, span.count, span.inner], x.dtype())?;
        copy(self, span, x, &y, Way::Out)?;
        Ok(y)
    }

    fn narrow_backward(&self, span: Span, dy: &Tensor<Self>) -> Result<Tensor<Self>> {
        let dx = self.zeroed([span.outer, span.length, span.inner], dy.dtype())?;
        copy(self, span, &dx, dy, Way::In)?;
        Ok(dx)
    }

    fn concat(&self, outer: usize, inner: usize, parts: &[&Tensor<Self>]) -> Result<Tensor<Self>> {
        let Some(first) = parts.first() else {
            return Err(unsupported("concat", "there is nothing to join"));
        };
        let length = parts.iter().map(|part| part.shape().count()).sum::<usize>() / (outer * inner);
        let y = self.empty([outer, length, inner], first.dtype())?;
        let mut span = Span { outer, length, inner, start: 0, count: 0 };
        for part in parts {
            span.count = part.shape().count() / (outer * inner);
            copy(self, span, &y, part, Way::In)?;
            span.start += span.count;
        }
        Ok(y)
    }
}

/// Out of the whole, or into it.
enum Way {
    Out,
    In,
}

/// Copies between the stretch of `whole [outer, length, inner]` and `part [outer, count, inner]`.
fn copy(device: &Cuda, span: Span, whole: &Tensor<Cuda>, part: &Tensor<Cuda>, way: Way) -> Result<()> {
    let bytes = |elements: usize| (elements * whole.dtype().size()) as u64;
    let (start, stride, run) =
        (bytes(span.start * span.inner), bytes(span.length * span.inner), span.count * span.inner);
    let (whole, part, run) = (whole.buffer().pointer() + start, part.buffer().pointer(), bytes(run));
    // The widest that all runs begin and end at: buffers begin at multiples of 256.
    let size = [16, 8, 4].into_iter().find(|size| [start, stride, run].iter().all(|x| x % size == 0)).unwrap_or(2);
    let (from, to, from_stride, to_stride) = match way {
        Way::Out => (whole, part, stride, run),
        Way::In => (part, whole, run, stride),
    };
    let arguments = CopyRuns {
        from,
        to,
        runs: span.outer as u64,
        run: run / size,
        from_stride: from_stride / size,
        to_stride: to_stride / size,
        size: size as u32,
    };
    device.launch(Grid::elements(span.outer * (run / size) as usize), &arguments)
}
