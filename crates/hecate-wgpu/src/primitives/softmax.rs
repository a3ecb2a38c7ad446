//! Softmax of rows.

use super::whole_rows::{CONSTANTS, RowArgs, TEXT, WholeRows};
use crate::{
    Wgpu,
    launch::{Binding, Kernel, PRELUDE, WgslSource},
    parameters::Parameters,
};
use hecate_core::{Checked, DType, Result, Tensor, primitives::Softmax};

/// Both directions.
const SOURCE: WgslSource =
    WgslSource { name: "softmax", parts: &[PRELUDE, RowArgs::WGSL, TEXT, include_str!("softmax.wgsl")] };

/// For rows that are short, or long.
const fn kernel(entry: &'static str, which: usize) -> Kernel<'static> {
    Kernel { source: &SOURCE, entry, constants: &CONSTANTS[which] }
}

/// Every kernel.
pub(crate) const KERNELS: &[Kernel<'static>] =
    &[kernel("softmax", 0), kernel("softmax", 1), kernel("softmax_backward", 0), kernel("softmax_backward", 1)];

impl Softmax for Wgpu {
    /// `y = e^{x − top} / Σ e^{x − top}`, row by row.
    /// `x.softmax(-1)`, of the shape and type of `x`.
    fn softmax(&self, _: Checked<Self>, x: &Tensor<Self>) -> Result<Tensor<Self>> {
        let (spread, dtype, x) = (WholeRows::new(x)?, x.dtype(), self.widened(x)?);
        let y = self.empty(x.shape().clone(), DType::F32)?;
        let arrays = [Binding::Read(&x), Binding::Write(&y)];
        self.launch(&kernel("softmax", spread.which), (spread.groups, 1, 1), &spread.args, &arrays)?;
        self.rounded(y, dtype)
    }

    /// `dx = y (dy − y·dy)`, row by row.
    /// It is made of the result `y` alone, so the forward keeps nothing else.
    fn softmax_backward(&self, _: Checked<Self>, y: &Tensor<Self>, dy: &Tensor<Self>) -> Result<Tensor<Self>> {
        let (spread, dtype) = (WholeRows::new(y)?, y.dtype());
        let (y, dy) = (self.widened(y)?, self.widened(dy)?);
        let dx = self.empty(y.shape().clone(), DType::F32)?;
        let arrays = [Binding::Read(&y), Binding::Write(&dx), Binding::Read(&dy)];
        self.launch(&kernel("softmax_backward", spread.which), (spread.groups, 1, 1), &spread.args, &arrays)?;
        self.rounded(dx, dtype)
    }
}
