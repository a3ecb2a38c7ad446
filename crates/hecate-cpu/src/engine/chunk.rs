//! The exact chunk form, forward: equations (15)–(22).

use super::{
    Spec,
    lane::{Memory, View},
    sheet::Sheet,
    tables::Tables,
    tiles::{Left, Product, Terms, Writes},
};
use crate::{product::Mat, rows::axpy, simd::wide};
use hecate_core::Read;

/// Scratch of one lane, for chunks of `n` tokens.
#[derive(Default)]
pub(crate) struct Workspace {
    pub(super) tables: Tables,
    /// `Q`, `K [n,K]`, `Kᵀ [K,n]`, `V − f K M_c [n,V]`.
    pub(super) q: Sheet,
    pub(super) k: Sheet,
    pub(super) kt: Sheet,
    pub(super) v: Sheet,
    /// `M₀`, `S₀`, `M_c [K,V]`; the second only with momentum, the third only frozen.
    pub(super) m: Sheet,
    pub(super) s: Sheet,
    pub(super) group: Sheet,
    /// `K Kᵀ` and `L ∘ K Kᵀ [n,n]`; only with erase.
    pub(super) n: Sheet,
    pub(super) ln: Sheet,
    /// `Q Kᵀ` and `Y ∘ Q Kᵀ [n,n]`.
    pub(super) g: Sheet,
    pub(super) yg: Sheet,
    /// `P [n,V]`; only with erase.
    pub(super) p: Sheet,
    /// `Z [n,V]`.
    pub(super) z: Sheet,
    /// `[n,V]`.
    pub(super) scratch: Sheet,
    /// `O [n,V]`.
    out: Sheet,
}

impl Workspace {
    /// Gathers the inputs and the state at the chunk's start, builds the tables, and solves for what is written:
    /// equations (15)–(19).
    pub(super) fn writes(&mut self, spec: Spec, view: &View<'_>, m: &[f32], s: &[f32], group: &[f32]) {
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
        match spec.erase {
            true => self.solve(spec, view),
            false => self.z.set_scaled(view.w, &self.v),
        }
    }

    /// Equations (18) and (19).
    fn solve(&mut self, spec: Spec, view: &View<'_>) {
        Product::new(Left::Rows(&self.k), &self.kt).lower().set(&mut self.n);
        mask(&self.n, &self.tables, 0, &mut self.ln);
        Product::new(Left::Rows(&self.k), &self.m).scale(&self.tables.a).set(&mut self.p);
        if spec.momentum {
            Product::new(Left::Rows(&self.k), &self.s).scale(&self.tables.b).add(&mut self.p);
        }
        let Self { ln: triangle, v, p, z, .. } = self;
        Writes { triangle, v, w: view.w, r: view.r, p, z }.solve();
    }

    /// `G` and `Y ∘ G`.
    pub(super) fn reads(&mut self, read: Read) {
        Product::new(Left::Rows(&self.q), &self.kt).lower().set(&mut self.g);
        mask(&self.g, &self.tables, Tables::first_read(read), &mut self.yg);
    }
}

/// `out[t, j] = c[t + first, j] x[t, j]` where the table is not zero; zero to the right of that.
fn mask(x: &Sheet, tables: &Tables, first: usize, out: &mut Sheet) {
    out.fit(x.rows(), x.width());
    wide(
        out,
        #[inline(always)]
        |out| {
            for (t, (out, x)) in out.each_mut().zip(x.each()).enumerate() {
                let seen = t + first;
                for ((out, x), c) in out[..seen].iter_mut().zip(x).zip(tables.writes(seen, seen)) {
                    *out = c * x;
                }
                out[seen..].fill(0.0);
            }
        },
    );
}

/// One chunk: rows of `out`, and `memory` from the chunk's start to its end.
pub(crate) fn forward(spec: Spec, view: &View<'_>, memory: &mut Memory, work: &mut Workspace, out: &mut [&mut [f32]]) {
    work.writes(spec, view, &memory.m, &memory.s, &memory.group);
    work.reads(spec.read);
    read(spec, work, out);
    carry(spec, work, memory);
}

/// Equation (20).
fn read(spec: Spec, work: &mut Workspace, out: &mut [&mut [f32]]) {
    let first = Tables::first_read(spec.read);
    Product::new(Left::Rows(&work.q), &work.m).scale(&work.tables.a[first..]).set(&mut work.out);
    if spec.momentum {
        Product::new(Left::Rows(&work.q), &work.s).scale(&work.tables.b[first..]).add(&mut work.out);
    }
    Product::new(Left::Rows(&work.yg), &work.z).terms(Terms::Lower).add(&mut work.out);
    out.iter_mut().zip(work.out.each()).for_each(|(out, own)| out.copy_from_slice(own));
}

/// Equations (21) and (22).
fn carry(spec: Spec, work: &mut Workspace, memory: &mut Memory) {
    let (a, b, e) = work.tables.carried();
    let Workspace { tables, k, z, m, s, scratch, .. } = work;
    wide(
        (&mut *m, &mut *s),
        #[inline(always)]
        |(m, s)| {
            for (t, m) in m.each_mut().enumerate() {
                if !spec.momentum {
                    m.iter_mut().for_each(|m| *m *= a);
                    continue;
                }
                for (m, s) in m.iter_mut().zip(s.row_mut(t)) {
                    *m = a * *m + b * *s;
                    *s *= e;
                }
            }
        },
    );
    scratch.set_scaled(tables.last_m(), z);
    Product::new(Left::Columns(k), scratch).add(m);
    m.scatter(&mut memory.m);
    if spec.momentum {
        scratch.set_scaled(tables.last_s(), z);
        Product::new(Left::Columns(k), scratch).add(s);
        s.scatter(&mut memory.s);
    }
}
