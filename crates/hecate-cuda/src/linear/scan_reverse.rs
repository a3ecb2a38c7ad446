//! The gradient of the memory, token by token in reverse.

use super::layout::{Layout, LinearCall, ReverseArrays, class_kernels, records};
use crate::{
    Cuda,
    arguments::{InPlace, Out, arguments},
    launch::pointer,
    source::{KernelSource, kernel_source},
};
use hecate_core::{
    DType, Result, Tensor,
    families::{LinearInputs, LinearOutputs},
};

/// The adjoint recurrence alone; what it gives to inputs is made from kept states by `scan_backward`.
pub(crate) const SOURCE: KernelSource = kernel_source!("scan_reverse", "scan_reverse.cu");

arguments! {
    /// `struct Reverse` of `scan_reverse.cu`.
    struct ScanReverseArguments {
        /// Inputs and sizes.
        p: LinearCall,
        arrays: InPlace<ReverseArrays>,
        /// `[blocks, scratch_stride]`, where the memory is not in registers.
        scratch: Out<f32>,
        scratch_stride: u64,
    }
}

// By the largest K.
class_kernels! { SOURCE, ScanReverseArguments {
    0 => "scan_reverse_16" Reverse16, "scan_reverse_16_momentum" Reverse16Momentum;
    1 => "scan_reverse_32" Reverse32, "scan_reverse_32_momentum" Reverse32Momentum;
    2 => "scan_reverse_64" Reverse64, "scan_reverse_64_momentum" Reverse64Momentum;
    3 => "scan_reverse_128" Reverse128, "scan_reverse_128_momentum" Reverse128Momentum;
    4 => "scan_reverse_256" Reverse256, "scan_reverse_256_momentum" Reverse256Momentum;
    _ => "scan_reverse_any" ReverseAny, "scan_reverse_any_momentum" ReverseAnyMomentum;
} }

/// Writes the gradient of the initial state, and returns those of `M`, `S` and `M_c` after each interval between kept states.
/// The result has 32 bits: a matrix `[K, V]` for each kept state and record, in the order of the forward's.
pub(super) fn run(
    device: &Cuda,
    layout: &Layout<'_>,
    inputs: &LinearInputs<Tensor<Cuda>>,
    grads: &LinearOutputs<Tensor<Cuda>>,
    dinputs: &LinearInputs<Tensor<Cuda>>,
) -> Result<Tensor<Cuda>> {
    let scratch = layout.scratch(device)?;
    let kept = device.empty([layout.kept_elements(records(layout.spec))], DType::F32)?;
    let all = ScanReverseArguments {
        p: layout.call(inputs),
        arrays: ReverseArrays::new(grads, dinputs, &kept),
        scratch: pointer(&scratch.memory),
        scratch_stride: scratch.stride,
    };
    all.launch(device, layout, scratch.grid)?;
    Ok(kept)
}
