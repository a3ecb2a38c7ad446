//! One step of AdamW, all parameters at once.
//!
//! A model has hundreds of parameters, many of them short: a launch for each would take longer than the arithmetic. The
//! table gives each block its parameter.

use super::{entries::Entries, reduce::total};
use crate::{
    Cuda,
    arguments::{In, Out, Words},
    device::Buffer,
    launch::{Array, Grid, Pointer, kernels, pointer},
    source::{KernelSource, kernel_source},
};
use hecate_core::{
    Checked, DType, Result, Shape, Tensor,
    primitives::{AdamW, AdamWStep, DeviceStep, Optimizer, PlacedUpdate, Slot, Update},
};

/// `torch.optim.AdamW.step()` over all parameters, and `sum((g * g).sum() for g in grads)`.
pub(crate) const SOURCE: KernelSource = kernel_source!("optimizer", "optimizer.cu");

kernels! { SOURCE {
    // A table of parameters and their gradients, as [`Entries`] makes it; the squared norm of all gradients [1], or null;
    // rates [3] that take the place of those here, or null; numbers [guards] without which being finite nothing moves.
    "adamw" Step {
        updates: In<Words<9>>, norm_squared: In<f32>, rates: In<f32>, finite: In<f32>, number: u32, guards: u32, learning_rate: f32, beta1: f32, beta2: f32, epsilon: f32,
        weight_decay: f32, unbias1: f32, unbias2: f32, max_norm: f32
    }
    // A table of gradients; parts [blocks] in 64 bits.
    "squares" Squares { gradients: In<Words<4>>, parts: Out<f64>, number: u32 }
} }

// Core has checked that value, mean and square are in 32 bits, and gradients of the shapes of their parameters.
impl Optimizer for Cuda {
    /// One step for every parameter, in one launch. Memory that nobody else holds is written in place.
    /// With `m` and `v` the means of gradients and of their squares: `w −= rate (m̂ / (√v̂ + ε) + decay · w)`.
    fn adamw(
        &self,
        _: Checked<Self>,
        step: &AdamWStep<'_, Self>,
        updates: Vec<Update<'_, Self>>,
    ) -> Result<Vec<Slot<Tensor<Self>>>> {
        let (mut entries, number) = (Entries::new(), updates.len() as u32);
        // Memory of each parameter, until the kernel is queued.
        let mut places = Vec::new();
        for Update { slot, grad } in updates {
            let [value, mean, square] = [slot.value, slot.mean, slot.square].map(|x| Place::of(self, x));
            let all = [value?, mean?, square?];
            // Gradient, old value, mean and square, then the new ones.
            let words = all.iter().map(Place::old).chain(all.iter().map(|place| place.new.pointer()));
            entries.add([pointer(grad)].into_iter().chain(words), grad.shape().count());
            places.push((all, grad.shape().clone()));
        }
        step_all(self, step, None, (&entries, number))?;
        // What was written becomes the parameter.
        let slot = |(all, shape): ([Place; 3], Shape)| {
            let [value, mean, square] =
                all.map(|place| Tensor::from_buffer(self, shape.clone(), DType::F32, place.new));
            Ok(Slot { value: value?, mean: mean?, square: square? })
        };
        places.into_iter().map(slot).collect()
    }

    /// As above; memory that somebody else holds is left as it is, and the new elements lie in other memory.
    /// A captured step has its rates on the device, since they change from replay to replay. Where a guard is not
    /// finite, all parameters keep their values.
    fn adamw_placed(
        &self,
        _: Checked<Self>,
        step: &AdamWStep<'_, Self>,
        given: &DeviceStep<'_, Self>,
        updates: Vec<PlacedUpdate<'_, Self>>,
    ) -> Result<()> {
        let (mut entries, number) = (Entries::new(), updates.len() as u32);
        // Nothing is taken out of its place before the end: what fails on the way leaves all as it was.
        let mut moved = Vec::new();
        for PlacedUpdate { slot: Slot { value, mean, square }, grad } in updates {
            let arrays = [value, mean, square];
            // Old and new addresses, in the order of the table.
            let old = [0, 1, 2].map(|i| pointer(&*arrays[i]));
            let mut new = old;
            for (x, new) in arrays.into_iter().zip(&mut new) {
                match x.is_shared() {
                    true => {
                        let memory = self.allocate(x.shape().count() * x.dtype().size())?;
                        *new = memory.pointer();
                        moved.push((x, memory));
                    }
                    false => x.buffer().written_over(),
                }
            }
            entries.add([pointer(grad)].into_iter().chain(old).chain(new), grad.shape().count());
        }
        step_all(self, step, Some(given), (&entries, number))?;
        // What lies elsewhere becomes the parameter.
        for (x, memory) in moved {
            *x = Tensor::from_buffer(self, x.shape().clone(), DType::F32, memory)?;
        }
        Ok(())
    }

    /// `[1]`: the sum of squares of all gradients, in two launches.
    /// Sums have 64 bits: of millions of squares, 32 bits would lose the small ones.
    fn norm_squared(&self, _: Checked<Self>, grads: &[&Tensor<Self>]) -> Result<Tensor<Self>> {
        let mut entries = Entries::new();
        for &grad in grads {
            // Address and type.
            let Array { data, dtype, .. } = grad.into();
            entries.add([data, u64::from(dtype)], grad.shape().count());
        }
        // A part a block, in 64 bits.
        let (table, parts) = (entries.table(self)?, self.allocate(entries.blocks * size_of::<f64>())?);
        let (gradients, number) = (table.pointer(), grads.len() as u32);
        self.launch(Grid::blocks(entries.blocks, 256), &Squares { gradients, parts: parts.pointer(), number })?;
        total(self, &parts, entries.blocks)
    }
}

/// Queues the step of so many parameters, by rates of the host or of the device.
fn step_all(
    device: &Cuda,
    step: &AdamWStep<'_, Cuda>,
    given: Option<&DeviceStep<'_, Cuda>>,
    (entries, number): (&Entries, u32),
) -> Result<()> {
    let table = entries.table(device)?;
    let AdamWStep { constants, clip, rates: [learning_rate, unbias1, unbias2] } = *step;
    let AdamW { beta1, beta2, epsilon, weight_decay, .. } = *constants;
    let arguments = Step {
        updates: table.pointer(),
        norm_squared: clip.map_or(0, |clip| pointer(clip.norm_squared)),
        rates: given.map_or(0, |given| pointer(given.rates)),
        finite: given.map_or(0, |given| pointer(given.finite)),
        number,
        guards: given.map_or(0, |given| given.finite.shape().count() as u32),
        learning_rate,
        beta1,
        beta2,
        epsilon,
        weight_decay,
        unbias1,
        unbias2,
        max_norm: clip.map_or(0.0, |clip| clip.max_norm),
    };
    device.launch(Grid::blocks(entries.blocks, 256), &arguments)
}

/// Where an array is read and where it is written: the same, unless somebody else holds it.
struct Place {
    /// The array that is read, where somebody else holds it.
    /// It is held until the kernel is queued, so that its memory is not given to others before.
    shared: Option<Tensor<Cuda>>,
    /// The memory that is written.
    new: Buffer,
}

impl Place {
    /// Takes the array's own memory, or asks for new memory of its size.
    /// What others hold must keep its elements: they may be those of an earlier step.
    fn of(device: &Cuda, x: Tensor<Cuda>) -> Result<Self> {
        match x.into_buffer() {
            Ok(new) => {
                new.written_over();
                Ok(Self { shared: None, new })
            }
            Err(x) => {
                let new = device.allocate(x.shape().count() * x.dtype().size())?;
                Ok(Self { shared: Some(x), new })
            }
        }
    }

    /// Where the old elements are read.
    fn old(&self) -> Pointer {
        self.shared.as_ref().map_or_else(|| self.new.pointer(), pointer)
    }
}
