//! The forgetting gate.

use super::reduce::{Terms, sum_columns};
use crate::{
    Wgpu,
    launch::{Binding, Kernel, PRELUDE, WgslSource},
    memory::groups,
    parameters::{Parameters, parameters},
};
use hecate_core::{
    Checked, DType, Result, Tensor,
    primitives::{Retention, RetentionBackward, RetentionInputs},
};

/// Both directions, element by element.
const SOURCE: WgslSource =
    WgslSource { name: "retention", parts: &[PRELUDE, RetentionArgs::WGSL, include_str!("retention.wgsl")] };

/// `log a [rows,H]`: an invocation makes one element.
const RETENTION: Kernel<'static> = Kernel { source: &SOURCE, entry: "retention", constants: &[] };
/// `dx [rows,H]` and `dy log a [rows,H]`, whose sums are the gradients of dt_bias and a_log.
const BACKWARD: Kernel<'static> = Kernel { source: &SOURCE, entry: "retention_backward", constants: &[] };

/// Every kernel of the file.
pub(crate) const KERNELS: &[Kernel<'static>] = &[RETENTION, BACKWARD];

parameters! {
    /// What `log a` and its gradient are told.
    struct RetentionArgs {
        /// Elements of x.
        count: u32,
        /// `H`.
        width: u32,
    }
}

impl RetentionArgs {
    /// Heads are the last axis.
    fn new(x: &Tensor<Wgpu>) -> Self {
        Self { count: x.shape().count() as u32, width: x.shape().last() as u32 }
    }
}

impl Retention for Wgpu {
    /// An invocation an element of `x [rows,H]`.
    /// `-a_log.exp() * softplus(x + dt_bias)` in 32 bits, with `a_log` and `dt_bias` `[H]`.
    fn retention(&self, _: Checked<Self>, inputs: &RetentionInputs<&Tensor<Self>>) -> Result<Tensor<Self>> {
        let RetentionInputs { x, a_log, dt_bias } = *inputs;
        let (args, x) = (RetentionArgs::new(x), self.widened(x)?);
        let y = self.empty(x.shape().clone(), DType::F32)?;
        let arrays = [Binding::Read(&x), Binding::Read(a_log), Binding::Read(dt_bias), Binding::Write(&y)];
        self.launch(&RETENTION, groups(x.shape().count()), &args, &arrays)?;
        Ok(y)
    }

    /// One pass for both elements, then two sums over rows.
    /// `dy [rows,H]` has 32 bits, like the forward's result.
    fn retention_backward(
        &self,
        _: Checked<Self>,
        call: &RetentionBackward<'_, Self>,
    ) -> Result<RetentionInputs<Tensor<Self>>> {
        let RetentionBackward { inputs: RetentionInputs { x, a_log, dt_bias }, dy } = *call;
        let (args, dtype, x) = (RetentionArgs::new(x), x.dtype(), self.widened(x)?);
        let like_x = || self.empty(x.shape().clone(), DType::F32);
        let (dx, scaled) = (like_x()?, like_x()?);
        let [x_at, a_log, dt_bias, dy] = [&x, a_log, dt_bias, dy].map(Binding::Read);
        let arrays = [x_at, a_log, dt_bias, Binding::Write(&dx), dy, Binding::Write(&scaled)];
        self.launch(&BACKWARD, groups(x.shape().count()), &args, &arrays)?;
        // Sums over rows: one number a head.
        let sums = |terms| sum_columns(self, args.width as usize, Terms::Values(terms));
        let (a_log, dt_bias) = (sums(&scaled)?, sums(&dx)?);
        Ok(RetentionInputs { x: self.rounded(dx, dtype)?, a_log, dt_bias })
    }
}
