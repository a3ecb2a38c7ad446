//! Gradients of keys, queries and gates, of each chunk: equations (25)–(32).

use super::{super::layout::LinearCall, segments::Segment};
use crate::{
    Cuda,
    arguments::{In, InPlace, Out, arguments},
    launch::{Grid, kernels},
    source::{KernelSource, kernel_source},
};
use hecate_core::Result;

pub(crate) const SOURCE: KernelSource = kernel_source!("chunk_bf16_gradients", "gradients.cu");

arguments! {
    /// `struct Bf16Gradients` of `slabs.cuh`.
    pub(super) struct GradientsArguments {
        /// Inputs and sizes.
        pub(super) p: LinearCall,
        /// What was prepared, `[kept,H,READY]` words of 32 bits.
        pub(super) ready: In<u8>,
        /// States before each chunk, and gradients of those after `[kept,H,1 + S]`, in tiles.
        pub(super) kept: In<u16>,
        pub(super) kept_grads: In<u16>,
        /// `Z` and `Λ`, `[rows,H,V]` of bfloat16.
        pub(super) pseudo_values: In<u16>,
        pub(super) solved: In<u16>,
        /// `[rows,H,V]` of bfloat16.
        pub(super) dout: In<u16>,
        /// `dq` and `dk`, `[rows,H,K]` of bfloat16.
        pub(super) dq: Out<u16>,
        pub(super) dk: Out<u16>,
        /// Gradients of the gates `[rows,H]` in 32 bits; null where the rule has none.
        pub(super) log_a: Out<f32>,
        pub(super) log_eta: Out<f32>,
        pub(super) theta: Out<f32>,
        pub(super) beta: Out<f32>,
        /// Which chunks of every sequence.
        pub(super) of: InPlace<Segment>,
    }
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
