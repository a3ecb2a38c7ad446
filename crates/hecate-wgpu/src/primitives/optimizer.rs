//! One step of AdamW, a launch a parameter.

use super::reduce::total_squares;
use crate::{
    Wgpu,
    launch::{Binding, Kernel, PRELUDE, Source},
    memory::groups,
};
use hecate_core::{
    Result, Tensor,
    primitives::{AdamW, Clip, Optimizer, Slot, Update},
};

const SOURCE: Source = Source { name: "optimizer", parts: &[PRELUDE, include_str!("optimizer.wgsl")] };

/// Every kernel of the file.
pub(crate) const KERNELS: &[Kernel<'static>] = &[kernel(&[("CLIP", 0)]), kernel(&[("CLIP", 1)])];

const fn kernel(constants: &'static [(&'static str, u32)]) -> Kernel<'static> {
    Kernel { source: &SOURCE, entry: "adamw", constants }
}

#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
struct Args {
    count: u32,
    learning_rate: f32,
    beta1: f32,
    beta2: f32,
    epsilon: f32,
    weight_decay: f32,
    unbias1: f32,
    unbias2: f32,
    max_norm: f32,
    unused: [u32; 3],
}

impl Optimizer for Wgpu {
    fn adamw(
        &self,
        adamw: &AdamW,
        clip: Option<&Clip<'_, Self>>,
        updates: Vec<Update<'_, Self>>,
    ) -> Result<Vec<Slot<Tensor<Self>>>> {
        let unbias = |beta: f32| (1.0 / (1.0 - f64::from(beta).powf(f64::from(adamw.step)))) as f32;
        let args = Args {
            count: 0,
            learning_rate: adamw.learning_rate,
            beta1: adamw.beta1,
            beta2: adamw.beta2,
            epsilon: adamw.epsilon,
            weight_decay: adamw.weight_decay,
            unbias1: unbias(adamw.beta1),
            unbias2: unbias(adamw.beta2),
            max_norm: clip.map_or(0.0, |clip| clip.max_norm),
            unused: [0; 3],
        };
        updates.into_iter().map(|(slot, grad)| update(self, &args, clip, slot, grad)).collect()
    }

    fn norm_squared(&self, grads: &[&Tensor<Self>]) -> Result<Tensor<Self>> {
        total_squares(self, grads)
    }
}

/// The step of one parameter.
fn update(
    device: &Wgpu,
    args: &Args,
    clip: Option<&Clip<'_, Wgpu>>,
    slot: Slot<Tensor<Wgpu>>,
    grad: &Tensor<Wgpu>,
) -> Result<Slot<Tensor<Wgpu>>> {
    let [value, mean, square] = [slot.value, slot.mean, slot.square].map(|x| own(device, x));
    let slot = Slot { value: value?, mean: mean?, square: square? };
    let count = grad.shape().count();
    let args = Args { count: count as u32, ..*args };
    let [value, mean, square] = [&slot.value, &slot.mean, &slot.square].map(Binding::Write);
    // Where nothing is clipped the kernel does not look at the last.
    let (norm, clipped) = clip.map_or((grad, &[("CLIP", 0)]), |clip| (clip.norm_squared, &[("CLIP", 1)]));
    let bindings = [value, mean, square, Binding::Read(grad), Binding::Read(norm)];
    device.launch(&kernel(clipped), groups(count), &args, &bindings)?;
    Ok(slot)
}

/// The array in memory that nobody else holds.
fn own(device: &Wgpu, x: Tensor<Wgpu>) -> Result<Tensor<Wgpu>> {
    let (shape, dtype) = (x.shape().clone(), x.dtype());
    match x.into_buffer() {
        Ok(buffer) => Ok(Tensor::from_buffer(device, shape, dtype, buffer)),
        Err(shared) => device.copied(&shared),
    }
}
