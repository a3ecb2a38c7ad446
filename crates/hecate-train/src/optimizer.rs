//! The optimiser: one step after another over all parameters of a model.

mod adamw;

pub use adamw::AdamW;

use hecate_core::{
    Backend, DType, Shape, Tensor,
    primitives::{self, Clip, DeviceStep, PlacedUpdate, Slot, Update},
};
use hecate_models::{Error, Gradients, Parameters, Result};
use serde::{Deserialize, Serialize};

/// Constants of AdamW that stay the same over a run. Weight decay pulls only at parameters that ask for it
/// ([`Parameter::decay`](hecate_models::Parameter::decay)).
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

    /// The rule of step `step` (from 1) at this learning rate, without decay.
    pub(crate) fn rule(&self, (step, rate): (u32, f32)) -> Result<primitives::AdamW> {
        self.check()?;
        if step == 0 {
            return Err(Error::config("step", step, "at least 1: steps are counted from 1"));
        }
        if !(rate.is_finite() && rate >= 0.0) {
            return Err(Error::config("learning rate", rate, "a finite number of at least 0"));
        }
        let Self { beta1, beta2, epsilon, .. } = *self;
        Ok(primitives::AdamW { learning_rate: rate, beta1, beta2, epsilon, weight_decay: 0.0, step })
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
    /// computes it; [`AdamW::step`] looks at it too. Values are updated in place where nobody shares them. What does not
    /// fit is refused before anything changes; after the device's own failures the parameters are unusable.
    ///
    /// # Errors
    /// As [`Constants::check`]; [`Error::Config`] for step 0, a rate that is negative or not finite, other numbers of
    /// arrays; arrays of other shapes, types or devices; the device's own failures.
    pub fn update(
        &mut self,
        parameters: &mut Parameters<B>,
        gradients: &Gradients<B>,
        norm_squared: &Tensor<B>,
        constants: &Constants,
        (step, rate): (u32, f32),
    ) -> Result<()> {
        let rule = constants.rule((step, rate))?;
        self.check(parameters, gradients, norm_squared)?;
        let clip = constants.clip.map(|max_norm| Clip { max_norm, norm_squared });
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
            let rule = primitives::AdamW { weight_decay, ..rule };
            let updated = primitives::adamw_all(&rule, clip.as_ref(), updates)?;
            for ((value, mean, square), slot) in places.into_iter().zip(updated) {
                (*value, *mean, *square) = (slot.value, slot.mean, slot.square);
            }
        }
        Ok(())
    }

    /// As [`Moments::update`], of arrays that keep their place, by numbers that lie on the device: what a device captures and
    /// repeats with those of other steps. Nothing moves where one of `given.finite` is not finite.
    pub(crate) fn update_placed(
        &mut self,
        parameters: &mut Parameters<B>,
        gradients: &Gradients<B>,
        norm_squared: &Tensor<B>,
        constants: &Constants,
        given: &DeviceStep<'_, B>,
    ) -> Result<()> {
        // Step and rate are those of the device.
        let rule = constants.rule((1, 0.0))?;
        self.check(parameters, gradients, norm_squared)?;
        let clip = constants.clip.map(|max_norm| Clip { max_norm, norm_squared });
        for (decay, weight_decay) in [(true, constants.weight_decay), (false, 0.0)] {
            let moments = self.means.iter_mut().zip(&mut self.squares);
            let all = parameters.iter_mut().zip(gradients.iter()).zip(moments);
            let updates = all.filter_map(|((parameter, gradient), (mean, square))| {
                let grad = gradient.as_ref().filter(|_| parameter.decay == decay)?;
                Some(PlacedUpdate { slot: Slot { value: &mut parameter.value, mean, square }, grad })
            });
            let rule = primitives::AdamW { weight_decay, ..rule };
            primitives::adamw_placed(&rule, clip.as_ref(), given, updates.collect())?;
        }
        Ok(())
    }

    /// All arrays that an update reads and writes beside gradients.
    pub(crate) fn arrays<'a>(&'a self, parameters: &'a Parameters<B>) -> Vec<&'a Tensor<B>> {
        let values = parameters.iter().map(|parameter| &parameter.value);
        values.chain(&self.means).chain(&self.squares).collect()
    }

    /// Refuses arrays that do not belong together, before anything is taken out of its place.
    fn check(&self, parameters: &Parameters<B>, gradients: &Gradients<B>, norm_squared: &Tensor<B>) -> Result<()> {
        let device = norm_squared.device();
        like(device, "norm_squared", norm_squared, &[1].into())?;
        let counts = [gradients.iter().len(), self.means.len(), self.squares.len()];
        for (field, count) in ["gradients", "means", "squares"].into_iter().zip(counts) {
            parameters.check_count(field, count)?;
        }
        let moments = self.means.iter().zip(&self.squares);
        for ((parameter, gradient), (mean, square)) in parameters.iter().zip(gradients.iter()).zip(moments) {
            let own = [("value", &parameter.value), ("mean", mean), ("square", square)];
            for (slot, x) in own.into_iter().chain(gradient.iter().map(|x| ("grad", x))) {
                like(device, slot, x, parameter.value.shape())?;
            }
        }
        Ok(())
    }
}

/// Refuses an array of another device, shape or type than that of 32-bit floats.
fn like<B: Backend>(device: &B, slot: &'static str, x: &Tensor<B>, shape: &Shape) -> hecate_core::Result<()> {
    let what = "adamw";
    x.check_device(device, what, slot)?;
    if x.shape() != shape {
        return Err(hecate_core::Error::Shape { what, slot, expected: shape.clone(), found: x.shape().clone() });
    }
    if x.dtype() != DType::F32 {
        return Err(hecate_core::Error::DType { what, slot, expected: "f32", found: x.dtype() });
    }
    Ok(())
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

/// A step of one number that belongs to no model, for devices that prepare the kernels of a step.
pub(crate) fn rehearse<B: Backend>(device: &B) -> Result<()> {
    let zero = || Tensor::zeros(device, [1], DType::F32);
    let Constants { beta1, beta2, epsilon, weight_decay, .. } = Constants::default();
    let rule = primitives::AdamW { learning_rate: 0.0, beta1, beta2, epsilon, weight_decay, step: 1 };
    let slot = Slot { value: zero()?, mean: zero()?, square: zero()? };
    primitives::adamw(&rule, None, slot, &zero()?)?;
    Ok(())
}
