//! One step of AdamW.

use super::{check_dtype, check_float, check_like, check_shape};
use crate::{Checked, DType, Device, Error, Result, Tensor};

/// Constants of a step (Loshchilov and Hutter, "Decoupled weight decay regularization", algorithm 2).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamW {
    /// Learning rate of this step, schedule included.
    pub learning_rate: f32,
    /// Decay of the first moment, in `[0, 1)`.
    pub beta1: f32,
    /// Decay of the second moment, in `[0, 1)`.
    pub beta2: f32,
    /// Added to the root of the second moment.
    pub epsilon: f32,
    /// Share of the parameter, times the learning rate, taken off in the step.
    pub weight_decay: f32,
    /// Number of this step, from 1.
    pub step: u32,
}

impl AdamW {
    /// `1 / (1 − βᵗ)` of both moments, from 64 bits: `t` may be large and `β` close to 1.
    pub fn bias_corrections(&self) -> [f32; 2] {
        [self.beta1, self.beta2].map(|beta| (1.0 / (1.0 - f64::from(beta).powf(f64::from(self.step)))) as f32)
    }

    /// What is another number in every step: the learning rate, then both bias corrections.
    pub fn rates(&self) -> [f32; 3] {
        let [first, second] = self.bias_corrections();
        [self.learning_rate, first, second]
    }
}

/// Clipping by the norm of all gradients together, decided on the device.
#[derive(Clone, Debug)]
pub struct Clip<'a, D: Device> {
    /// Norm above which gradients are scaled down to it.
    pub max_norm: f32,
    /// Squared norm of all gradients, `[1]` in 32 bits.
    pub norm_squared: &'a Tensor<D>,
}

/// A parameter and its moments, all of one shape, all 32-bit floats.
#[derive(Clone, Debug)]
pub struct Slot<T> {
    /// `p`.
    pub value: T,
    /// `m`: running mean of gradients.
    pub mean: T,
    /// `s`: running mean of squared gradients.
    pub square: T,
}

/// What is the same for all parameters of a step.
#[derive(Clone, Debug)]
pub struct AdamWStep<'a, D: Device> {
    /// Constants of the rule.
    pub constants: &'a AdamW,
    /// Where gradients are clipped.
    pub clip: Option<&'a Clip<'a, D>>,
    /// [`AdamW::rates`] of this step, whatever the constants say.
    pub rates: [f32; 3],
}

/// What a device reads of a step where it lies: an update that is part of a graph finds other numbers in every replay.
#[derive(Clone, Debug)]
pub struct DeviceStep<'a, D: Device> {
    /// [`AdamW::rates`] of the step, `[3]` in 32 bits; the constants' own do not count.
    pub rates: &'a Tensor<D>,
    /// `[n]` in 32 bits: nothing moves where one of them is not finite.
    pub finite: &'a Tensor<D>,
}

/// As [`Update`], of arrays that keep their place.
#[derive(Debug)]
pub struct PlacedUpdate<'a, D: Device> {
    /// Written over, where nobody else holds the elements.
    pub slot: Slot<&'a mut Tensor<D>>,
    /// Of the shape of the parameter, in 32 bits.
    pub grad: &'a Tensor<D>,
}

/// A parameter with its moments, and the gradient that moves it.
#[derive(Clone, Debug)]
pub struct Update<'a, D: Device> {
    /// Consumed, so that the update can happen in place.
    pub slot: Slot<Tensor<D>>,
    /// Of the shape of the parameter, in 32 bits.
    pub grad: &'a Tensor<D>,
}

/// Parameter updates.
pub trait Optimizer: Device {
    /// With `g` the gradient, scaled by `min(1, max_norm / √norm²)` where clipped:
    /// `m ← β₁ m + (1−β₁) g`, `s ← β₂ s + (1−β₂) g²`, `m̂ = m / (1−β₁ᵗ)`, `ŝ = s / (1−β₂ᵗ)`,
    /// `p ← p − λ (m̂ / (√ŝ + ε) + d p)`. In place where the buffers are not shared.
    ///
    /// # Errors
    /// Only what the caller could not foresee.
    fn adamw(
        &self,
        checked: Checked<Self>,
        step: &AdamWStep<'_, Self>,
        updates: Vec<Update<'_, Self>>,
    ) -> Result<Vec<Slot<Tensor<Self>>>>;

    /// As [`Optimizer::adamw`], of arrays that keep their place, by numbers of the device. A device that captures no work
    /// reads them on the host.
    ///
    /// # Errors
    /// Only what the caller could not foresee.
    fn adamw_placed(
        &self,
        checked: Checked<Self>,
        step: &AdamWStep<'_, Self>,
        given: &DeviceStep<'_, Self>,
        updates: Vec<PlacedUpdate<'_, Self>>,
    ) -> Result<()> {
        if !given.finite.to_f32()?.iter().all(|x| x.is_finite()) {
            return Ok(());
        }
        let mut step = step.clone();
        step.rates.copy_from_slice(&given.rates.to_f32()?);
        // The rates stand in for what is taken out, so that each array has one owner.
        let take = |x: &mut Tensor<Self>| std::mem::replace(x, given.rates.clone());
        let (mut places, mut taken) = (Vec::new(), Vec::new());
        for PlacedUpdate { slot: Slot { value, mean, square }, grad } in updates {
            taken.push(Update { slot: Slot { value: take(value), mean: take(mean), square: take(square) }, grad });
            places.push([value, mean, square]);
        }
        for ([value, mean, square], slot) in places.into_iter().zip(self.adamw(checked, &step, taken)?) {
            (*value, *mean, *square) = (slot.value, slot.mean, slot.square);
        }
        Ok(())
    }

    /// `Σ g²` over all elements of all gradients, at least one: `[1]` in 32 bits.
    ///
    /// # Errors
    /// Only what the caller could not foresee.
    fn norm_squared(&self, checked: Checked<Self>, grads: &[&Tensor<Self>]) -> Result<Tensor<Self>>;
}

/// One step of AdamW on one parameter; consumes the old values so that the update can happen in place.
///
/// # Errors
/// Shapes or types that differ, a constant outside its range.
pub fn adamw<D: Optimizer>(
    constants: &AdamW,
    clip: Option<&Clip<'_, D>>,
    slot: Slot<Tensor<D>>,
    grad: &Tensor<D>,
) -> Result<Slot<Tensor<D>>> {
    let updated = adamw_all(constants, clip, vec![Update { slot, grad }])?.pop();
    updated.ok_or_else(|| Error::Unsupported { backend: D::NAME, what: "adamw", why: "nothing came back".into() })
}

/// As [`adamw`] for many parameters, in their order. They lie on one device.
///
/// # Errors
/// As [`adamw`].
pub fn adamw_all<D: Optimizer>(
    constants: &AdamW,
    clip: Option<&Clip<'_, D>>,
    updates: Vec<Update<'_, D>>,
) -> Result<Vec<Slot<Tensor<D>>>> {
    let Some(device) = updates.first().map(|update| update.slot.value.device().clone()) else {
        check_constants(constants)?;
        return Ok(Vec::new());
    };
    let arrays = updates.iter().map(|Update { slot, grad }| [&slot.value, &slot.mean, &slot.square, *grad]);
    check_step(&device, constants, clip, arrays)?;
    device.adamw(Checked::new(), &AdamWStep { constants, clip, rates: constants.rates() }, updates)
}

/// As [`adamw_all`], of arrays that keep their place, by numbers that lie on the device: learning rate and step of the
/// `constants` do not count. Nothing moves where one of `given.finite` is not finite. Where somebody else holds an array, what
/// is written lies elsewhere.
///
/// # Errors
/// As [`adamw`], and numbers of another shape, type or device.
pub fn adamw_placed<D: Optimizer>(
    constants: &AdamW,
    clip: Option<&Clip<'_, D>>,
    given: &DeviceStep<'_, D>,
    updates: Vec<PlacedUpdate<'_, D>>,
) -> Result<()> {
    let device = given.rates.device().clone();
    let arrays = updates.iter().map(|PlacedUpdate { slot, grad }| [&*slot.value, &*slot.mean, &*slot.square, *grad]);
    check_step(&device, constants, clip, arrays)?;
    check_shape("adamw", "rates", given.rates, &[3].into())?;
    given.finite.check_device(&device, "adamw", "finite")?;
    check_shape("adamw", "finite", given.finite, &[given.finite.shape().count()].into())?;
    for (name, x) in [("rates", given.rates), ("finite", given.finite)] {
        check_dtype("adamw", name, x, DType::F32)?;
    }
    match updates.is_empty() {
        true => Ok(()),
        false => device.adamw_placed(
            Checked::new(),
            &AdamWStep { constants, clip, rates: constants.rates() },
            given,
            updates,
        ),
    }
}

/// Refuses constants, arrays (value, mean, square, gradient) or a norm that no step can be made of.
fn check_step<'a, D: Device>(
    device: &D,
    constants: &AdamW,
    clip: Option<&Clip<'_, D>>,
    arrays: impl Iterator<Item = [&'a Tensor<D>; 4]>,
) -> Result<()> {
    check_constants(constants)?;
    for [value, mean, square, grad] in arrays {
        value.check_device(device, "adamw", "value")?;
        check_float("adamw", "value", value)?;
        check_dtype("adamw", "value", value, DType::F32)?;
        for (name, x) in [("mean", mean), ("square", square), ("grad", grad)] {
            check_like("adamw", name, x, value)?;
        }
    }
    if let Some(clip) = clip {
        if !(clip.max_norm.is_finite() && clip.max_norm > 0.0) {
            let (found, expected) = (clip.max_norm.to_string(), "a finite number over 0");
            return Err(Error::Config { what: "adamw", option: "max_norm", found, expected });
        }
        clip.norm_squared.check_device(device, "adamw", "norm_squared")?;
        check_shape("adamw", "norm_squared", clip.norm_squared, &[1].into())?;
        check_dtype("adamw", "norm_squared", clip.norm_squared, DType::F32)?;
    }
    Ok(())
}

/// Squared norm of all gradients together, `[1]` in 32 bits; zero where there is none.
///
/// # Errors
/// Integers, no elements.
pub fn norm_squared<D: Optimizer>(device: &D, grads: &[&Tensor<D>]) -> Result<Tensor<D>> {
    for grad in grads {
        grad.check_device(device, "norm_squared", "grad")?;
        check_float("norm_squared", "grad", grad)?;
    }
    if grads.is_empty() { Tensor::zeros(device, [1], DType::F32) } else { device.norm_squared(Checked::new(), grads) }
}

fn check_constants(adamw: &AdamW) -> Result<()> {
    let fail = |option, found: String, expected| Err(Error::Config { what: "adamw", option, found, expected });
    for (option, beta) in [("beta1", adamw.beta1), ("beta2", adamw.beta2)] {
        if !(0.0..1.0).contains(&beta) {
            return fail(option, beta.to_string(), "at least 0 and under 1");
        }
    }
    // An update that is not finite cannot be taken back.
    let sizes =
        [("learning_rate", adamw.learning_rate), ("epsilon", adamw.epsilon), ("weight_decay", adamw.weight_decay)];
    if let Some((option, found)) = sizes.into_iter().find(|&(_, size)| !(size.is_finite() && size >= 0.0)) {
        return fail(option, found.to_string(), "a finite number, 0 or more");
    }
    if adamw.step == 0 {
        return fail("step", "0".into(), "steps are counted from 1");
    }
    Ok(())
}
