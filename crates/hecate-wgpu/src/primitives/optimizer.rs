//! One step of AdamW, a launch a parameter.

use super::reduce::total_squares;
use crate::{
    Wgpu,
    launch::{Binding, Kernel, PRELUDE, WgslSource},
    memory::groups,
    parameters::{Parameters, parameters},
};
use hecate_core::{
    Checked, Result, Tensor,
    primitives::{AdamWStep, Clip, Optimizer, Slot, Update},
};

/// An invocation updates one element.
const SOURCE: WgslSource =
    WgslSource { name: "optimizer", parts: &[PRELUDE, AdamWArgs::WGSL, include_str!("optimizer.wgsl")] };

/// Every kernel of the file.
pub(crate) const KERNELS: &[Kernel<'static>] = &[kernel(&[("CLIP", 0)]), kernel(&[("CLIP", 1)])];

/// With clipping or without.
const fn kernel(constants: &'static [(&'static str, u32)]) -> Kernel<'static> {
    Kernel { source: &SOURCE, entry: "adamw", constants }
}

parameters! {
    /// What a step is told.
    struct AdamWArgs {
        /// Elements of the parameter.
        count: u32,
        /// `λ`.
        learning_rate: f32,
        /// `β₁`.
        beta1: f32,
        /// `β₂`.
        beta2: f32,
        /// `ε`.
        epsilon: f32,
        /// `d`.
        weight_decay: f32,
        /// `1 / (1 − β₁ᵗ)`.
        unbias1: f32,
        /// `1 / (1 − β₂ᵗ)`.
        unbias2: f32,
        /// Norm above which gradients are scaled down.
        max_norm: f32,
    }
}

impl Optimizer for Wgpu {
    /// One launch a parameter; clipping is decided on the device.
    /// A slot's three arrays and its gradient have one shape, as core has checked.
    fn adamw(
        &self,
        _: Checked<Self>,
        step: &AdamWStep<'_, Self>,
        updates: Vec<Update<'_, Self>>,
    ) -> Result<Vec<Slot<Tensor<Self>>>> {
        let AdamWStep { constants, clip, rates: [learning_rate, unbias1, unbias2] } = *step;
        let args = AdamWArgs {
            count: 0,
            learning_rate,
            beta1: constants.beta1,
            beta2: constants.beta2,
            epsilon: constants.epsilon,
            weight_decay: constants.weight_decay,
            unbias1,
            unbias2,
            max_norm: clip.map_or(0.0, |clip| clip.max_norm),
        };
        updates.into_iter().map(|parameter| update(self, &args, clip, parameter)).collect()
    }

    /// `[1]`: the sum of squares of all gradients.
    /// It stays on the device: the kernel takes the root and clips, and nobody waits.
    fn norm_squared(&self, _: Checked<Self>, grads: &[&Tensor<Self>]) -> Result<Tensor<Self>> {
        total_squares(self, grads)
    }
}

/// The step of one parameter.
fn update(
    device: &Wgpu,
    args: &AdamWArgs,
    clip: Option<&Clip<'_, Wgpu>>,
    Update { slot, grad }: Update<'_, Wgpu>,
) -> Result<Slot<Tensor<Wgpu>>> {
    let [value, mean, square] = [slot.value, slot.mean, slot.square].map(|x| device.own(x));
    // The kernel writes in place, so each array must have one owner.
    let slot = Slot { value: value?, mean: mean?, square: square? };
    let count = grad.shape().count();
    let args = AdamWArgs { count: count as u32, ..*args };
    let [value, mean, square] = [&slot.value, &slot.mean, &slot.square].map(Binding::Write);
    // Where nothing is clipped the kernel does not look at the last.
    let (norm, clipped) = clip.map_or((grad, &[("CLIP", 0)]), |clip| (clip.norm_squared, &[("CLIP", 1)]));
    let bindings = [value, mean, square, Binding::Read(grad), Binding::Read(norm)];
    device.launch(&kernel(clipped), groups(count), &args, &bindings)?;
    Ok(slot)
}
