//! What primitives along the tokens share: edges of sequences, and their last rows.

use crate::{
    Wgpu,
    error::unsupported,
    launch::{Binding, Kernel, PRELUDE, WgslSource},
    parameters::{Parameters, parameters},
};
use hecate_core::{DType, Result, Sequences, Tensor, primitives::LastRows};

/// Copies, of rows before the call where a sequence is short.
const LAST: WgslSource =
    WgslSource { name: "last_rows", parts: &[PRELUDE, LastRowsArgs::WGSL, include_str!("last_rows.wgsl")] };
/// The gradient of such copies.
const ADD: WgslSource =
    WgslSource { name: "add_last", parts: &[PRELUDE, LastRowsArgs::WGSL, include_str!("add_last.wgsl")] };

/// With rows in front or not, with rows or ones.
const LAST_ROWS: [[Kernel<'static>; 2]; 2] = [
    [last(&[("BEFORE", 0), ("ROWS", 0)]), last(&[("BEFORE", 0), ("ROWS", 1)])],
    [last(&[("BEFORE", 1), ("ROWS", 0)]), last(&[("BEFORE", 1), ("ROWS", 1)])],
];

/// Constants say which arrays there are.
const fn last(constants: &'static [(&'static str, u32)]) -> Kernel<'static> {
    Kernel { source: &LAST, entry: "last_rows", constants }
}

/// An invocation adds one element to the row that it came from.
const ADD_LAST: Kernel<'static> = Kernel { source: &ADD, entry: "add_last", constants: &[] };

/// Every kernel of both files.
pub(crate) const KERNELS: &[Kernel<'static>] =
    &[LAST_ROWS[0][0], LAST_ROWS[0][1], LAST_ROWS[1][0], LAST_ROWS[1][1], ADD_LAST];

parameters! {
    /// What copies of last rows and their gradient are told.
    struct LastRowsArgs {
        /// Elements of the last rows.
        count: u32,
        /// Last rows of a sequence.
        kept: u32,
        /// Elements of a row.
        width: u32,
        /// Of [`ADD_LAST`].
        tokens_at: u32,
    }
}

/// First row of every sequence, and after them the number of rows, `[N + 1]`.
pub(super) fn starts(device: &Wgpu, sequences: &Sequences) -> Result<Tensor<Wgpu>> {
    let starts = sequences.starts().map(u32::try_from);
    let starts = starts.collect::<std::result::Result<Vec<_>, _>>();
    let too_many = |_| unsupported("these sequences", format!("{} rows of tokens in one call", sequences.rows()));
    device.table(&starts.map_err(too_many)?)
}

/// An array of the last rows of each sequence, all in 32 bits:
/// [`Attention::last_rows`](hecate_core::primitives::Attention::last_rows).
pub(super) fn last_rows(device: &Wgpu, last: &LastRows<'_, Wgpu>) -> Result<Tensor<Wgpu>> {
    let starts = starts(device, last.sequences)?;
    let out = device.empty(last.shape.clone(), DType::F32)?;
    let (count, axes) = (out.shape().count(), out.shape().axes());
    let width: usize = axes[2..].iter().product();
    let args = LastRowsArgs { count: count as u32, kept: axes[1] as u32, width: width as u32, tokens_at: 0 };
    let kernel = &LAST_ROWS[usize::from(last.before.is_some())][usize::from(last.x.is_some())];
    // What is not there is not looked at.
    let [before, x] = [last.before, last.x].map(|x| Binding::Read(x.unwrap_or(&starts)));
    let arrays = [Binding::Read(&starts), before, x, Binding::Write(&out)];
    device.launch(kernel, (count.div_ceil(64), 1, 1), &args, &arrays)?;
    Ok(out)
}

/// Adds `last [N, kept, ..]` to the last rows of each sequence in `rows`. These are those of the tokens, and in front
/// of them, where `rows` begins with such, those of a cache `[N, kept, ..]`.
pub(super) fn add_last(
    device: &Wgpu,
    sequences: &Sequences,
    last: &Tensor<Wgpu>,
    rows: &Tensor<Wgpu>,
    cached: bool,
) -> Result<()> {
    let (count, axes) = (last.shape().count(), last.shape().axes());
    // `[N, kept, ..]`: all axes after the second are one row.
    let width: usize = axes[2..].iter().product();
    let tokens_at = if cached { axes[0] * axes[1] } else { 0 };
    let args =
        LastRowsArgs { count: count as u32, kept: axes[1] as u32, width: width as u32, tokens_at: tokens_at as u32 };
    let arrays = [Binding::Read(&starts(device, sequences)?), Binding::Read(last), Binding::Write(rows)];
    device.launch(&ADD_LAST, (count.div_ceil(64), 1, 1), &args, &arrays)
}
