//! The recurrence token by token, forward.

use super::layout::{ForwardArrays, Layout, LinearCall, class_kernels};
use crate::{
    Cuda,
    arguments::{InPlace, Out, arguments},
    launch::pointer,
    source::{KernelSource, kernel_source},
};
use hecate_core::{
    Result, Tensor,
    families::{LinearInputs, LinearOutputs},
};

/// One token after another, for any `K`, any gates and either read.
pub(crate) const SOURCE: KernelSource = kernel_source!("scan", "scan.cu");

arguments! {
    /// `struct Forward` of `scan.cu`.
    struct ScanArguments {
        /// Inputs and sizes.
        p: LinearCall,
        arrays: InPlace<ForwardArrays>,
        /// `[blocks, scratch_stride]`, where the memory is not in registers.
        scratch: Out<f32>,
        scratch_stride: u64,
    }
}

// By the largest K.
class_kernels! { SOURCE, ScanArguments {
    0 => "scan_16" Scan16, "scan_16_momentum" Scan16Momentum;
    1 => "scan_32" Scan32, "scan_32_momentum" Scan32Momentum;
    2 => "scan_64" Scan64, "scan_64_momentum" Scan64Momentum;
    3 => "scan_128" Scan128, "scan_128_momentum" Scan128Momentum;
    4 => "scan_256" Scan256, "scan_256_momentum" Scan256Momentum;
    _ => "scan_any" ScanAny, "scan_any_momentum" ScanAnyMomentum;
} }

/// Equations (1)–(5); `kept` takes the states that the backward starts from.
/// A block has some columns of one head's `M [K, V]`: columns do not interact, so blocks need nothing of each other.
pub(super) fn run(
    device: &Cuda,
    layout: &Layout<'_>,
    inputs: &LinearInputs<Tensor<Cuda>>,
    outputs: &LinearOutputs<Tensor<Cuda>>,
    kept: Option<&Tensor<Cuda>>,
) -> Result<()> {
    let scratch = layout.scratch(device)?;
    let all = ScanArguments {
        p: layout.call(inputs),
        arrays: ForwardArrays::new(inputs, outputs, kept),
        scratch: pointer(&scratch.memory),
        scratch_stride: scratch.stride,
    };
    all.launch(device, layout, scratch.grid)
}
