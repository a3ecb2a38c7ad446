//! Products of matrices.

use super::sums::sum_parts;
use crate::{
    Wgpu,
    error::unsupported,
    launch::{Binding, Kernel, PRELUDE, Source},
    stored::{self, F16, MADE_F32},
};
use hecate_core::{
    DType, Result, Tensor,
    primitives::{Matmul, MatmulDims, Transpose, add},
};

const TEXT: &str = include_str!("matmul.wgsl");
const BY_FOURS: &str = include_str!("matmul_quads.wgsl");
const ONE_BY_ONE: &str = include_str!("matmul_singles.wgsl");

/// For operands of each type.
static QUADS: [Source; 3] = stored::sources!("matmul_quads", [PRELUDE, BY_FOURS, TEXT]);
/// For those of f16 where sums are made of parts, which stay in 32 bits.
static QUADS_F16_PARTS: Source =
    Source { name: "matmul_quads_f16_parts", parts: &[F16, MADE_F32, PRELUDE, BY_FOURS, TEXT] };
/// For operands of 32-bit floats, whatever their rows.
static SINGLES: Source = Source { name: "matmul_singles", parts: &[MADE_F32, PRELUDE, ONE_BY_ONE, TEXT] };

/// `SIDE` and `REACH` in the kernel, for tiles of 128, 64 and 32 rows and columns.
const SHAPES: [[u32; 2]; 3] = [[16, 2], [16, 1], [8, 1]];

/// What the kernel leaves open: for each shape, operands `a` and `b` stored either way.
type Constants = [(&'static str, u32); 4];

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

const fn kernel(source: &'static Source, constants: &'static Constants) -> Kernel<'static> {
    Kernel { source, entry: "matmul", constants }
}

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

/// Workgroups of each shape that fill a large GPU, and fewest terms of a part where sums are cut for their sake.
const GROUPS: [usize; 3] = [264, 528, 2112];
const PART: [usize; 3] = [256, 128, 64];

#[derive(Clone, Copy, Debug, bytemuck::NoUninit)]
#[repr(C)]
struct Args {
    rows: u32,
    columns: u32,
    inner: u32,
    across: u32,
    tiles: u32,
    stretch: u32,
    parts: u32,
    groups: u32,
}

/// How a product is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Plan {
    /// Which of [`SHAPES`].
    shape: usize,
    /// Tiles down and across.
    tiles: [usize; 2],
    /// Terms of a part, and parts of a sum.
    stretch: usize,
    parts: usize,
}

impl Plan {
    /// The largest tiles that do not stand out half empty. Fewer numbers are read for large ones; where there are too few
    /// of them to fill a GPU, sums are cut into parts.
    fn new(dims: &MatmulDims) -> Self {
        let least = dims.rows.min(dims.columns);
        let shape = if least > 64 {
            0
        } else if least > 32 {
            1
        } else {
            2
        };
        let side = (4 * SHAPES[shape][0] * SHAPES[shape][1]) as usize;
        let tiles = [dims.rows.div_ceil(side), dims.columns.div_ceil(side)];
        let groups = dims.batch.saturating_mul(tiles[0]).saturating_mul(tiles[1]).max(1);
        let parts = (GROUPS[shape] / groups).min(dims.inner / PART[shape]).max(1);
        let stretch = dims.inner.div_ceil(parts).next_multiple_of(DEPTH);
        Self { shape, tiles, stretch, parts: dims.inner.div_ceil(stretch).max(1) }
    }

    /// The kernel's parameters, where 32 bits hold all numbers of places.
    fn arguments(&self, dims: &MatmulDims) -> Result<Args> {
        let MatmulDims { batch, rows, inner, columns, .. } = *dims;
        let tiles = self.tiles[0] * self.tiles[1];
        let places = [rows * inner, inner * columns, self.parts * rows * columns];
        if places.iter().any(|&n| n.saturating_mul(batch) > u32::MAX as usize) {
            let found = format!("{batch} products {rows}×{inner}×{columns}; make the batch smaller");
            return Err(unsupported("products of this size", found));
        }
        Ok(Args {
            rows: rows as u32,
            columns: columns as u32,
            inner: inner as u32,
            across: self.tiles[1] as u32,
            tiles: tiles as u32,
            stretch: self.stretch as u32,
            parts: self.parts as u32,
            groups: (tiles * batch * self.parts) as u32,
        })
    }
}

impl Matmul for Wgpu {
    fn matmul(
        &self,
        dims: MatmulDims,
        a: &Tensor<Self>,
        b: &Tensor<Self>,
        onto: Option<Tensor<Self>>,
    ) -> Result<Tensor<Self>> {
        let MatmulDims { batch, rows, inner, columns, transpose: Transpose { a: a_turned, b: b_turned } } = dims;
        let dtype = a.dtype();
        let lengths = [if a_turned { rows } else { inner }, if b_turned { inner } else { columns }];
        let aligned = lengths.iter().all(|n| n.is_multiple_of(4));
        let (plan, a, b) = (Plan::new(&dims), self.stored(a, aligned)?, self.stored(b, aligned)?);
        let args = plan.arguments(&dims)?;
        let (source, made) = match (a.made, plan.parts) {
            _ if !aligned => (&SINGLES, DType::F32),
            (DType::F16, 2..) => (&QUADS_F16_PARTS, DType::F32),
            _ => (&QUADS[a.source], a.made),
        };
        let constants = &CONSTANTS[4 * plan.shape + 2 * usize::from(!a_turned) + usize::from(b_turned)];
        let kernel = kernel(source, constants);
        let parts = self.empty([plan.parts, batch, rows, columns], made)?;
        let arrays = [Binding::Read(&a.array), Binding::Read(&b.array), Binding::Write(&parts)];
        self.launch(&kernel, (args.groups as usize, 1, 1), &args, &arrays)?;
        let out = if plan.parts == 1 { parts } else { sum_parts(self, &parts)? };
        let out = self.rounded(out.reshape([batch, rows, columns])?, dtype)?;
        match onto {
            Some(onto) => add(&out, &onto.reshape(out.shape().clone())?),
            None => Ok(out),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tiles cover the result, parts the sums, and no part is empty.
    #[test]
    fn plans_cover_products() {
        let sizes = [1, 5, 32, 33, 64, 65, 300, 4096];
        for (rows, columns) in sizes.into_iter().flat_map(|rows| sizes.map(|columns| (rows, columns))) {
            for (batch, inner) in [(1, 1), (1, 16), (3, 255), (1, 256), (2, 1000), (1, 8192), (5000, 8192)] {
                let dims = MatmulDims { batch, rows, inner, columns, transpose: Transpose::default() };
                let plan = Plan::new(&dims);
                let side = (4 * SHAPES[plan.shape][0] * SHAPES[plan.shape][1]) as usize;
                let covered = plan.tiles.map(|n| n * side);
                assert!(rows <= covered[0] && columns <= covered[1], "{dims:?} {plan:?}");
                assert!(plan.stretch.is_multiple_of(DEPTH), "{dims:?} {plan:?}");
                let before = plan.stretch * (plan.parts - 1);
                assert!(before < inner && inner <= before + plan.stretch, "{dims:?} {plan:?}");
            }
        }
    }
}
