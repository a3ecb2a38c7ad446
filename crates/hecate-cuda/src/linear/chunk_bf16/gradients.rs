//! Gradients of keys, queries and gates, of each chunk: equations (25)–(32).

use super::{super::layout::LinearCall, segments::Segment};
use crate::{
    Cuda,
    launch::{Grid, Pointer, kernels},
    source::{KernelSource, kernel_source},
};
use hecate_core::Result;

pub(crate) const SOURCE: KernelSource = kernel_source!("chunk_bf16_gradients", "gradients.cu");

/// `struct Bf16Gradients` of `slabs.cuh`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct GradientsArguments {
    /// Inputs and sizes.
    pub(super) call: LinearCall,
    /// What was prepared, `[kept,H,READY]` words of 32 bits.
    pub(super) ready: Pointer,
    /// States before each chunk, and gradients of those after `[kept,H,1 + S]`, in tiles.
    pub(super) kept: Pointer,
    pub(super) kept_grads: Pointer,
    /// `Z` and `Λ`, `[rows,H,V]` of bfloat16.
    pub(super) pseudo_values: Pointer,
    pub(super) solved: Pointer,
    /// `[rows,H,V]` of bfloat16.
    pub(super) dout: Pointer,
    /// `dq` and `dk`, `[rows,H,K]` of bfloat16.
    pub(super) dq: Pointer,
    pub(super) dk: Pointer,
    /// Gradients of the gates `[rows,H]` in 32 bits; null where the rule has none.
    pub(super) log_a: Pointer,
    pub(super) log_eta: Pointer,
    pub(super) theta: Pointer,
    pub(super) beta: Pointer,
    /// Which chunks of every sequence.
    pub(super) of: Segment,
}

kernels! { SOURCE {
    "bf16_gradients_64" Gradients64 { all: GradientsArguments }
    "bf16_gradients_128" Gradients128 { all: GradientsArguments }
    "bf16_gradients_256" Gradients256 { all: GradientsArguments }
    "bf16_gradients_64_momentum" Gradients64Momentum { all: GradientsArguments }
    "bf16_gradients_128_momentum" Gradients128Momentum { all: GradientsArguments }
} }

impl GradientsArguments {
    /// Queues the kernel for tiles of `keys` columns.
    pub(super) fn launch(self, device: &Cuda, grid: Grid, keys: usize, momentum: bool) -> Result<()> {
        let all = self;
        match (keys, momentum) {
            (64, false) => device.launch(grid, &Gradients64 { all }),
            (64, true) => device.launch(grid, &Gradients64Momentum { all }),
            (256, false) => device.launch(grid, &Gradients256 { all }),
            (_, false) => device.launch(grid, &Gradients128 { all }),
            (_, true) => device.launch(grid, &Gradients128Momentum { all }),
        }
    }
}
