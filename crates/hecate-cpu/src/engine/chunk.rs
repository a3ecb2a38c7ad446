//! The exact chunk form, forward: equations (15)–(22).

use super::{
    Spec,
    lane::{Memory, View, row},
    solve,
    tables::{Tables, reset},
};
use crate::{
    product::{Mat, MatMut, product},
    rows::{add_scaled_rows, axpy, scale, set_scaled_rows},
    simd::wide,
};
use hecate_core::Read;

/// Scratch of one lane, for chunks of up to `C` tokens; `width` columns.
#[derive(Default)]
pub(crate) struct Workspace {
    pub(crate) width: usize,
    pub(crate) tables: Tables,
    /// `K Kᵀ [C,C]`; only with erase.
    pub(crate) n: Vec<f32>,
    /// `L ∘ N [C,C]`; only with erase.
    pub(crate) ln: Vec<f32>,
    /// `r∗(L ∘ N) [C,C]`; only with erase.
    pub(crate) triangle: Vec<f32>,
    /// `Y ∘ Q Kᵀ [C,C]`.
    pub(crate) yg: Vec<f32>,
    /// `V − f K M_c [C,width]`.
    pub(crate) v: Vec<f32>,
    /// `a⁻∗K M₀ + b⁻∗K S₀ [C,width]`; only with erase.
    pub(crate) p: Vec<f32>,
    /// `Z [C,width]`.
    pub(crate) z: Vec<f32>,
    /// `[C,width]`.
    pub(crate) scratch: Vec<f32>,
}

impl Workspace {
    pub(crate) fn new(width: usize) -> Self {
        Self { width, ..Self::default() }
    }

    /// `X = K state` into `scratch`.
    #[inline(always)]
    pub(crate) fn read(&mut self, rows: Mat<'_>, state: &[f32]) {
        reset(&mut self.scratch, rows.rows * self.width);
        let state = Mat::new(state, rows.columns, self.width);
        product(MatMut::new(&mut self.scratch, rows.rows, self.width), 0.0, 1.0, rows, state);
    }

    /// Tables and what is written, `Z`: equations (15)–(19).
    #[inline(always)]
    pub(crate) fn writes(&mut self, spec: Spec, view: &View<'_>, m: &[f32], s: &[f32], group: &[f32]) {
        let (tokens, width) = (view.tokens, self.width);
        self.tables.build(view.factors());
        self.targets(spec, view, group);
        reset(&mut self.z, tokens * width);
        set_scaled_rows(&mut self.z, view.w, &self.v, width);
        if !spec.erase {
            return;
        }
        reset(&mut self.p, tokens * width);
        self.read(view.k, m);
        set_scaled_rows(&mut self.p, &self.tables.a, &self.scratch, width);
        if spec.momentum {
            self.read(view.k, s);
            add_scaled_rows(&mut self.p, &self.tables.b, &self.scratch, width);
        }
        for ((z, p), &r) in self.z.chunks_exact_mut(width).zip(self.p.chunks_exact(width)).zip(view.r) {
            axpy(z, -r, p);
        }
        self.triangle(view);
        solve::lower(&self.triangle, tokens, &mut self.z, width);
    }

    /// `V − f K M_c`.
    #[inline(always)]
    fn targets(&mut self, spec: Spec, view: &View<'_>, group: &[f32]) {
        let width = self.width;
        reset(&mut self.v, view.tokens * width);
        for (t, own) in self.v.chunks_exact_mut(width).enumerate() {
            own.copy_from_slice(row(&view.v, t));
        }
        if spec.frozen.is_some() {
            let group = Mat::new(group, view.k.columns, width);
            product(MatMut::new(&mut self.v, view.tokens, width), 1.0, -1.0, view.k, group);
        }
    }

    /// `N`, `L ∘ N` and `r∗(L ∘ N)`.
    #[inline(always)]
    fn triangle(&mut self, view: &View<'_>) {
        let n = view.tokens;
        for x in [&mut self.n, &mut self.ln, &mut self.triangle] {
            reset(x, n * n);
        }
        product(MatMut::new(&mut self.n, n, n), 0.0, 1.0, view.k, view.k.t());
        for t in 1..n {
            let (l, own) = (self.tables.writes(t, t), t * n..t * n + t);
            let (ln, triangle) = (&mut self.ln[own.clone()], &mut self.triangle[own.clone()]);
            for (((ln, triangle), l), product) in ln.iter_mut().zip(triangle).zip(l).zip(&self.n[own]) {
                *ln = l * product;
                *triangle = view.r[t] * *ln;
            }
        }
    }

    /// `Y ∘ G` in place of `G [C,C]`, zero above what a token reads.
    #[inline(always)]
    pub(crate) fn mask_reads(tables: &Tables, read: Read, g: &mut [f32], n: usize) {
        let first = Tables::first_read(read);
        for (t, own) in g.chunks_exact_mut(n).enumerate() {
            let seen = t + first;
            for (g, y) in own[..seen].iter_mut().zip(tables.writes(seen, seen)) {
                *g *= y;
            }
            own[seen..].fill(0.0);
        }
    }
}

/// One chunk: `out [n, width]`, and `memory` from the chunk's start to its end.
pub(crate) fn forward(spec: Spec, view: &View<'_>, memory: &mut Memory, work: &mut Workspace, out: &mut [f32]) {
    wide(
        (memory, work, out),
        #[inline(always)]
        |(memory, work, out)| {
            work.writes(spec, view, &memory.m, &memory.s, &memory.group);
            read(spec, view, memory, work, out);
            carry(spec, view, memory, work);
        },
    );
}

/// Equation (20).
#[inline(always)]
fn read(spec: Spec, view: &View<'_>, memory: &Memory, work: &mut Workspace, out: &mut [f32]) {
    let (n, width) = (view.tokens, work.width);
    let first = Tables::first_read(spec.read);
    reset(&mut work.yg, n * n);
    product(MatMut::new(&mut work.yg, n, n), 0.0, 1.0, view.q, view.k.t());
    Workspace::mask_reads(&work.tables, spec.read, &mut work.yg, n);
    work.read(view.q, &memory.m);
    set_scaled_rows(out, &work.tables.a[first..], &work.scratch, width);
    if spec.momentum {
        work.read(view.q, &memory.s);
        add_scaled_rows(out, &work.tables.b[first..], &work.scratch, width);
    }
    product(MatMut::new(out, n, width), 1.0, 1.0, Mat::new(&work.yg, n, n), Mat::new(&work.z, n, width));
}

/// Equations (21) and (22).
#[inline(always)]
fn carry(spec: Spec, view: &View<'_>, memory: &mut Memory, work: &mut Workspace) {
    let (n, width, key) = (view.tokens, work.width, view.k.columns);
    let (a, b, e) = work.tables.carried();
    scale(&mut memory.m, a);
    if spec.momentum {
        axpy(&mut memory.m, b, &memory.s);
        scale(&mut memory.s, e);
        set_scaled_rows(&mut work.scratch, work.tables.last_s(), &work.z, width);
        let z = Mat::new(&work.scratch, n, width);
        product(MatMut::new(&mut memory.s, key, width), 1.0, 1.0, view.k.t(), z);
    }
    set_scaled_rows(&mut work.scratch, work.tables.last_m(), &work.z, width);
    let z = Mat::new(&work.scratch, n, width);
    product(MatMut::new(&mut memory.m, key, width), 1.0, 1.0, view.k.t(), z);
}
