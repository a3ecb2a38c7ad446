//! Products of tens of rows with quantized matrices on tensor cores: weights are decoded into shared memory, tile by tile.

use super::quantized::QuantizedProduct;
use crate::{
    Cuda,
    launch::{Grid, kernels},
    source::{KernelSource, kernel_source},
};
use hecate_core::{DType, Result};

/// `x @ decode(w).T` of tens of rows: a tile of weights is decoded once for all of them.
pub(crate) const SOURCE: KernelSource = kernel_source!("quantized_tiles", "quantized_tiles.cu");

kernels! { SOURCE {
    "quantized_tiles_f32" TilesF32 { product: QuantizedProduct }
    "quantized_tiles_bf16" TilesBf16 { product: QuantizedProduct }
    "quantized_tiles_f16" TilesF16 { product: QuantizedProduct }
} }

/// Rows and columns of a tile, and threads that make one.
// `ROWS`, `COLUMNS` and `GROUP * GROUPS` in the kernels.
const TILE: [usize; 2] = [64, 32];
const THREADS: u32 = 512;

/// Bytes of shared memory: for each of two groups of threads three stages of `x` and two of weights, 68 words a row.
const SHARED: usize = 2 * (3 * TILE[0] + 2 * TILE[1]) * 68 * 4;

/// Whether so many rows go by tiles: a tile has them all, so that weights are decoded once. For more, decoding the matrix first
/// is as fast, and its product then runs at the rate of dense ones.
// Copies that a block does not wait for, and tensor cores of all these types, came with 8.0.
pub(super) fn exist(device: &Cuda, rows: usize) -> bool {
    let properties = device.properties();
    rows <= TILE[0] && properties.capability.0 >= 8 && SHARED <= properties.shared_memory
}

/// `y = x Wᵀ`, all of `x`'s type.
pub(super) fn launch(device: &Cuda, dtype: DType, product: QuantizedProduct) -> Result<()> {
    let tiles = (product.rows as usize).div_ceil(TILE[0]) * (product.columns as usize).div_ceil(TILE[1]);
    let grid = Grid { shared: SHARED, ..Grid::blocks(tiles, THREADS) };
    match dtype {
        DType::Bf16 => device.launch(grid, &TilesBf16 { product }),
        DType::F16 => device.launch(grid, &TilesF16 { product }),
        _ => device.launch(grid, &TilesF32 { product }),
    }
}
