//! The product as the equation has it, a thread an element: what faster kernels are compared with.

use crate::{
    Cuda,
    arguments::arguments,
    launch::{Array, Grid, kernels},
    source::{KernelSource, kernel_source},
};
use hecate_core::{Result, Tensor, primitives::MatmulDims};

/// `torch.matmul(a, b)` of `a [batch, rows, inner]` and `b [batch, inner, columns]`.
pub(crate) const SOURCE: KernelSource = kernel_source!("matmul_naive", "matmul_naive.cu");

arguments! {
    /// A factor `[batch, length, inner]`, whichever of the two last axes is contiguous.
    struct NaiveOperand {
        x: Array,
        /// Elements to the next row or column of the result, and to the next term of its sum.
        stride: u64,
        inner_stride: u64,
    }
}

kernels! { SOURCE {
    "matmul_naive" Naive {
        a: NaiveOperand, b: NaiveOperand, out: Array, batch: u64, rows: u64, columns: u64, inner: u64
    }
} }

/// `out [batch,rows,columns] = a b`, either stored transposed, of any float types.
/// It is slow by design: no tiles, no shared memory, so that what it says needs no proof of its own.
pub(super) fn launch(device: &Cuda, dims: MatmulDims, [a, b, out]: [&Tensor<Cuda>; 3]) -> Result<()> {
    let MatmulDims { batch, rows, inner, columns, transpose } = dims;
    // From row to row of the result's axis, and along the sum.
    let [batch, rows, columns, inner] = [batch, rows, columns, inner].map(|size| size as u64);
    let operand = |x: &Tensor<Cuda>, (stride, inner_stride)| NaiveOperand { x: x.into(), stride, inner_stride };
    let a = operand(a, if transpose.a { (1, rows) } else { (inner, 1) });
    let b = operand(b, if transpose.b { (inner, 1) } else { (1, columns) });
    let arguments = Naive { a, b, out: out.into(), batch, rows, columns, inner };
    device.launch(Grid::elements(out.shape().count()), &arguments)
}
