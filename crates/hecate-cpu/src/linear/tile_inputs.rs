//! What a head tile takes out of a call: views of its rows, copies of its scalars and states.

use super::{
    call::LinearCall,
    chunk_view::{ChunkView, Memory},
    head_tile::HeadTile,
    scalars::Scalars,
};
use crate::product::Mat;
use hecate_core::Dims;
use std::{borrow::Cow, ops::Range};

impl LinearCall<'_> {
    /// A tile's scalars `[T]`, contiguous: in the call they are `[rows, H]`.
    pub(super) fn tile_scalars(&self, tile: &HeadTile) -> Scalars {
        let heads = self.dims.heads;
        // A scalar that the rule has not stays empty.
        let own = |all: &[f32]| match all.is_empty() {
            true => Vec::new(),
            false => tile.rows.clone().map(|row| all[row * heads + tile.head]).collect(),
        };
        let Scalars { w, r, a, eta } = self.scalars();
        Scalars { w: own(w), r: own(r), a: own(a), eta: own(eta) }
    }

    /// Inputs of `tokens`, counted from the tile's first; `scalars` are those of the tile.
    pub(super) fn view<'v>(&'v self, tile: &HeadTile, scalars: &'v Scalars, tokens: &Range<usize>) -> ChunkView<'v> {
        // The chunk's part of the tile's scalars.
        let part = |x: &'v [f32]| if x.is_empty() { x } else { &x[tokens.clone()] };
        // Queries and keys are whole; values are cut to the tile's columns.
        let keys = 0..self.dims.key;
        ChunkView {
            tokens: tokens.len(),
            q: self.mat(tile, &self.q, &keys, tokens),
            k: self.mat(tile, &self.k, &keys, tokens),
            v: self.mat(tile, &self.v, &tile.columns, tokens),
            w: part(&scalars.w),
            r: part(&scalars.r),
            a: part(&scalars.a),
            eta: part(&scalars.eta),
        }
    }

    /// Rows `tokens` and columns `columns` of the tile's head in `x [rows, H, width]`.
    pub(super) fn mat<'v>(
        &self,
        tile: &HeadTile,
        x: &'v [f32],
        columns: &Range<usize>,
        tokens: &Range<usize>,
    ) -> Mat<'v> {
        let heads = self.dims.heads;
        // The array's own width: `K` or `V`.
        let width = x.len() / (self.dims.sequences.rows() * heads);
        // Rows of one head lie `H` rows apart in the array.
        let first = ((tile.rows.start + tokens.start) * heads + tile.head) * width + columns.start;
        Mat::with_stride(&x[first..], tokens.len(), columns.len(), heads * width)
    }

    /// `M` and `S` of a tile out of whole states, with a zero `M_c` where the rule is frozen.
    pub(super) fn memory(&self, tile: &HeadTile, states: &[Cow<'_, [f32]>]) -> Memory {
        // `M` first, then `S` where the rule has one.
        let mut own = states.iter().map(|x| self.tile_state(tile, x));
        let m = own.next().unwrap_or_default();
        let s = own.next().unwrap_or_default();
        let group = if self.spec.frozen.is_some() { vec![0.0; m.len()] } else { Vec::new() };
        Memory { m, s, group }
    }

    /// A tile's part `[K, columns]` of states `[N, H, K, V]`, contiguous.
    fn tile_state(&self, tile: &HeadTile, states: &[f32]) -> Vec<f32> {
        let Dims { heads, key, value, .. } = *self.dims;
        // A tile's columns of every row of its matrix.
        let base = (tile.sequence * heads + tile.head) * key * value;
        let mut own = Vec::with_capacity(key * tile.width());
        let rows = states[base..][..key * value].chunks_exact(value);
        rows.for_each(|row| own.extend_from_slice(&row[tile.columns.clone()]));
        own
    }
}
