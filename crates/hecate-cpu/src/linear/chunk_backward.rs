//! The exact chunk form, backward: equations (23)–(32).
//!
//! The forward of the chunk is computed again first.
//! Keeping its tables and products would cost more memory than the states do.
//! Every gradient is then a product of matrices, or a row-wise dot product against one.
//! Gradients of the tables are gathered from all of them and transposed into those of the gates at the end.
//!
//! Numbers are those of `hecate-core`'s documentation of `rules`. `∘` is element by element, `x∗X` scales row `t` of
//! `X` by `x_t`. A chunk has `n` tokens, at most 64; a tile has all keys and some columns of the values.

use super::{
    chunk,
    chunk_view::{ChunkGrads, ChunkStart, ChunkView, MemoryMut},
    padded_matrix::PaddedMatrix,
    register_tiles::{Carry, Left, Product, PseudoValueAdjoint, Terms},
    tables::{FactorGrads, TableGrads, Tables},
};
use crate::{
    product::Mat,
    rows::{axpy, dot},
    simd::wide,
};
use hecate_core::families::LinearSpec;

/// Workspace of one tile, for chunks of `n` tokens; `V` stands for the tile's columns.
#[derive(Default)]
pub(crate) struct Workspace {
    /// What the forward left: inputs, tables, products, pseudo-values.
    pub(crate) forward: chunk::Workspace,
    /// Gradients of the tables, all zero at first.
    dtables: TableGrads,
    /// `dO [n,V]`.
    dout: PaddedMatrix,
    /// `Λ [n,V]`, first `dZ`; then `dP [n,V]`.
    lambda: PaddedMatrix,
    dp: PaddedMatrix,
    /// `Zᵀ [V,n]`, for outer products over columns.
    zt: PaddedMatrix,
    /// A state or its gradient, transposed: `[V,K]`.
    transposed: PaddedMatrix,
    /// Gradients of `M` and `S [K,V]`, at the chunk's end and then at its start.
    dm: PaddedMatrix,
    ds: PaddedMatrix,
    /// `dO Zᵀ` and `dP Zᵀ`, which become `dG` and `dN [n,n]`.
    square: PaddedMatrix,
    /// `[n,K]`: what one state sends back to queries or keys.
    keys: PaddedMatrix,
    /// Gradients of `Q` and `K [n,K]`.
    dq: PaddedMatrix,
    dk: PaddedMatrix,
}

/// One chunk. `dout [n,V]`; `dmemory` goes from the chunk's end to its start; `part` is set.
pub(crate) fn run(
    spec: LinearSpec,
    view: &ChunkView<'_>,
    start: &ChunkStart<'_>,
    work: &mut Workspace,
    dout: &Mat<'_>,
    dmemory: MemoryMut<'_>,
    part: ChunkGrads<'_, '_>,
) {
    work.forward.pseudo_values(spec, view, *start);
    work.forward.reads(spec.read);
    back(spec, view, work, dout, dmemory, part);
}

/// [`run`] where the workspace still has what [`chunk::outputs`] left of this chunk.
pub(crate) fn back(
    spec: LinearSpec,
    view: &ChunkView<'_>,
    work: &mut Workspace,
    dout: &Mat<'_>,
    mut dmemory: MemoryMut<'_>,
    mut part: ChunkGrads<'_, '_>,
) {
    // The order matters in two places: `Λ` before all others, and the state's gradients last.
    work.gather(spec, view, dout, &dmemory);
    work.pseudo_value_grads(spec, view);
    work.targets(spec, view, &mut part);
    work.reads(spec);
    if spec.frozen.is_some() {
        work.group(view, &mut dmemory);
    }
    if spec.erases() {
        work.erases(spec);
    }
    work.carried(spec, dmemory);
    work.finish(view, part);
}

/// `⟨X, Y⟩`: sums of four rows at a time, so that each is short and none waits for the one before.
#[inline(always)]
fn inner_product(x: &PaddedMatrix, y: &PaddedMatrix) -> f32 {
    let mut rows = x.each().zip(y.each());
    let mut total = [0.0; 4];
    while rows.len() > 0 {
        for (total, (x, y)) in total.iter_mut().zip(&mut rows) {
            *total += dot(x, y);
        }
    }
    total.iter().sum()
}

/// `out += factors∗x`, and the dot product of each row of `x` and `with` through `put`.
/// One pass serves the gradient of a product and that of its factors.
#[inline(always)]
fn add_scaled(
    out: &mut PaddedMatrix,
    factors: &[f32],
    x: &PaddedMatrix,
    with: &PaddedMatrix,
    mut put: impl FnMut(usize, f32),
) {
    for (t, ((out, x), &factor)) in out.each_mut().zip(x.each()).zip(factors).enumerate() {
        axpy(out, factor, x);
        put(t, dot(x, with.row(t)));
    }
}

impl Workspace {
    /// The gradients that come in.
    fn gather(&mut self, spec: LinearSpec, view: &ChunkView<'_>, dout: &Mat<'_>, dmemory: &MemoryMut<'_>) {
        // `K`, and the tile's share of `V`.
        let (key, width) = (view.k.columns, view.v.columns);
        self.dtables.clear(&self.forward.tables);
        self.dout.gather(dout);
        // Gradients of the states at the chunk's end.
        self.dm.gather(&Mat::new(dmemory.m, key, width));
        if spec.momentum {
            self.ds.gather(&Mat::new(dmemory.s, key, width));
        }
    }

    /// `dZ`, `Λ` and `dP`: equations (23) and (24). Adds to nothing but `lambda` and `dp`.
    fn pseudo_value_grads(&mut self, spec: LinearSpec, view: &ChunkView<'_>) {
        let Self { forward, dout, lambda, dp, dm, ds, .. } = self;
        let chunk::Workspace { tables, k, ln, yg, .. } = forward;
        // `(Y ∘ G)ᵀ dO`: a token's write is read by itself and those after it.
        Product::new(Left::Columns(yg), dout).terms(Terms::Upper).set(lambda);
        // The end states reach each write through its key, weighed as in the forward.
        let ends = [(dm, tables.last_m()), (ds, tables.last_s())];
        for (dstate, factors) in ends.into_iter().take(1 + usize::from(spec.momentum)) {
            Product::new(Left::Rows(k), dstate).scale(factors).add(lambda);
        }
        if spec.erases() {
            // With erase, each write is also seen by the predictions after it.
            PseudoValueAdjoint { triangle: ln, r: view.r, lambda, dp }.solve();
        }
    }

    /// `dV`, `dw`, `dr`: equation (25).
    fn targets(&mut self, spec: LinearSpec, view: &ChunkView<'_>, part: &mut ChunkGrads<'_, '_>) {
        let Self { forward, lambda, .. } = self;
        wide(
            part,
            #[inline(always)]
            |part| {
                for (t, lambda) in lambda.each().enumerate() {
                    // `forward.v` holds `V − f K M_c`, what the write strength was times.
                    part.dw[t] = dot(lambda, forward.v.row(t));
                    if spec.erases() {
                        // `P`, the predictions of (18).
                        part.dr[t] = -dot(lambda, forward.p.row(t));
                    }
                    // `dV = w∗Λ`.
                    for (dv, lambda) in part.dv[t].iter_mut().zip(lambda) {
                        *dv = view.w[t] * lambda;
                    }
                }
            },
        );
    }

    /// What the reads give back: `dQ`, `dGᵀ Q` of `dK`, `dY`, `da⁺`, `db⁺`. Equations (26)–(28), (31).
    fn reads(&mut self, spec: LinearSpec) {
        let Self { forward, dtables, dout, zt, transposed, square, keys, dq, dk, .. } = self;
        let chunk::Workspace { tables, q, k, m, s, z, g, .. } = forward;
        // Row of the tables that a read takes: after its own write, or before.
        let first = Tables::first_read(spec.read);
        zt.transpose(z);
        // `dO Zᵀ`, of which only the lower triangle is used.
        Product::new(Left::Rows(dout), zt).lower().set(square);
        scatter(dtables, square, g, tables, first);
        // `dG K`: the intra-chunk part of `dQ`.
        Product::new(Left::Rows(square), k).terms(Terms::Lower).set(dq);
        // `Mᵀ` comes last, so that it is there when the erased predictions need it.
        for (slot, state) in [m, s].into_iter().enumerate().take(1 + usize::from(spec.momentum)).rev() {
            // The inter-chunk part: each state sends the reads' gradients back to the queries.
            transposed.transpose(state);
            Product::new(Left::Rows(dout), transposed).set(keys);
            let factors = if slot == 0 { &tables.a } else { &tables.b };
            wide(
                (&mut *dq, &mut *dtables),
                #[inline(always)]
                |(dq, dtables)| {
                    add_scaled(dq, &factors[first..], keys, q, |t, x| match slot {
                        0 => dtables.a[t + first] += x,
                        // Column 0 of `c` is the influence of `S₀`.
                        _ => dtables.c_row(t + first)[0] += x,
                    })
                },
            );
        }
        // `dGᵀ Q`, and `dK` begins with it.
        Product::new(Left::Columns(square), q).terms(Terms::Upper).set(dk);
    }

    /// What the frozen target adds to `dK` and to the gradient of `M_c`: (28), (29).
    fn group(&mut self, view: &ChunkView<'_>, dmemory: &mut MemoryMut<'_>) {
        let Self { forward, lambda, transposed, dk, keys, .. } = self;
        let chunk::Workspace { k, group, scratch, .. } = forward;
        // `−w∗Λ` is the gradient of `K M_c`, which all tokens of the group share.
        let factors: Vec<f32> = view.w.iter().map(|w| -w).collect();
        scratch.set_scaled(&factors, lambda);
        transposed.transpose(group);
        Product::new(Left::Rows(scratch), transposed).add(dk);
        // `dM_c −= f Kᵀ dV` of (29); the group's first chunk takes what has gathered.
        Product::new(Left::Columns(k), scratch).set(keys);
        dmemory.group.chunks_exact_mut(view.v.columns).zip(keys.each()).for_each(|(own, x)| axpy(own, 1.0, x));
    }

    /// What the erased predictions give back: `dK`, `dL`, `da⁻`, `db⁻`. Equations (26), (28), (31).
    fn erases(&mut self, spec: LinearSpec) {
        let Self { forward, dtables, dp, zt, transposed, square, keys, dk, .. } = self;
        let chunk::Workspace { tables, k, m, s, n, .. } = forward;
        // `dP Zᵀ`: predictions see the writes before them.
        Product::new(Left::Rows(dp), zt).lower().set(square);
        scatter(dtables, square, n, tables, 0);
        for (slot, state) in [m, s].into_iter().enumerate().take(1 + usize::from(spec.momentum)) {
            // `Mᵀ` is still there from the reads, unless the frozen target took its place.
            if slot > 0 || spec.frozen.is_some() {
                transposed.transpose(state);
            }
            Product::new(Left::Rows(dp), transposed).set(keys);
            let factors = if slot == 0 { &tables.a } else { &tables.b };
            wide(
                (&mut *dk, &mut *dtables),
                #[inline(always)]
                |(dk, dtables)| {
                    add_scaled(dk, factors, keys, k, |t, x| match slot {
                        0 => dtables.a[t] += x,
                        _ => dtables.c_row(t)[0] += x,
                    })
                },
            );
        }
        // `dN` is needed with its transposed: `N = K Kᵀ` has each key on both sides.
        Product::new(Left::Rows(square), k).terms(Terms::Lower).add(dk);
        Product::new(Left::Columns(square), k).terms(Terms::Upper).add(dk);
    }

    /// What the state at the end gives back, and the gradient of the state at the start: equations (28)–(31).
    fn carried(&mut self, spec: LinearSpec, dmemory: MemoryMut<'_>) {
        let Self { forward, dtables, dout, dp, lambda, transposed, dm, ds, keys, dk, .. } = self;
        let chunk::Workspace { tables, q, k, m, s, z, scratch, .. } = forward;
        // `A[C]`, `c[C,0]` and `E[C,0]`: how the start enters the end.
        let (n, (a, b, e)) = (z.rows(), tables.carried());
        // Each write enters the end states through its key.
        let ends = [(&*dm, tables.last_m()), (&*ds, tables.last_s())];
        for (slot, (dstate, factors)) in ends.into_iter().enumerate().take(1 + usize::from(spec.momentum)) {
            transposed.transpose(dstate);
            Product::new(Left::Rows(z), transposed).set(keys);
            // Row `n` of the tables is what is left of each write at the chunk's end.
            let table = if slot == 0 { dtables.c_row(n) } else { dtables.e_row(n) };
            wide(
                (&mut *dk, table),
                #[inline(always)]
                |(dk, table)| add_scaled(dk, factors, keys, k, |t, x| table[1 + t] += x),
            );
        }
        wide(
            (&*dm, &*ds, &mut *dtables),
            #[inline(always)]
            |(dm, ds, dtables)| {
                // The start enters the end states through three scalars: their gradients are inner products of states.
                dtables.a[n] += inner_product(dm, m);
                if spec.momentum {
                    dtables.c_row(n)[0] += inner_product(dm, s);
                    dtables.e_row(n)[0] += inner_product(ds, s);
                }
            },
        );
        let first = Tables::first_read(spec.read);
        // `A[C] dM_C` of (29), and what is left of the momentum's gradient beside what it has of the memory's.
        let (dm, ds) = (&*dm, &*ds);
        let ends: [(&[_], _, _); 2] = [(&[(a, dm)], &tables.a, dmemory.m), (&[(e, ds), (b, dm)], &tables.b, dmemory.s)];
        for (olds, factors, out) in ends.into_iter().take(1 + usize::from(spec.momentum)) {
            // Reads and predictions add to the gradient of the state that they saw: the start.
            scratch.set_scaled(&factors[first..], dout);
            if spec.erases() {
                // `Λ` has been used by now.
                lambda.set_scaled(factors, dp);
            }
            let products = [[&*q, &*scratch], [&*k, &*lambda]];
            Carry { olds, products: &products[..1 + usize::from(spec.erases())], out }.set();
        }
    }

    /// Hands out the gradients of `q`, `k` and the gates; `part`'s other slots are set before.
    fn finish(&mut self, view: &ChunkView<'_>, part: ChunkGrads<'_, '_>) {
        let Self { forward, dtables, dq, dk, .. } = self;
        // Rows are padded to whole vectors here, and are not there.
        part.dq.iter_mut().zip(dq.each()).for_each(|(to, own)| to.copy_from_slice(own));
        part.dk.iter_mut().zip(dk.each()).for_each(|(to, own)| to.copy_from_slice(own));
        wide(
            (dtables, part.da, part.deta),
            #[inline(always)]
            |(dtables, a, eta)| {
                dtables.gates(&forward.tables, view.factors(), FactorGrads { a, eta, emission: &mut [] });
            },
        );
    }
}

/// Back through a masked product of keys, row by row: `outer = dX Zᵀ [n,n]`.
///
/// The table's gradient gets `products ∘ outer`, and `outer` becomes `table ∘ outer`.
/// To the right of the table it becomes zero, so that products over it may use whole tiles.
fn scatter(dtables: &mut TableGrads, outer: &mut PaddedMatrix, products: &PaddedMatrix, tables: &Tables, first: usize) {
    wide(
        (dtables, outer),
        #[inline(always)]
        |(dtables, outer)| {
            for (t, (outer, products)) in outer.each_mut().zip(products.each()).enumerate() {
                // Writes that row `t` sees: those before it, and its own where reads come after the write.
                let seen = t + first;
                let terms = dtables.c_row(seen)[1..=seen].iter_mut().zip(&mut outer[..seen]);
                for ((dtable, outer), (product, table)) in
                    terms.zip(products.iter().zip(tables.write_weights(seen, seen)))
                {
                    *dtable += product * *outer;
                    *outer *= table;
                }
                outer[seen..].fill(0.0);
            }
        },
    );
}
