//! Polynomial features of rows.

use crate::{
    Cuda,
    launch::{Array, Grid, kernels},
    source::{KernelSource, kernel_source},
};
use hecate_core::{
    Checked, Result, Tensor,
    primitives::{Features, poly2_width},
};

/// `y = cat(√c₀, √c₁ x_i, √c₂ x_i², √(2 c₂) x_i x_j)` of each row, `i < j`, and its gradient.
pub(crate) const SOURCE: KernelSource = kernel_source!("features", "features.cu");

kernels! { SOURCE {
    // x [rows, width], y [rows, features]; roots of the three coefficients.
    "poly2" Poly2 { x: Array, y: Array, features: u64, width: u32, zeroth: f32, first: f32, second: f32 }
    "poly2_backward" Poly2Backward {
        x: Array, dx: Array, dy: Array, features: u64, width: u32, first: f32, second: f32
    }
} }

/// Threads of a block.
const THREADS: usize = 256;

impl Features for Cuda {
    /// `y [.., 1 + width + width (width + 1) / 2]`: a block has a row.
    /// Roots of the coefficients are taken here once: features of two rows are multiplied, so each has a root.
    fn poly2(&self, _: Checked<Self>, coefficients: [f32; 3], x: &Tensor<Self>) -> Result<Tensor<Self>> {
        let (width, [zeroth, first, second]) = (x.shape().last(), coefficients.map(f32::sqrt));
        let features = poly2_width(width);
        let axes = x.shape().axes();
        // All axes but the last stay.
        let outer = &axes[..axes.len().saturating_sub(1)];
        let y = self.empty([outer, &[features][..]].concat(), x.dtype())?;
        let (width, features) = (width as u32, features as u64);
        let arguments = Poly2 { x: x.into(), y: (&y).into(), features, width, zeroth, first, second };
        self.launch(Grid::blocks(x.shape().rows(), THREADS as u32), &arguments)?;
        Ok(y)
    }

    /// `dx` of the shape of `x`, from `dy [.., features]`: a thread has an element of a row.
    /// Each `x_i` is in `width + 1` features, whose gradients the thread sums in a fixed order.
    fn poly2_backward(
        &self,
        _: Checked<Self>,
        coefficients: [f32; 3],
        x: &Tensor<Self>,
        dy: &Tensor<Self>,
    ) -> Result<Tensor<Self>> {
        let (width, [_, first, second]) = (x.shape().last(), coefficients.map(f32::sqrt));
        let dx = self.empty(x.shape().clone(), x.dtype())?;
        // Whole warps, no more than the row has elements.
        let threads = width.next_multiple_of(32).min(THREADS) as u32;
        let (width, features) = (width as u32, poly2_width(width) as u64);
        let arguments = Poly2Backward { x: x.into(), dx: (&dx).into(), dy: dy.into(), features, width, first, second };
        self.launch(Grid::blocks(x.shape().rows(), threads), &arguments)?;
        Ok(dx)
    }
}
