//! Products by cooperative matrices, on a device that was opened with them: 32 bits in two halves, and sums in 32 bits.
//!
//! First factors become two halves, high and low, in tiles of one matrix (`pack.wgsl`, `packs.rs`). Then each subgroup
//! multiplies matrices of a square of the result (`multiply.wgsl`). What is more than panels that join goes through sums in
//! memory (`finish_sums.wgsl`). So do long sums of small results, of which several subgroups have a part each.
//!
//! A subgroup waits for matrices most of the time. So many subgroups have to be there at once, and each asks for matrices
//! before it needs them. A result [64, 256] of one memory is 16 squares of 2 × 2 matrices of 16: with few memories that
//! is less than a GPU has room for.

mod packs;

use super::{
    pass::{Pass, THREADS},
    places::{Panel, Places},
    product::{FINISH, Factors, Kind, PRODUCT_TEXT, Product, ProductArgs, Share},
};
use crate::{
    Wgpu,
    adapter::CooperativeMatrices,
    deep::Cell,
    launch::{Binding, DIMENSION, Kernel, PRELUDE, WgslSource},
    parameters::Parameters,
    primitives::matmul_cooperative::{ROLES, SIDES},
    recurrent::SILU,
};
use hecate_core::Result;
pub(super) use packs::Packs;
use packs::{AT_ONCE, Entry, Factor, FactorArgs, PackArgs, place};

const ACTIVATION: &str = include_str!("../../activation.wgsl");
const NUMBERS: &str = include_str!("../numbers.wgsl");
const MULTIPLY: &str = include_str!("multiply.wgsl");
const INTO: [&str; 2] = [include_str!("into_sums.wgsl"), include_str!("into_panel.wgsl")];

/// What needs subgroups, and nothing else that is optional.
pub(crate) const PACK_TEXT: &str = include_str!("pack.wgsl");
static PACK: WgslSource =
    WgslSource { name: "groups_pack", parts: &[PRELUDE, FactorArgs::WGSL, PackArgs::WGSL, PACK_TEXT] };
static FINISH_SUMS: WgslSource = WgslSource {
    name: "groups_finish",
    parts: &[
        PRELUDE,
        SILU,
        ACTIVATION,
        Cell::WGSL,
        NUMBERS,
        Factors::WGSL,
        ProductArgs::WGSL,
        PRODUCT_TEXT,
        FINISH,
        include_str!("finish_sums.wgsl"),
    ],
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
                Cell::WGSL,
                NUMBERS,
                Factors::WGSL,
                ProductArgs::WGSL,
                PRODUCT_TEXT,
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

/// Matrices along the terms that share a scale, where they leave no rest.
const STEPS: [u32; 2] = [4, 2];

/// Multiply-adds of a group's rows with the largest matrix of a memory, from which on its products go by matrices: groups of 64
/// with weights [128, 512]. Below that packing and one more dispatch take longer than they save.
const LEAST_WORK: u32 = 1 << 22;

/// Subgroups of a memory that sums are not split beyond: with sixteen memories several for each multiprocessor of a large GPU.
const BUSY: u32 = 64;

/// Terms that a part of a sum has at least, so that adding parts is little beside making them.
const LEAST_TERMS: u32 = 128;

/// A product that goes by such matrices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cooperative {
    matrices: CooperativeMatrices,
    /// Matrices of a square, down and across.
    square: [u32; 2],
    /// Matrices along the terms that share a scale.
    steps: u32,
    /// Parts of sums, each by a subgroup of its own. They depend on a memory's sizes and on the pass.
    parts: u32,
    /// Whether sums go into the result at once.
    direct: bool,
}

impl Cooperative {
    /// The matrices of a device that has them, where memories are so large that they pay.
    pub(super) fn paying(device: &Wgpu, places: &Places) -> Option<CooperativeMatrices> {
        let largest = places.weights.iter().map(|weights| weights.count()).max().unwrap_or(0);
        let pays = places.group.saturating_mul(largest) >= LEAST_WORK || device.multiplies_small();
        device.cooperative_matrices().filter(|_| pays)
    }

    /// None where there are no matrices or they do not pay, or where one would be cut at an edge.
    pub(super) fn new(device: &Wgpu, product: &Product, places: &Places) -> Option<Self> {
        Self::paying(device, places).and_then(|matrices| Self::fitting(matrices, product, places.each))
    }

    /// With squares of two matrices along a side where that leaves no rest; `each` elements of the workspace are a memory's.
    fn fitting(matrices: CooperativeMatrices, product: &Product, each: usize) -> Option<Self> {
        let whole = |size: u32| size.is_multiple_of(matrices.side);
        let Panel { rows, columns, .. } = product.out;
        // Each buffer has a memory's part that is no longer than that of the workspace, so that as many memories fit.
        // Matrices begin at multiples of four elements.
        let room = product.elements().max(rows * columns) as usize <= each && each.is_multiple_of(4);
        // A workgroup packs a tile or more; launches that are folded would take others for memories.
        let room = room && (product.elements() / matrices.side.pow(2)) as usize <= DIMENSION;
        let there = !product.terms.is_empty();
        let fits = whole(rows) && whole(columns) && product.terms.iter().all(|term| whole(term.a.columns)) && room;
        let reach = |size: u32| if size.is_multiple_of(2 * matrices.side) { 2 } else { 1 };
        let even = |steps: u32| product.terms.iter().all(|term| term.a.columns.is_multiple_of(steps * matrices.side));
        (there && fits).then(|| {
            let square = [reach(rows), reach(columns)];
            let steps = STEPS.into_iter().find(|&steps| even(steps)).unwrap_or(1);
            // How sums are split depends on squares, and whether another kernel finishes them on that.
            let whole = Self { matrices, square, steps, parts: 1, direct: direct(product) };
            let parts = whole.parts(product, each);
            Self { parts, direct: whole.direct && parts == 1, ..whole }
        })
    }

    /// Squares of the result that a subgroup has one of.
    fn squares(&self, [rows, columns]: [u32; 2]) -> u32 {
        let [down, across] = self.square.map(|reach| reach * self.matrices.side);
        rows / down * (columns / across)
    }

    /// Parts of sums: a power of two, so many that subgroups are busy, and there is room for all.
    fn parts(&self, product: &Product, each: usize) -> u32 {
        let (squares, depth) = (self.squares(product.out.sizes()), product.depth());
        let mut parts = 1;
        while 2 * parts * squares <= BUSY
            && depth >= 2 * parts * LEAST_TERMS
            && (2 * parts * product.out.count()) as usize <= each
        {
            parts *= 2;
        }
        parts
    }

    /// The kernel's constants, and workgroups a memory and part.
    fn shape(&self, sizes: [u32; 2]) -> (MultiplyConstants, usize) {
        let squares = self.squares(sizes);
        let subgroups = if squares.is_multiple_of(SUBGROUPS) { SUBGROUPS } else { 1 };
        (
            multiply_constants(self.matrices.lanes, subgroups, self.square, self.steps, self.parts),
            (squares / subgroups) as usize,
        )
    }
}

/// Whether sums go into the result at once: panels join by one number alone, and lie where matrices can be loaded from.
fn direct(product: &Product) -> bool {
    let aligned = |at: u32| at.is_multiple_of(4);
    let plain = matches!(product.kind, Kind::Plain) && product.slope.is_none();
    let by_rows = |share: &Share| matches!(share, Share::Rows(_));
    let shares = product.joins.iter().map(|(_, share)| share).chain(&product.own);
    let panels = product.joins.iter().map(|(panel, _)| panel).chain([&product.out]);
    plain && !shares.into_iter().any(by_rows) && panels.into_iter().all(|x| aligned(x.at))
}

type MultiplyConstants = [(&'static str, u32); 6];

/// What `multiply.wgsl` leaves open.
const fn multiply_constants(lanes: u32, subgroups: u32, square: [u32; 2], steps: u32, parts: u32) -> MultiplyConstants {
    let [down, across] = square;
    [("LANES", lanes), ("SUBGROUPS", subgroups), ("DOWN", down), ("ACROSS", across), ("STEPS", steps), ("PARTS", parts)]
}

/// What `pack.wgsl` leaves open.
const fn pack_constants(side: u32, steps: u32) -> [(&'static str, u32); 2] {
    [("SIDE", side), ("STEPS", steps)]
}

impl Pass<'_> {
    /// A product that fits.
    pub(super) fn multiply_cooperative(&self, way: Cooperative, product: &Product, args: &ProductArgs) -> Result<()> {
        let packs = self.packs(way.matrices.side)?;
        let both = |term| Factor::both(term, way.steps, &self.places);
        let factors: Vec<_> = product.terms.iter().flat_map(both).collect();
        let (origins, entries) = place(&factors, way.matrices.side);
        for some in entries.chunks(AT_ONCE) {
            self.pack(way, packs, some)?;
        }
        let args = args.packed(&origins, packs.tiles);
        self.multiply_packed(way, packs, product, &args)?;
        if way.direct { Ok(()) } else { self.finish_sums(way, packs, product, &args) }
    }

    /// Memory for packed factors, from the first product that has some.
    fn packs(&self, side: u32) -> Result<&Packs> {
        if self.packs.get().is_none() {
            let packs = Packs::new(self.device, side, self.memories, self.places.each)?;
            // Nobody else has set it.
            let _ = self.packs.set(packs);
        }
        Ok(self.packs.get().expect("it was set"))
    }

    /// Factors in halves.
    #[expect(unsafe_code, reason = "checks would branch around loads")]
    fn pack(&self, way: Cooperative, packs: &Packs, entries: &[Entry]) -> Result<()> {
        let constants = pack_constants(way.matrices.side, way.steps);
        let kernel = Kernel { source: &PACK, entry: "pack", constants: &constants };
        let (args, blocks) = packs.args(entries, self.places.each);
        let bindings = [Binding::Read(&self.workspace), Binding::Write(&packs.halves), Binding::Write(&packs.scales)];
        // SAFETY: a workgroup has a block of a factor that is there, whose panel `Places` cut from the workspace, and `place`
        // found tiles for it. There are as many workgroups as blocks, which `fitting` has seen not to be folded. It divides by
        // counts of blocks, which are not zero; loops count to constants, or end at the last block.
        unsafe { self.device.launch_unchecked(&kernel, (blocks, self.memories, 1), &args, &bindings) }
    }

    /// Products of them, into the result or to sums.
    #[expect(unsafe_code, reason = "checks would branch around matrices")]
    fn multiply_packed(&self, way: Cooperative, packs: &Packs, product: &Product, args: &ProductArgs) -> Result<()> {
        let side = usize::from(way.matrices.side != SIDES[0]);
        let (constants, workgroups) = way.shape(product.out.sizes());
        let source = &MULTIPLIES[side][usize::from(way.direct)];
        let kernel = Kernel { source, entry: "multiply", constants: &constants };
        let [halves, scales] = [&packs.halves, &packs.scales].map(Binding::Read);
        let mut bindings = vec![Binding::Write(&self.workspace), halves, scales];
        bindings.extend((!way.direct).then_some(Binding::Write(&packs.sums)));
        // SAFETY: `fitting` has seen that squares cover the result without a rest, and matrices each depth. So every element of a
        // matrix is one of its tile, or of a panel of the result's size. Loops count terms, and it divides by sizes.
        unsafe {
            self.device.launch_unchecked(&kernel, (workgroups, self.memories, way.parts as usize), args, &bindings)
        }
    }

    /// What becomes of sums.
    fn finish_sums(&self, way: Cooperative, packs: &Packs, product: &Product, args: &ProductArgs) -> Result<()> {
        let constants = [("PARTS", way.parts)];
        let kernel = Kernel { source: &FINISH_SUMS, entry: "finish_sums", constants: &constants };
        let groups = ((product.out.count() as usize).div_ceil(THREADS), self.memories, 1);
        self.device.launch(&kernel, groups, args, &[Binding::Write(&self.workspace), Binding::Read(&packs.sums)])
    }
}

/// Kernels as tests compile them: both sides, both places of sums, several squares and blocks.
pub(crate) const KERNELS: &[Kernel<'static>] = &[
    Kernel { source: &PACK, entry: "pack", constants: &pack_constants(16, 4) },
    Kernel { source: &PACK, entry: "pack", constants: &pack_constants(8, 1) },
    Kernel { source: &FINISH_SUMS, entry: "finish_sums", constants: &[("PARTS", 4)] },
    multiply(0, 0, &multiply_constants(32, 4, [2, 2], 4, 8)),
    multiply(0, 1, &multiply_constants(32, 1, [1, 2], 1, 1)),
    multiply(1, 0, &multiply_constants(8, 1, [2, 1], 2, 4)),
    multiply(1, 1, &multiply_constants(8, 4, [1, 1], 1, 1)),
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
        assert_eq!(shape(16, [256, 256, 256]), None, "factors are longer than a memory's part");
        assert_eq!(way(16, &Product::new(panel(0, 16, 16), [])), None, "nothing to multiply");
        let wide = |width: u32| {
            Cooperative::fitting(CooperativeMatrices { side: 8, lanes: 8 }, &product([24, width, width]), 1 << 23)
        };
        assert!(wide(2032).is_some() && wide(2040).is_none(), "more workgroups than a dimension has");
    }

    /// Long sums of small results alone.
    #[test]
    fn some_sums_have_parts() {
        let parts = |sizes| way(16, &product(sizes)).map(|way| (way.parts, way.direct));
        assert_eq!(parts([64, 512, 64]), Some((4, false)));
        assert_eq!(parts([64, 128, 64]), Some((1, true)), "a part would be short");
        assert_eq!(parts([64, 256, 128]), Some((2, false)));
        assert_eq!(parts([16, 512, 112]), Some((4, false)));
        assert_eq!(parts([128, 256, 128]), Some((2, false)), "as many as keep a GPU busy");
        assert_eq!(way(16, &product([64, 512, 64])).map(|way| way.shape([64, 64]).1), Some(1));
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
