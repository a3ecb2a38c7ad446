//! The exact chunk form, forward: equations (15)–(22), the WY form of the delta rule.
//!
//! A chunk of `n` tokens costs four kinds of work:
//!
//! - intra-chunk tables of gate products, `n²` ([`Tables`]);
//! - products of the chunk's keys and queries, `[n,n]`;
//! - a triangular system for the pseudo-values `Z [n, columns]`, which stand for all writes of the chunk;
//! - inter-chunk products with the memory `[K, columns]`, once for reading and once for writing.
//!
//! The memory is thus fetched twice a chunk, not twice a token.

use super::{
    chunk_view::{ChunkStart, ChunkView, Memory, MemoryMut},
    padded_matrix::PaddedMatrix,
    register_tiles::{Carry, Left, Product, PseudoValueSolve, Terms},
    tables::Tables,
};
use crate::{product::Mat, rows::axpy, simd::wide};
use hecate_core::{Read, families::LinearSpec};

/// Workspace of one tile, for chunks of `n` tokens; `V` stands for the tile's columns.
#[derive(Default)]
pub(crate) struct Workspace {
    pub(super) tables: Tables,
    /// `Q`, `K [n,K]`.
    pub(super) q: PaddedMatrix,
    pub(super) k: PaddedMatrix,
    /// `Kᵀ [K,n]`: the right factor of the products of keys.
    pub(super) kt: PaddedMatrix,
    /// Targets `V − f K M_c [n,V]`.
    pub(super) v: PaddedMatrix,
    /// `M₀`, `S₀`, `M_c [K,V]`. The second exists only with momentum, the third only for frozen rules.
    pub(super) m: PaddedMatrix,
    pub(super) s: PaddedMatrix,
    pub(super) group: PaddedMatrix,
    /// `N = K Kᵀ` and `L ∘ N [n,n]`; only with erase.
    pub(super) n: PaddedMatrix,
    pub(super) ln: PaddedMatrix,
    /// `G = Q Kᵀ` and `Y ∘ G [n,n]`.
    pub(super) g: PaddedMatrix,
    pub(super) yg: PaddedMatrix,
    /// Predictions `P [n,V]`; only with erase.
    pub(super) p: PaddedMatrix,
    /// Pseudo-values `Z [n,V]`.
    pub(super) z: PaddedMatrix,
    /// `[n,V]`, for one product at a time.
    pub(super) scratch: PaddedMatrix,
    /// Reads `O [n,V]`.
    out: PaddedMatrix,
}

impl Workspace {
    /// The pseudo-values of the chunk: equations (15)–(19).
    ///
    /// Gathers the inputs and the state at the chunk's start `[K,V]`, builds the tables, and solves.
    /// The backward calls it again, so its results stay in the workspace.
    pub(super) fn pseudo_values(
        &mut self,
        spec: LinearSpec,
        view: &ChunkView<'_>,
        ChunkStart { m, s, group }: ChunkStart<'_>,
    ) {
        let (key, width) = (view.k.columns, view.v.columns);
        self.q.gather(&view.q);
        self.k.gather(&view.k);
        self.v.gather(&view.v);
        self.kt.transpose(&self.k);
        self.m.gather(&Mat::new(m, key, width));
        if spec.momentum {
            self.s.gather(&Mat::new(s, key, width));
        }
        if spec.frozen.is_some() {
            self.group.gather(&Mat::new(group, key, width));
            Product::new(Left::Rows(&self.k), &self.group).set(&mut self.scratch);
            for (v, x) in self.v.each_mut().zip(self.scratch.each()) {
                axpy(v, -1.0, x);
            }
        }
        wide(
            &mut self.tables,
            #[inline(always)]
            |tables| tables.build(view.factors()),
        );
        // Without erase no write depends on another: the pseudo-values are the scaled targets.
        match spec.erases() {
            true => self.solve(spec, view),
            false => self.z.set_scaled(view.w, &self.v),
        }
    }

    /// Equations (18) and (19): what the start predicts, then the triangular system.
    fn solve(&mut self, spec: LinearSpec, view: &ChunkView<'_>) {
        Product::new(Left::Rows(&self.k), &self.kt).lower().set(&mut self.n);
        mask(&self.n, &self.tables, 0, &mut self.ln);
        Product::new(Left::Rows(&self.k), &self.m).scale(&self.tables.a).set(&mut self.p);
        if spec.momentum {
            Product::new(Left::Rows(&self.k), &self.s).scale(&self.tables.b).add(&mut self.p);
        }
        let Self { ln: triangle, v, p, z, .. } = self;
        PseudoValueSolve { triangle, v, w: view.w, r: view.r, p, z }.solve();
    }

    /// `G` and `Y ∘ G`, of which (20) reads the chunk's own writes.
    pub(super) fn reads(&mut self, read: Read) {
        Product::new(Left::Rows(&self.q), &self.kt).lower().set(&mut self.g);
        mask(&self.g, &self.tables, Tables::first_read(read), &mut self.yg);
    }
}

/// `out[t,j] = c[t + first, j] x[t,j]` where the table is not zero, and 0 to the right of that.
/// `first` is 1 where a token sees its own write.
fn mask(x: &PaddedMatrix, tables: &Tables, first: usize, out: &mut PaddedMatrix) {
    out.fit(x.rows(), x.width());
    wide(
        out,
        #[inline(always)]
        |out| {
            for (t, (out, x)) in out.each_mut().zip(x.each()).enumerate() {
                let seen = t + first;
                for ((out, x), c) in out[..seen].iter_mut().zip(x).zip(tables.write_weights(seen, seen)) {
                    *out = c * x;
                }
                out[seen..].fill(0.0);
            }
        },
    );
}

/// One chunk: `out` are `n` rows `[V]`, and `memory` goes from the chunk's start to its end.
pub(crate) fn forward(
    spec: LinearSpec,
    view: &ChunkView<'_>,
    memory: &mut Memory,
    work: &mut Workspace,
    out: &mut [&mut [f32]],
) {
    outputs(spec, view, memory.start(), work, out);
    carry(spec, work, memory.view());
}

/// [`forward`] without the memory at the end, for which [`carry`] may follow. What a backward needs stays in the workspace.
pub(crate) fn outputs(
    spec: LinearSpec,
    view: &ChunkView<'_>,
    start: ChunkStart<'_>,
    work: &mut Workspace,
    out: &mut [&mut [f32]],
) {
    prepare(spec, view, start, work);
    read(spec, work, out);
}

/// What the workspace has after [`outputs`], without the reads.
pub(crate) fn prepare(spec: LinearSpec, view: &ChunkView<'_>, start: ChunkStart<'_>, work: &mut Workspace) {
    work.pseudo_values(spec, view, start);
    work.reads(spec.read);
}

/// Equation (20): reads of the start, decayed, and of the chunk's own writes.
fn read(spec: LinearSpec, work: &mut Workspace, out: &mut [&mut [f32]]) {
    let first = Tables::first_read(spec.read);
    Product::new(Left::Rows(&work.q), &work.m).scale(&work.tables.a[first..]).set(&mut work.out);
    if spec.momentum {
        Product::new(Left::Rows(&work.q), &work.s).scale(&work.tables.b[first..]).add(&mut work.out);
    }
    Product::new(Left::Rows(&work.yg), &work.z).terms(Terms::Lower).add(&mut work.out);
    out.iter_mut().zip(work.out.each()).for_each(|(out, own)| out.copy_from_slice(own));
}

/// Equations (21) and (22): the memory at the chunk's end, all of which is set.
pub(crate) fn carry(spec: LinearSpec, work: &mut Workspace, memory: MemoryMut<'_>) {
    let (a, b, e) = work.tables.carried();
    let Workspace { tables, k, z, m, s, scratch, .. } = work;
    // Each write enters the last memory with what the later tokens leave of it.
    scratch.set_scaled(tables.last_m(), z);
    let olds: &[_] = if spec.momentum { &[(a, &*m), (b, &*s)] } else { &[(a, &*m)] };
    Carry { olds, products: &[[&*k, &*scratch]], out: memory.m }.set();
    if spec.momentum {
        // The momentum's end has nothing of the memory.
        scratch.set_scaled(tables.last_s(), z);
        Carry { olds: &[(e, &*s)], products: &[[&*k, &*scratch]], out: memory.s }.set();
    }
}
