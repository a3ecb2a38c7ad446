//! The gradient of the memory, from the last chunk to the first: equations (23)–(25) and (30).

use super::{super::layout::LinearCall, tiles::Tiles};
use crate::{
    Cuda,
    arguments::{In, Out, arguments},
    launch::{Grid, Pointer, kernels},
    source::{KernelSource, kernel_source},
    streams::Streams,
};
use hecate_core::Result;

pub(crate) const SOURCE: KernelSource = kernel_source!("chunk_bf16_reverse", "reverse.cu");

arguments! {
    /// `struct Bf16Reverse` of `reverse.cuh`.
    pub(super) struct ReverseArguments {
        /// Inputs and sizes.
        pub(super) p: LinearCall,
        /// What was prepared, `[kept,H,READY]` words of 32 bits.
        pub(super) ready: In<u8>,
        /// `[rows,H,V]` of bfloat16.
        pub(super) dout: In<u16>,
        /// `dm`, `ds` of the final, `first_dm`, `first_ds` of the initial state: `[N,H,K,V]` in 32 bits.
        pub(super) dm: In<f32>,
        pub(super) ds: In<f32>,
        pub(super) first_dm: Out<f32>,
        pub(super) first_ds: Out<f32>,
        /// Gradients of the states after each chunk `[kept,H,1 + S]`, in tiles.
        pub(super) kept: Out<u16>,
        /// `Λ [rows,H,V]` of bfloat16.
        pub(super) solved: Out<u16>,
        /// `[rows,H,V]` of bfloat16.
        pub(super) dv: Out<u16>,
        /// `[segments]`: how many blocks are through each; null: nobody asks.
        pub(super) progress: Out<u32>,
        /// Chunks that lie in shared memory.
        pub(super) stages: u32,
        /// Chunks of a segment.
        pub(super) segment: u32,
    }
}

kernels! { SOURCE {
    "bf16_await" Await { counter: In<u32>, count: u32, unused: u32 }
    "bf16_reverse_64_2" Reverse64By2 { all: ReverseArguments }
    "bf16_reverse_64_4" Reverse64By4 { all: ReverseArguments }
    "bf16_reverse_128_2" Reverse128By2 { all: ReverseArguments }
    "bf16_reverse_128_4" Reverse128By4 { all: ReverseArguments }
    "bf16_reverse_128_8" Reverse128By8 { all: ReverseArguments }
    "bf16_reverse_256_2" Reverse256By2 { all: ReverseArguments }
    "bf16_reverse_64_2_momentum" Reverse64By2Momentum { all: ReverseArguments }
    "bf16_reverse_64_4_momentum" Reverse64By4Momentum { all: ReverseArguments }
    "bf16_reverse_128_2_momentum" Reverse128By2Momentum { all: ReverseArguments }
    "bf16_reverse_128_4_momentum" Reverse128By4Momentum { all: ReverseArguments }
} }

impl ReverseArguments {
    /// Queues the kernel for these tiles as a link of the chain.
    pub(super) fn launch(self, streams: &Streams<'_>, grid: Grid, tiles: &Tiles, momentum: bool) -> Result<()> {
        let all = self;
        match (tiles.keys, tiles.warps, momentum) {
            (64, 2, false) => streams.launch_link(grid, &Reverse64By2 { all }),
            (64, _, false) => streams.launch_link(grid, &Reverse64By4 { all }),
            (128, 2, false) => streams.launch_link(grid, &Reverse128By2 { all }),
            (128, 4, false) => streams.launch_link(grid, &Reverse128By4 { all }),
            (128, _, false) => streams.launch_link(grid, &Reverse128By8 { all }),
            (_, _, false) => streams.launch_link(grid, &Reverse256By2 { all }),
            (64, 2, true) => streams.launch_link(grid, &Reverse64By2Momentum { all }),
            (64, _, true) => streams.launch_link(grid, &Reverse64By4Momentum { all }),
            (_, 2, true) => streams.launch_link(grid, &Reverse128By2Momentum { all }),
            (_, _, true) => streams.launch_link(grid, &Reverse128By4Momentum { all }),
        }
    }
}

/// What is queued on the main stream next waits until `count` blocks of the chain counted `counter` up. The one thread that
/// waits leaves room for them; what comes next may not, but then they all run.
pub(super) fn await_blocks(device: &Cuda, counter: Pointer, count: u32) -> Result<()> {
    device.launch(Grid::blocks(1, 1), &Await { counter, count, unused: 0 })
}
