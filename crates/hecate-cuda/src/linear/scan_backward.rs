//! The recurrence token by token, backward.

use super::layout::{CHUNK, Layout, LinearCall, class_kernels, records};
use crate::{
    Cuda,
    arguments::{In, Out, arguments},
    launch::{Array, Grid, pointer},
    source::{KernelSource, kernel_source},
};
use hecate_core::{DType, Result, Tensor, families::LinearInputs};

pub(crate) const SOURCE: KernelSource = kernel_source!("scan_backward", "scan_backward.cu");

arguments! {
    /// `struct Backward` of `scan_backward.cu`.
    struct ScanBackwardArguments {
        /// Inputs and sizes.
        p: LinearCall,
        /// Checkpoints `[kept,H,blocks,1 + S,n,threads]`.
        kept: In<f32>,
        /// Gradients after each interval `[kept,H,blocks,records,n,threads]`.
        kept_grads: In<f32>,
        /// `dout` and `dv` are `[rows,H,V]`.
        dout: Array,
        dv: Array,
        /// `dq` and `dk`: a part a block of columns, `[blocks,rows,H,K]`.
        dq: Out<f32>,
        dk: Out<f32>,
        /// `[blocks,rows,H,4]`: of `w`, `r`, `a`, `η`.
        dscalars: Out<f32>,
        /// The memory before each sub-chunk of an interval, of each block at work.
        checkpoints: Out<f32>,
        /// `[blocks, scratch_stride]`, where the memory is not in registers.
        scratch: Out<f32>,
        scratch_stride: u64,
        tokens: u64,
        /// Tokens of a sub-chunk; head tiles; intervals of the longest sequence.
        sub: u32,
        head_tiles: u32,
        intervals: u32,
        unused: u32,
    }
}

// By the largest K.
class_kernels! { SOURCE, ScanBackwardArguments {
    0 => "scan_back_16" Back16, "scan_back_16_momentum" Back16Momentum;
    1 => "scan_back_32" Back32, "scan_back_32_momentum" Back32Momentum;
    2 => "scan_back_64" Back64, "scan_back_64_momentum" Back64Momentum;
    3 => "scan_back_128" Back128, "scan_back_128_momentum" Back128Momentum;
    4 => "scan_back_256" Back256, "scan_back_256_momentum" Back256Momentum;
    _ => "scan_back_any" BackAny, "scan_back_any_momentum" BackAnyMomentum;
} }

/// What blocks of columns add to gradients that all columns share.
pub(super) struct Parts {
    /// `[blocks, rows, H, K]`.
    pub(super) dq: Tensor<Cuda>,
    /// `[blocks, rows, H, K]`.
    pub(super) dk: Tensor<Cuda>,
    /// `[blocks, rows, H, 4]`: of `w`, `r`, `a`, `η`.
    pub(super) dscalars: Tensor<Cuda>,
}

/// Equations (6)–(13), from the kept states and the gradients kept beside them: writes the gradient of `v`, and returns
/// the others in parts.
pub(super) fn run(
    device: &Cuda,
    layout: &Layout<'_>,
    inputs: &LinearInputs<Tensor<Cuda>>,
    kept: &Tensor<Cuda>,
    kept_grads: &Tensor<Cuda>,
    dout: &Tensor<Cuda>,
    dv: &Tensor<Cuda>,
) -> Result<Parts> {
    let (class, spec, sub) = (layout.class, layout.spec, layout.sub);
    let elements = class.backward_scratch(spec, sub);
    let (shared, scratch) = if class.is_any() { (0, elements) } else { (4 * elements, 0) };
    let (head_tiles, intervals) = (layout.head_tiles(), layout.intervals());
    // As many blocks as can be at work: registers allow 16 warps a multiprocessor.
    let properties = device.properties();
    // Shared memory bounds them as well.
    let resident = (512 / class.threads as usize).min(properties.shared_memory / shared.max(1)).max(1);
    let blocks = (properties.multiprocessors as usize * resident).min(head_tiles * intervals);
    // Elements that a block notes of an interval.
    let noted = CHUNK / sub * records(spec) * class.elements();
    let floats = |count| device.empty([count], DType::F32);
    let (memory, checkpoints) = (floats(blocks * scratch)?, floats(blocks * noted)?);
    // A part of `dq` and `dk` from every block of columns.
    let keys = layout.blocks() * layout.tokens() * layout.dims.key;
    let parts =
        Parts { dq: floats(keys)?, dk: floats(keys)?, dscalars: floats(layout.blocks() * layout.tokens() * 4)? };
    let all = ScanBackwardArguments {
        p: layout.call(inputs),
        kept: pointer(kept),
        kept_grads: pointer(kept_grads),
        dout: dout.into(),
        dv: dv.into(),
        dq: pointer(&parts.dq),
        dk: pointer(&parts.dk),
        dscalars: pointer(&parts.dscalars),
        checkpoints: pointer(&checkpoints),
        scratch: pointer(&memory),
        scratch_stride: scratch as u64,
        tokens: layout.tokens() as u64,
        sub: sub as u32,
        head_tiles: head_tiles as u32,
        intervals: intervals as u32,
        unused: 0,
    };
    let grid = Grid { blocks: (blocks, 1, 1), threads: class.threads, shared };
    all.launch(device, layout, grid)?;
    Ok(parts)
}
