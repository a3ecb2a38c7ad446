//! Rows of a table, by number.

use crate::{
    Cuda,
    arguments::{In, Out, arguments},
    device::Buffer,
    launch::{Array, Grid, Pointer, kernels, pointer},
    source::{KernelSource, kernel_source},
};
use hecate_core::{Checked, DType, Result, Tensor, primitives::Embedding};

/// `table[ids]`, and `torch.zeros_like(table).index_add_(0, ids, dy)` in a fixed order of positions.
pub(crate) const SOURCE: KernelSource = kernel_source!("embedding", "embedding.cu");

arguments! {
    /// What the sums of the backward take; `GatherBackward` in the kernels.
    struct Sums {
        /// `[count, width]`.
        dy: Array,
        /// `[vocabulary, width]`.
        dtable: Array,
        /// Ids in ascending order, `[count]`.
        keys: In<u32>,
        /// Positions by id, `[count]`.
        order: In<u32>,
        /// First place of each id among them, `[vocabulary + 1]`.
        starts: In<u32>,
        /// `[count / PIECE, width]` in 64 bits.
        pieces: Out<f64>,
        width: u64,
        /// 1 where runs of 16 bytes divide the width.
        wide: u32,
    }
}

arguments! {
    /// What one pass of sorting looks at: a digit of each key.
    struct Keys {
        /// `[count]`.
        keys: In<u32>,
        count: u64,
        /// Bits under the digit.
        shift: u32,
        /// Larger keys count as this one.
        most: u32,
    }
}

kernels! { SOURCE {
    // table [vocabulary, width], ids [count], y [count, width].
    "gather" Gather { table: Array, y: Array, ids: In<u32>, count: u64, width: u64, vocabulary: u32 }
    // Of one digit of keys [count]: counts [256, tiles], then the sums in front of each tile, and totals [256].
    "digit_counts" DigitCounts { x: Keys, counts: Out<u32> }
    "digit_starts" DigitStarts { counts: Out<u32>, totals: Out<u32>, tiles: u32 }
    "digit_places" DigitPlaces {
        x: Keys, order: In<u32>, starts: In<u32>, totals: In<u32>, sorted_keys: Out<u32>, sorted_order: Out<u32>
    }
    // Ascending keys [count], starts [vocabulary + 1].
    "id_starts" IdStarts { keys: In<u32>, starts: Out<u32>, count: u64, vocabulary: u32 }
    // Sums of positions: of whole pieces first, then of ids.
    "gather_pieces" GatherPieces { sums: Sums }
    "gather_backward" GatherBackward { sums: Sums }
} }

/// Values of a digit of the sort, threads of a block, and positions of a tile.
const DIGITS: usize = 256;

/// Bits of a digit.
const BITS: u32 = 8;

/// Columns, or runs of 16 bytes of them, that a block adds up at a time.
const COLUMNS: usize = 32;

/// Positions that a block adds up before the rest, where they are of one id.
const PIECE: usize = 64;

/// Blocks that fill a large GPU.
const BLOCKS: usize = 2048;

impl Embedding for Cuda {
    /// `y [count, width]`: rows of `table [vocabulary, width]` by `ids [count]`.
    fn embedding(&self, _: Checked<Self>, table: &Tensor<Self>, ids: &Tensor<Self>) -> Result<Tensor<Self>> {
        let (vocabulary, width, count) = (table.shape().axes()[0], table.shape().last(), ids.shape().count());
        let y = self.empty([count, width], table.dtype())?;
        let arguments = Gather {
            table: table.into(),
            y: (&y).into(),
            ids: pointer(ids),
            count: count as u64,
            width: width as u64,
            vocabulary: vocabulary as u32,
        };
        self.launch(Grid::elements(count * width), &arguments)?;
        Ok(y)
    }

    /// `dtable [vocabulary, width]` from `dy [count, width]`: positions are sorted by id, so that each row is added up in an
    /// order that ids alone decide.
    fn embedding_backward(
        &self,
        _: Checked<Self>,
        vocabulary: usize,
        ids: &Tensor<Self>,
        dy: &Tensor<Self>,
    ) -> Result<Tensor<Self>> {
        let (width, count) = (dy.shape().last(), ids.shape().count());
        let dtable = self.empty([vocabulary, width], dy.dtype())?;
        if vocabulary == 0 {
            return Ok(dtable);
        }
        // Positions by id.
        let sorted = sort(self, vocabulary, ids)?;
        let starts = self.words(vocabulary + 1)?;
        let (keys, starts_at) = (sorted.keys.pointer(), starts.pointer());
        let table = IdStarts { keys, starts: starts_at, count: count as u64, vocabulary: vocabulary as u32 };
        self.launch(Grid::elements(vocabulary + 1), &table)?;
        let wide = Array::from(dy).wide();
        let run = if width.is_multiple_of(wide) { wide } else { 1 };
        // Sums of whole pieces, in 64 bits.
        let pieces = self.allocate((count / PIECE).max(1) * width * size_of::<f64>())?;
        let sums = Sums {
            dy: dy.into(),
            dtable: (&dtable).into(),
            keys,
            order: sorted.order.pointer(),
            starts: starts_at,
            pieces: pieces.pointer(),
            width: width as u64,
            wide: u32::from(run > 1),
        };
        // Block x is a piece or an id, block y a share of the columns.
        let across = width.div_ceil(COLUMNS * run);
        let by = |blocks, shares| Grid { blocks: (blocks, shares, 1), ..Grid::blocks(1, DIGITS as u32) };
        if count >= PIECE {
            self.launch(by(count / PIECE, across.min(65_535)), &GatherPieces { sums })?;
        }
        self.launch(by(vocabulary, across.min(BLOCKS.div_ceil(vocabulary))), &GatherBackward { sums })?;
        Ok(dtable)
    }
}

impl Cuda {
    /// Room for 32-bit integers.
    fn words(&self, count: usize) -> Result<Buffer> {
        self.allocate(count * DType::U32.size())
    }
}

/// Ids in ascending order, and where they stood; equal ids in the order of positions.
struct Sorted {
    /// `[count]`, 32 bits.
    keys: Buffer,
    /// `[count]`, 32 bits: positions.
    order: Buffer,
}

/// Sorts positions by id, from the lowest digit up. Ids over the vocabulary come last.
fn sort(device: &Cuda, vocabulary: usize, ids: &Tensor<Cuda>) -> Result<Sorted> {
    let most = vocabulary as u32;
    let mut sorted = pass(device, ids.shape().count(), most, 0, pointer(ids), 0)?;
    for shift in (BITS..u32::BITS - most.leading_zeros()).step_by(BITS as usize) {
        sorted = pass(device, ids.shape().count(), most, shift, sorted.keys.pointer(), sorted.order.pointer())?;
    }
    Ok(sorted)
}

/// Sorts by one digit.
fn pass(device: &Cuda, count: usize, most: u32, shift: u32, keys: Pointer, order: Pointer) -> Result<Sorted> {
    // A tile has as many positions as a block threads.
    let tiles = count.div_ceil(DIGITS);
    let (counts, totals) = (device.words(DIGITS * tiles)?, device.words(DIGITS)?);
    let sorted = Sorted { keys: device.words(count)?, order: device.words(count)? };
    let (counts_at, totals_at) = (counts.pointer(), totals.pointer());
    let x = Keys { keys, count: count as u64, shift, most };
    let (by_tile, by_digit) = (Grid::blocks(tiles, DIGITS as u32), Grid::blocks(DIGITS, DIGITS as u32));
    device.launch(by_tile, &DigitCounts { x, counts: counts_at })?;
    device.launch(by_digit, &DigitStarts { counts: counts_at, totals: totals_at, tiles: tiles as u32 })?;
    let places = DigitPlaces {
        x,
        order,
        starts: counts_at,
        totals: totals_at,
        sorted_keys: sorted.keys.pointer(),
        sorted_order: sorted.order.pointer(),
    };
    device.launch(by_tile, &places)?;
    Ok(sorted)
}
