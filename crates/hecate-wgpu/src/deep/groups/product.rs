//! A product of matrices of all memories, and what becomes of its sums.

use super::places::{Number, Panel, Places};
use crate::parameters::{array, parameters};
use crate::recurrent::CellWords as Cell;

/// What products are told, and what becomes of their sums.
pub(super) const PRODUCT_TEXT: &str = include_str!("product_args.wgsl");
pub(super) const FINISH: &str = include_str!("finish.wgsl");

parameters! {
    /// `by ∘ (a b)`, `by` a number for each row of `a`, or for each of the terms of a sum.
    #[derive(Default)]
    pub(super) struct Factors {
        /// Where the left factor begins.
        a: u32,
        /// Where the right one does.
        b: u32,
        /// Numbers that multiply rows or terms, 0 for none.
        by: u32,
        /// Terms of a sum.
        depth: u32,
        /// From a row of the left factor to the next.
        a_row: u32,
        /// From a term of it to the next.
        a_column: u32,
        /// From a term of the right factor to the next.
        b_row: u32,
        /// From a column of it to the next.
        b_column: u32,
    }
}

parameters! {
    /// What products of matrices are told, whichever way they go.
    pub(super) struct ProductArgs {
        /// The rule and its options.
        cell: Cell,
        /// Those that are not there have no depth.
        terms: array<Factors, 4>,
        /// Of the result.
        rows: u32,
        /// Of the result.
        columns: u32,
        /// Elements of a memory's part of the workspace.
        each: u32,
        /// Where the numbers of its tokens begin.
        numbers: u32,
        /// Tokens of a group.
        group: u32,
        /// A bit a term.
        by_depth: u32,
        /// [`Kind`].
        kind: u32,
        /// Where the result goes.
        out: u32,
        /// [`Share`] of what was there.
        own_by: u32,
        /// Up to three panels that join, each before its share.
        first: u32,
        first_by: u32,
        second: u32,
        second_by: u32,
        third: u32,
        third_by: u32,
        /// 0 for none.
        slope: u32,
        /// A second result.
        also: u32,
        /// Whether tokens read after their own write.
        read_after: u32,
        /// Terms that there are.
        count: u32,
        /// Tiles of a memory's packed factors, of cooperative products alone.
        tiles: u32,
    }
}

impl ProductArgs {
    /// With the first tiles of packed factors, left and right by term, of as many as a memory has.
    pub(super) fn packed(mut self, origins: &[u32], tiles: u32) -> Self {
        for (factors, own) in self.terms.iter_mut().zip(origins.chunks_exact(2)) {
            (factors.a, factors.b) = (own[0], own[1]);
        }
        Self { tiles, ..self }
    }
}

/// by ∘ (a b).
#[derive(Clone, Copy)]
pub(super) struct Term {
    /// The left factor.
    pub(super) a: Panel,
    /// The right factor.
    pub(super) b: Panel,
    /// Numbers by token that multiply; none for a product as it is.
    pub(super) by: Option<Number>,
    /// Whether they multiply the terms of a sum, not rows of the result.
    pub(super) by_depth: bool,
}

impl Term {
    /// a b.
    pub(super) fn new(a: Panel, b: Panel) -> Self {
        Self { a, b, by: None, by_depth: false }
    }

    /// With a number for each row of a.
    pub(super) fn by(self, number: Number) -> Self {
        Self { by: Some(number), ..self }
    }

    /// With a number for each of the terms of a sum.
    pub(super) fn by_depth(self, number: Number) -> Self {
        Self { by: Some(number), by_depth: true, ..self }
    }
}

/// How much of a panel joins: `finish.wgsl`'s constants, or a number by row.
#[derive(Clone, Copy)]
pub(super) enum Share {
    /// All of it.
    Whole,
    /// A, B and E after the group.
    Kept,
    Pushed,
    Left,
    /// 1 − A.
    Rest,
    /// A number for each row.
    Rows(Number),
}

impl Share {
    /// As the kernel has it.
    fn word(self, places: &Places) -> u32 {
        match self {
            Self::Whole => 1,
            Self::Kept => 2,
            Self::Pushed => 3,
            Self::Left => 4,
            Self::Rest => 5,
            Self::Rows(number) => places.number(number),
        }
    }
}

/// What becomes of the sums, in the order of `finish.wgsl`'s kinds.
#[derive(Clone, Copy)]
pub(super) enum Kind {
    /// Sums with what joins them.
    Plain,
    /// The activation into this panel.
    Activate(Panel),
    /// Sums into the first panel; the result is −θ times them, times slopes at the second.
    Write(Panel, Panel),
    /// Times the mask.
    Mask,
    /// The square, which becomes masked; the mask's gradient has been told.
    MaskBack(Panel),
}

/// A product of up to four terms.
pub(super) struct Product {
    /// Where the result goes; its sizes are those of the product.
    pub(super) out: Panel,
    /// Added up before anything joins.
    pub(super) terms: Vec<Term>,
    pub(super) kind: Kind,
    /// How much of what was there stays.
    pub(super) own: Option<Share>,
    /// At most three.
    pub(super) joins: Vec<(Panel, Share)>,
    /// Pre-activations with whose slopes the sum is multiplied.
    pub(super) slope: Option<Panel>,
}

impl Product {
    /// The sum of the terms alone.
    pub(super) fn new(out: Panel, terms: impl IntoIterator<Item = Term>) -> Self {
        let terms = terms.into_iter().collect();
        Self { out, terms, kind: Kind::Plain, own: None, joins: Vec::new(), slope: None }
    }

    /// With what becomes of the sums.
    pub(super) fn kind(self, kind: Kind) -> Self {
        Self { kind, ..self }
    }

    /// So much of what was there stays.
    pub(super) fn own(self, share: Share) -> Self {
        Self { own: Some(share), ..self }
    }

    /// So much of a panel of the result's size joins, where it is there.
    pub(super) fn join(mut self, there: bool, panel: Panel, share: Share) -> Self {
        self.joins.extend(there.then_some((panel, share)));
        self
    }

    /// Times slopes at these pre-activations, before what stays joins.
    pub(super) fn slope(self, panel: Panel) -> Self {
        Self { slope: Some(panel), ..self }
    }

    /// Elements of a memory's factors.
    pub(super) fn elements(&self) -> u32 {
        self.depth() * (self.out.rows + self.out.columns)
    }

    /// Terms of an element's sum.
    pub(super) fn depth(&self) -> u32 {
        self.terms.iter().map(|term| term.a.columns).sum()
    }

    /// Tiles of the result.
    pub(super) fn tiles(&self) -> usize {
        (self.out.rows.div_ceil(SIDE) * self.out.columns.div_ceil(SIDE)) as usize
    }

    /// As the kernel has it.
    pub(super) fn args(&self, places: &Places, cell: Cell, read_after: bool) -> ProductArgs {
        assert!(self.terms.len() <= 4 && self.joins.len() <= 3, "the kernel has no more");
        let beside = match self.kind {
            Kind::Plain | Kind::Mask => [self.slope, None],
            Kind::Activate(also) | Kind::MaskBack(also) => [Some(also), None],
            Kind::Write(also, slope) => [Some(also), Some(slope)],
        };
        let panels = self.joins.iter().map(|(panel, _)| panel).chain(beside.iter().flatten());
        assert!(
            panels.into_iter().all(|panel| panel.sizes() == self.out.sizes()),
            "what joins is as large as the result"
        );
        let mut terms = [Factors::default(); 4];
        for (factors, Term { a, b, by, .. }) in terms.iter_mut().zip(&self.terms) {
            assert_eq!([a.rows, a.columns, b.columns], [self.out.rows, b.rows, self.out.columns]);
            let by = by.map_or(0, |number| places.number(number));
            let (a_row, a_column, b_row, b_column) = (a.row, a.column, b.row, b.column);
            *factors = Factors { a: a.at, b: b.at, by, depth: a.columns, a_row, a_column, b_row, b_column };
        }
        let mut joins = [0; 6];
        for (two, (panel, share)) in joins.chunks_mut(2).zip(&self.joins) {
            two.copy_from_slice(&[panel.at, share.word(places)]);
        }
        let (kind, also, slope) = match self.kind {
            Kind::Plain => (0, 0, self.slope.map_or(0, |panel| panel.at)),
            Kind::Activate(also) => (1, also.at, 0),
            Kind::Write(also, slope) => (2, also.at, slope.at),
            Kind::Mask => (3, 0, 0),
            Kind::MaskBack(also) => (4, also.at, 0),
        };
        if matches!(self.kind, Kind::Mask | Kind::MaskBack(_)) {
            joins = [places.c.at, 0, places.dc.at, 0, 0, 0];
        }
        let [first, first_by, second, second_by, third, third_by] = joins;
        ProductArgs {
            cell,
            terms,
            rows: self.out.rows,
            columns: self.out.columns,
            each: places.each as u32,
            numbers: places.numbers,
            group: places.group,
            by_depth: (0..).zip(&self.terms).map(|(n, term)| u32::from(term.by_depth) << n).sum(),
            kind,
            out: self.out.at,
            own_by: self.own.map_or(0, |share| share.word(places)),
            first,
            first_by,
            second,
            second_by,
            third,
            third_by,
            slope,
            also,
            read_after: read_after.into(),
            count: self.terms.len() as u32,
            tiles: 0,
        }
    }
}

/// Rows and columns of a tile.
const SIDE: u32 = 32;
