//! The recurrence token by token, backward.

use super::{
    CHUNK,
    layout::{Call, Layout},
};
use crate::{
    Cuda,
    launch::{Array, Grid, Pointer, Source, kernels, pointer, source},
};
use hecate_core::{DType, Inputs, Result, Rule, Tensor};

pub(crate) const SOURCE: Source = source!("scan_backward", "scan_backward.cu");

/// `struct Backward` of `scan_backward.cu`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct Arguments {
    call: Call,
    kept: Pointer,
    kept_grads: Pointer,
    dout: Array,
    dv: Array,
    dq: Pointer,
    dk: Pointer,
    dscalars: Pointer,
    checkpoints: Pointer,
    scratch: Pointer,
    scratch_stride: u64,
    tokens: u64,
    sub: u32,
    lanes: u32,
    spans: u32,
    unused: u32,
}

kernels! { SOURCE {
    "scan_back_16" Back16 { all: Arguments }
    "scan_back_32" Back32 { all: Arguments }
    "scan_back_64" Back64 { all: Arguments }
    "scan_back_128" Back128 { all: Arguments }
    "scan_back_256" Back256 { all: Arguments }
    "scan_back_any" BackAny { all: Arguments }
    "scan_back_16_momentum" Back16Momentum { all: Arguments }
    "scan_back_32_momentum" Back32Momentum { all: Arguments }
    "scan_back_64_momentum" Back64Momentum { all: Arguments }
    "scan_back_128_momentum" Back128Momentum { all: Arguments }
    "scan_back_256_momentum" Back256Momentum { all: Arguments }
    "scan_back_any_momentum" BackAnyMomentum { all: Arguments }
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
pub(super) fn run<R: Rule>(
    device: &Cuda,
    layout: &Layout<'_>,
    inputs: &Inputs<R, Tensor<Cuda>>,
    [kept, kept_grads]: [&Tensor<Cuda>; 2],
    dout: &Tensor<Cuda>,
    dv: &Tensor<Cuda>,
) -> Result<Parts> {
    let (class, spec, sub) = (layout.class, layout.spec, layout.sub);
    let numbers = class.backward_scratch(spec, sub);
    let (shared, scratch) = if class.is_any() { (0, numbers) } else { (4 * numbers, 0) };
    let (lanes, spans) = (layout.lanes(), layout.spans());
    // As many blocks as can be at work: registers allow 16 warps a multiprocessor.
    let properties = device.properties();
    let resident = (512 / class.threads as usize).min(properties.shared_memory / shared.max(1)).max(1);
    let blocks = (properties.multiprocessors as usize * resident).min(lanes * spans);
    let noted = CHUNK / sub * spec.records() * class.elements();
    let floats = |count| device.empty([count], DType::F32);
    let (memory, checkpoints) = (floats(blocks * scratch)?, floats(blocks * noted)?);
    let keys = layout.blocks() * layout.tokens() * layout.dims.key;
    let parts =
        Parts { dq: floats(keys)?, dk: floats(keys)?, dscalars: floats(layout.blocks() * layout.tokens() * 4)? };
    let all = Arguments {
        call: layout.call(inputs),
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
        lanes: lanes as u32,
        spans: spans as u32,
        unused: 0,
    };
    let grid = Grid { blocks: (blocks, 1, 1), threads: class.threads, shared };
    match (class.index, spec.momentum) {
        (0, false) => device.launch(grid, &Back16 { all }),
        (1, false) => device.launch(grid, &Back32 { all }),
        (2, false) => device.launch(grid, &Back64 { all }),
        (3, false) => device.launch(grid, &Back128 { all }),
        (4, false) => device.launch(grid, &Back256 { all }),
        (_, false) => device.launch(grid, &BackAny { all }),
        (0, true) => device.launch(grid, &Back16Momentum { all }),
        (1, true) => device.launch(grid, &Back32Momentum { all }),
        (2, true) => device.launch(grid, &Back64Momentum { all }),
        (3, true) => device.launch(grid, &Back128Momentum { all }),
        (4, true) => device.launch(grid, &Back256Momentum { all }),
        (_, true) => device.launch(grid, &BackAnyMomentum { all }),
    }?;
    Ok(parts)
}
