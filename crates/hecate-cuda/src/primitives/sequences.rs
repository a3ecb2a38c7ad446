//! What primitives along the tokens share: edges of sequences, their last rows, sums of partial results.

use crate::{
    Cuda,
    error::unsupported,
    launch::{Array, Grid, Pointer, Source, kernels, pointer, source},
    recording::Table,
};
use hecate_core::{DType, Result, Sequences, Shape, Tensor};

pub(crate) const SOURCE: Source = source!("sequences", "sequences.cu");

kernels! { SOURCE {
    "last_rows" LastRows {
        before: Array, x: Array, out: Array, starts: Pointer, count: u64, kept: u64, width: u64,
    }
    "sum_parts" SumParts { out: Array, parts: Pointer, count: u64, number: u32 }
} }

/// First row of every sequence, and behind them the number of rows, `[N + 1]` in 32 bits.
pub(super) fn starts(device: &Cuda, sequences: &Sequences) -> Result<Table> {
    let starts = sequences.starts().iter().map(|&start| u32::try_from(start));
    let starts = starts.collect::<std::result::Result<Vec<_>, _>>();
    let too_many = |_| unsupported("these sequences", format!("{} rows of tokens in one call", sequences.rows()));
    device.kept_table(&starts.map_err(too_many)?)
}

/// The last rows of each sequence in an array of shape `[N, kept, ..]`, oldest first: of `x [rows, ..]` and, in front
/// of it, of `before [N, kept, ..]`. Without `before` those are zeros; without `x` its rows are ones.
pub(super) fn last_rows(
    device: &Cuda,
    sequences: &Sequences,
    (shape, dtype): (Shape, DType),
    before: Option<&Tensor<Cuda>>,
    x: Option<&Tensor<Cuda>>,
) -> Result<Tensor<Cuda>> {
    let starts = starts(device, sequences)?;
    let out = device.empty(shape, dtype)?;
    let axes = out.shape().axes();
    let array = |x: Option<&Tensor<Cuda>>| x.map_or(Array::NONE, Array::from);
    let arguments = LastRows {
        before: array(before),
        x: array(x),
        out: (&out).into(),
        starts: starts.pointer,
        count: out.shape().count() as u64,
        kept: axes[1] as u64,
        width: axes[2..].iter().product::<usize>() as u64,
    };
    device.launch(Grid::elements(out.shape().count()), &arguments)?;
    Ok(out)
}

/// Sums of a block of `sum_parts`; `COLUMNS` in the kernels.
const COLUMNS: usize = 32;

/// The sum over the first axis of `parts [number, ..]` in the shape and type of `like`.
pub(super) fn sum_parts(device: &Cuda, parts: &Tensor<Cuda>, like: &Tensor<Cuda>) -> Result<Tensor<Cuda>> {
    let out = device.empty(like.shape().clone(), like.dtype())?;
    let count = out.shape().count();
    let number = parts.shape().axes()[0] as u32;
    let arguments = SumParts { out: (&out).into(), parts: pointer(parts), count: count as u64, number };
    device.launch(Grid::blocks(count.div_ceil(COLUMNS).min(65_535), 256), &arguments)?;
    Ok(out)
}
