//! The gradient of the memory, token by token in reverse.

use super::{
    layout::{Call, Layout},
    named,
};
use crate::{
    Cuda,
    launch::{Array, Grid, Pointer, Source, kernels, pointer, source},
};
use hecate_core::{DType, Inputs, Outputs, Result, Rule, Slots, Tensor};

pub(crate) const SOURCE: Source = source!("scan_reverse", "scan_reverse.cu");

/// `struct Reverse` of `scan_reverse.cu`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct Arguments {
    call: Call,
    dout: Array,
    dm: Pointer,
    ds: Pointer,
    first_dm: Pointer,
    first_ds: Pointer,
    kept: Pointer,
    scratch: Pointer,
    scratch_stride: u64,
}

kernels! { SOURCE {
    "scan_reverse_16" Reverse16 { all: Arguments }
    "scan_reverse_32" Reverse32 { all: Arguments }
    "scan_reverse_64" Reverse64 { all: Arguments }
    "scan_reverse_128" Reverse128 { all: Arguments }
    "scan_reverse_256" Reverse256 { all: Arguments }
    "scan_reverse_any" ReverseAny { all: Arguments }
    "scan_reverse_16_momentum" Reverse16Momentum { all: Arguments }
    "scan_reverse_32_momentum" Reverse32Momentum { all: Arguments }
    "scan_reverse_64_momentum" Reverse64Momentum { all: Arguments }
    "scan_reverse_128_momentum" Reverse128Momentum { all: Arguments }
    "scan_reverse_256_momentum" Reverse256Momentum { all: Arguments }
    "scan_reverse_any_momentum" ReverseAnyMomentum { all: Arguments }
} }

/// Writes the gradient of the initial state, and returns those of `M`, `S` and `M_c` behind each span between kept states.
pub(super) fn run<R: Rule>(
    device: &Cuda,
    layout: &Layout<'_>,
    inputs: &Inputs<R, Tensor<Cuda>>,
    grads: &Outputs<R, Tensor<Cuda>>,
    dinputs: &Inputs<R, Tensor<Cuda>>,
) -> Result<Tensor<Cuda>> {
    let class = layout.class;
    let numbers = class.forward_scratch(layout.spec);
    let (shared, scratch) = if class.is_any() { (0, numbers) } else { (4 * numbers, 0) };
    let memory = device.empty([layout.lanes() * scratch], DType::F32)?;
    let kept = device.empty([layout.kept_elements(layout.spec.records())], DType::F32)?;
    let (last, first) = (R::State::list(&grads.state), R::State::list(&dinputs.state));
    let all = Arguments {
        call: layout.call(inputs),
        dout: (&grads.out).into(),
        dm: named(&last, "m"),
        ds: named(&last, "s"),
        first_dm: named(&first, "m"),
        first_ds: named(&first, "s"),
        kept: pointer(&kept),
        scratch: pointer(&memory),
        scratch_stride: scratch as u64,
    };
    let grid = Grid { blocks: (layout.lanes(), 1, 1), threads: class.threads, shared };
    match (class.index, layout.spec.momentum) {
        (0, false) => device.launch(grid, &Reverse16 { all }),
        (1, false) => device.launch(grid, &Reverse32 { all }),
        (2, false) => device.launch(grid, &Reverse64 { all }),
        (3, false) => device.launch(grid, &Reverse128 { all }),
        (4, false) => device.launch(grid, &Reverse256 { all }),
        (_, false) => device.launch(grid, &ReverseAny { all }),
        (0, true) => device.launch(grid, &Reverse16Momentum { all }),
        (1, true) => device.launch(grid, &Reverse32Momentum { all }),
        (2, true) => device.launch(grid, &Reverse64Momentum { all }),
        (3, true) => device.launch(grid, &Reverse128Momentum { all }),
        (4, true) => device.launch(grid, &Reverse256Momentum { all }),
        (_, true) => device.launch(grid, &ReverseAnyMomentum { all }),
    }?;
    Ok(kept)
}
