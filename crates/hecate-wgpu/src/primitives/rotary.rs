//! Rotary positions.

use crate::{
    Wgpu,
    error::unsupported,
    launch::{Binding, Kernel, PRELUDE, WgslSource},
    parameters::{Parameters, parameters},
};
use hecate_core::{
    Checked, DType, Result, Tensor,
    primitives::{Rotary, RotaryDims},
};

/// Angles come from a table of 64-bit fractions, since WGSL has no 64-bit floats.
const SOURCE: WgslSource =
    WgslSource { name: "rotary", parts: &[PRELUDE, RotaryArgs::WGSL, include_str!("rotary.wgsl")] };

/// An invocation turns one pair of a row, in all heads.
const ROTARY: Kernel<'static> = Kernel { source: &SOURCE, entry: "rotary", constants: &[] };

/// The one kernel.
pub(crate) const KERNELS: &[Kernel<'static>] = &[ROTARY];

parameters! {
    /// What a rotation is told.
    struct RotaryArgs {
        /// Rows of tokens.
        rows: u32,
        /// `N`.
        sequences: u32,
        /// `H`.
        heads: u32,
        /// Pairs of a head.
        half: u32,
    }
}

impl Rotary for Wgpu {
    /// The backward is the same kernel with the angles reversed.
    /// `x [rows,H,d]` with an even `d`, as core has checked; the result is like it.
    fn rotary(&self, _: Checked<Self>, dims: &RotaryDims, x: &Tensor<Self>) -> Result<Tensor<Self>> {
        let (rows, half, dtype) = (dims.sequences.rows(), dims.width / 2, x.dtype());
        let (table, x) = (table(self, dims)?, self.widened(x)?);
        let y = self.empty(x.shape().clone(), DType::F32)?;
        let args = RotaryArgs {
            rows: rows as u32,
            sequences: dims.sequences.count() as u32,
            heads: dims.heads as u32,
            half: half as u32,
        };
        let arrays = [Binding::Read(&table), Binding::Read(&x), Binding::Write(&y)];
        self.launch(&ROTARY, ((rows * half).div_ceil(64), 1, 1), &args, &arrays)?;
        self.rounded(y, dtype)
    }
}

/// Turns a token of each pair, as a fraction of 64 bits. What is to be added to the rows of each sequence to make them
/// positions. The first row of each sequence.
fn table(device: &Wgpu, dims: &RotaryDims) -> Result<Tensor<Wgpu>> {
    let step = -2.0 / dims.width as f64;
    let places = || dims.sequences.starts().zip(&dims.offsets);
    let fits = |offset: usize| offset.checked_add(dims.sequences.rows()).is_some_and(|end| u32::try_from(end).is_ok());
    if let Some((_, offset)) = places().find(|&(_, &offset)| !fits(offset)) {
        return Err(unsupported("positions so far", format!("a sequence begins at {offset}, positions have 32 bits")));
    }
    // Turns back are what is missing to a whole turn.
    // Angles in turns, as fractions of 64 bits: a product with a position keeps the fraction.
    let words = (0..dims.width / 2).flat_map(|i| {
        let turns = f64::from(dims.base).powf(step * i as f64) / std::f64::consts::TAU;
        let fraction = (turns.fract() * 2f64.powi(64)) as u64;
        let fraction = if dims.sign < 0.0 { fraction.wrapping_neg() } else { fraction };
        [fraction as u32, (fraction >> 32) as u32]
    });
    let shifts = places().map(|(start, &offset)| (offset as u32).wrapping_sub(start as u32));
    let starts = places().map(|(start, _)| start as u32);
    device.table(&words.chain(shifts).chain(starts).collect::<Vec<_>>())
}
