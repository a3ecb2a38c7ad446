//! Packed factors of a product: what `pack.wgsl` is told, and where it puts them.
//!
//! They are packed for each product anew, though some products have a factor in common. What that would save is a small part of
//! a pass, and whoever writes a panel would have to say so.

use super::super::{
    places::{Panel, Places},
    product::Term,
};
use crate::Wgpu;
use crate::parameters::{array, parameters};
use hecate_core::{DType, Result, Tensor};

/// Factors that one dispatch packs at most.
pub(super) const AT_ONCE: usize = 7;

/// A factor as `pack.wgsl` goes through it: sides are rows of a left one and columns of a right one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Factor {
    /// Its first element, in a memory's part of the workspace.
    at: u32,
    /// [sides, terms].
    sides: u32,
    terms: u32,
    /// From a side to the next, and from a term.
    by_side: u32,
    by_term: u32,
    /// Numbers that multiply sides or terms, 0 for none.
    by: u32,
    /// Whether they multiply terms.
    by_depth: bool,
    /// Matrices along its terms that share a scale.
    steps: u32,
}

impl Factor {
    /// Left and right.
    pub(super) fn both(term: &Term, steps: u32, places: &Places) -> [Self; 2] {
        let plain = |panel: Panel| Self {
            at: panel.at,
            sides: panel.rows,
            terms: panel.columns,
            by_side: panel.row,
            by_term: panel.column,
            by: 0,
            by_depth: false,
            steps,
        };
        let by = term.by.map_or(0, |number| places.number(number));
        [Self { by, by_depth: term.by_depth, ..plain(term.a) }, plain(term.b.t())]
    }

    /// Tiles of such a side.
    fn tiles(&self, side: u32) -> u32 {
        self.sides / side * (self.terms / side)
    }
}

parameters! {
    /// What is packed; sides are rows of a left factor and columns of a right one.
    #[derive(Default)]
    pub(super) struct FactorArgs {
        /// As in [`Factor`], and so are the next four.
        at: u32,
        by_side: u32,
        by_term: u32,
        by: u32,
        by_depth: u32,
        /// Blocks along the terms, and all of them.
        chunks: u32,
        blocks: u32,
        /// Its first tile.
        origin: u32,
    }
}

parameters! {
    /// What one dispatch packs.
    pub(super) struct PackArgs {
        factors: array<FactorArgs, 7>,
        /// Elements of a memory's part of the workspace, and tiles of its packed factors.
        each: u32,
        tiles: u32,
    }
}

/// A factor and its first tile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    factor: Factor,
    origin: u32,
}

/// Memory for them; each buffer has a memory's part that is no longer than that of the workspace.
#[derive(Debug)]
pub(in super::super) struct Packs {
    /// Rows and columns of a tile.
    side: u32,
    /// Tiles that a memory has room for.
    pub(super) tiles: u32,
    /// Two parts of each element: [memories, tiles, 2, side × side].
    pub(super) halves: Tensor<Wgpu>,
    /// [memories, tiles], of which the first of each block is in use.
    pub(super) scales: Tensor<Wgpu>,
    /// What another kernel finishes: of each memory [parts, rows, columns], as large as the product has them.
    pub(super) sums: Tensor<Wgpu>,
}

impl Packs {
    /// For so many memories with `each` elements of the workspace.
    pub(super) fn new(device: &Wgpu, side: u32, memories: usize, each: usize) -> Result<Self> {
        let part = (side * side) as usize;
        let tiles = each / part;
        Ok(Self {
            side,
            tiles: tiles as u32,
            halves: device.empty([memories, tiles, 2, part], DType::F16)?,
            scales: device.empty([memories, tiles], DType::F32)?,
            sums: device.empty([memories, each], DType::F32)?,
        })
    }

    /// As `pack.wgsl` has them, and blocks of all.
    pub(super) fn args(&self, entries: &[Entry], each: usize) -> (PackArgs, usize) {
        let mut factors = [FactorArgs::default(); AT_ONCE];
        for (args, Entry { factor, origin }) in factors.iter_mut().zip(entries) {
            *args = FactorArgs {
                at: factor.at,
                by_side: factor.by_side,
                by_term: factor.by_term,
                by: factor.by,
                by_depth: factor.by_depth.into(),
                chunks: factor.terms / (self.side * factor.steps),
                blocks: factor.tiles(self.side) / factor.steps,
                origin: *origin,
            };
        }
        let blocks = factors.iter().map(|factor| factor.blocks as usize).sum();
        (PackArgs { factors, each: each as u32, tiles: self.tiles }, blocks)
    }
}

/// First tiles of factors one behind another; behind them each factor that is packed, which equal ones share.
pub(super) fn place(factors: &[Factor], side: u32) -> (Vec<u32>, Vec<Entry>) {
    let (mut entries, mut end) = (Vec::<Entry>::new(), 0);
    let origins = factors.iter().map(|&factor| {
        if let Some(entry) = entries.iter().find(|entry| entry.factor == factor) {
            return entry.origin;
        }
        // A new one follows those before it.
        let origin = end;
        end += factor.tiles(side);
        entries.push(Entry { factor, origin });
        origin
    });
    (origins.collect(), entries)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Where momentum looks ahead keys have two matrices.
    #[test]
    fn equal_factors_are_packed_once() {
        let factor =
            |at, sides| Factor { at, sides, terms: 16, by_side: 16, by_term: 1, by: 0, by_depth: false, steps: 1 };
        let [a, b, c] = [factor(0, 48), factor(768, 32), factor(1280, 16)];
        let (origins, entries) = place(&[a, b, a, c], 16);
        assert_eq!((origins, entries.len()), (vec![0, 3, 0, 5], 3));
    }
}
