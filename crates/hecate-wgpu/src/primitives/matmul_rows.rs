//! Products of few rows, which would leave most of a tile empty: a workgroup for a few columns, which reads them once.

use crate::{
    Wgpu,
    launch::{Binding, Kernel, PRELUDE, ROUNDS, WORKGROUP, WgslSource},
    parameters::{Parameters, parameters},
    stored,
};
use hecate_core::{DType, Result, Tensor, primitives::MatmulDims};

/// What both kernels share.
const TEXT: &str = include_str!("matmul_rows.wgsl");
/// An invocation has every 64th term of a sum.
const DEEP_TEXT: &str = include_str!("matmul_rows_deep.wgsl");

/// Terms of a column one after another: for any adapter and for one with subgroups, operands of each type.
static DEEP: [[WgslSource; 3]; 2] = [
    stored::sources!("matmul_rows_deep", [PRELUDE, WORKGROUP[0], MatmulRowsArgs::WGSL, TEXT, DEEP_TEXT]),
    stored::sources!("matmul_rows_deep_subgroups", [PRELUDE, WORKGROUP[1], MatmulRowsArgs::WGSL, TEXT, DEEP_TEXT]),
];
/// Columns side by side, for operands of each type.
static FLAT: [WgslSource; 3] =
    stored::sources!("matmul_rows_flat", [PRELUDE, MatmulRowsArgs::WGSL, TEXT, include_str!("matmul_rows_flat.wgsl")]);

/// Rows that a kernel keeps sums of; it takes fewer too.
const ROWS: [usize; 3] = [1, 4, 8];
/// Each number of rows is a kernel of its own, whose sums stay in registers.
static CONSTANTS: [[(&str, u32); 1]; 3] =
    [[("ROWS", ROWS[0] as u32)], [("ROWS", ROWS[1] as u32)], [("ROWS", ROWS[2] as u32)]];

/// Columns of a workgroup, where they are deep and where they are flat.
const COLUMNS: [usize; 2] = [4, 32];

/// `[batch,n,k]`: the terms of a column are neighbours, and a workgroup shares them out.
const fn deep(subgroups: usize, source: usize, rows: usize) -> Kernel<'static> {
    Kernel { source: &DEEP[subgroups][source], entry: "matmul_rows_deep", constants: &CONSTANTS[rows] }
}

/// `[batch,k,n]`: columns are neighbours, and invocations side by side read them together.
const fn flat(source: usize, rows: usize) -> Kernel<'static> {
    Kernel { source: &FLAT[source], entry: "matmul_rows_flat", constants: &CONSTANTS[rows] }
}

/// Every kernel for every number of rows: three files of three types.
pub(crate) const KERNELS: &[Kernel<'static>] = &{
    let mut all = [flat(0, 0); 27];
    let mut i = 0;
    while i < all.len() {
        let (source, rows) = (i / 3 % 3, i % 3);
        all[i] = if i < 18 { deep(i / 9, source, rows) } else { flat(source, rows) };
        i += 1;
    }
    all
};

/// Invocations among which the terms of a sum are dealt out, where columns are flat and where they are deep.
const INVOCATIONS_OF_A_SUM: [usize; 2] = [8, 64];
/// Rounds after the terms at most: invocations' parts are added up.
const LAST_ROUNDS: usize = 1024;

/// Fewest elements of a matrix: a smaller one is a few tiles, whose missing rows cost next to nothing.
const MATRIX: usize = 2048;

parameters! {
    /// What products of few rows are told.
    struct MatmulRowsArgs {
        /// `m`.
        rows: u32,
        /// `n`.
        columns: u32,
        /// `k`.
        inner: u32,
        /// Workgroups of one product.
        across: u32,
        /// Workgroups in all.
        groups: u32,
    }
}

/// A product of few rows, `[batch,m,k]` one after another, with matrices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RowProduct {
    /// Products, each with a matrix of its own.
    batch: usize,
    /// `m`, at most the last of [`ROWS`].
    count: usize,
    /// `k`.
    inner: usize,
    /// `n`.
    columns: usize,
    /// Whether the rows are those of `b`, and the matrix is `a`.
    flipped: bool,
    /// Whether the matrix is `[batch,n,k]`, not `[batch,k,n]`.
    deep: bool,
}

impl RowProduct {
    /// `a b`, or `bᵀ aᵀ` where that has few rows: of one column both lie the same. None where neither does.
    pub(super) fn new(dims: &MatmulDims) -> Option<Self> {
        let MatmulDims { batch, rows, inner, columns, transpose } = *dims;
        // Places of elements are counted in 32 bits.
        let places = [rows * inner, inner * columns, rows * columns];
        let most = ROWS[ROWS.len() - 1];
        // Sums too long for one invocation are cut into parts, which tiles have. A step takes a round, and one a row and one more.
        let fits = |rows: usize, deep: bool| {
            let rounds = inner.div_ceil(INVOCATIONS_OF_A_SUM[usize::from(deep)]).saturating_mul(rows + 2);
            rounds <= ROUNDS - LAST_ROUNDS
        };
        if places.iter().any(|&n| n.saturating_mul(batch) > u32::MAX as usize) {
            None
        } else if rows <= most && inner * columns >= MATRIX && (rows == 1 || !transpose.a) && fits(rows, transpose.b) {
            Some(Self { batch, count: rows, inner, columns, flipped: false, deep: transpose.b })
        } else if columns == 1 && rows * inner >= MATRIX && fits(1, !transpose.a) {
            Some(Self { batch, count: 1, inner, columns: rows, flipped: true, deep: !transpose.a })
        } else {
            None
        }
    }

    /// `[batch,m,n]`, in 32 bits or in halves where `result` has them.
    pub(super) fn run(&self, device: &Wgpu, [a, b]: [&Tensor<Wgpu>; 2], result: DType) -> Result<Tensor<Wgpu>> {
        let Self { batch, count, inner, columns, flipped, deep: is_deep } = *self;
        // Elements are read one by one, so that rows of any length are as they should be. Sums of halves are written as
        // halves: where they are not wanted so, operands are widened before.
        let read = |x: &Tensor<Wgpu>| match (x.dtype(), result) {
            (DType::F16, DType::F32) => device.stored(&device.widened(x)?, true),
            _ => device.stored(x, true),
        };
        let (rows, matrix) = if flipped { (read(b)?, read(a)?) } else { (read(a)?, read(b)?) };
        let across = columns.div_ceil(COLUMNS[usize::from(!is_deep)]);
        let groups = across * batch;
        let args = MatmulRowsArgs {
            rows: count as u32,
            columns: columns as u32,
            inner: inner as u32,
            across: across as u32,
            groups: groups as u32,
        };
        let variant = ROWS.iter().filter(|&&rows| rows < count).count();
        let kernel = if is_deep {
            deep(usize::from(device.has_subgroups()), rows.source, variant)
        } else {
            flat(rows.source, variant)
        };
        let out = device.empty([batch, count, columns], rows.output)?;
        let arrays = [Binding::Read(&rows.array), Binding::Read(&matrix.array), Binding::Write(&out)];
        device.launch(&kernel, (groups, 1, 1), &args, &arrays)?;
        Ok(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hecate_core::primitives::Transpose;

    /// Which products go this way, and as what.
    #[test]
    fn few_rows_or_one_column() {
        let with = |inner, rows, columns, [a, b]: [bool; 2]| {
            let dims = MatmulDims { batch: 1, rows, inner, columns, transpose: Transpose { a, b } };
            RowProduct::new(&dims).map(|product| (product.count, product.columns, product.flipped, product.deep))
        };
        let of = |rows, columns, transposed| with(300, rows, columns, transposed);
        assert_eq!(of(1, 9, [false, true]), Some((1, 9, false, true)));
        assert_eq!(of(8, 9, [false, false]), Some((8, 9, false, false)));
        // Rows that are stored as columns, unless there is one.
        assert_eq!((of(2, 9, [true, false]), of(1, 9, [true, false])), (None, Some((1, 9, false, false))));
        assert_eq!((of(9, 2, [false, false]), of(9, 1, [false, true])), (None, Some((1, 9, true, true))));
        assert_eq!(of(9, 1, [true, true]), Some((1, 9, true, false)));
        // Sums that one invocation would not end: 7 rounds for every 8 terms, and 7 for every 64.
        assert_eq!((with(73_000, 5, 9, [false, false]).is_some(), with(74_000, 5, 9, [false, false])), (true, None));
        assert_eq!((with(589_000, 5, 9, [false, true]).is_some(), with(590_000, 5, 9, [false, true])), (true, None));
        // Of small matrices none.
        assert_eq!((with(200, 1, 9, [false, true]), with(200, 9, 1, [false, true])), (None, None));
    }
}
