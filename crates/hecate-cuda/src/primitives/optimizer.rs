//! One step of AdamW.

use crate::{
    Cuda,
    device::Buffer,
    launch::{Grid, Pointer, Source, kernels, pointer, source},
};
use hecate_core::{
    DType, Result, Tensor,
    primitives::{AdamW, Clip, Optimizer, Slot},
};

pub(crate) const SOURCE: Source = source!("optimizer", "optimizer.cu");

kernels! { SOURCE {
    "adamw" Step {
        grad: Pointer, old_value: Pointer, old_mean: Pointer, old_square: Pointer, value: Pointer, mean: Pointer,
        square: Pointer, norm_squared: Pointer, count: u64, learning_rate: f32, beta1: f32, beta2: f32, epsilon: f32,
        weight_decay: f32, unbias1: f32, unbias2: f32, max_norm: f32
    }
} }

impl Optimizer for Cuda {
    fn adamw(
        &self,
        adamw: &AdamW,
        clip: Option<&Clip<'_, Self>>,
        slot: Slot<Tensor<Self>>,
        grad: &Tensor<Self>,
    ) -> Result<Slot<Tensor<Self>>> {
        let count = grad.shape().count();
        let [value, mean, square] = [slot.value, slot.mean, slot.square].map(|x| Place::of(self, x));
        let (value, mean, square) = (value?, mean?, square?);
        let unbias = |beta: f32| (1.0 / (1.0 - f64::from(beta).powf(f64::from(adamw.step)))) as f32;
        let arguments = Step {
            grad: pointer(grad),
            old_value: value.old(),
            old_mean: mean.old(),
            old_square: square.old(),
            value: value.new.pointer(),
            mean: mean.new.pointer(),
            square: square.new.pointer(),
            norm_squared: clip.map_or(0, |clip| pointer(clip.norm_squared)),
            count: count as u64,
            learning_rate: adamw.learning_rate,
            beta1: adamw.beta1,
            beta2: adamw.beta2,
            epsilon: adamw.epsilon,
            weight_decay: adamw.weight_decay,
            unbias1: unbias(adamw.beta1),
            unbias2: unbias(adamw.beta2),
            max_norm: clip.map_or(0.0, |clip| clip.max_norm),
        };
        self.launch(Grid::elements(count), &arguments)?;
        let tensor = |place: Place| Tensor::from_buffer(self, grad.shape().clone(), DType::F32, place.new);
        Ok(Slot { value: tensor(value), mean: tensor(mean), square: tensor(square) })
    }
}

/// Where an array is read and where it is written: the same, unless somebody else holds it.
struct Place {
    shared: Option<Tensor<Cuda>>,
    new: Buffer,
}

impl Place {
    fn of(device: &Cuda, x: Tensor<Cuda>) -> Result<Self> {
        match x.into_buffer() {
            Ok(new) => Ok(Self { shared: None, new }),
            Err(x) => {
                let new = device.allocate(x.shape().count() * x.dtype().size())?;
                Ok(Self { shared: Some(x), new })
            }
        }
    }

    fn old(&self) -> Pointer {
        self.shared.as_ref().map_or_else(|| self.new.pointer(), pointer)
    }
}
