//! Attention of 16-bit arguments by groups of four warps (`wgmma`), on GPUs of exactly capability 9.0: calls without a
//! cache, with `d` and `dv` up to 128. What it computes is what [`tiles`](super::tiles) does; gradients of a prefix are made there.
//!
//! As in FlashAttention-3 (Shah et al., 2024), a block has three groups. One has tiles copied to shared memory ahead; two
//! multiply, 64 queries or keys each, so that one makes weights while the other has the tensor cores. Blocks are as many as
//! multiprocessors. They take jobs off a counter, so that copies for the next job pass while the last one ends.
//!
//! One thread asks for a full tile by bulk copies of boxes (`bulk.rs`). Tiles at the end of a sequence, of a prefix, and of heads
//! that do not fill one are copied by all threads of their group, with zeros where there is nothing.
//!
//! Gradients of queries and of keys are of two kernels, seven products in place of five: so nothing is added up by several
//! blocks, whose order would be another each time.

use super::{AttentionCall, Forward, KeyGrads, QueryGrads};
use crate::{
    Cuda,
    arguments::arguments,
    bulk::BulkMap,
    launch::{Array, Grid, kernels},
    source::{KernelSource, kernel_source},
};
use hecate_core::Result;

pub(crate) const FORWARD: KernelSource = kernel_source!("attention_groups_forward", "forward_groups.cu");
pub(crate) const QUERIES: KernelSource = kernel_source!("attention_groups_queries", "queries_groups.cu");
pub(crate) const KEYS: KernelSource = kernel_source!("attention_groups_keys", "keys_groups.cu");

kernels! { FORWARD {
    "attention_groups_forward_64_bf16" Forward64Bf16 { maps: Maps, args: Forward }
    "attention_groups_forward_64_f16" Forward64F16 { maps: Maps, args: Forward }
    "attention_groups_forward_128_bf16" Forward128Bf16 { maps: Maps, args: Forward }
    "attention_groups_forward_128_f16" Forward128F16 { maps: Maps, args: Forward }
} }
kernels! { QUERIES {
    "attention_groups_dq_64_bf16" Queries64Bf16 { maps: Maps, args: QueryGrads }
    "attention_groups_dq_64_f16" Queries64F16 { maps: Maps, args: QueryGrads }
    "attention_groups_dq_128_bf16" Queries128Bf16 { maps: Maps, args: QueryGrads }
    "attention_groups_dq_128_f16" Queries128F16 { maps: Maps, args: QueryGrads }
} }
kernels! { KEYS {
    "attention_groups_dkv_64_bf16" Keys64Bf16 { maps: Maps, args: KeyGrads }
    "attention_groups_dkv_64_f16" Keys64F16 { maps: Maps, args: KeyGrads }
    "attention_groups_dkv_128_bf16" Keys128Bf16 { maps: Maps, args: KeyGrads }
    "attention_groups_dkv_128_f16" Keys128F16 { maps: Maps, args: KeyGrads }
} }

arguments! {
    /// The arrays of a call in boxes of a tile's rows; `Maps` in the kernels.
    struct Maps {
        /// `[rows, Hq, ·]`, in tiles of queries, each of heads that share keys.
        q: BulkMap,
        dy: BulkMap,
        /// `[rows, Hkv, ·]`.
        k: BulkMap,
        v: BulkMap,
        /// Whether there are those of `q` and `dy`: heads that share keys fill tiles.
        boxed: u32,
    }
}

impl Maps {
    /// Of a call with so many rows of tokens, in tiles of so many units and keys. `dy` is none's in the forward.
    fn new(call: &AttentionCall, dy: Option<Array>, rows: usize, [units, keys]: [usize; 2]) -> Result<Self> {
        let [query_heads, heads, key, value] =
            [call.query_heads, call.heads, call.key, call.value].map(|size| size as usize);
        let share = query_heads / heads;
        // A tile is whole tokens, and a box of as many as it has.
        let boxed = share.is_power_of_two() && share <= units;
        let of_units = |x: Option<Array>, width| match x {
            Some(x) if boxed => BulkMap::new(x, [rows, query_heads, width], [units / share, share]),
            _ => Ok(BulkMap::NONE),
        };
        Ok(Self {
            // As wide as their rows: kernels ask for more columns, and get zeros.
            q: of_units(Some(call.q), key)?,
            dy: of_units(dy, value)?,
            k: BulkMap::new(call.k, [rows, heads, key], [keys, 1])?,
            v: BulkMap::new(call.v, [rows, heads, value], [keys, 1])?,
            boxed: boxed.into(),
        })
    }
}

/// Queries, or keys, of a block.
pub(super) const TILE: usize = 128;

/// Keys, or queries, of a tile that passes a block of the backward.
const PASSED: usize = 64;

/// Threads of a block.
const THREADS: u32 = 384;

/// Bytes of a block's shared memory beside tiles, at most.
const BESIDE: usize = 2048;

/// Whether there are kernels for this call, whose rows have at most `width` elements.
pub(super) fn exist(device: &Cuda, width: usize) -> bool {
    device.groups() && width <= 128 && shared(width) <= device.properties().shared_memory
}

/// Bytes of shared memory, for the rows of tiles of the kernel that has most.
fn shared(width: usize) -> usize {
    // Narrow tiles are more at a time.
    let rows = if width == 64 { 1280 } else { 768 };
    2 * rows * width + BESIDE
}

/// As many of these blocks as run at once.
fn grid(device: &Cuda, blocks: Grid, width: usize) -> Grid {
    let count = blocks.blocks.0.min(device.properties().multiprocessors as usize);
    Grid { shared: shared(width), ..Grid::blocks(count, THREADS) }
}

/// Starts the kernel of the width and type.
macro_rules! launch {
    ($device:ident, $width:ident, $blocks:ident, [$a:ident, $b:ident, $c:ident, $d:ident], $maps:ident, $args:ident) => {{
        let (grid, maps, args) = (grid($device, $blocks, $width), $maps, $args);
        match ($width, args.call.q.dtype) {
            (64, 1) => $device.launch(grid, &$a { maps, args }),
            (64, _) => $device.launch(grid, &$b { maps, args }),
            (_, 1) => $device.launch(grid, &$c { maps, args }),
            _ => $device.launch(grid, &$d { maps, args }),
        }
    }};
}

/// A grid for rows of at most so many elements, of which the arrays have so many.
type Sizes = (Grid, usize, usize);

/// `y` and `lse`; a job has [`TILE`] queries.
pub(super) fn forward(device: &Cuda, (blocks, width, rows): Sizes, args: Forward) -> Result<()> {
    let maps = Maps::new(&args.call, None, rows, [TILE, TILE])?;
    launch!(device, width, blocks, [Forward64Bf16, Forward64F16, Forward128Bf16, Forward128F16], maps, args)
}

/// `dq`; a job has [`TILE`] queries.
pub(super) fn query_grads(device: &Cuda, (blocks, width, rows): Sizes, args: QueryGrads) -> Result<()> {
    let maps = Maps::new(&args.call, Some(args.dy), rows, [TILE, PASSED])?;
    launch!(device, width, blocks, [Queries64Bf16, Queries64F16, Queries128Bf16, Queries128F16], maps, args)
}

/// `dk` and `dv`; a job has [`TILE`] keys.
pub(super) fn key_grads(device: &Cuda, (blocks, width, rows): Sizes, args: KeyGrads) -> Result<()> {
    let maps = Maps::new(&args.call, Some(args.dy), rows, [PASSED, TILE])?;
    launch!(device, width, blocks, [Keys64Bf16, Keys64F16, Keys128Bf16, Keys128F16], maps, args)
}
