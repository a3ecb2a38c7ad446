//! Products of few tiles on tensor cores, several in one launch: those of a small model, of which one alone leaves most of a
//! large GPU idle. Of 32-bit factors 22 bits count; sums have 32. An infinite factor makes NaN.
//!
//! At width 128 and 2,048 tokens a product with a square matrix is 128 tiles: a block for each multiprocessor of an H100, with
//! two stages to go through. Starting it takes longer. Four such products and those of gates are one launch forward, and one
//! backward for the gradient of what they share. Gradients of their weights are one launch beside the main line of a graph.

use super::matmul;
use crate::{
    Cuda,
    arguments::{In, Out, Void, arguments},
    launch::{Grid, KernelArguments, kernels},
    source::{KernelSource, kernel_source},
};
use hecate_core::{
    DType, Result, Tensor,
    primitives::{MatmulDims, Transpose},
};

pub(crate) const SOURCE: KernelSource = kernel_source!("matmul_small", "matmul_small.cu");

/// Most products of a launch.
pub(super) const MOST: usize = 8;

arguments! {
    /// `struct SmallProduct` in the kernels.
    #[derive(Default)]
    struct Product {
        /// `a [rows, inner]` or `[inner, rows]`, `b [columns, inner]` or `[inner, columns]`, `out [rows, columns]`.
        a: In<u8>,
        b: In<u8>,
        out: Out<Void>,
        rows: u32,
        inner: u32,
        columns: u32,
        /// Tiles of the products up to this one.
        end: u32,
    }
}

arguments! {
    /// `struct SmallProducts` there.
    struct Products {
        each: [Product; MOST],
        /// Products that are there.
        count: u32,
        /// Whether all make one result, and whether that is added to what is there.
        sum: u32,
        add: u32,
    }
}

// By rows of terms of both, by terms of `b`, by terms of both.
kernels! { SOURCE {
    "matmul_small_rows" ByRows { all: Products }
    "matmul_small_rows_bf16" ByRowsBf16 { all: Products }
    "matmul_small_columns" ByColumns { all: Products }
    "matmul_small_columns_bf16" ByColumnsBf16 { all: Products }
    "matmul_small_terms" ByTerms { all: Products }
    "matmul_small_terms_bf16" ByTermsBf16 { all: Products }
} }

/// Rows and columns of a tile; words of the terms of a stage that eight warps take.
// `ROWS`, `COLUMNS` and `DEPTH` in the kernels.
const TILE: [usize; 2] = [64, 32];
const DEPTH: usize = 32;

/// Most terms of the sums of a multiprocessor's tiles.
///
/// Beyond, larger tiles are faster, which read fewer bytes for each. At 2,048 tokens that is a width of about 320, where a
/// product alone fills an H100.
const TERMS: usize = 768;

/// Most terms of one sum, which one block goes through: beyond, several blocks that share it are faster.
const LONGEST: usize = 8192;

/// A product: sizes, factors, and where it goes.
pub(super) type Place<'a> = (MatmulDims, [&'a Tensor<Cuda>; 2]);

/// Whether there is a kernel for the products of these sizes and this type together. They share how they lie, and with `sum`
/// the sizes of the result.
pub(super) fn exist(device: &Cuda, dims: &[MatmulDims], dtype: DType, sum: bool) -> bool {
    let Some(first) = dims.first() else { return false };
    // One kernel takes them all.
    let like = |dims: &MatmulDims| {
        dims.transpose == first.transpose
            && (!sum || [dims.rows, dims.columns] == [first.rows, first.columns])
            && fits(dims, dtype)
    };
    // Halves would need kernels of their own.
    let typed = dtype == DType::F32 || dtype == DType::Bf16;
    // What all blocks together have to go through.
    let terms = dims.iter().map(|dims| tiles(dims).saturating_mul(dims.inner)).fold(0, usize::saturating_add);
    let few = (1..=TERMS * device.properties().multiprocessors as usize).contains(&terms);
    // Copies that a block does not wait for, and tensor cores of these types, came with 8.0.
    let short = dims.iter().all(|dims| dims.inner <= LONGEST);
    // Sums that are needed at the end are not added to in place.
    let at_once = !sum || !first.transpose.a;
    typed
        && few
        && short
        && at_once
        && dims.len() <= MOST
        && device.properties().capability.0 >= 8
        && dims.iter().all(like)
}

/// Whether rows of factors begin at multiples of 16 bytes. Of `a` 4 are enough, but beside a transposed `b`; those of results
/// are pairs.
fn fits(dims: &MatmulDims, dtype: DType) -> bool {
    let [piece, pair] = [16, 4].map(|bytes| bytes / dtype.size());
    let MatmulDims { batch, rows, inner, columns, transpose } = *dims;
    // Nothing is computed of what is empty.
    let multiple = |size: usize, of| size > 0 && size.is_multiple_of(of);
    let aligned = match (transpose.a, transpose.b) {
        // Both have rows of terms.
        (false, true) => multiple(inner, piece) && multiple(columns, 2),
        // Rows of terms and terms of columns.
        (false, false) => multiple(inner, pair) && multiple(columns, piece),
        // Terms of rows and terms of columns.
        (true, false) => multiple(rows, pair) && multiple(columns, piece),
        // Nobody asks for it.
        (true, true) => false,
    };
    // Sizes are 32 bits.
    aligned && batch == 1 && [rows, inner, columns].iter().all(|&size| size <= MOST_SIZE)
}

/// A size that fits 32 bits with room for a tile.
const MOST_SIZE: usize = i32::MAX as usize;

/// Blocks of a product.
fn tiles(dims: &MatmulDims) -> usize {
    dims.rows.div_ceil(TILE[0]).saturating_mul(dims.columns.div_ceil(TILE[1]))
}

/// Each product by the kernel for few tiles.
pub(super) fn each(device: &Cuda, products: Vec<Place<'_>>) -> Result<Vec<Tensor<Cuda>>> {
    let out = |(dims, [a, _]): &Place<'_>| {
        let MatmulDims { batch, rows, columns, .. } = *dims;
        device.empty([batch, rows, columns], a.dtype())
    };
    let outs = products.iter().map(out).collect::<Result<Vec<_>>>()?;
    launch(device, &products, &outs, [false; 2]).map(|()| outs)
}

/// `Σ a b + onto` by the kernel for few tiles.
pub(super) fn sum(device: &Cuda, products: &[Place<'_>], onto: Option<Tensor<Cuda>>) -> Result<Tensor<Cuda>> {
    let MatmulDims { batch, rows, columns, .. } = products[0].0;
    let (shape, dtype) = ([batch, rows, columns], products[0].1[0].dtype());
    match onto.map(Tensor::into_buffer) {
        // Nobody else holds it: it is added to in place.
        Some(Ok(buffer)) => {
            let out = Tensor::from_buffer(device, shape, dtype, buffer)?;
            out.buffer().written_over();
            // Each number is read and written by one thread.
            launch(device, products, std::slice::from_ref(&out), [true; 2]).map(|()| out)
        }
        // Somebody else holds it, or there is none.
        onto => {
            let out = device.empty(shape, dtype)?;
            launch(device, products, std::slice::from_ref(&out), [true, false])?;
            matmul::sum(out, onto.and_then(|shared| shared.err()))
        }
    }
}

/// One launch: a block a tile of each product, or with `sum` of all together; with `add` to what `outs` hold.
fn launch(device: &Cuda, products: &[Place<'_>], outs: &[Tensor<Cuda>], [sum, add]: [bool; 2]) -> Result<()> {
    let (dims, [first, _]) = products[0];
    let mut each = [Product::default(); MOST];
    // Tiles so far, by which a block finds its product.
    let mut end = 0;
    for (i, (product, (dims, [a, b]))) in each.iter_mut().zip(products).enumerate() {
        // A sum has the tiles of one product.
        end += if sum && i > 0 { 0 } else { tiles(dims) };
        // In a graph, who asks for an address waits for what is still written there.
        let [a, b, out] = [*a, *b, &outs[if sum { 0 } else { i }]].map(|x| x.buffer().pointer());
        let [rows, inner, columns, end] = [dims.rows, dims.inner, dims.columns, end].map(|size| size as u32);
        *product = Product { a, b, out, rows, inner, columns, end };
    }
    let [count, sum, add] = [products.len(), sum.into(), add.into()].map(|number: usize| number as u32);
    let all = Products { each, count, sum, add };
    let (shared, threads) = block(first.dtype(), dims.transpose);
    let grid = Grid { shared, ..Grid::blocks(end, threads) };
    // `fits` refused what has no kernel.
    match (dims.transpose.a, dims.transpose.b, first.dtype()) {
        (false, true, DType::F32) => device.launch(grid, &ByRows { all }),
        (false, true, _) => device.launch(grid, &ByRowsBf16 { all }),
        (false, false, DType::F32) => device.launch(grid, &ByColumns { all }),
        (false, false, _) => device.launch(grid, &ByColumnsBf16 { all }),
        (.., DType::F32) => beside(device, grid, &ByTerms { all }, products, outs),
        _ => beside(device, grid, &ByTermsBf16 { all }, products, outs),
    }
}

/// Gradients of weights, which are not needed before the end.
fn beside(
    device: &Cuda,
    grid: Grid,
    arguments: &impl KernelArguments,
    products: &[Place<'_>],
    outs: &[Tensor<Cuda>],
) -> Result<()> {
    // Nobody writes over the factors meanwhile.
    let mut read: Vec<Tensor<Cuda>> = products.iter().flat_map(|(_, factors)| factors.map(Tensor::clone)).collect();
    // What products share is held once.
    read.sort_by_key(|x| x.buffer().pointer());
    read.dedup_by_key(|x| x.buffer().pointer());
    let bytes = read.iter().map(|x| x.buffer().len()).sum();
    device.launch_beside(grid, arguments, &outs.iter().collect::<Vec<_>>(), (read, bytes))
}

/// Bytes of the stages of a block, and its threads.
///
/// At most 86,016 bytes, those of three stages of two groups: any GPU of capability 8.0 or more has them.
fn block(dtype: DType, transpose: Transpose) -> (usize, u32) {
    let per_word = 4 / dtype.size();
    // Groups of eight warps, and stages under way; `GROUPS` and `STAGES` in the kernels.
    let (groups, stages) = if transpose.a { (2, 3) } else { (1, 4) };
    // By rows of terms, or by terms of so many columns.
    // Some words are left empty between rows, for the sake of banks.
    let words = |by_term, width| match (by_term, dtype) {
        (false, _) => width * (DEPTH + 4),
        (true, DType::F32) => groups * DEPTH * (width + 8),
        (true, _) => groups * DEPTH * per_word * (width / per_word + 4),
    };
    (4 * stages * (words(transpose.a, TILE[0]) + words(!transpose.b, TILE[1])), 256 * groups as u32)
}
