//! Softmax of rows.
//!
//! Rows of up to 1,024 runs of 16 bytes stay in registers, so arrays are read once; longer ones are read twice.

use super::whole_rows::WholeRows;
use crate::{
    Cuda,
    arguments::arguments,
    launch::{Array, kernels},
    source::{KernelSource, kernel_source},
};
use hecate_core::{Checked, Result, Tensor, primitives::Softmax};

/// `x.softmax(-1)` and its gradient.
pub(crate) const SOURCE: KernelSource = kernel_source!("softmax", "softmax.cu");

arguments! {
    /// What all kernels take, under the same name there.
    struct SoftmaxCall {
        /// `[rows, width]`: forward `x` and `y`; backward the shares, `dy`, and `dx` in place of `y`.
        x: Array,
        dy: Array,
        y: Array,
        rows: u64,
        width: u64,
        /// Threads of a row.
        lanes: u32,
    }
}

kernels! { SOURCE {
    // y of x.
    "softmax_kept" Kept { call: SoftmaxCall }
    "softmax" Long { call: SoftmaxCall }
    // dx of y and dy.
    "softmax_kept_backward" KeptBackward { call: SoftmaxCall }
    "softmax_backward" LongBackward { call: SoftmaxCall }
} }

impl Softmax for Cuda {
    /// `y = e^{x − top} / Σ e^{x − top}`, row by row.
    /// With `top` the largest element of the row: no exponential overflows, and at least one term of the sum is 1.
    fn softmax(&self, _: Checked<Self>, x: &Tensor<Self>) -> Result<Tensor<Self>> {
        let y = self.empty(x.shape().clone(), x.dtype())?;
        let (spread, call) = call(x, Array::NONE, &y);
        match spread.kept {
            true => self.launch(spread.grid, &Kept { call })?,
            false => self.launch(spread.grid, &Long { call })?,
        }
        Ok(y)
    }

    /// `dx = y (dy − y·dy)`, row by row.
    /// Of the shares `y` alone, `[.., width]`: the forward's `x` need not be kept.
    fn softmax_backward(&self, _: Checked<Self>, y: &Tensor<Self>, dy: &Tensor<Self>) -> Result<Tensor<Self>> {
        let dx = self.empty(y.shape().clone(), y.dtype())?;
        let (spread, call) = call(y, dy.into(), &dx);
        match spread.kept {
            true => self.launch(spread.grid, &KeptBackward { call })?,
            false => self.launch(spread.grid, &LongBackward { call })?,
        }
        Ok(dx)
    }
}

/// Arguments, and how rows are spread.
fn call(x: &Tensor<Cuda>, dy: Array, y: &Tensor<Cuda>) -> (WholeRows, SoftmaxCall) {
    let (rows, width) = (x.shape().rows(), x.shape().last());
    let spread = WholeRows::new(rows, width, Array::from(x).wide());
    let lanes = spread.lanes as u32;
    (spread, SoftmaxCall { x: x.into(), dy, y: y.into(), rows: rows as u64, width: width as u64, lanes })
}
