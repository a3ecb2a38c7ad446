//! The exact chunk form, backward: equations (23)–(32).

use super::{
    Spec, chunk,
    lane::{Memory, Part, View, row},
    replay::Start,
    solve,
    tables::{FactorGrads, TableGrads, Tables, reset},
};
use crate::{
    product::{Mat, MatMut, product},
    rows::{add_scaled_rows, axpy, dot, scale, set_scaled_rows},
    simd::wide,
};

/// Scratch of one lane.
#[derive(Default)]
pub(crate) struct Workspace {
    pub(super) forward: chunk::Workspace,
    dtables: TableGrads,
    /// `Q Kᵀ [C,C]`.
    g: Vec<f32>,
    /// `dO [C,width]`.
    dout: Vec<f32>,
    /// `Λ [C,width]`, first `dZ`.
    lambda: Vec<f32>,
    /// `dP [C,width]`.
    dp: Vec<f32>,
    /// `dP Zᵀ` and `dO Zᵀ`, then `dN` and `dG [C,C]`.
    square: Vec<f32>,
    /// `[C,K]`.
    keys: Vec<f32>,
    /// `[C,width]`.
    scratch: Vec<f32>,
}

impl Workspace {
    pub(crate) fn new(width: usize) -> Self {
        Self { forward: chunk::Workspace::new(width), ..Self::default() }
    }
}

/// One chunk: `dmemory` from its end to its start, and the gradients of its inputs.
pub(crate) fn run(
    spec: Spec,
    view: &View<'_>,
    start: &Start<'_>,
    work: &mut Workspace,
    dout: &Mat<'_>,
    dmemory: &mut Memory,
    part: Part<'_>,
) {
    wide(
        (work, dmemory, part),
        #[inline(always)]
        |(work, dmemory, mut part)| {
            work.recompute(spec, view, start, dout);
            work.adjoint_of_writes(spec, view, dmemory);
            work.targets(spec, view, start, dmemory, &mut part);
            work.reads(spec, view, start, &mut part);
            if spec.erase {
                work.erases(spec, view, start, &mut part);
            }
            work.carried(spec, view, start, dmemory, &mut part);
            let Workspace { forward, dtables, .. } = work;
            let grads = FactorGrads { a: part.da, eta: part.deta, emission: &mut [] };
            dtables.gates(&forward.tables, view.factors(), grads);
        },
    );
}

impl Workspace {
    /// `Z`, `P`, `G`, `Y ∘ G` from the state at the chunk's start.
    #[inline(always)]
    fn recompute(&mut self, spec: Spec, view: &View<'_>, start: &Start<'_>, dout: &Mat<'_>) {
        let (n, width) = (view.tokens, self.forward.width);
        let forward = &mut self.forward;
        forward.writes(spec, view, start.m, start.s, start.group);
        if spec.erase {
            let (ln, z) = (Mat::new(&forward.ln, n, n), Mat::new(&forward.z, n, width));
            product(MatMut::new(&mut forward.p, n, width), 1.0, 1.0, ln, z);
        }
        reset(&mut self.g, n * n);
        product(MatMut::new(&mut self.g, n, n), 0.0, 1.0, view.q, view.k.t());
        forward.yg.clone_from(&self.g);
        chunk::Workspace::mask_reads(&forward.tables, spec.read, &mut forward.yg, n);
        self.dtables.clear(&forward.tables);
        reset(&mut self.dout, n * width);
        for (t, own) in self.dout.chunks_exact_mut(width).enumerate() {
            own.copy_from_slice(row(dout, t));
        }
    }

    /// `dZ` and `Λ`: equations (23) and (24); `dc[C,·]` and `dE[C,·]` of (31).
    #[inline(always)]
    fn adjoint_of_writes(&mut self, spec: Spec, view: &View<'_>, dmemory: &Memory) {
        let (n, width) = (view.tokens, self.forward.width);
        let forward = &mut self.forward;
        reset(&mut self.lambda, n * width);
        let (yg, dout) = (Mat::new(&forward.yg, n, n), Mat::new(&self.dout, n, width));
        product(MatMut::new(&mut self.lambda, n, width), 0.0, 1.0, yg.t(), dout);
        forward.read(view.k, &dmemory.m);
        add_scaled_rows(&mut self.lambda, forward.tables.last_m(), &forward.scratch, width);
        row_dots(&mut self.dtables.c_row(n)[1..], &forward.scratch, &forward.z, width);
        if spec.momentum {
            forward.read(view.k, &dmemory.s);
            add_scaled_rows(&mut self.lambda, forward.tables.last_s(), &forward.scratch, width);
            row_dots(&mut self.dtables.e_row(n)[1..], &forward.scratch, &forward.z, width);
        }
        if spec.erase {
            solve::lower_transposed(&forward.triangle, n, &mut self.lambda, width);
        }
    }

    /// `dV`, `dw`, `dr`, `dP`: equation (25), and what the frozen target adds: (28), (29).
    #[inline(always)]
    fn targets(&mut self, spec: Spec, view: &View<'_>, start: &Start<'_>, dmemory: &mut Memory, part: &mut Part<'_>) {
        let (n, width, key) = (view.tokens, self.forward.width, view.k.columns);
        set_scaled_rows(part.dv, view.w, &self.lambda, width);
        row_dots(part.dw, &self.lambda, &self.forward.v, width);
        if spec.erase {
            row_dots(part.dr, &self.lambda, &self.forward.p, width);
            scale(part.dr, -1.0);
            reset(&mut self.dp, n * width);
            set_scaled_rows(&mut self.dp, view.r, &self.lambda, width);
            scale(&mut self.dp, -1.0);
        }
        if spec.frozen.is_some() {
            let dv = Mat::new(part.dv, n, width);
            let group = Mat::new(start.group, key, width);
            product(MatMut::new(part.dk, n, key), 1.0, -1.0, dv, group.t());
            product(MatMut::new(&mut dmemory.group, key, width), 1.0, -1.0, view.k.t(), dv);
        }
    }

    /// `dQ`, `dGᵀ Q` of `dK`, `dY`, `da⁺`, `db⁺`: equations (26)–(28), (31).
    #[inline(always)]
    fn reads(&mut self, spec: Spec, view: &View<'_>, start: &Start<'_>, part: &mut Part<'_>) {
        let (n, width, key) = (view.tokens, self.forward.width, view.k.columns);
        let Self { forward, dtables, g, dout, square, keys, .. } = self;
        let tables = &forward.tables;
        let first = Tables::first_read(spec.read);
        let dout = Mat::new(dout, n, width);
        reset(square, n * n);
        product(MatMut::new(square, n, n), 0.0, 1.0, dout, Mat::new(&forward.z, n, width).t());
        for (t, (own, g)) in square.chunks_exact_mut(n).zip(g.chunks_exact(n)).enumerate() {
            let seen = t + first;
            scatter(&mut dtables.c_row(seen)[1..=seen], &mut own[..seen], &g[..seen], tables.writes(seen, seen));
            own[seen..].fill(0.0);
        }
        reset(keys, n * key);
        product(MatMut::new(keys, n, key), 0.0, 1.0, dout, Mat::new(start.m, key, width).t());
        set_scaled_rows(part.dq, &tables.a[first..], keys, key);
        for t in 0..n {
            dtables.a[t + first] += dot(row(&view.q, t), &keys[t * key..][..key]);
        }
        if spec.momentum {
            product(MatMut::new(keys, n, key), 0.0, 1.0, dout, Mat::new(start.s, key, width).t());
            add_scaled_rows(part.dq, &tables.b[first..], keys, key);
            for t in 0..n {
                dtables.c_row(t + first)[0] += dot(row(&view.q, t), &keys[t * key..][..key]);
            }
        }
        let dg = Mat::new(square, n, n);
        product(MatMut::new(part.dq, n, key), 1.0, 1.0, dg, view.k);
        product(MatMut::new(part.dk, n, key), 1.0, 1.0, dg.t(), view.q);
    }

    /// What the erased predictions add to `dK`, `dL`, `da⁻`, `db⁻`: equations (26), (28), (31).
    #[inline(always)]
    fn erases(&mut self, spec: Spec, view: &View<'_>, start: &Start<'_>, part: &mut Part<'_>) {
        let (n, width, key) = (view.tokens, self.forward.width, view.k.columns);
        let Self { forward, dtables, dp, square, keys, .. } = self;
        let tables = &forward.tables;
        let dp = Mat::new(dp, n, width);
        product(MatMut::new(square, n, n), 0.0, 1.0, dp, Mat::new(&forward.z, n, width).t());
        for (t, (own, products)) in square.chunks_exact_mut(n).zip(forward.n.chunks_exact(n)).enumerate() {
            scatter(&mut dtables.c_row(t)[1..=t], &mut own[..t], &products[..t], tables.writes(t, t));
            own[t..].fill(0.0);
        }
        product(MatMut::new(keys, n, key), 0.0, 1.0, dp, Mat::new(start.m, key, width).t());
        add_scaled_rows(part.dk, &tables.a, keys, key);
        for t in 0..n {
            dtables.a[t] += dot(row(&view.k, t), &keys[t * key..][..key]);
        }
        if spec.momentum {
            product(MatMut::new(keys, n, key), 0.0, 1.0, dp, Mat::new(start.s, key, width).t());
            add_scaled_rows(part.dk, &tables.b, keys, key);
            for t in 0..n {
                dtables.c_row(t)[0] += dot(row(&view.k, t), &keys[t * key..][..key]);
            }
        }
        let dn = Mat::new(square, n, n);
        product(MatMut::new(part.dk, n, key), 1.0, 1.0, dn, view.k);
        product(MatMut::new(part.dk, n, key), 1.0, 1.0, dn.t(), view.k);
    }

    /// What the final state adds to `dK` and the tables, and the gradient of the state at the chunk's start:
    /// equations (28)–(31).
    #[inline(always)]
    fn carried(&mut self, spec: Spec, view: &View<'_>, start: &Start<'_>, dmemory: &mut Memory, part: &mut Part<'_>) {
        let (n, width, key) = (view.tokens, self.forward.width, view.k.columns);
        let Self { forward, dtables, dout, dp, keys, scratch, .. } = self;
        let tables = &forward.tables;
        let (a, b, e) = tables.carried();
        let z = Mat::new(&forward.z, n, width);
        product(MatMut::new(keys, n, key), 0.0, 1.0, z, Mat::new(&dmemory.m, key, width).t());
        add_scaled_rows(part.dk, tables.last_m(), keys, key);
        dtables.a[n] += dot(&dmemory.m, start.m);
        if spec.momentum {
            product(MatMut::new(keys, n, key), 0.0, 1.0, z, Mat::new(&dmemory.s, key, width).t());
            add_scaled_rows(part.dk, tables.last_s(), keys, key);
            dtables.c_row(n)[0] += dot(&dmemory.m, start.s);
            dtables.e_row(n)[0] += dot(&dmemory.s, start.s);
            scale(&mut dmemory.s, e);
            axpy(&mut dmemory.s, b, &dmemory.m);
        }
        scale(&mut dmemory.m, a);
        let first = Tables::first_read(spec.read);
        reset(scratch, n * width);
        let pairs = [(&mut dmemory.m, &tables.a), (&mut dmemory.s, &tables.b)];
        for (dstate, factors) in pairs.into_iter().take(1 + usize::from(spec.momentum)) {
            add_rows(dstate, view.q, &factors[first..], dout, scratch, width);
            if spec.erase {
                add_rows(dstate, view.k, factors, dp, scratch, width);
            }
        }
    }
}

/// `dstate += rowsᵀ (factors∗x)`, for `dstate [K,width]` and `x [n,width]`.
#[inline(always)]
fn add_rows(dstate: &mut [f32], rows: Mat<'_>, factors: &[f32], x: &[f32], scratch: &mut [f32], width: usize) {
    set_scaled_rows(scratch, factors, x, width);
    let (key, scaled) = (rows.columns, Mat::new(scratch, rows.rows, width));
    product(MatMut::new(dstate, key, width), 1.0, 1.0, rows.t(), scaled);
}

/// `out[t] = x_t · y_t`.
#[inline(always)]
fn row_dots(out: &mut [f32], x: &[f32], y: &[f32], width: usize) {
    for ((out, x), y) in out.iter_mut().zip(x.chunks_exact(width)).zip(y.chunks_exact(width)) {
        *out = dot(x, y);
    }
}

/// With `outer` a row of `dX Zᵀ`: `dtable += products ∘ outer`, then `outer ← table ∘ outer`.
#[inline(always)]
fn scatter(dtable: &mut [f32], outer: &mut [f32], products: &[f32], table: &[f32]) {
    for (((dtable, outer), product), table) in dtable.iter_mut().zip(outer).zip(products).zip(table) {
        *dtable += product * *outer;
        *outer *= table;
    }
}
