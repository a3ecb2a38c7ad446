//! Cutting and joining along an axis: copies of runs of elements, of any type.

use crate::{
    Cuda,
    arguments::{In, Out, Void, arguments},
    error::unsupported,
    launch::{Grid, kernels},
    source::{KernelSource, kernel_source},
};
use hecate_core::{
    Checked, Result, Tensor,
    primitives::{Layout, Span},
};

/// `x.narrow(1, start, count)`, its gradient, `torch.cat(parts, 1)`, and copies of many whole arrays.
pub(crate) const SOURCE: KernelSource = kernel_source!("layout", "layout.cu");

kernels! { SOURCE {
    // Runs of `run` elements of `size` bytes each.
    "copy_runs" CopyRuns {
        from: In<Void>, to: Out<Void>, runs: u64, run: u64, from_stride: u64, to_stride: u64, size: u32
    }
    // A pair of addresses each, by block y.
    "copy_arrays" CopyArrays { pairs: [Pair; PAIRS] }
} }

/// Arrays that one launch copies.
///
/// A pair is 24 bytes, and arguments of a launch are 4 KiB at most.
/// So 32 pairs take 768 of them.
const PAIRS: usize = 32;

arguments! {
    /// `struct Pair` of `layout.cu`.
    #[derive(Default)]
    struct Pair {
        /// Address of the array, and where it goes.
        from: In<u32>,
        to: Out<u32>,
        /// Words of 32 bits.
        words: u64,
    }
}

/// Copies arrays to others of their sizes, none of which is among the first, in few launches.
pub(crate) fn copy_all(device: &Cuda, arrays: &[(&Tensor<Cuda>, &Tensor<Cuda>)]) -> Result<()> {
    let bytes = |x: &Tensor<Cuda>| x.shape().count() * x.dtype().size();
    // Words of four bytes; arrays of an odd number of 16-bit elements are copied by the driver.
    let (whole, odd): (Vec<_>, Vec<_>) = arrays.iter().partition(|(from, _)| bytes(from).is_multiple_of(4));
    odd.into_iter().try_for_each(|(from, to)| device.copy(from, to))?;
    let filled: Vec<_> = whole.into_iter().filter(|(from, _)| bytes(from) > 0).collect();
    for group in filled.chunks(PAIRS) {
        let mut pairs = [Pair::default(); PAIRS];
        for (pair, (from, to)) in pairs.iter_mut().zip(group) {
            to.buffer().written_over();
            let words = (bytes(from) / 4) as u64;
            *pair = Pair { from: from.buffer().pointer(), to: to.buffer().pointer(), words };
        }
        // Threads enough for the longest; those of shorter arrays find nothing to do.
        let most = group.iter().map(|(from, _)| bytes(from) / 4).max().unwrap_or(1);
        let Grid { blocks: (across, ..), threads, shared } = Grid::elements(most);
        device.launch(Grid { blocks: (across, group.len(), 1), threads, shared }, &CopyArrays { pairs })?;
    }
    Ok(())
}

// Core has checked the axes: arrays lie row by row, and `start + count` is at most `length`.
impl Layout for Cuda {
    /// `y [outer, count, inner]` out of `x [outer, length, inner]`.
    fn narrow(&self, _: Checked<Self>, span: Span, x: &Tensor<Self>) -> Result<Tensor<Self>> {
        let y = self.empty([span.outer, span.count, span.inner], x.dtype())?;
        copy(self, span, x, &y, Way::Out)?;
        Ok(y)
    }

    /// `dx [outer, length, inner]`: zeros but for `dy [outer, count, inner]`.
    fn narrow_backward(&self, _: Checked<Self>, span: Span, dy: &Tensor<Self>) -> Result<Tensor<Self>> {
        let dx = self.zeroed([span.outer, span.length, span.inner], dy.dtype())?;
        copy(self, span, &dx, dy, Way::In)?;
        Ok(dx)
    }

    /// `y [outer, length, inner]`, the parts `[outer, ·, inner]` one after another along the middle axis.
    /// Each part is one launch, since parts may have different lengths.
    fn concat(&self, _: Checked<Self>, outer: usize, inner: usize, parts: &[&Tensor<Self>]) -> Result<Tensor<Self>> {
        let Some(first) = parts.first() else {
            return Err(unsupported("concat", "there is nothing to join"));
        };
        // The joined axis.
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
    /// From `whole` to `part`: the forward of `narrow`.
    Out,
    /// From `part` to `whole`: joining, and the gradient of `narrow`.
    In,
}

/// Copies between a range of `whole [outer, length, inner]` and `part [outer, count, inner]`.
/// Elements are moved as words of 2 to 16 bytes: a copy does not care what they mean, so all types share a kernel.
fn copy(device: &Cuda, span: Span, whole: &Tensor<Cuda>, part: &Tensor<Cuda>, way: Way) -> Result<()> {
    let bytes = |elements: usize| (elements * whole.dtype().size()) as u64;
    let (start, stride, run) =
        (bytes(span.start * span.inner), bytes(span.length * span.inner), span.count * span.inner);
    // In bytes.
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
