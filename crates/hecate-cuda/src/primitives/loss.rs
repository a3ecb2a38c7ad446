//! Cross-entropy.

use crate::{
    Cuda,
    launch::{Array, Grid, Pointer, Source, kernels, pointer, source},
};
use hecate_core::{DType, Result, Tensor, primitives::Loss};

pub(crate) const SOURCE: Source = source!("loss", "loss.cu");

kernels! { SOURCE {
    "cross_entropy" CrossEntropy {
        logits: Array, targets: Pointer, loss: Pointer, lse: Pointer, width: u64, classes: u64
    }
    "cross_entropy_backward" CrossEntropyBackward {
        logits: Array, dlogits: Array, targets: Pointer, lse: Pointer, width: u64, classes: u64, factor: f32
    }
} }

impl Loss for Cuda {
    fn cross_entropy(
        &self,
        classes: usize,
        logits: &Tensor<Self>,
        targets: &Tensor<Self>,
    ) -> Result<(Tensor<Self>, Tensor<Self>)> {
        let (rows, width) = (logits.shape().rows(), logits.shape().last() as u64);
        let (loss, lse) = (self.empty([rows], DType::F32)?, self.empty([rows], DType::F32)?);
        let (targets, to, sums) = (pointer(targets), pointer(&loss), pointer(&lse));
        let classes = classes as u64;
        let arguments = CrossEntropy { logits: logits.into(), targets, loss: to, lse: sums, width, classes };
        self.launch(Grid::blocks(rows, 256), &arguments)?;
        Ok((loss, lse))
    }

    fn cross_entropy_backward(
        &self,
        classes: usize,
        logits: &Tensor<Self>,
        targets: &Tensor<Self>,
        lse: &Tensor<Self>,
        factor: f32,
    ) -> Result<Tensor<Self>> {
        let (rows, width) = (logits.shape().rows(), logits.shape().last() as u64);
        let dlogits = self.empty(logits.shape().clone(), logits.dtype())?;
        let (logits, targets, lse) = (logits.into(), pointer(targets), pointer(lse));
        let (dlogits_at, classes) = ((&dlogits).into(), classes as u64);
        let arguments = CrossEntropyBackward { logits, dlogits: dlogits_at, targets, lse, width, classes, factor };
        self.launch(Grid::blocks(rows, 256), &arguments)?;
        Ok(dlogits)
    }
}
