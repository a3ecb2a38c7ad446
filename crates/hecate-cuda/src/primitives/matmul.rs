//! Products of matrices: through cuBLAS where it is found, else by kernels of our own.
//!
//! Products are of 32-bit floats or of one 16-bit type, with sums in 32 bits. cuBLAS and our own kernels round
//! otherwise, so which of them runs depends on the sizes and on what is installed alone.

use super::{
    matmul_groups, matmul_naive,
    matmul_rows::{self, Around},
    matmul_small,
};
use crate::{
    Cuda,
    arguments::{Out, Void, arguments},
    blas::{Blas, Product, ProductStrides},
    launch::{Array, Grid, kernels},
    source::{KernelSource, kernel_source},
};
use hecate_core::{
    Checked, DType, Result, Tensor,
    primitives::{Elementwise, Matmul, MatmulDims, MatmulInputs, Transpose, add},
};
use std::sync::Arc;

/// `torch.matmul(a, b)` by tiles of 64 or 128, and by warps for up to eight rows, wherever cuBLAS is not.
pub(crate) const SOURCE: KernelSource = kernel_source!("matmul", "matmul.cu");

/// The largest size that cuBLAS takes.
///
/// It counts in 32 bits with a sign.
pub(super) const MOST: usize = i32::MAX as usize;

/// Rows that a kernel of their own takes: those of tokens that are generated.
pub(super) const FEW: usize = 8;

/// Rows that warps with a column each take sooner than tensor cores.
pub(super) const BY_WARPS: usize = 3;

/// Columns of what gates are made of: with more rows too, a warp has one of them.
pub(super) const NARROW: usize = 64;

/// Rows, and products of elements, that cuBLAS is not opened for: it takes 0.2 s, and a short prompt needs nothing larger.
const SHORT: (usize, usize) = (64, 1 << 22);

/// Blocks that fill a large GPU.
///
/// With fewer tiles of 128, tiles of 64 use more of the machine.
const BLOCKS: usize = 128;

impl Matmul for Cuda {
    /// `out [batch, rows, columns] = a b`, or that added to `onto`. Few rows, and short prompts, do not open cuBLAS.
    fn matmul(&self, _: Checked<Self>, dims: MatmulDims, inputs: MatmulInputs<'_, Self>) -> Result<Tensor<Self>> {
        let dtype = inputs.dtype();
        let MatmulInputs { a, b, onto } = inputs;
        if self.has_naive_products() {
            let out = self.empty([dims.batch, dims.rows, dims.columns], dtype)?;
            matmul_naive::launch(self, dims, [a, b, &out])?;
            return sum(out, onto);
        }
        // Few tiles of 32 bits: cuBLAS has no tensor cores for them.
        let typed = [a.dtype(), b.dtype(), dtype] == [DType::F32; 3];
        if typed && dims.rows > SHORT.0 && !dims.transpose.a && matmul_small::exist(self, &[dims], dtype, true) {
            return matmul_small::sum(self, &[(dims, [a, b])], onto);
        }
        // a [batch, rows, inner] and b [batch, inner, columns], each perhaps transposed.
        let MatmulDims { batch, rows, inner, columns, transpose } = dims;
        let shape = [batch, rows, columns];
        let of_weights = transpose.b && !transpose.a;
        // A token or a few of them, times weights as they are stored; factors and result are of one type there.
        let few = of_weights && rows <= FEW && dtype == a.dtype();
        // Sizes that overflow are not short.
        let count = batch.saturating_mul(rows).saturating_mul(inner).saturating_mul(columns);
        let short = of_weights && rows <= SHORT.0 && count <= SHORT.1;
        let fits = [batch, rows, inner, columns].iter().all(|&n| n <= MOST);
        // Own kernels where cuBLAS would cost more than it brings, or is not there.
        // Opened at the first product that wants it, once for the device.
        let blas = if few || short || !fits { None } else { self.blas() };
        if let Some(blas) = blas {
            return match onto.map(Tensor::into_buffer) {
                // Nobody else holds it: cuBLAS adds in place.
                Some(Ok(buffer)) => {
                    buffer.written_over();
                    let out = Tensor::from_buffer(self, shape, dtype, buffer)?;
                    multiply(blas, dims, a, b, &out, true).map(|()| out)
                }
                // Somebody else holds it, or there is none.
                onto => {
                    let out = self.empty(shape, dtype)?;
                    // The gradient of a weight is not needed before the end.
                    if transpose.a && onto.is_none() {
                        multiply_beside(self, blas, dims, (a, b), &out)?;
                    } else {
                        multiply(blas, dims, a, b, &out, false)?;
                    }
                    sum(out, onto.and_then(|shared| shared.err()))
                }
            };
        }
        // A few rows of 16 bits, by tensor cores.
        if few && rows > BY_WARPS && matmul_rows::exists(self, &dims, dtype) {
            let made = matmul_rows::launch(self, a, &[(dims, b)], Around::default())?.remove(0);
            return sum(made, onto);
        }
        let out = self.empty(shape, dtype)?;
        if few {
            FewRows::launch(self, dims, a, b, &out)?;
        // Tensor cores, where a tile of theirs is filled.
        } else if rows >= 64 && matmul_groups::exist(self, &dims, a.dtype()) {
            matmul_groups::launch(self, &dims, [a, b, &out])?;
        // Large tiles where there are enough of them.
        } else if rows.min(columns) >= 128 && batch * (rows / 128) * (columns / 128) >= BLOCKS {
            by_tiles(self, 128, dims, [a, b, &out])?;
        } else {
            by_tiles(self, 64, dims, [a, b, &out])?;
        }
        sum(out, onto)
    }

    /// `x Wᵀ` for each `W`, where `x` has few rows in one launch for all, or one a type.
    fn matmul_each(
        &self,
        checked: Checked<Self>,
        x: &Tensor<Self>,
        weights: &[(MatmulDims, &Tensor<Self>)],
    ) -> Result<Vec<Tensor<Self>>> {
        let way = |&(dims, b): &(MatmulDims, &Tensor<Self>)| Way::new(self, dims, [x.dtype(), b.dtype()]);
        // In the order of the matrices, whichever launch makes them.
        let mut products: Vec<Option<Tensor<Self>>> = vec![None; weights.len()];
        // Those that go the same way, wherever they stand.
        for wanted in [Way::Few, Way::Rows(DType::Bf16), Way::Rows(DType::F16)] {
            let numbers: Vec<_> = (0..weights.len()).filter(|&i| way(&weights[i]) == wanted).collect();
            for numbers in numbers.chunks(MATRICES) {
                let run: Vec<_> = numbers.iter().map(|&i| weights[i]).collect();
                let made = match wanted {
                    // A single one of the same type has its own kernel.
                    Way::Few if run.len() == 1 && run[0].1.dtype() == x.dtype() && run[0].0.rows <= FEW => continue,
                    Way::Few => few_rows_each(self, x, &run)?,
                    _ => matmul_rows::launch(self, x, &run, Around::default())?,
                };
                numbers.iter().zip(made).for_each(|(&i, product)| products[i] = Some(product));
            }
        }
        // Few tiles, of which one product alone would leave much of the GPU idle.
        let sizes: Vec<_> = weights.iter().map(|&(dims, _)| dims).collect();
        if products.iter().all(Option::is_none)
            && weights.iter().all(|(_, b)| b.dtype() == x.dtype())
            && self.starts_together(&sizes, x.dtype())
        {
            return matmul_small::each(self, weights.iter().map(|&(dims, b)| (dims, [x, b])).collect());
        }
        let mut rounded = None;
        let mut product = |(dims, b): (MatmulDims, &Tensor<Self>)| {
            // Nothing has to be rounded.
            if b.dtype() == x.dtype() {
                return self.matmul(checked, dims, MatmulInputs { a: x, b, onto: None });
            }
            // Rounded once for all weights of this type.
            let known = rounded.take().filter(|x: &Tensor<Self>| x.dtype() == b.dtype());
            let x = known.map_or_else(|| self.cast(checked, b.dtype(), x), Ok)?;
            let product = widened(self, dims, &x, b);
            rounded = Some(x);
            product
        };
        weights.iter().zip(products).map(|(&weight, made)| made.map_or_else(|| product(weight), Ok)).collect()
    }

    /// One launch where tiles are few.
    fn matmul_sum(
        &self,
        checked: Checked<Self>,
        products: &[(MatmulDims, [&Tensor<Self>; 2])],
        mut onto: Option<Tensor<Self>>,
    ) -> Result<Option<Tensor<Self>>> {
        let sizes: Vec<_> = products.iter().map(|&(dims, _)| dims).collect();
        // All factors have one type, which is that of what they are added to.
        let dtype = products.first().map(|(_, [a, _])| a.dtype());
        let alike = products.iter().all(|(_, [a, b])| [a.dtype(), b.dtype()] == [dtype.unwrap_or(DType::F32); 2])
            && onto.as_ref().is_none_or(|onto| Some(onto.dtype()) == dtype);
        if dtype.is_some_and(|dtype| alike && matmul_small::exist(self, &sizes, dtype, true)) {
            return matmul_small::sum(self, products, onto).map(Some);
        }
        // One after another, each onto the sum of those before.
        for &(dims, [a, b]) in products {
            onto = Some(self.matmul(checked, dims, MatmulInputs { a, b, onto: onto.take() })?);
        }
        Ok(onto)
    }

    /// One launch where tiles are few, beside the main line of a graph.
    fn matmul_weights(
        &self,
        checked: Checked<Self>,
        factors: &[(MatmulDims, &Tensor<Self>)],
        b: &Tensor<Self>,
    ) -> Result<Vec<Tensor<Self>>> {
        let sizes: Vec<_> = factors.iter().map(|&(dims, _)| dims).collect();
        // One alone has too few tiles for sums this long: cuBLAS divides them.
        if factors.len() < 2 || !matmul_small::exist(self, &sizes, b.dtype(), false) {
            return factors
                .iter()
                .map(|&(dims, a)| self.matmul(checked, dims, MatmulInputs { a, b, onto: None }))
                .collect();
        }
        matmul_small::each(self, factors.iter().map(|&(dims, a)| (dims, [a, b])).collect())
    }

    /// What a launch of small products is for; the way back is the sum of all of them.
    fn starts_together(&self, dims: &[MatmulDims], dtype: DType) -> bool {
        // `dout W`: columns are what is summed over.
        let back = |&MatmulDims { batch, rows, inner, columns, .. }: &MatmulDims| MatmulDims {
            batch,
            rows,
            inner: columns,
            columns: inner,
            transpose: Transpose::default(),
        };
        // Few rows have kernels of their own.
        let long = dims.first().is_some_and(|dims| dims.rows > SHORT.0);
        let back: Vec<_> = dims.iter().map(back).collect();
        long && matmul_small::exist(self, dims, dtype, false) && matmul_small::exist(self, &back, dtype, true)
    }
}

/// How a product among several goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// By warps that have a column each.
    Few,
    /// On tensor cores, with a matrix of this type.
    Rows(DType),
    /// By itself.
    Alone,
}

impl Way {
    /// Of a product of rows of the first type with a matrix of the second.
    fn new(device: &Cuda, dims: MatmulDims, [x, matrix]: [DType; 2]) -> Self {
        let MatmulDims { batch, rows, columns, .. } = dims;
        // Rows of 32 bits may be rounded where the matrix was; a few of them need not be.
        let rounds = (x == matrix || x == DType::F32) && matmul_rows::exists(device, &dims, matrix);
        let short = rows <= if rounds && x == matrix { BY_WARPS } else { FEW };
        // Gates keep 32 bits, for which there are no tensor cores.
        if batch == 1 && (short || rows <= SHORT.0 && columns <= NARROW) {
            return Self::Few;
        }
        if rounds { Self::Rows(matrix) } else { Self::Alone }
    }
}

/// `x Wᵀ` of 16-bit factors, in 32 bits.
fn widened(device: &Cuda, dims: MatmulDims, x: &Tensor<Cuda>, weight: &Tensor<Cuda>) -> Result<Tensor<Cuda>> {
    let out = device.empty([dims.batch, dims.rows, dims.columns], DType::F32)?;
    let fits = [dims.batch, dims.rows, dims.inner, dims.columns].iter().all(|&n| n <= MOST);
    match device.blas().filter(|_| fits) {
        Some(blas) => multiply(blas, dims, x, weight, &out, false)?,
        None => by_tiles(device, 64, dims, [x, weight, &out])?,
    }
    Ok(out)
}

/// Most matrices of a launch, whichever kernel it is of.
// `MATRICES` in the kernels.
pub(super) const MATRICES: usize = matmul_rows::MATRICES;

arguments! {
    /// `struct Factor` there.
    #[derive(Default)]
    struct Factor {
        /// `[columns, inner]`, of any type.
        b: Out<Void>,
        out: Out<Void>,
        /// Columns of the matrices up to this one.
        end: u64,
        /// Of `b`.
        dtype: u64,
    }
}

kernels! { SOURCE {
    "matmul_each" FewRowsEach { rows: FewRows, factors: [Factor; MATRICES] }
    "matmul_each_row" RowsOneByOne { rows: FewRows, factors: [Factor; MATRICES] }
} }

/// The products of few rows `x` with each of at most [`MATRICES`] matrices `[columns, inner]`, in one launch.
fn few_rows_each(
    device: &Cuda,
    x: &Tensor<Cuda>,
    weights: &[(MatmulDims, &Tensor<Cuda>)],
) -> Result<Vec<Tensor<Cuda>>> {
    let MatmulDims { rows, inner, .. } = weights[0].0;
    let mut factors = [Factor::default(); MATRICES];
    let (mut columns, mut products) = (0, Vec::new());
    for (factor, (dims, b)) in factors.iter_mut().zip(weights) {
        let out = device.empty([1, rows, dims.columns], x.dtype())?;
        columns += dims.columns;
        let dtype = u64::from(Array::from(*b).dtype);
        *factor = Factor { b: b.buffer().pointer(), out: out.buffer().pointer(), end: columns as u64, dtype };
        products.push(out);
    }
    let [rows, inner, all] = [rows, inner, columns].map(|size| size as u64);
    // Which of them a column belongs to is told by the factors.
    let (a, none) = (x.into(), Array::NONE);
    let few = FewRows { a, b: none, out: none, batch: 1, rows, columns: all, inner };
    // A row, or many with few columns: a warp each. Else a warp has all rows.
    if rows == 1 || rows > FEW as u64 {
        let warps = columns.saturating_mul(rows as usize);
        device.launch_early(Grid::elements(warps.saturating_mul(32)), 1, &RowsOneByOne { rows: few, factors })?;
    } else {
        device.launch_early(Grid::elements(columns.saturating_mul(32)), 1, &FewRowsEach { rows: few, factors })?;
    }
    Ok(products)
}

/// Through cuBLAS; `add` says whether the product is added to what `out` holds.
#[allow(unsafe_code)]
fn multiply(
    blas: &Blas,
    dims: MatmulDims,
    a: &Tensor<Cuda>,
    b: &Tensor<Cuda>,
    out: &Tensor<Cuda>,
    add: bool,
) -> Result<()> {
    let [a_pointer, b_pointer, out_pointer] = [a, b, out].map(|x| x.buffer().pointer());
    let dtypes = [a.dtype(), out.dtype()];
    let product = Product {
        dims,
        strides: ProductStrides::dense(&dims),
        dtypes,
        a: a_pointer,
        b: b_pointer,
        out: out_pointer,
        add,
    };
    // While another thread captures a step, nothing is queued.
    let _turn = out.device().ledger().turn();
    // SAFETY: the tensors hold as many elements as the sizes say (checked by core), and live until the stream is through
    // with them; nobody else holds `out`.
    unsafe { blas.matmul(&product) }
}

/// As [`multiply`], beside the main line of a graph.
fn multiply_beside(
    device: &Cuda,
    blas: &Blas,
    dims: MatmulDims,
    (a, b): (&Tensor<Cuda>, &Tensor<Cuda>),
    out: &Tensor<Cuda>,
) -> Result<()> {
    // A handle has one stream.
    let Some(side) = device.side_blas().filter(|_| device.ledger().arena().is_some()) else {
        return multiply(blas, dims, a, b, out, false);
    };
    // Nobody writes over the factors meanwhile.
    let read = ((a.clone(), b.clone()), a.buffer().len() + b.buffer().len());
    device.beside(&[out], read, |stream| {
        let blas = if Arc::ptr_eq(stream, device.side()) { side } else { blas };
        multiply(blas, dims, a, b, out, false)
    })
}

/// `out`, or with `onto` the sum of both.
pub(super) fn sum(out: Tensor<Cuda>, onto: Option<Tensor<Cuda>>) -> Result<Tensor<Cuda>> {
    match onto {
        Some(onto) => add(&out, &onto.reshape(out.shape().clone())?),
        None => Ok(out),
    }
}

arguments! {
    /// A factor `[batch, length, inner]`, whichever of the two last axes is contiguous.
    struct Operand {
        x: Array,
        length: u64,
        /// Elements to the next row or column of the result, and to the next term of its sum.
        stride: u64,
        inner_stride: u64,
    }
    /// `Product` in the kernels.
    struct Products {
        a: Operand,
        b: Operand,
        /// `[batch, rows, columns]`.
        out: Array,
        batch: u64,
        inner: u64,
        /// Tiles side by side.
        tiles: u64,
    }
}

// Fewer bytes are read for large tiles, but more of them must be there to fill a GPU.
kernels! { SOURCE {
    "matmul_64" Small { products: Products }
    "matmul_128" Large { products: Products }
} }

/// One launch for all products of a batch, a block a tile of 64 or 128 rows and columns.
fn by_tiles(device: &Cuda, tile: usize, dims: MatmulDims, [a, b, out]: [&Tensor<Cuda>; 3]) -> Result<()> {
    let MatmulDims { batch, rows, inner, columns, transpose } = dims;
    let (down, across) = (rows.div_ceil(tile), columns.div_ceil(tile));
    let operand = |x: &Tensor<Cuda>, length: usize, (stride, inner_stride): (usize, usize)| Operand {
        x: x.into(),
        length: length as u64,
        stride: stride as u64,
        inner_stride: inner_stride as u64,
    };
    let products = Products {
        a: operand(a, rows, if transpose.a { (1, rows) } else { (inner, 1) }),
        b: operand(b, columns, if transpose.b { (inner, 1) } else { (1, columns) }),
        out: out.into(),
        batch: batch as u64,
        inner: inner as u64,
        tiles: across as u64,
    };
    // Block x has a tile, block y a product of the batch or several.
    let grid = Grid { blocks: (down * across, batch.min(65_535), 1), ..Grid::blocks(1, 256) };
    match tile {
        64 => device.launch(grid, &Small { products }),
        _ => device.launch(grid, &Large { products }),
    }
}

kernels! { SOURCE {
    "matmul_few_rows" FewRows { a: Array, b: Array, out: Array, batch: u64, rows: u64, columns: u64, inner: u64 }
} }

impl FewRows {
    /// `out[i] = a[i] b[i]ᵀ`.
    fn launch(device: &Cuda, dims: MatmulDims, a: &Tensor<Cuda>, b: &Tensor<Cuda>, out: &Tensor<Cuda>) -> Result<()> {
        let MatmulDims { batch, rows, inner, columns, .. } = dims;
        let [batch, rows, inner, columns] = [batch, rows, inner, columns].map(|size| size as u64);
        let arguments = Self { a: a.into(), b: b.into(), out: out.into(), batch, rows, columns, inner };
        // A warp a column.
        device.launch(Grid::elements(dims.columns.saturating_mul(32)), &arguments)
    }
}
