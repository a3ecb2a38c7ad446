//! From chunk to chunk, forward: equations (19)–(22).

use super::{super::layout::LinearCall, tiles::Tiles};
use crate::{
    arguments::{In, Out, arguments},
    launch::{Grid, kernels},
    source::{KernelSource, kernel_source},
    streams::Streams,
};
use hecate_core::Result;

/// `out` and the memory after each chunk, one chunk after another for columns of a head.
pub(crate) const SOURCE: KernelSource = kernel_source!("chunk_bf16_forward", "forward.cu");

arguments! {
    /// `struct Bf16Forward` of `forward.cuh`.
    pub(super) struct ForwardArguments {
        /// Inputs and sizes.
        pub(super) p: LinearCall,
        /// What was prepared, `[kept,H,READY]` words of 32 bits.
        pub(super) ready: In<u8>,
        /// `m`, `s`, `last_m`, `last_s`: `[N,H,K,V]` in 32 bits; `s` and `last_s` are null without momentum.
        pub(super) m: In<f32>,
        pub(super) s: In<f32>,
        /// `[rows,H,V]` of bfloat16.
        pub(super) out: Out<u16>,
        pub(super) last_m: Out<f32>,
        pub(super) last_s: Out<f32>,
        /// States before each chunk `[kept,H,1 + S]`, in tiles; null: none.
        pub(super) kept: Out<u16>,
        /// `Z [rows,H,V]` of bfloat16; null where `kept` is.
        pub(super) pseudo_values: Out<u16>,
        /// Which chunks of every sequence: the first of them, and how many.
        pub(super) begin: u32,
        pub(super) chunks: u32,
    }
}

kernels! { SOURCE {
    // The first number is the width of tiles of keys, the second the pairs of warps of a block.
    "bf16_64_2" Forward64By2 { all: ForwardArguments }
    "bf16_64_4" Forward64By4 { all: ForwardArguments }
    "bf16_128_2" Forward128By2 { all: ForwardArguments }
    "bf16_128_4" Forward128By4 { all: ForwardArguments }
    "bf16_256_2" Forward256By2 { all: ForwardArguments }
    "bf16_64_2_momentum" Forward64By2Momentum { all: ForwardArguments }
    "bf16_64_4_momentum" Forward64By4Momentum { all: ForwardArguments }
    "bf16_128_2_momentum" Forward128By2Momentum { all: ForwardArguments }
    "bf16_128_4_momentum" Forward128By4Momentum { all: ForwardArguments }
} }

impl ForwardArguments {
    /// Queues the kernel for these tiles as a link of the chain.
    /// What is compiled in are sizes of registers: the memory of a block stays there from the first chunk to the last.
    pub(super) fn launch(self, streams: &Streams<'_>, grid: Grid, tiles: &Tiles, momentum: bool) -> Result<()> {
        let all = self;
        match (tiles.keys, tiles.pairs, momentum) {
            (64, 2, false) => streams.launch_link(grid, &Forward64By2 { all }),
            (64, _, false) => streams.launch_link(grid, &Forward64By4 { all }),
            (128, 2, false) => streams.launch_link(grid, &Forward128By2 { all }),
            (128, _, false) => streams.launch_link(grid, &Forward128By4 { all }),
            (_, _, false) => streams.launch_link(grid, &Forward256By2 { all }),
            (64, 2, true) => streams.launch_link(grid, &Forward64By2Momentum { all }),
            (64, _, true) => streams.launch_link(grid, &Forward64By4Momentum { all }),
            (_, 2, true) => streams.launch_link(grid, &Forward128By2Momentum { all }),
            (_, _, true) => streams.launch_link(grid, &Forward128By4Momentum { all }),
        }
    }
}
