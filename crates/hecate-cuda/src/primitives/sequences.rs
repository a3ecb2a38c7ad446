//! What primitives along the tokens share: edges of sequences, their last rows, sums of partial results.

use crate::{
    Cuda,
    arguments::In,
    device::Table,
    error::unsupported,
    launch::{Array, Grid, kernels, pointer},
    source::{KernelSource, kernel_source},
};
use hecate_core::{DType, Result, Sequences, Tensor, primitives::LastRows};

/// `cat(before, x)[-kept:]` of each sequence, and `parts.sum(0)`.
pub(crate) const SOURCE: KernelSource = kernel_source!("sequences", "sequences.cu");

kernels! { SOURCE {
    // before and out [N, kept, width], x [rows, width]; before and x may be null.
    "last_rows" LastRowsCopy {
        before: Array, x: Array, out: Array, starts: In<u32>, count: u64, kept: u64, width: u64,
    }
    // parts [number, count].
    "sum_parts" SumParts { out: Array, parts: In<f32>, count: u64, number: u32 }
} }

/// First row of every sequence, and after them the number of rows, `[N + 1]` in 32 bits.
/// The table is made once for the same sequences: later calls, and captured steps, find it on the device.
pub(super) fn starts(device: &Cuda, sequences: &Sequences) -> Result<Table> {
    let starts = sequences.starts().map(u32::try_from);
    let starts = starts.collect::<std::result::Result<Vec<_>, _>>();
    let too_many = |_| unsupported("these sequences", format!("{} rows of tokens in one call", sequences.rows()));
    device.cached_table(&starts.map_err(too_many)?)
}

/// An array of the last rows of each sequence: [`Attention::last_rows`](hecate_core::primitives::Attention::last_rows).
/// The result is `[N, kept, ..]`, of the type of `x`. A sequence shorter than `kept` has rows of `before` in front.
pub(super) fn last_rows(device: &Cuda, last: &LastRows<'_, Cuda>) -> Result<Tensor<Cuda>> {
    let starts = starts(device, last.sequences)?;
    let out = device.empty(last.shape.clone(), last.x.map_or(DType::F32, Tensor::dtype))?;
    let axes = out.shape().axes();
    // Null where there is none.
    let array = |x: Option<&Tensor<Cuda>>| x.map_or(Array::NONE, Array::from);
    let arguments = LastRowsCopy {
        before: array(last.before),
        x: array(last.x),
        out: (&out).into(),
        starts: starts.pointer,
        count: out.shape().count() as u64,
        kept: axes[1] as u64,
        width: axes[2..].iter().product::<usize>() as u64,
    };
    // Who learns does not look at them.
    let read = (last.before.cloned(), last.x.cloned(), starts);
    let bytes = last.x.map_or(0, |x| x.buffer().len());
    device.launch_beside(Grid::elements(out.shape().count()), &arguments, &[&out], (read, bytes))?;
    Ok(out)
}

/// Sums of a block of `sum_parts`; `COLUMNS` in the kernels.
const COLUMNS: usize = 32;

/// The sum over the first axis of `parts [number, ..]` in the shape and type of `like`.
/// Parts have 32 bits and their sums 64, in an order that sizes alone decide: the same bits every time.
pub(super) fn sum_parts(device: &Cuda, parts: &Tensor<Cuda>, like: &Tensor<Cuda>) -> Result<Tensor<Cuda>> {
    let out = device.empty(like.shape().clone(), like.dtype())?;
    let count = out.shape().count();
    let number = parts.shape().axes()[0] as u32;
    let arguments = SumParts { out: (&out).into(), parts: pointer(parts), count: count as u64, number };
    let grid = Grid::blocks(count.div_ceil(COLUMNS).min(65_535), 256);
    device.launch_beside(grid, &arguments, &[&out], (parts.clone(), parts.buffer().len()))?;
    Ok(out)
}
