//! One step of the optimiser over all parameters of a model.

use crate::{Error, Gradients, Parameters, Result};
use hecate_core::{
    Backend, DType, Tensor,
    primitives::{self, AdamW, Clip, Slot, Update},
};
use serde::{Deserialize, Serialize};

/// Constants of AdamW that stay the same over a run. Weight decay pulls only at parameters that ask for it
/// ([`Parameter::decay`](crate::Parameter::decay)).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Constants {
    /// Decay of the first moment, in `[0, 1)`.
    pub beta1: f32,
    /// Decay of the second moment, in `[0, 1)`.
    pub beta2: f32,
    /// Added to the root of the second moment.
    pub epsilon: f32,
    /// Share of a parameter, times the learning rate, taken off in a step.
    pub weight_decay: f32,
    /// Norm of all gradients together above which they are scaled down to it; nothing clips if absent.
    pub clip: Option<f32>,
}

impl Default for Constants {
    fn default() -> Self {
        Self { beta1: 0.9, beta2: 0.95, epsilon: 1e-8, weight_decay: 0.1, clip: Some(1.0) }
    }
}

impl Constants {
    /// Refuses what makes no sense.
    ///
    /// # Errors
    /// [`Error::Config`] naming the setting.
    pub fn check(&self) -> Result<()> {
        for (field, beta) in [("beta1", self.beta1), ("beta2", self.beta2)] {
            if !(0.0..1.0).contains(&beta) {
                return Err(Error::config(field, beta, "at least 0 and under 1"));
            }
        }
        if !(self.epsilon.is_finite() && self.epsilon > 0.0) {
            return Err(Error::config("epsilon", self.epsilon, "a finite number above 0"));
        }
        if !(self.weight_decay.is_finite() && self.weight_decay >= 0.0) {
            return Err(Error::config("weight decay", self.weight_decay, "a finite number of at least 0"));
        }
        match self.clip {
            Some(clip) if !(clip.is_finite() && clip > 0.0) => {
                Err(Error::config("clip", clip, "a finite number above 0"))
            }
            _ => Ok(()),
        }
    }
}

/// First and second moments of every parameter's gradient, in the order of the parameters.
#[derive(Debug)]
pub struct Moments<B: Backend> {
    /// Means of gradients.
    pub means: Vec<Tensor<B>>,
    /// Means of squared gradients.
    pub squares: Vec<Tensor<B>>,
}

impl<B: Backend> Moments<B> {
    /// Zeros.
    ///
    /// # Errors
    /// The device's own failures.
    pub fn new(device: &B, parameters: &Parameters<B>) -> Result<Self> {
        let zeros = || -> Result<Vec<Tensor<B>>> {
            parameters.iter().map(|p| Ok(Tensor::zeros(device, p.value.shape().clone(), DType::F32)?)).collect()
        };
        Ok(Self { means: zeros()?, squares: zeros()? })
    }

    /// Step `step` (from 1) at this learning rate. `norm_squared` is that of all gradients, as [`norm_squared`]
    /// computes it. Values are updated in place where nobody shares them; after an error the parameters are unusable.
    ///
    /// # Errors
    /// Those of [`primitives::adamw`].
    pub fn update(
        &mut self,
        parameters: &mut Parameters<B>,
        gradients: &Gradients<B>,
        norm_squared: &Tensor<B>,
        constants: &Constants,
        (step, rate): (u32, f32),
    ) -> Result<()> {
        // Before anything is taken out of its place.
        for (parameter, gradient) in parameters.iter().zip(gradients.iter()) {
            parameter.value.check_device(norm_squared.device(), "adamw", "value")?;
            gradient.as_ref().map_or(Ok(()), |x| x.check_device(norm_squared.device(), "adamw", "grad"))?;
        }
        let clip = constants.clip.map(|max_norm| Clip { max_norm, norm_squared });
        let rule = |weight_decay| AdamW {
            learning_rate: rate,
            beta1: constants.beta1,
            beta2: constants.beta2,
            epsilon: constants.epsilon,
            weight_decay,
            step,
        };
        for (decay, weight_decay) in [(true, constants.weight_decay), (false, 0.0)] {
            // `norm_squared` stands in for what is taken out, so that the buffers have one owner each.
            let take = |x: &mut Tensor<B>| std::mem::replace(x, norm_squared.clone());
            let mut places = Vec::new();
            let mut updates = Vec::new();
            let moments = self.means.iter_mut().zip(&mut self.squares);
            for ((parameter, gradient), (mean, square)) in parameters.iter_mut().zip(gradients.iter()).zip(moments) {
                let Some(gradient) = gradient.as_ref().filter(|_| parameter.decay == decay) else { continue };
                let slot = Slot { value: take(&mut parameter.value), mean: take(mean), square: take(square) };
                updates.push(Update { slot, grad: gradient });
                places.push((&mut parameter.value, mean, square));
            }
            let updated = primitives::adamw_all(&rule(weight_decay), clip.as_ref(), updates)?;
            for ((value, mean, square), slot) in places.into_iter().zip(updated) {
                (*value, *mean, *square) = (slot.value, slot.mean, slot.square);
            }
        }
        Ok(())
    }
}

/// Squared norm of all gradients together: `[1]` in 32 bits, on the device.
///
/// # Errors
/// The device's own failures.
pub fn norm_squared<B: Backend>(device: &B, gradients: &Gradients<B>) -> Result<Tensor<B>> {
    let gradients: Vec<_> = gradients.iter().flatten().collect();
    Ok(primitives::norm_squared(device, &gradients)?)
}

/// Multiplies every gradient.
///
/// # Errors
/// The device's own failures.
pub fn scale<B: Backend>(gradients: &mut Gradients<B>, factor: f32) -> Result<()> {
    for gradient in gradients.iter_mut().flatten() {
        *gradient = primitives::scale(factor, gradient)?;
    }
    Ok(())
}
