//! The exact chunk form, backward: equations (23)–(32).

use super::{
    Spec, chunk,
    lane::{Memory, Part, View},
    replay::Start,
    sheet::Sheet,
    tables::{FactorGrads, TableGrads, Tables},
    tiles::{Adjoint, Left, Product, Terms},
};
use crate::{
    product::Mat,
    rows::{axpy, dot},
    simd::wide,
};

/// Scratch of one lane, for chunks of `n` tokens.
#[derive(Default)]
pub(crate) struct Workspace {
    pub(crate) forward: chunk::Workspace,
    dtables: TableGrads,
    /// `dO [n,V]`.
    dout: Sheet,
    /// `Λ [n,V]`, first `dZ`; `dP [n,V]`.
    lambda: Sheet,
    dp: Sheet,
    /// `Zᵀ [V,n]`.
    zt: Sheet,
    /// A state or its gradient, transposed: `[V,K]`.
    turned: Sheet,
    /// Gradients of `M` and `S [K,V]`.
    dm: Sheet,
    ds: Sheet,
    /// `dO Zᵀ` and `dP Zᵀ`, then `dG` and `dN [n,n]`.
    square: Sheet,
    /// `[n,K]`.
    keys: Sheet,
    /// Gradients of `Q` and `K [n,K]`.
    dq: Sheet,
    dk: Sheet,
}

/// One chunk: `dmemory` from its end to its start, and the gradients of its inputs.
pub(crate) fn run(
    spec: Spec,
    view: &View<'_>,
    start: &Start<'_>,
    work: &mut Workspace,
    dout: &Mat<'_>,
    dmemory: &mut Memory,
    mut part: Part<'_, '_>,
) {
    work.recompute(spec, view, start, dout, dmemory);
    work.adjoint_of_writes(spec, view);
    work.targets(spec, view, &mut part);
    work.reads(spec);
    if spec.frozen.is_some() {
        work.group(view, dmemory);
    }
    if spec.erase {
        work.erases(spec);
    }
    work.carried(spec, dmemory);
    work.finish(view, part);
}

/// `products[t] = row t of x · row t of y`, added to a table through `put`.
#[inline(always)]
fn row_dots(x: &Sheet, y: &Sheet, mut put: impl FnMut(usize, f32)) {
    for (t, (x, y)) in x.each().zip(y.each()).enumerate() {
        put(t, dot(x, y));
    }
}

/// `out += factors∗x`, with the dot of each row of `x` and `with` through `put`.
#[inline(always)]
fn add_scaled(out: &mut Sheet, factors: &[f32], x: &Sheet, with: &Sheet, mut put: impl FnMut(usize, f32)) {
    for (t, ((out, x), &factor)) in out.each_mut().zip(x.each()).zip(factors).enumerate() {
        axpy(out, factor, x);
        put(t, dot(x, with.row(t)));
    }
}

impl Workspace {
    /// `Z`, `P`, `G`, `Y ∘ G` from the state at the chunk's start.
    fn recompute(&mut self, spec: Spec, view: &View<'_>, start: &Start<'_>, dout: &Mat<'_>, dmemory: &Memory) {
        let (key, width) = (view.k.columns, view.v.columns);
        self.forward.writes(spec, view, start.m, start.s, start.group);
        self.forward.reads(spec.read);
        self.dtables.clear(&self.forward.tables);
        self.dout.gather(dout);
        self.dm.gather(&Mat::new(&dmemory.m, key, width));
        if spec.momentum {
            self.ds.gather(&Mat::new(&dmemory.s, key, width));
        }
    }

    /// `dZ`, `Λ` and `dP`: equations (23) and (24).
    fn adjoint_of_writes(&mut self, spec: Spec, view: &View<'_>) {
        let Self { forward, dout, lambda, dp, dm, ds, .. } = self;
        let chunk::Workspace { tables, k, ln, yg, .. } = forward;
        Product::new(Left::Columns(yg), dout).terms(Terms::Upper).set(lambda);
        let ends = [(dm, tables.last_m()), (ds, tables.last_s())];
        for (dstate, factors) in ends.into_iter().take(1 + usize::from(spec.momentum)) {
            Product::new(Left::Rows(k), dstate).scale(factors).add(lambda);
        }
        if spec.erase {
            Adjoint { triangle: ln, r: view.r, lambda, dp }.solve();
        }
    }

    /// `dV`, `dw`, `dr`: equation (25).
    fn targets(&mut self, spec: Spec, view: &View<'_>, part: &mut Part<'_, '_>) {
        let Self { forward, lambda, .. } = self;
        wide(
            part,
            #[inline(always)]
            |part| {
                for (t, lambda) in lambda.each().enumerate() {
                    part.dw[t] = dot(lambda, forward.v.row(t));
                    if spec.erase {
                        part.dr[t] = -dot(lambda, forward.p.row(t));
                    }
                    for (dv, lambda) in part.dv[t].iter_mut().zip(lambda) {
                        *dv = view.w[t] * lambda;
                    }
                }
            },
        );
    }

    /// `dQ`, `dGᵀ Q` of `dK`, `dY`, `da⁺`, `db⁺`: equations (26)–(28), (31).
    fn reads(&mut self, spec: Spec) {
        let Self { forward, dtables, dout, zt, turned, square, keys, dq, dk, .. } = self;
        let chunk::Workspace { tables, q, k, m, s, z, g, .. } = forward;
        let first = Tables::first_read(spec.read);
        zt.transpose(z);
        Product::new(Left::Rows(dout), zt).lower().set(square);
        scatter(dtables, square, g, tables, first);
        Product::new(Left::Rows(square), k).terms(Terms::Lower).set(dq);
        // `Mᵀ` last: it is there when the erased predictions need it.
        for (slot, state) in [m, s].into_iter().enumerate().take(1 + usize::from(spec.momentum)).rev() {
            turned.transpose(state);
            Product::new(Left::Rows(dout), turned).set(keys);
            let factors = if slot == 0 { &tables.a } else { &tables.b };
            wide(
                (&mut *dq, &mut *dtables),
                #[inline(always)]
                |(dq, dtables)| {
                    add_scaled(dq, &factors[first..], keys, q, |t, x| match slot {
                        0 => dtables.a[t + first] += x,
                        _ => dtables.c_row(t + first)[0] += x,
                    })
                },
            );
        }
        Product::new(Left::Columns(square), q).terms(Terms::Upper).set(dk);
    }

    /// What the frozen target adds: (28), (29).
    fn group(&mut self, view: &View<'_>, dmemory: &mut Memory) {
        let Self { forward, lambda, turned, dk, keys, .. } = self;
        let chunk::Workspace { k, group, scratch, .. } = forward;
        let factors: Vec<f32> = view.w.iter().map(|w| -w).collect();
        scratch.set_scaled(&factors, lambda);
        turned.transpose(group);
        Product::new(Left::Rows(scratch), turned).add(dk);
        Product::new(Left::Columns(k), scratch).set(keys);
        dmemory.group.chunks_exact_mut(view.v.columns).zip(keys.each()).for_each(|(own, x)| axpy(own, 1.0, x));
    }

    /// What the erased predictions add to `dK`, `dL`, `da⁻`, `db⁻`: equations (26), (28), (31).
    fn erases(&mut self, spec: Spec) {
        let Self { forward, dtables, dp, zt, turned, square, keys, dk, .. } = self;
        let chunk::Workspace { tables, k, m, s, n, .. } = forward;
        Product::new(Left::Rows(dp), zt).lower().set(square);
        scatter(dtables, square, n, tables, 0);
        for (slot, state) in [m, s].into_iter().enumerate().take(1 + usize::from(spec.momentum)) {
            if slot > 0 || spec.frozen.is_some() {
                turned.transpose(state);
            }
            Product::new(Left::Rows(dp), turned).set(keys);
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
        Product::new(Left::Rows(square), k).terms(Terms::Lower).add(dk);
        Product::new(Left::Columns(square), k).terms(Terms::Upper).add(dk);
    }

    /// What the final state adds to `dK` and the tables, and the gradient of the state at the chunk's start:
    /// equations (28)–(31).
    fn carried(&mut self, spec: Spec, dmemory: &mut Memory) {
        let Self { forward, dtables, dout, dp, turned, dm, ds, keys, dk, .. } = self;
        let chunk::Workspace { tables, q, k, m, s, z, scratch, .. } = forward;
        let (n, (a, b, e)) = (z.rows(), tables.carried());
        let ends = [(&*dm, tables.last_m()), (&*ds, tables.last_s())];
        for (slot, (dstate, factors)) in ends.into_iter().enumerate().take(1 + usize::from(spec.momentum)) {
            turned.transpose(dstate);
            Product::new(Left::Rows(z), turned).set(keys);
            let table = if slot == 0 { dtables.c_row(n) } else { dtables.e_row(n) };
            wide(
                (&mut *dk, table),
                #[inline(always)]
                |(dk, table)| add_scaled(dk, factors, keys, k, |t, x| table[1 + t] += x),
            );
        }
        wide(
            (&mut *dm, &mut *ds, &mut *dtables),
            #[inline(always)]
            |(dm, ds, dtables)| {
                row_dots(dm, m, |_, x| dtables.a[n] += x);
                if spec.momentum {
                    row_dots(dm, s, |_, x| dtables.c_row(n)[0] += x);
                    row_dots(ds, s, |_, x| dtables.e_row(n)[0] += x);
                    for (ds, dm) in ds.each_mut().zip(dm.each()) {
                        ds.iter_mut().zip(dm).for_each(|(ds, dm)| *ds = e * *ds + b * dm);
                    }
                }
                dm.each_mut().for_each(|dm| dm.iter_mut().for_each(|dm| *dm *= a));
            },
        );
        let first = Tables::first_read(spec.read);
        let ends = [(dm, &tables.a, &mut dmemory.m), (ds, &tables.b, &mut dmemory.s)];
        for (dstate, factors, to) in ends.into_iter().take(1 + usize::from(spec.momentum)) {
            scratch.set_scaled(&factors[first..], dout);
            Product::new(Left::Columns(q), scratch).add(dstate);
            if spec.erase {
                scratch.set_scaled(factors, dp);
                Product::new(Left::Columns(k), scratch).add(dstate);
            }
            dstate.scatter(to);
        }
    }

    /// Hands out the gradients of `q`, `k` and the gates.
    fn finish(&mut self, view: &View<'_>, part: Part<'_, '_>) {
        let Self { forward, dtables, dq, dk, .. } = self;
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

/// With `outer = dX Zᵀ`, row by row: gradients of the table, `products ∘ outer`, then `outer ← table ∘ outer`, zero to
/// the right of the table.
fn scatter(dtables: &mut TableGrads, outer: &mut Sheet, products: &Sheet, tables: &Tables, first: usize) {
    wide(
        (dtables, outer),
        #[inline(always)]
        |(dtables, outer)| {
            for (t, (outer, products)) in outer.each_mut().zip(products.each()).enumerate() {
                let seen = t + first;
                let terms = dtables.c_row(seen)[1..=seen].iter_mut().zip(&mut outer[..seen]);
                for ((dtable, outer), (product, table)) in terms.zip(products.iter().zip(tables.writes(seen, seen))) {
                    *dtable += product * *outer;
                    *outer *= table;
                }
                outer[seen..].fill(0.0);
            }
        },
    );
}
