//! Cross-entropy.

use crate::{
    Wgpu,
    launch::{Binding, Kernel, PRELUDE, WORKGROUP, WgslSource},
    memory::groups,
    parameters::{Parameters, parameters},
};
use hecate_core::{
    Checked, DType, Result, Tensor,
    primitives::{Loss, LossBackward, LossInputs, Losses, LossesAndGradient},
};

/// Both directions, apart and at once; the backward alone needs no sums.
const TEXT: &str = include_str!("loss.wgsl");
/// For any adapter, and for one with subgroups.
static SOURCES: [WgslSource; 2] = [
    WgslSource { name: "loss", parts: &[PRELUDE, WORKGROUP[0], LossArgs::WGSL, TEXT] },
    WgslSource { name: "loss_subgroups", parts: &[PRELUDE, WORKGROUP[1], LossArgs::WGSL, TEXT] },
];

/// Every kernel of the file.
pub(crate) const KERNELS: &[Kernel<'static>] = &[
    kernel(false, "cross_entropy"),
    kernel(true, "cross_entropy"),
    kernel(false, "cross_entropy_backward"),
    kernel(false, BOTH),
    kernel(true, BOTH),
];

/// Loss and gradient in one.
const BOTH: &str = "cross_entropy_and_gradient";

/// What has sums has a variant with subgroups.
const fn kernel(subgroups: bool, entry: &'static str) -> Kernel<'static> {
    Kernel { source: &SOURCES[subgroups as usize], entry, constants: &[] }
}

parameters! {
    /// What the loss and its gradient are told.
    struct LossArgs {
        /// Rows of logits.
        rows: u32,
        /// Columns of a row.
        width: u32,
        /// Of the backward.
        factor: f32,
        /// Columns that count.
        classes: u32,
    }
}

impl LossArgs {
    /// Logits are rows over their last axis.
    fn new(classes: usize, logits: &Tensor<Wgpu>, factor: f32) -> Self {
        let (rows, width) = (logits.shape().rows() as u32, logits.shape().last() as u32);
        Self { rows, width, factor, classes: classes as u32 }
    }
}

impl Loss for Wgpu {
    /// A workgroup a row of `logits [rows,V]`.
    /// `targets [rows]` are below `classes`; losses and log-sums are `[rows]` in 32 bits.
    fn cross_entropy(&self, _: Checked<Self>, inputs: &LossInputs<&Tensor<Self>>) -> Result<Losses<Tensor<Self>>> {
        let LossInputs { classes, logits, targets } = *inputs;
        let rows = logits.shape().rows();
        let (losses, lse) = (self.empty([rows], DType::F32)?, self.empty([rows], DType::F32)?);
        // Logits `[rows,V]`, targets `[rows]`, then the results `[rows]`.
        let wide = self.widened(logits)?;
        let bindings = [Binding::Read(&wide), Binding::Read(targets), Binding::Write(&losses), Binding::Write(&lse)];
        // Two passes over a row by 64 invocations, and their sums.
        self.check_rounds("so many classes", 2 * (classes / 64 + 64))?;
        let args = LossArgs::new(classes, logits, 1.0);
        self.launch(&kernel(self.has_subgroups(), "cross_entropy"), (rows, 1, 1), &args, &bindings)?;
        Ok(Losses { losses, lse })
    }

    /// An invocation an element of `dlogits [rows,V]`.
    /// `factor (softmax − one-hot)`, and 0 in columns after the classes.
    fn cross_entropy_backward(&self, _: Checked<Self>, call: &LossBackward<'_, Self>) -> Result<Tensor<Self>> {
        let LossBackward { inputs: LossInputs { classes, logits, targets }, lse, factor } = *call;
        let count = logits.shape().count();
        let (wide, dlogits) = (self.widened(logits)?, self.empty(logits.shape().clone(), DType::F32)?);
        let bindings = [Binding::Read(&wide), Binding::Read(targets), Binding::Read(lse), Binding::Write(&dlogits)];
        let args = LossArgs::new(classes, logits, factor);
        self.launch(&kernel(false, "cross_entropy_backward"), groups(count), &args, &bindings)?;
        self.rounded(dlogits, logits.dtype())
    }

    /// A workgroup a row; the gradient takes the place of logits of 32 bits that nobody else holds.
    fn cross_entropy_and_gradient(
        &self,
        _: Checked<Self>,
        factor: f32,
        inputs: LossInputs<Tensor<Self>>,
    ) -> Result<LossesAndGradient<Tensor<Self>>> {
        let LossInputs { classes, logits, targets } = inputs;
        let (rows, dtype) = (logits.shape().rows(), logits.dtype());
        // Three passes over a row by 256 invocations, and their sums.
        self.check_rounds("so many classes", 3 * (logits.shape().last() / 256 + 256))?;
        let losses = self.empty([rows], DType::F32)?;
        // Logits of 16 bits are no longer needed when they have been widened.
        let wide = if dtype == DType::F32 { logits } else { self.widened(&logits)? };
        let args = LossArgs::new(classes, &wide, factor);
        let dlogits = self.own(wide)?;
        let bindings = [Binding::Write(&dlogits), Binding::Read(&targets), Binding::Write(&losses)];
        self.launch(&kernel(self.has_subgroups(), BOTH), (rows, 1, 1), &args, &bindings)?;
        Ok(LossesAndGradient { losses, dlogits: self.rounded(dlogits, dtype)? })
    }
}
