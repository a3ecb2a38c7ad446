//! Products of matrices.

use super::{matmul_cooperative::CooperativeProduct, matmul_rows::RowProduct, sums::sum_parts};
use crate::{
    Wgpu,
    error::unsupported,
    launch::{Binding, Kernel, PRELUDE, WgslSource},
    parameters::{Parameters, parameters},
    stored::{self, F16, STORE_F32},
};
use hecate_core::{
    Checked, DType, Result, Tensor,
    primitives::{HeadProducts, Matmul, MatmulDims, MatmulInputs, Projection, Transpose, add},
};

/// The kernel itself, whatever its second operand is stored as.
pub(super) const TILES: &str = include_str!("matmul.wgsl");
/// How operands are read and brought to workgroup memory.
const OPERANDS: &str = include_str!("matmul_operands.wgsl");
/// Four elements at a time, where rows as they are stored are a multiple of four long.
const BY_FOURS: &str = include_str!("matmul_quads.wgsl");
/// Rows of any length.
const ONE_BY_ONE: &str = include_str!("matmul_singles.wgsl");

/// For operands of each type.
static QUADS: [WgslSource; 3] =
    stored::sources!("matmul_quads", [PRELUDE, BY_FOURS, OPERANDS, MatmulArgs::WGSL, TILES]);
/// For those of f16 where sums are made of parts, which stay in 32 bits.
static QUADS_F16_PARTS: WgslSource = WgslSource {
    name: "matmul_quads_f16_parts",
    parts: &[F16, STORE_F32, PRELUDE, BY_FOURS, OPERANDS, MatmulArgs::WGSL, TILES],
};
/// For operands of 32-bit floats, whatever their rows.
static SINGLES: WgslSource =
    WgslSource { name: "matmul_singles", parts: &[STORE_F32, PRELUDE, ONE_BY_ONE, OPERANDS, MatmulArgs::WGSL, TILES] };

/// `SIDE` and `REACH` in the kernel, for tiles of 128, 64 and 32 rows and columns.
pub(super) const SHAPES: [[u32; 2]; 3] = [[16, 2], [16, 1], [8, 1]];

/// What the kernel leaves open: for each shape, operands `a` and `b` stored either way.
type Constants = [(&'static str, u32); 4];

/// Twelve variants: three shapes times two ways to store each operand.
static CONSTANTS: [Constants; 12] = {
    let mut all = [[("", 0); 4]; 12];
    let mut i = 0;
    while i < all.len() {
        let [side, reach] = SHAPES[i / 4];
        let (a_deep, b_deep) = (i / 2 % 2, i % 2);
        all[i] = [("SIDE", side), ("REACH", reach), ("A_DEEP", a_deep as u32), ("B_DEEP", b_deep as u32)];
        i += 1;
    }
    all
};

/// The kernel is compiled when one of its variants is first used.
const fn kernel(source: &'static WgslSource, constants: &'static Constants) -> Kernel<'static> {
    Kernel { source, entry: "matmul", constants }
}

/// Every kernel for every set of constants: five sources times twelve.
pub(crate) const KERNELS: &[Kernel<'static>] = &{
    let sources = [&QUADS[0], &QUADS[1], &QUADS[2], &QUADS_F16_PARTS, &SINGLES];
    let mut all = [kernel(&SINGLES, &CONSTANTS[0]); 60];
    let mut i = 0;
    while i < all.len() {
        all[i] = kernel(sources[i / 12], &CONSTANTS[i % 12]);
        i += 1;
    }
    all
};

/// Terms that are in workgroup memory at a time.
const DEPTH: usize = 16;

/// Most terms of a part: a round for each 16 of them ([`ROUNDS`](crate::launch::ROUNDS)).
const MOST_TERMS: usize = DEPTH * 60_000;

/// Workgroups of each shape that fill a large GPU, and fewest terms of a part where sums are cut for their sake.
const GROUPS: [usize; 3] = [264, 528, 2112];
const PART: [usize; 3] = [256, 128, 64];

parameters! {
    /// What a kernel of products is told.
    pub(super) struct MatmulArgs {
        /// `m`.
        rows: u32,
        /// `n`.
        columns: u32,
        /// `k`.
        inner: u32,
        /// Tiles side by side.
        across: u32,
        /// Tiles of one product.
        tiles: u32,
        /// Terms of a part of a sum, a multiple of 16.
        split_depth: u32,
        /// Parts of a sum (split-K).
        parts: u32,
        /// Workgroups in all.
        pub(super) groups: u32,
    }
}

/// How a product is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MatmulTiling {
    /// Which of [`SHAPES`].
    pub(super) shape: usize,
    /// Tiles down and across.
    tiles: [usize; 2],
    /// Terms of a part, and parts of a sum.
    split_depth: usize,
    parts: usize,
}

impl MatmulTiling {
    /// The largest tiles that do not stand out half empty. Fewer elements are read for large ones; where there are too few
    /// of them to fill a GPU, sums are cut into parts.
    pub(super) fn new(dims: &MatmulDims) -> Self {
        let least = dims.rows.min(dims.columns);
        let shape = if least > 64 {
            0
        } else if least > 32 {
            1
        } else {
            2
        };
        Self::of_shape(shape, dims)
    }

    /// Tiles with this side, where a shape has it.
    pub(super) fn of_side(side: u32, dims: &MatmulDims) -> Option<Self> {
        let shape = SHAPES.iter().position(|[rows, reach]| 4 * rows * reach == side)?;
        Some(Self::of_shape(shape, dims))
    }

    /// Tiles of this shape, and as many parts of sums as a GPU has room for.
    fn of_shape(shape: usize, dims: &MatmulDims) -> Self {
        let side = (4 * SHAPES[shape][0] * SHAPES[shape][1]) as usize;
        let tiles = [dims.rows.div_ceil(side), dims.columns.div_ceil(side)];
        let groups = dims.batch.saturating_mul(tiles[0]).saturating_mul(tiles[1]).max(1);
        let parts = (GROUPS[shape] / groups).min(dims.inner / PART[shape]).max(dims.inner.div_ceil(MOST_TERMS)).max(1);
        let split_depth = dims.inner.div_ceil(parts).next_multiple_of(DEPTH);
        Self { shape, tiles, split_depth, parts: dims.inner.div_ceil(split_depth).max(1) }
    }

    /// The kernel's parameters, where 32 bits hold the place of every element.
    fn arguments(&self, dims: &MatmulDims) -> Result<MatmulArgs> {
        let MatmulDims { batch, rows, inner, columns, .. } = *dims;
        let tiles = self.tiles[0] * self.tiles[1];
        let places = [rows * inner, inner * columns, self.parts * rows * columns];
        if places.iter().any(|&n| n.saturating_mul(batch) > u32::MAX as usize) {
            let found = format!("{batch} products {rows}×{inner}×{columns}; make the batch smaller");
            return Err(unsupported("products of this size", found));
        }
        Ok(MatmulArgs {
            rows: rows as u32,
            columns: columns as u32,
            inner: inner as u32,
            across: self.tiles[1] as u32,
            tiles: tiles as u32,
            split_depth: self.split_depth as u32,
            parts: self.parts as u32,
            groups: (tiles * batch * self.parts) as u32,
        })
    }
}

/// Heads are copied out one by one.
impl HeadProducts for Wgpu {}

/// Parts, one after another.
impl Projection for Wgpu {}

impl Matmul for Wgpu {
    /// `a [batch,m,k]`, `b [batch,k,n]`, either stored transposed.
    /// `torch.baddbmm(onto, a, b)` `[batch,m,n]`; few rows and cooperative matrices have kernels of their own.
    fn matmul(&self, _: Checked<Self>, dims: MatmulDims, inputs: MatmulInputs<'_, Self>) -> Result<Tensor<Self>> {
        let result = inputs.dtype();
        let MatmulInputs { a, b, onto } = inputs;
        let out = match (RowProduct::new(&dims), CooperativeProduct::new(self, &dims, [a, b])) {
            (Some(product), _) => product.run(self, [a, b], result)?,
            (None, Some(product)) => product.run(self, &dims, [a, b])?,
            (None, None) => self.in_tiles(&dims, [a, b], result)?,
        };
        let out = self.rounded(out.reshape([dims.batch, dims.rows, dims.columns])?, result)?;
        match onto {
            Some(onto) => add(&out, &onto.reshape(out.shape().clone())?),
            None => Ok(out),
        }
    }
}

impl Wgpu {
    /// The products by tiles of the result, in 32 bits or, where `result` has 16 and no sum is cut, in halves.
    fn in_tiles(&self, dims: &MatmulDims, [a, b]: [&Tensor<Self>; 2], result: DType) -> Result<Tensor<Self>> {
        let MatmulDims { rows, inner, columns, transpose: Transpose { a: a_turned, b: b_turned }, .. } = *dims;
        // Rows of both operands as they are stored: those are read four elements at a time.
        let lengths = [if a_turned { rows } else { inner }, if b_turned { inner } else { columns }];
        let aligned = lengths.iter().all(|n| n.is_multiple_of(4));
        let (tiling, a, b) = (MatmulTiling::new(dims), self.stored(a, aligned)?, self.stored(b, aligned)?);
        // Halves cannot be added up in parts without rounding in between, so parts are 32 bits wide.
        let wide = tiling.parts > 1 || result == DType::F32;
        let (source, output) = match a.output {
            _ if !aligned => (&SINGLES, DType::F32),
            DType::F16 if wide => (&QUADS_F16_PARTS, DType::F32),
            _ => (&QUADS[a.source], a.output),
        };
        let constants = &CONSTANTS[4 * tiling.shape + 2 * usize::from(!a_turned) + usize::from(b_turned)];
        let kernel = kernel(source, constants);
        self.tiles(&kernel, (&tiling, dims), [&a.array, &b.array], output)
    }

    /// Starts a kernel that makes tiles of the result. Split-K: each part of the terms makes a whole result, and
    /// `sum_parts` adds them in order.
    pub(super) fn tiles(
        &self,
        kernel: &Kernel<'_>,
        (tiling, dims): (&MatmulTiling, &MatmulDims),
        [a, b]: [&Tensor<Self>; 2],
        output: DType,
    ) -> Result<Tensor<Self>> {
        self.parts((tiling, dims), output, |args, parts| {
            let arrays = [Binding::Read(a), Binding::Read(b), Binding::Write(parts)];
            self.launch(kernel, (args.groups as usize, 1, 1), args, &arrays)
        })
    }

    /// What `start` writes, `[parts,batch,m,n]`, added up.
    pub(super) fn parts(
        &self,
        (tiling, dims): (&MatmulTiling, &MatmulDims),
        output: DType,
        start: impl FnOnce(&MatmulArgs, &Tensor<Self>) -> Result<()>,
    ) -> Result<Tensor<Self>> {
        let args = tiling.arguments(dims)?;
        let parts = self.empty([tiling.parts, dims.batch, dims.rows, dims.columns], output)?;
        start(&args, &parts)?;
        if tiling.parts == 1 { parts.reshape([dims.batch, dims.rows, dims.columns]) } else { sum_parts(self, &parts) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::launch::ROUNDS;

    /// Tiles cover the result, parts the sums, and no part is empty.
    #[test]
    fn tilings_cover_products() {
        let sizes = [1, 5, 32, 33, 64, 65, 300, 4096];
        for (rows, columns) in sizes.into_iter().flat_map(|rows| sizes.map(|columns| (rows, columns))) {
            for (batch, inner) in
                [(1, 1), (1, 16), (3, 255), (1, 256), (2, 1000), (1, 8192), (5000, 8192), (5000, 2_000_000)]
            {
                let dims = MatmulDims { batch, rows, inner, columns, transpose: Transpose::default() };
                let tiling = MatmulTiling::new(&dims);
                let side = (4 * SHAPES[tiling.shape][0] * SHAPES[tiling.shape][1]) as usize;
                let covered = tiling.tiles.map(|n| n * side);
                assert!(rows <= covered[0] && columns <= covered[1], "{dims:?} {tiling:?}");
                assert!(tiling.split_depth.is_multiple_of(DEPTH), "{dims:?} {tiling:?}");
                assert!(tiling.split_depth / DEPTH < ROUNDS, "{dims:?} {tiling:?}");
                let before = tiling.split_depth * (tiling.parts - 1);
                assert!(before < inner && inner <= before + tiling.split_depth, "{dims:?} {tiling:?}");
            }
        }
    }
}
