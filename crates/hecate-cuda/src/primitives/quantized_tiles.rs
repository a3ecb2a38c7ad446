//! Products of many rows with quantized matrices on tensor cores: weights are decoded into shared memory, tile by tile.

use super::quantized::QuantizedProduct;
use crate::{
    Cuda,
    launch::{Grid, kernels},
    source::{KernelSource, kernel_source},
};
use hecate_core::{DType, Result};

pub(crate) const SOURCE: KernelSource = kernel_source!("quantized_tiles", "quantized_tiles.cu");

kernels! { SOURCE {
    "quantized_tiles_f32" NarrowF32 { product: QuantizedProduct }
    "quantized_tiles_bf16" NarrowBf16 { product: QuantizedProduct }
    "quantized_tiles_f16" NarrowF16 { product: QuantizedProduct }
    "quantized_tiles_wide_f32" WideF32 { product: QuantizedProduct }
    "quantized_tiles_wide_bf16" WideBf16 { product: QuantizedProduct }
    "quantized_tiles_wide_f16" WideF16 { product: QuantizedProduct }
} }

/// Threads of a block.
const THREADS: u32 = 256;

/// Rows and columns of a tile, and words of a row of a stage; `Shape` in the kernels.
struct Tile {
    rows: usize,
    columns: usize,
    deep: usize,
}

impl Tile {
    /// Of the kernels for few tiles.
    const NARROW: Self = Self { rows: 64, columns: 32, deep: 64 };

    /// Of those for many.
    fn wide(dtype: DType) -> Self {
        Self { rows: 128, columns: if dtype == DType::F32 { 64 } else { 128 }, deep: 32 }
    }

    fn count(&self, rows: usize, columns: usize) -> usize {
        rows.div_ceil(self.rows) * columns.div_ceil(self.columns)
    }

    /// A block a tile, with three stages of `x` and two of weights.
    fn grid(&self, rows: usize, columns: usize) -> Grid {
        let shared = 4 * (3 * self.rows + 2 * self.columns) * (self.deep + 4);
        Grid { shared, ..Grid::blocks(self.count(rows, columns), THREADS) }
    }
}

/// Whether there are kernels for this GPU: copies that a block does not wait for, and tensor cores of these types.
pub(super) fn exist(device: &Cuda) -> bool {
    device.properties().capability.0 >= 8
}

/// `y = x Wᵀ`, all of `x`'s type.
pub(super) fn launch(device: &Cuda, dtype: DType, product: QuantizedProduct) -> Result<()> {
    let (rows, columns) = (product.rows as usize, product.columns as usize);
    let wide = Tile::wide(dtype);
    // Large tiles where each multiprocessor has one.
    if wide.count(rows, columns) >= device.properties().multiprocessors as usize {
        let grid = wide.grid(rows, columns);
        return match dtype {
            DType::Bf16 => device.launch(grid, &WideBf16 { product }),
            DType::F16 => device.launch(grid, &WideF16 { product }),
            _ => device.launch(grid, &WideF32 { product }),
        };
    }
    let grid = Tile::NARROW.grid(rows, columns);
    match dtype {
        DType::Bf16 => device.launch(grid, &NarrowBf16 { product }),
        DType::F16 => device.launch(grid, &NarrowF16 { product }),
        _ => device.launch(grid, &NarrowF32 { product }),
    }
}
