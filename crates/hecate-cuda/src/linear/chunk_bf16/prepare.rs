//! What depends on keys, queries and gates only, of each chunk: equations (15)–(18).

use super::{super::layout::LinearCall, segments::Segment};
use crate::{
    Cuda,
    arguments::{InPlace, Out, arguments},
    launch::{Grid, kernels},
    source::{KernelSource, kernel_source},
};
use hecate_core::Result;

/// `k kᵀ` and `q kᵀ` with decays, and the solved triangle, for each chunk and head.
pub(crate) const SOURCE: KernelSource = kernel_source!("chunk_bf16_prepare", "prepare.cu");

arguments! {
    /// `struct Bf16Prepare` of `prepare.cu`.
    pub(super) struct PrepareArguments {
        /// Inputs and sizes.
        pub(super) p: LinearCall,
        /// `[kept,H,READY]` words of 32 bits.
        pub(super) ready: Out<u8>,
        /// Which chunks of every sequence.
        pub(super) of: InPlace<Segment>,
    }
}

kernels! { SOURCE {
    // The number is the width of tiles of keys, to which `K` is filled up with zeros.
    "bf16_prepare_64" Prepare64 { all: PrepareArguments }
    "bf16_prepare_128" Prepare128 { all: PrepareArguments }
    "bf16_prepare_256" Prepare256 { all: PrepareArguments }
    "bf16_prepare_64_momentum" Prepare64Momentum { all: PrepareArguments }
    "bf16_prepare_128_momentum" Prepare128Momentum { all: PrepareArguments }
} }

impl PrepareArguments {
    /// Queues the kernel for tiles of `keys` columns.
    /// A block has a chunk of a head, so that all of them run at once: none needs the memory.
    pub(super) fn launch(self, device: &Cuda, grid: Grid, keys: usize, momentum: bool) -> Result<()> {
        let all = self;
        match (keys, momentum) {
            (64, false) => device.launch(grid, &Prepare64 { all }),
            (64, true) => device.launch(grid, &Prepare64Momentum { all }),
            (128, false) => device.launch(grid, &Prepare128 { all }),
            (128, true) => device.launch(grid, &Prepare128Momentum { all }),
            _ => device.launch(grid, &Prepare256 { all }),
        }
    }
}
