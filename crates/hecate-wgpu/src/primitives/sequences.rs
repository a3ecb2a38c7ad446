//! What primitives along the tokens share: edges of sequences, and their last rows.

use crate::{
    Wgpu,
    error::unsupported,
    launch::{Binding, Kernel, PRELUDE, Source},
};
use hecate_core::{DType, Result, Sequences, Shape, Tensor};

const LAST: Source = Source { name: "last_rows", parts: &[PRELUDE, include_str!("last_rows.wgsl")] };
const ADD: Source = Source { name: "add_last", parts: &[PRELUDE, include_str!("add_last.wgsl")] };

/// With rows in front or not, with rows or ones.
const LAST_ROWS: [[Kernel<'static>; 2]; 2] = [
    [last(&[("BEFORE", 0), ("ROWS", 0)]), last(&[("BEFORE", 0), ("ROWS", 1)])],
    [last(&[("BEFORE", 1), ("ROWS", 0)]), last(&[("BEFORE", 1), ("ROWS", 1)])],
];

const fn last(constants: &'static [(&'static str, u32)]) -> Kernel<'static> {
    Kernel { source: &LAST, entry: "last_rows", constants }
}

const ADD_LAST: Kernel<'static> = Kernel { source: &ADD, entry: "add_last", constants: &[] };

pub(crate) const KERNELS: &[Kernel<'static>] =
    &[LAST_ROWS[0][0], LAST_ROWS[0][1], LAST_ROWS[1][0], LAST_ROWS[1][1], ADD_LAST];

#[derive(Clone, Copy, Debug, bytemuck::NoUninit)]
#[repr(C)]
struct Args {
    count: u32,
    kept: u32,
    width: u32,
    /// Of [`ADD_LAST`].
    tokens_at: u32,
}

/// First row of every sequence, and behind them the number of rows, `[N + 1]`.
pub(super) fn starts(device: &Wgpu, sequences: &Sequences) -> Result<Tensor<Wgpu>> {
    let starts = sequences.starts().iter().map(|&start| u32::try_from(start));
    let starts = starts.collect::<std::result::Result<Vec<_>, _>>();
    let too_many = |_| unsupported("these sequences", format!("{} rows of tokens in one call", sequences.rows()));
    device.table(&starts.map_err(too_many)?)
}

/// The last rows of each sequence in an array of shape `[N, kept, ..]`, oldest first: of `x [rows, ..]` and, in front
/// of it, of `before [N, kept, ..]`. Without `before` those are zeros; without `x` its rows are ones. All in 32 bits.
pub(super) fn last_rows(
    device: &Wgpu,
    sequences: &Sequences,
    shape: Shape,
    before: Option<&Tensor<Wgpu>>,
    x: Option<&Tensor<Wgpu>>,
) -> Result<Tensor<Wgpu>> {
    let starts = starts(device, sequences)?;
    let out = device.empty(shape, DType::F32)?;
    let (count, axes) = (out.shape().count(), out.shape().axes());
    let width: usize = axes[2..].iter().product();
    let args = Args { count: count as u32, kept: axes[1] as u32, width: width as u32, tokens_at: 0 };
    let kernel = &LAST_ROWS[usize::from(before.is_some())][usize::from(x.is_some())];
    // What is not there is not looked at.
    let (before, x) = (before.unwrap_or(&starts), x.unwrap_or(&starts));
    let arrays = [Binding::Read(&starts), Binding::Read(before), Binding::Read(x), Binding::Write(&out)];
    device.launch(kernel, (count.div_ceil(64), 1, 1), &args, &arrays)?;
    Ok(out)
}

/// Adds `last [N, kept, ..]` to the last rows of each sequence in `rows`: those of the tokens, and in front of them,
/// where `rows` begins with such, those of a cache `[N, kept, ..]`.
pub(super) fn add_last(
    device: &Wgpu,
    sequences: &Sequences,
    last: &Tensor<Wgpu>,
    rows: &Tensor<Wgpu>,
    cached: bool,
) -> Result<()> {
    let (count, axes) = (last.shape().count(), last.shape().axes());
    let width: usize = axes[2..].iter().product();
    let tokens_at = if cached { axes[0] * axes[1] } else { 0 };
    let args = Args { count: count as u32, kept: axes[1] as u32, width: width as u32, tokens_at: tokens_at as u32 };
    let arrays = [Binding::Read(&starts(device, sequences)?), Binding::Read(last), Binding::Write(rows)];
    device.launch(&ADD_LAST, (count.div_ceil(64), 1, 1), &args, &arrays)
}
