//! Attention of 16-bit arguments on the tensor cores, by warps (`mma.sync`): every call whose `d` and `dv` are multiples of 8
//! up to 256, on GPUs of capability 8.0 and later.
//!
//! As in FlashAttention-2 (Dao, 2023): sums and the softmax have 32 bits. The weights `P` and `dS` have the arguments' 16 where
//! they are factors. `D = dy·y` is of the `y` that was kept, and made before the gradients.
//!
//! A block has four warps of 16 queries, or keys, each. Whoever is read by all, the other side's tiles, passes through shared
//! memory. Rows are found by a table of addresses, so that cache, prefix and tokens are one sequence of keys. Where there are
//! fewer blocks than fill the GPU, as for a token after a long cache, several share the keys of a tile of queries.

use super::{Forward, KeyGrads, QueryGrads, TILE};
use crate::{
    Cuda,
    arguments::Out,
    launch::{Array, Grid, kernels, pointer},
    source::{KernelSource, kernel_source},
};
use hecate_core::{DType, Result, Tensor, primitives::AttentionDims};

pub(crate) const FORWARD: KernelSource = kernel_source!("attention_tiles_forward", "forward.cu");
pub(crate) const QUERIES: KernelSource = kernel_source!("attention_tiles_queries", "queries.cu");
pub(crate) const KEYS: KernelSource = kernel_source!("attention_tiles_keys", "keys.cu");

kernels! { FORWARD {
    "attention_tiles_forward_64" Forward64 { arguments: Forward }
    "attention_tiles_forward_128" Forward128 { arguments: Forward }
    "attention_tiles_forward_256" Forward256 { arguments: Forward }
} }
kernels! { QUERIES {
    "attention_along" Along { y: Array, dy: Array, along: Out<f32>, rows: u64, value: i32 }
    "attention_tiles_dq_64" Queries64 { arguments: QueryGrads }
    "attention_tiles_dq_128" Queries128 { arguments: QueryGrads }
    "attention_tiles_dq_256" Queries256 { arguments: QueryGrads }
} }
kernels! { KEYS {
    "attention_tiles_dkv_64" Keys64 { arguments: KeyGrads }
    "attention_tiles_dkv_128" Keys128 { arguments: KeyGrads }
    "attention_tiles_dkv_256" Keys256 { arguments: KeyGrads }
    "attention_tiles_dprefix_64" Prefix64 { arguments: KeyGrads }
    "attention_tiles_dprefix_128" Prefix128 { arguments: KeyGrads }
    "attention_tiles_dprefix_256" Prefix256 { arguments: KeyGrads }
} }

/// Threads of a block.
const THREADS: u32 = 128;

/// Most shared memory that a block takes: GPUs of capability 8.6 have so much.
const SHARED: usize = 99 << 10;

/// Columns of the kernels that take this call; none where they do not.
pub(super) fn width(device: &Cuda, dims: &AttentionDims, dtype: DType) -> Option<usize> {
    let properties = device.properties();
    let sound = properties.capability.0 >= 8 && properties.shared_memory >= SHARED;
    // Weights are relative to the largest score, times the scale only after that is found.
    let narrow = matches!(dtype, DType::Bf16 | DType::F16) && dims.options.scale > 0.0;
    let whole = [dims.key, dims.value].iter().all(|&width| width > 0 && width.is_multiple_of(8));
    let width = [64, 128, 256].into_iter().find(|&width| dims.key.max(dims.value) <= width);
    width.filter(|_| sound && narrow && whole)
}

/// Starts the kernel of the width.
macro_rules! launch {
    ($device:ident, $width:ident, $grid:expr, [$narrow:ident, $middle:ident, $wide:ident], $arguments:ident) => {
        match $width {
            64 => $device.launch($grid, &$narrow { $arguments }),
            128 => $device.launch($grid, &$middle { $arguments }),
            _ => $device.launch($grid, &$wide { $arguments }),
        }
    };
}

/// The grid with shared memory for tiles of so many rows altogether, each of `width` elements of 16 bits, and for `table` bytes.
fn grid(grid: Grid, width: usize, rows: usize, table: usize) -> Grid {
    Grid { threads: THREADS, shared: 2 * rows * width + table, ..grid }
}

/// Bytes of a table for one key, and for one query in the backward of keys.
const KEY: usize = 24;
const UNIT: usize = 28;

/// `y` and `lse`; a block has [`TILE`] queries.
pub(super) fn forward(device: &Cuda, width: usize, blocks: Grid, arguments: Forward) -> Result<()> {
    let keys = if width > 128 { 32 } else { 64 };
    // Queries, keys, values; two tables of keys, one of queries.
    let grid = grid(blocks, width, TILE + 2 * keys, 2 * keys * KEY + 8 * TILE);
    launch!(device, width, grid, [Forward64, Forward128, Forward256], arguments)
}

/// `D [rows, Hq]`.
pub(super) fn along(device: &Cuda, y: &Tensor<Cuda>, dy: &Tensor<Cuda>, along: &Tensor<Cuda>) -> Result<()> {
    let value = y.shape().axes()[3];
    let rows = along.shape().count();
    let arguments = Along { y: y.into(), dy: dy.into(), along: pointer(along), rows: rows as u64, value: value as i32 };
    // Eight threads a row.
    device.launch(Grid::blocks(rows.div_ceil(32), 256), &arguments)
}

/// `dq`; a block has [`TILE`] queries.
pub(super) fn query_grads(device: &Cuda, width: usize, blocks: Grid, arguments: QueryGrads) -> Result<()> {
    let keys = if width > 64 { 32 } else { 64 };
    let grid = grid(blocks, width, 2 * TILE + 2 * keys, 2 * keys * KEY + 16 * TILE);
    launch!(device, width, grid, [Queries64, Queries128, Queries256], arguments)
}

/// Shared memory of the kernels of keys.
fn key_grid(blocks: Grid, width: usize) -> Grid {
    let units = if width > 64 { 32 } else { 64 };
    // The next tile of queries is copied meanwhile where there is space for it.
    let stages = if width > 128 { 1 } else { 2 };
    grid(blocks, width, 2 * TILE + 2 * stages * units, TILE * KEY + stages * units * UNIT)
}

/// `dk` and `dv`; a block has [`TILE`] keys.
pub(super) fn key_grads(device: &Cuda, width: usize, blocks: Grid, arguments: KeyGrads) -> Result<()> {
    launch!(device, width, key_grid(blocks, width), [Keys64, Keys128, Keys256], arguments)
}

/// Parts of the prefix's gradients; a block has a segment of queries.
pub(super) fn prefix_grads(device: &Cuda, width: usize, blocks: Grid, arguments: KeyGrads) -> Result<()> {
    launch!(device, width, key_grid(blocks, width), [Prefix64, Prefix128, Prefix256], arguments)
}
