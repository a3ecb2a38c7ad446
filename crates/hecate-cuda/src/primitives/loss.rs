//! Cross-entropy.
//!
//! `loss = lse − x_target` and `dx = factor (exp(x − lse) − 1_target)`, with `lse` in 32 bits whatever logits are.

use crate::{
    Cuda,
    launch::{Array, Grid, Pointer, kernels, pointer},
    source::{KernelSource, kernel_source},
};
use hecate_core::{
    DType, Result, Tensor,
    primitives::{Loss, LossBackward, LossInputs, Losses},
};

pub(crate) const SOURCE: KernelSource = kernel_source!("loss", "loss.cu");

kernels! { SOURCE {
    // logits [rows, width], targets, loss and lse [rows]; columns from `classes` on are no classes.
    "cross_entropy" CrossEntropy {
        logits: Array, targets: Pointer, loss: Pointer, lse: Pointer, width: u64, classes: u64
    }
    // dlogits as logits; `factor` is what each row's gradient is times.
    "cross_entropy_backward" CrossEntropyBackward {
        logits: Array, dlogits: Array, targets: Pointer, lse: Pointer, width: u64, classes: u64, factor: f32
    }
} }

impl Loss for Cuda {
    /// A block has a row.
    fn cross_entropy(&self, inputs: &LossInputs<&Tensor<Self>>) -> Result<Losses<Tensor<Self>>> {
        let LossInputs { classes, logits, targets } = *inputs;
        let (rows, width) = (logits.shape().rows(), logits.shape().last() as u64);
        let (losses, lse) = (self.empty([rows], DType::F32)?, self.empty([rows], DType::F32)?);
        // Targets are 32-bit integers.
        let (targets, to, sums) = (pointer(targets), pointer(&losses), pointer(&lse));
        let classes = classes as u64;
        let arguments = CrossEntropy { logits: logits.into(), targets, loss: to, lse: sums, width, classes };
        self.launch(Grid::blocks(rows, 256), &arguments)?;
        Ok(Losses { losses, lse })
    }

    /// `dlogits [rows, width]`, of the type of `logits`; zeros from `classes` on.
    fn cross_entropy_backward(&self, call: &LossBackward<'_, Self>) -> Result<Tensor<Self>> {
        let LossBackward { inputs: LossInputs { classes, logits, targets }, lse, factor } = *call;
        let (rows, width) = (logits.shape().rows(), logits.shape().last() as u64);
        // Of 16 bits where logits are: the largest array of a step.
        let dlogits = self.empty(logits.shape().clone(), logits.dtype())?;
        let (logits, targets, lse) = (logits.into(), pointer(targets), pointer(lse));
        let (dlogits_at, classes) = ((&dlogits).into(), classes as u64);
        let arguments = CrossEntropyBackward { logits, dlogits: dlogits_at, targets, lse, width, classes, factor };
        self.launch(Grid::blocks(rows, 256), &arguments)?;
        Ok(dlogits)
    }
}
