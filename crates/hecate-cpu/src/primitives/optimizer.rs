//! One step of AdamW, fused: a parameter, its two moments and its gradient in one pass.
//!
//! Parameters and moments are 32-bit floats, updated in place where nobody else holds them.

use super::{BLOCK, unsupported};
use crate::{
    Array, Cpu,
    device::{floats, tensor},
    simd::wide,
};
use hecate_core::{
    Checked, DType, Host, Result, Tensor,
    primitives::{AdamW, AdamWStep, Optimizer, Reduce, Slot, Update},
};
use rayon::prelude::*;

impl Optimizer for Cpu {
    /// Updates every slot; the gradient's clipping is a factor of the same pass.
    /// A slot's three arrays and its gradient have one shape, as core has checked.
    fn adamw(
        &self,
        _: Checked<Self>,
        step: &AdamWStep<'_, Self>,
        updates: Vec<Update<'_, Self>>,
    ) -> Result<Vec<Slot<Tensor<Self>>>> {
        let step = Factors::new(step)?;
        updates.into_iter().map(|update| self.update(step, update)).collect()
    }

    /// `Σ |g|²` over all gradients, `[1]`.
    /// Clipping needs it of all parameters before the first is updated.
    fn norm_squared(&self, checked: Checked<Self>, grads: &[&Tensor<Self>]) -> Result<Tensor<Self>> {
        let mut sum = 0.0;
        for grad in grads {
            sum += floats(&self.sum_squares(checked, grad)?)?[0];
        }
        Tensor::from_f32(self, [1], vec![sum])
    }
}

impl Cpu {
    /// One slot, in blocks of elements on all threads.
    fn update(&self, step: Factors, Update { slot, grad }: Update<'_, Self>) -> Result<Slot<Tensor<Self>>> {
        let shape = grad.shape().clone();
        let (mut value, mut mean, mut square) = (own(slot.value)?, own(slot.mean)?, own(slot.square)?);
        let grad = floats(grad)?;
        // Blocks of all four arrays travel together.
        let arrays = value.par_chunks_mut(BLOCK).zip(mean.par_chunks_mut(BLOCK)).zip(square.par_chunks_mut(BLOCK));
        self.run(|| {
            arrays.zip(grad.par_chunks(BLOCK)).with_min_len(2).for_each(|(((value, mean), square), grad)| {
                wide(
                    (value, mean, square),
                    #[inline(always)]
                    |(value, mean, square)| step.update(value, mean, square, grad),
                );
            });
        });
        let array = |values| tensor(self, shape.clone(), DType::F32, values);
        Ok(Slot { value: array(value)?, mean: array(mean)?, square: array(square)? })
    }
}

/// The elements, without a copy where nobody else holds them.
fn own(x: Tensor<Cpu>) -> Result<Vec<f32>> {
    match x.into_buffer().map(Array::into_host) {
        Ok(Host::F32(values)) => Ok(values),
        Ok(other) => Err(unsupported("adamw", format!("parameters hold {}; give f32", other.dtype()))),
        Err(shared) => Ok(floats(&shared)?.into_owned()),
    }
}

/// What is the same for every parameter of a step.
#[derive(Clone, Copy)]
struct Factors {
    /// `β₁`, `β₂`, `ε` and the weight decay.
    constants: AdamW,
    /// Factor of the gradient.
    clip: f32,
    /// Learning rate, then `1 / (1 − βᵗ)` of both moments.
    rates: [f32; 3],
}

impl Factors {
    /// Bias corrections and the clipping factor, once a step and from 64 bits.
    fn new(&AdamWStep { constants, clip, rates }: &AdamWStep<'_, Cpu>) -> Result<Self> {
        let squared = clip.map(|clip| floats(clip.norm_squared)).transpose()?;
        let clip = clip.zip(squared).map_or(1.0, |(clip, squared)| {
            let norm = f64::from(squared[0]).sqrt();
            let max = f64::from(clip.max_norm);
            // Gradients within the limit are left as they are.
            if norm > max { (max / norm) as f32 } else { 1.0 }
        });
        Ok(Self { constants: *constants, clip, rates })
    }

    /// A block of elements.
    /// `p` decays by its value before the step.
    #[inline(always)]
    fn update(self, value: &mut [f32], mean: &mut [f32], square: &mut [f32], grad: &[f32]) {
        let [learning_rate, unbias1, unbias2] = self.rates;
        let AdamW { beta1, beta2, epsilon, weight_decay, .. } = self.constants;
        for (((p, m), s), g) in value.iter_mut().zip(mean).zip(square).zip(grad) {
            // Moments of the clipped gradient.
            let g = self.clip * g;
            *m = beta1 * *m + (1.0 - beta1) * g;
            *s = beta2 * *s + (1.0 - beta2) * (g * g);
            // Corrected for their start at zero.
            let direction = unbias1 * *m / ((unbias2 * *s).sqrt() + epsilon);
            // The decay is of the parameter, not of the gradient: decoupled.
            *p -= learning_rate * (direction + weight_decay * *p);
        }
    }
}
