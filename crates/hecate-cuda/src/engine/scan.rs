//! The recurrence token by token, forward.

use super::{
    layout::{Call, Layout},
    named,
};
use crate::{
    Cuda,
    launch::{Array, Grid, Pointer, Source, kernels, pointer, source},
};
use hecate_core::{DType, Inputs, Outputs, Result, Rule, Slots, Tensor};

pub(crate) const SOURCE: Source = source!("scan", "scan.cu");

/// `struct Forward` of `scan.cu`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct Arguments {
    call: Call,
    m: Pointer,
    s: Pointer,
    out: Array,
    last_m: Pointer,
    last_s: Pointer,
    kept: Pointer,
    scratch: Pointer,
    scratch_stride: u64,
}

kernels! { SOURCE {
    "scan_16" Scan16 { all: Arguments }
    "scan_32" Scan32 { all: Arguments }
    "scan_64" Scan64 { all: Arguments }
    "scan_128" Scan128 { all: Arguments }
    "scan_256" Scan256 { all: Arguments }
    "scan_any" ScanAny { all: Arguments }
    "scan_16_momentum" Scan16Momentum { all: Arguments }
    "scan_32_momentum" Scan32Momentum { all: Arguments }
    "scan_64_momentum" Scan64Momentum { all: Arguments }
    "scan_128_momentum" Scan128Momentum { all: Arguments }
    "scan_256_momentum" Scan256Momentum { all: Arguments }
    "scan_any_momentum" ScanAnyMomentum { all: Arguments }
} }

/// Equations (1)–(5); `kept` takes the states that the backward starts from.
pub(super) fn run<R: Rule>(
    device: &Cuda,
    layout: &Layout<'_>,
    inputs: &Inputs<R, Tensor<Cuda>>,
    outputs: &Outputs<R, Tensor<Cuda>>,
    kept: Option<&Tensor<Cuda>>,
) -> Result<()> {
    let class = layout.class;
    let numbers = class.forward_scratch(layout.spec);
    let (shared, scratch) = if class.is_any() { (0, numbers) } else { (4 * numbers, 0) };
    let memory = device.empty([layout.lanes() * scratch], DType::F32)?;
    let (first, last) = (R::State::list(&inputs.state), R::State::list(&outputs.state));
    let all = Arguments {
        call: layout.call(inputs),
        m: named(&first, "m"),
        s: named(&first, "s"),
        out: (&outputs.out).into(),
        last_m: named(&last, "m"),
        last_s: named(&last, "s"),
        kept: kept.map_or(0, pointer),
        scratch: pointer(&memory),
        scratch_stride: scratch as u64,
    };
    let grid = Grid { blocks: (layout.lanes(), 1, 1), threads: class.threads, shared };
    match (class.index, layout.spec.momentum) {
        (0, false) => device.launch(grid, &Scan16 { all }),
        (1, false) => device.launch(grid, &Scan32 { all }),
        (2, false) => device.launch(grid, &Scan64 { all }),
        (3, false) => device.launch(grid, &Scan128 { all }),
        (4, false) => device.launch(grid, &Scan256 { all }),
        (_, false) => device.launch(grid, &ScanAny { all }),
        (0, true) => device.launch(grid, &Scan16Momentum { all }),
        (1, true) => device.launch(grid, &Scan32Momentum { all }),
        (2, true) => device.launch(grid, &Scan64Momentum { all }),
        (3, true) => device.launch(grid, &Scan128Momentum { all }),
        (4, true) => device.launch(grid, &Scan256Momentum { all }),
        (_, true) => device.launch(grid, &ScanAnyMomentum { all }),
    }
}
