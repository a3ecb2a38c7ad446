//! Cross-entropy.
//!
//! `loss = lse − x_target` and `dx = factor (exp(x − lse) − 1_target)`, with `lse` in 32 bits whatever logits are.

use crate::{
    Cuda,
    arguments::{In, Out},
    launch::{Array, Grid, kernels, pointer},
    source::{KernelSource, kernel_source},
};
use hecate_core::{
    Checked, DType, Result, Tensor,
    primitives::{Loss, LossBackward, LossInputs, Losses, LossesAndGradient},
};

/// `F.cross_entropy(logits, targets, reduction="none")` and its gradient, apart or at once.
pub(crate) const SOURCE: KernelSource = kernel_source!("loss", "loss.cu");

kernels! { SOURCE {
    // logits [rows, width], targets, loss and lse [rows]; columns from `classes` on are no classes.
    "cross_entropy" CrossEntropy {
        logits: Array, targets: In<u32>, loss: Out<f32>, lse: Out<f32>, width: u64, classes: u64
    }
    // dlogits as logits; `factor` is what each row's gradient is times.
    "cross_entropy_backward" CrossEntropyBackward {
        logits: Array, dlogits: Array, targets: In<u32>, lse: In<f32>, width: u64, classes: u64, factor: f32
    }
    // Both; dlogits may be logits.
    "cross_entropy_and_gradient" CrossEntropyAndGradient {
        logits: Array, dlogits: Array, targets: In<u32>, loss: Out<f32>, width: u64, classes: u64, factor: f32
    }
} }

// Core has checked that `logits` are `[.., width]`, `targets` one integer a row, and `1 ≤ classes ≤ width`.
impl Loss for Cuda {
    /// A block has a row.
    /// `losses` and `lse` are `[rows]` in 32 bits; `lse = logsumexp(logits[:, :classes], -1)` spares the backward a pass.
    fn cross_entropy(&self, _: Checked<Self>, inputs: &LossInputs<&Tensor<Self>>) -> Result<Losses<Tensor<Self>>> {
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
    /// A vocabulary is padded for faster products: columns from `classes` on must not move any weight.
    fn cross_entropy_backward(&self, _: Checked<Self>, call: &LossBackward<'_, Self>) -> Result<Tensor<Self>> {
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

    /// A block has a row, and a thread a run of it or more; the gradient takes the place of logits that nobody else holds.
    /// A step that learns has no second array of that size this way, unless somebody else holds the first.
    fn cross_entropy_and_gradient(
        &self,
        _: Checked<Self>,
        factor: f32,
        inputs: LossInputs<Tensor<Self>>,
    ) -> Result<LossesAndGradient<Tensor<Self>>> {
        let LossInputs { classes, logits, targets } = inputs;
        let (shape, dtype) = (logits.shape().clone(), logits.dtype());
        let (rows, width) = (shape.rows(), shape.last());
        let losses = self.empty([rows], DType::F32)?;
        // What others hold stays as it is.
        let (shared, dlogits) = match logits.into_buffer() {
            Ok(own) => {
                own.written_over();
                (None, Tensor::from_buffer(self, shape, dtype, own)?)
            }
            Err(logits) => (Some(logits), self.empty(shape, dtype)?),
        };
        let arguments = CrossEntropyAndGradient {
            logits: shared.as_ref().unwrap_or(&dlogits).into(),
            dlogits: (&dlogits).into(),
            targets: pointer(&targets),
            loss: pointer(&losses),
            width: width as u64,
            classes: classes as u64,
            factor,
        };
        let threads = width.div_ceil(16 / dtype.size()).next_multiple_of(32).min(512);
        self.launch(Grid::blocks(rows, threads as u32), &arguments)?;
        Ok(LossesAndGradient { losses, dlogits })
    }
}
