//! Products by cooperative matrices, on a device that was opened with them: 32 bits in two halves, and sums in 32 bits.
//!
//! First every factor becomes two halves, high and low (`pack.wgsl`). Then each subgroup multiplies matrices of a square of the
//! result (`multiply.wgsl`). What is more than panels that join goes through sums in memory (`finish_sums.wgsl`).

use super::{
    pass::{Pass, THREADS},
    places::{Panel, Places},
    product::{FINISH, Kind, PRODUCT_ARGS, Product, ProductArgs, Share},
};
use crate::{
    Wgpu,
    adapter::CooperativeMatrices,
    launch::{Binding, Kernel, PRELUDE, WgslSource},
    primitives::matmul_cooperative::{ROLES, SIDES},
    recurrent::SILU,
};
use hecate_core::{DType, Result, Tensor};

/// What asks for f16, and for nothing else.
pub(crate) const HALVES: &str = "enable f16;";
const ACTIVATION: &str = include_str!("../../activation.wgsl");
const CELL: &str = include_str!("../../cell.wgsl");
const NUMBERS: &str = include_str!("../numbers.wgsl");
const MULTIPLY: &str = include_str!("multiply.wgsl");
const INTO: [&str; 2] = [include_str!("into_sums.wgsl"), include_str!("into_panel.wgsl")];

static PACK: WgslSource =
    WgslSource { name: "groups_pack", parts: &[HALVES, PRELUDE, CELL, PRODUCT_ARGS, include_str!("pack.wgsl")] };
static FINISH_SUMS: WgslSource = WgslSource {
    name: "groups_finish",
    parts: &[PRELUDE, SILU, ACTIVATION, CELL, NUMBERS, PRODUCT_ARGS, FINISH, include_str!("finish_sums.wgsl")],
};
macro_rules! multiply {
    ($name:literal, $side:literal, $into:literal) => {
        WgslSource {
            name: $name,
            parts: &[
                ROLES[$side],
                PRELUDE,
                SILU,
                ACTIVATION,
                CELL,
                NUMBERS,
                PRODUCT_ARGS,
                FINISH,
                INTO[$into],
                MULTIPLY,
            ],
        }
    };
}
/// By the side of matrices, then by where sums go.
static MULTIPLIES: [[WgslSource; 2]; 2] = [
    [multiply!("groups_multiply_16_sums", 0, 0), multiply!("groups_multiply_16_panel", 0, 1)],
    [multiply!("groups_multiply_8_sums", 1, 0), multiply!("groups_multiply_8_panel", 1, 1)],
];

/// Subgroups of a workgroup, where there are squares enough.
const SUBGROUPS: u32 = 4;

/// A product that goes by such matrices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cooperative {
    matrices: CooperativeMatrices,
    /// Matrices of a square, down and across.
    square: [u32; 2],
    /// Whether packed left and right factors lie with their terms side by side.
    deep: [bool; 2],
    /// Whether sums go into the result at once.
    direct: bool,
}

impl Cooperative {
    /// None where the device does not do so, or where a matrix would be cut at an edge.
    pub(super) fn new(device: &Wgpu, product: &Product, places: &Places) -> Option<Self> {
        device.cooperative_matrices().and_then(|matrices| Self::fitting(matrices, product, places.each))
    }

    /// With squares of two matrices along a side where that leaves no rest; `each` elements of the workspace are a memory's.
    fn fitting(matrices: CooperativeMatrices, product: &Product, each: usize) -> Option<Self> {
        let whole = |size: u32| size.is_multiple_of(matrices.side);
        let Panel { rows, columns, .. } = product.out;
        let last = product.terms.last()?;
        // Each buffer has a memory's part that is no longer than that of the workspace, so that as many memories fit.
        let room = product.halves().div_ceil(2).max(rows * columns) as usize <= each;
        let fits = whole(rows) && whole(columns) && product.terms.iter().all(|term| whole(term.a.columns)) && room;
        let reach = |size: u32| if size.is_multiple_of(2 * matrices.side) { 2 } else { 1 };
        fits.then(|| Self {
            matrices,
            square: [reach(rows), reach(columns)],
            // Most products have factors that all lie alike. Others are turned on the way.
            deep: [last.a.column == 1, last.b.row == 1],
            direct: direct(product, each),
        })
    }

    /// Squares of the result that a subgroup has one of.
    fn squares(&self, [rows, columns]: [u32; 2]) -> u32 {
        let [down, across] = self.square.map(|reach| reach * self.matrices.side);
        rows / down * (columns / across)
    }

    /// The kernel's constants, and workgroups a memory.
    fn shape(&self, sizes: [u32; 2]) -> (MultiplyConstants, usize) {
        let squares = self.squares(sizes);
        let subgroups = if squares.is_multiple_of(SUBGROUPS) { SUBGROUPS } else { 1 };
        (multiply_constants(self.matrices.lanes, subgroups, self.square, self.deep), (squares / subgroups) as usize)
    }
}

/// Whether sums go into the result at once: panels join by one number alone, and lie where matrices can be loaded from.
fn direct(product: &Product, each: usize) -> bool {
    let aligned = |at: u32| at.is_multiple_of(4);
    let plain = matches!(product.kind, Kind::Plain) && product.slope.is_none();
    let by_rows = |share: &Share| matches!(share, Share::Rows(_));
    let shares = product.joins.iter().map(|(_, share)| share).chain(&product.own);
    let panels = product.joins.iter().map(|(panel, _)| panel).chain([&product.out]);
    plain && !shares.into_iter().any(by_rows) && aligned(each as u32) && panels.into_iter().all(|x| aligned(x.at))
}

type MultiplyConstants = [(&'static str, u32); 6];

/// What `multiply.wgsl` leaves open.
const fn multiply_constants(lanes: u32, subgroups: u32, square: [u32; 2], deep: [bool; 2]) -> MultiplyConstants {
    [
        ("LANES", lanes),
        ("SUBGROUPS", subgroups),
        ("DOWN", square[0]),
        ("ACROSS", square[1]),
        ("A_DEEP", deep[0] as u32),
        ("B_DEEP", deep[1] as u32),
    ]
}

/// What `pack.wgsl` leaves open.
const fn pack_constants(side: u32, deep: [bool; 2]) -> [(&'static str, u32); 3] {
    [("SIDE", side), ("A_DEEP", deep[0] as u32), ("B_DEEP", deep[1] as u32)]
}

impl Pass<'_> {
    /// A product that fits.
    pub(super) fn multiply_cooperative(&self, way: Cooperative, product: &Product, args: &ProductArgs) -> Result<()> {
        let halves = self.device.empty([self.memories, product.halves() as usize], DType::F16)?;
        let blocks = (product.out.rows + product.out.columns) / way.matrices.side;
        let scales = self.device.empty([self.memories, product.terms.len(), blocks as usize], DType::F32)?;
        self.pack(way, args, &halves, &scales)?;
        if way.direct {
            return self.multiply_packed(way, product, args, &[Binding::Read(&halves), Binding::Read(&scales)]);
        }
        let sums = self.device.empty([self.memories, product.out.count() as usize], DType::F32)?;
        let packed = [Binding::Read(&halves), Binding::Read(&scales), Binding::Write(&sums)];
        self.multiply_packed(way, product, args, &packed)?;
        self.finish_sums(product, args, &sums)
    }

    /// All factors in halves.
    #[expect(unsafe_code, reason = "checks would branch around loads")]
    fn pack(&self, way: Cooperative, args: &ProductArgs, halves: &Tensor<Wgpu>, scales: &Tensor<Wgpu>) -> Result<()> {
        let constants = pack_constants(way.matrices.side, way.deep);
        let kernel = Kernel { source: &PACK, entry: "pack", constants: &constants };
        let bindings = [Binding::Write(&self.workspace), Binding::Write(halves), Binding::Write(scales)];
        let blocks = scales.shape().count() / self.memories;
        // SAFETY: a workgroup has a block of a factor that is there, whose panel `Places` cut from the workspace. `Product::halves`
        // has a place for two parts of each element, and scales are as many as blocks. It divides by sizes that are not
        // zero (`fitting`), and loops count to them.
        unsafe { self.device.launch_unchecked(&kernel, (blocks, self.memories, 1), args, &bindings) }
    }

    /// Products of them, into the result or to sums.
    #[expect(unsafe_code, reason = "checks would branch around matrices")]
    fn multiply_packed(
        &self,
        way: Cooperative,
        product: &Product,
        args: &ProductArgs,
        packed: &[Binding<'_>],
    ) -> Result<()> {
        let side = usize::from(way.matrices.side != SIDES[0]);
        let (constants, workgroups) = way.shape(product.out.sizes());
        let source = &MULTIPLIES[side][usize::from(way.direct)];
        let kernel = Kernel { source, entry: "multiply", constants: &constants };
        let bindings = [&[Binding::Write(&self.workspace)], packed].concat();
        // SAFETY: `fitting` has seen that squares cover the result without a rest, and matrices each depth. So every element of a
        // matrix is one of its array, or of a panel of the result's size. Loops count terms, and it divides by sizes.
        unsafe { self.device.launch_unchecked(&kernel, (workgroups, self.memories, 1), args, &bindings) }
    }

    /// What becomes of sums.
    fn finish_sums(&self, product: &Product, args: &ProductArgs, sums: &Tensor<Wgpu>) -> Result<()> {
        let kernel = Kernel { source: &FINISH_SUMS, entry: "finish_sums", constants: &[] };
        let groups = ((product.out.count() as usize).div_ceil(THREADS), self.memories, 1);
        self.device.launch(&kernel, groups, args, &[Binding::Write(&self.workspace), Binding::Read(sums)])
    }
}

/// Kernels as tests compile them: both sides, both places of sums, several squares and ways to lie.
pub(crate) const KERNELS: &[Kernel<'static>] = &[
    Kernel { source: &PACK, entry: "pack", constants: &pack_constants(16, [true, false]) },
    Kernel { source: &PACK, entry: "pack", constants: &pack_constants(8, [false, true]) },
    Kernel { source: &FINISH_SUMS, entry: "finish_sums", constants: &[] },
    multiply(0, 0, &multiply_constants(32, 4, [2, 2], [true, false])),
    multiply(0, 1, &multiply_constants(32, 1, [1, 2], [true, true])),
    multiply(1, 0, &multiply_constants(8, 1, [2, 1], [false, false])),
    multiply(1, 1, &multiply_constants(8, 4, [1, 1], [false, true])),
];

const fn multiply(side: usize, into: usize, constants: &'static MultiplyConstants) -> Kernel<'static> {
    Kernel { source: &MULTIPLIES[side][into], entry: "multiply", constants }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::deep::groups::{places::Number, product::Term};

    /// Elements of a memory.
    const EACH: usize = 1 << 16;

    fn panel(at: u32, rows: u32, columns: u32) -> Panel {
        Panel { at, rows, columns, row: columns, column: 1 }
    }

    fn product([rows, depth, columns]: [u32; 3]) -> Product {
        Product::new(panel(0, rows, columns), [Term::new(panel(0, rows, depth), panel(0, depth, columns))])
    }

    fn way(side: u32, product: &Product) -> Option<Cooperative> {
        Cooperative::fitting(CooperativeMatrices { side, lanes: 32 }, product, EACH)
    }

    /// Whatever is not covered goes another way.
    #[test]
    fn squares_leave_no_rest() {
        let shape = |side, sizes: [u32; 3]| {
            let way = way(side, &product(sizes))?;
            Some((way.square, way.squares([sizes[0], sizes[2]]), way.shape([sizes[0], sizes[2]]).1))
        };
        assert_eq!(shape(16, [64, 16, 256]), Some(([2, 2], 16, 4)));
        assert_eq!(shape(16, [16, 48, 96]), Some(([1, 2], 3, 3)));
        assert_eq!(shape(8, [16, 8, 24]), Some(([2, 1], 3, 3)));
        for sizes in [[9, 16, 16], [16, 9, 16], [16, 16, 9], [16, 24, 16]] {
            assert_eq!(shape(16, sizes), None, "{sizes:?}");
        }
        assert_eq!(shape(16, [256, 256, 256]), None, "halves are longer than a memory's part");
        assert_eq!(way(16, &Product::new(panel(0, 16, 16), [])), None, "nothing to multiply");
    }

    /// Sums go into the result where whole panels join, each by one number, at places that matrices are loaded from.
    #[test]
    fn some_results_need_no_finish() {
        let (own, sizes) = (panel(64, 16, 32), [16, 16, 32]);
        let direct = |product: Product| way(16, &product).map(|way| way.direct);
        assert_eq!(direct(product(sizes).own(Share::Kept).join(true, own, Share::Rest)), Some(true));
        assert_eq!(direct(product(sizes).join(true, own, Share::Rows(Number::ReadA))), Some(false));
        assert_eq!(direct(product(sizes).join(true, panel(63, 16, 32), Share::Whole)), Some(false));
        assert_eq!(direct(product(sizes).slope(own)), Some(false));
        assert_eq!(direct(product(sizes).kind(Kind::Mask)), Some(false));
    }
}
