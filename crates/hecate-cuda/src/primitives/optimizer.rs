//! One step of AdamW, all parameters at once.

use super::{entries::Entries, reduce::total};
use crate::{
    Cuda,
    device::Buffer,
    launch::{Array, Grid, Pointer, Source, kernels, pointer, source},
};
use hecate_core::{
    DType, Result, Shape, Tensor,
    primitives::{AdamW, Clip, Optimizer, Slot, Update},
};

pub(crate) const SOURCE: Source = source!("optimizer", "optimizer.cu");

kernels! { SOURCE {
    "adamw" Step {
        updates: Pointer, norm_squared: Pointer, number: u32, learning_rate: f32, beta1: f32, beta2: f32, epsilon: f32,
        weight_decay: f32, unbias1: f32, unbias2: f32, max_norm: f32
    }
    "squares" Squares { gradients: Pointer, parts: Pointer, number: u32 }
} }

impl Optimizer for Cuda {
    fn adamw(
        &self,
        adamw: &AdamW,
        clip: Option<&Clip<'_, Self>>,
        updates: Vec<Update<'_, Self>>,
    ) -> Result<Vec<Slot<Tensor<Self>>>> {
        let (mut entries, number) = (Entries::new(), updates.len() as u32);
        let mut places = Vec::new();
        for (slot, grad) in updates {
            let [value, mean, square] = [slot.value, slot.mean, slot.square].map(|x| Place::of(self, x));
            let all = [value?, mean?, square?];
            let words = all.iter().map(Place::old).chain(all.iter().map(|place| place.new.pointer()));
            entries.add([pointer(grad)].into_iter().chain(words), grad.shape().count());
            places.push((all, grad.shape().clone()));
        }
        let table = entries.table(self)?;
        let unbias = |beta: f32| (1.0 / (1.0 - f64::from(beta).powf(f64::from(adamw.step)))) as f32;
        let arguments = Step {
            updates: pointer(&table),
            norm_squared: clip.map_or(0, |clip| pointer(clip.norm_squared)),
            number,
            learning_rate: adamw.learning_rate,
            beta1: adamw.beta1,
            beta2: adamw.beta2,
            epsilon: adamw.epsilon,
            weight_decay: adamw.weight_decay,
            unbias1: unbias(adamw.beta1),
            unbias2: unbias(adamw.beta2),
            max_norm: clip.map_or(0.0, |clip| clip.max_norm),
        };
        self.launch(Grid::blocks(entries.blocks, 256), &arguments)?;
        let slot = |(all, shape): ([Place; 3], Shape)| {
            let [value, mean, square] =
                all.map(|place| Tensor::from_buffer(self, shape.clone(), DType::F32, place.new));
            Slot { value, mean, square }
        };
        Ok(places.into_iter().map(slot).collect())
    }

    fn norm_squared(&self, grads: &[&Tensor<Self>]) -> Result<Tensor<Self>> {
        let mut entries = Entries::new();
        for &grad in grads {
            let Array { data, dtype, .. } = grad.into();
            entries.add([data, u64::from(dtype)], grad.shape().count());
        }
        let (table, parts) = (entries.table(self)?, self.allocate(entries.blocks * size_of::<f64>())?);
        let (gradients, number) = (pointer(&table), grads.len() as u32);
        self.launch(Grid::blocks(entries.blocks, 256), &Squares { gradients, parts: parts.pointer(), number })?;
        total(self, &parts, entries.blocks)
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
