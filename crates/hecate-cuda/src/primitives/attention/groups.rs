//! Attention of 16-bit arguments by groups of four warps (`wgmma`), on GPUs of exactly capability 9.0: calls without a
//! cache, with `d` and `dv` up to 128. What it computes is what [`tiles`](super::tiles) does; gradients of a prefix are made there.
//!
//! As in FlashAttention-3 (Shah et al., 2024), a block has three groups. One copies tiles to shared memory ahead; two
//! multiply, 64 queries or keys each, so that one makes weights while the other has the tensor cores. Blocks are as many as
//! multiprocessors. They take jobs off a counter, so that copies for the next job pass while the last one ends.
//!
//! Gradients of queries and of keys are of two kernels, seven products in place of five: so nothing is added up by several
//! blocks, whose order would be another each time.

use super::{Forward, KeyGrads, QueryGrads};
use crate::{
    Cuda,
    launch::{Grid, kernels},
    source::{KernelSource, kernel_source},
};
use hecate_core::Result;

pub(crate) const FORWARD: KernelSource = kernel_source!("attention_groups_forward", "forward_groups.cu");
pub(crate) const QUERIES: KernelSource = kernel_source!("attention_groups_queries", "queries_groups.cu");
pub(crate) const KEYS: KernelSource = kernel_source!("attention_groups_keys", "keys_groups.cu");

kernels! { FORWARD {
    "attention_groups_forward_64_bf16" Forward64Bf16 { arguments: Forward }
    "attention_groups_forward_64_f16" Forward64F16 { arguments: Forward }
    "attention_groups_forward_128_bf16" Forward128Bf16 { arguments: Forward }
    "attention_groups_forward_128_f16" Forward128F16 { arguments: Forward }
} }
kernels! { QUERIES {
    "attention_groups_dq_64_bf16" Queries64Bf16 { arguments: QueryGrads }
    "attention_groups_dq_64_f16" Queries64F16 { arguments: QueryGrads }
    "attention_groups_dq_128_bf16" Queries128Bf16 { arguments: QueryGrads }
    "attention_groups_dq_128_f16" Queries128F16 { arguments: QueryGrads }
} }
kernels! { KEYS {
    "attention_groups_dkv_64_bf16" Keys64Bf16 { arguments: KeyGrads }
    "attention_groups_dkv_64_f16" Keys64F16 { arguments: KeyGrads }
    "attention_groups_dkv_128_bf16" Keys128Bf16 { arguments: KeyGrads }
    "attention_groups_dkv_128_f16" Keys128F16 { arguments: KeyGrads }
} }

/// Queries, or keys, of a block.
pub(super) const TILE: usize = 128;

/// Threads of a block.
const THREADS: u32 = 384;

/// Rows of tiles in a block's shared memory, of every kernel, and bytes beside them at most.
const ROWS: usize = 768;
const BESIDE: usize = 2048;

/// Whether there are kernels for this call, whose rows have at most `width` elements.
pub(super) fn exist(device: &Cuda, width: usize) -> bool {
    device.groups() && width <= 128 && shared(width) <= device.properties().shared_memory
}

/// Bytes of shared memory.
fn shared(width: usize) -> usize {
    2 * ROWS * width + BESIDE
}

/// As many of these blocks as run at once.
fn grid(device: &Cuda, blocks: Grid, width: usize) -> Grid {
    let count = blocks.blocks.0.min(device.properties().multiprocessors as usize);
    Grid { shared: shared(width), ..Grid::blocks(count, THREADS) }
}

/// Starts the kernel of the width and type.
macro_rules! launch {
    ($device:ident, $width:ident, $blocks:ident, [$a:ident, $b:ident, $c:ident, $d:ident], $arguments:ident) => {{
        let grid = grid($device, $blocks, $width);
        match ($width, $arguments.call.q.dtype) {
            (64, 1) => $device.launch(grid, &$a { $arguments }),
            (64, _) => $device.launch(grid, &$b { $arguments }),
            (_, 1) => $device.launch(grid, &$c { $arguments }),
            _ => $device.launch(grid, &$d { $arguments }),
        }
    }};
}

/// `y` and `lse`; a job has [`TILE`] queries.
pub(super) fn forward(device: &Cuda, width: usize, blocks: Grid, arguments: Forward) -> Result<()> {
    launch!(device, width, blocks, [Forward64Bf16, Forward64F16, Forward128Bf16, Forward128F16], arguments)
}

/// `dq`; a job has [`TILE`] queries.
pub(super) fn query_grads(device: &Cuda, width: usize, blocks: Grid, arguments: QueryGrads) -> Result<()> {
    launch!(device, width, blocks, [Queries64Bf16, Queries64F16, Queries128Bf16, Queries128F16], arguments)
}

/// `dk` and `dv`; a job has [`TILE`] keys.
pub(super) fn key_grads(device: &Cuda, width: usize, blocks: Grid, arguments: KeyGrads) -> Result<()> {
    launch!(device, width, blocks, [Keys64Bf16, Keys64F16, Keys128Bf16, Keys128F16], arguments)
}
