//! The recurrence token by token, forward, with one pass over the memory a token: equations (1)–(5).
//!
//! While a token is written, the pass also takes what the token reads and what the next token predicts. A few vectors of
//! columns go through all tokens at once: what belongs to a token stays in registers, their part of the memory in the
//! nearest cache.

use super::{
    Spec,
    lane::{Memory, View, row},
};
use crate::product::Mat;
use hecate_core::Read;
use pulp::{Arch, Simd, WithSimd};

/// Vectors that go through the tokens together.
const VECTORS: usize = 4;

/// Room for a view, gathered: rows of one head lie far apart.
#[derive(Default)]
pub(crate) struct Workspace {
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    m: Vec<f32>,
    s: Vec<f32>,
}

/// Equations (1)–(5) over the tokens of a view, for rules that are not frozen; `out [n, columns]`.
pub(crate) fn forward(spec: Spec, view: &View<'_>, memory: &mut Memory, work: &mut Workspace, out: &mut [f32]) {
    gather(&view.q, &mut work.q);
    gather(&view.k, &mut work.k);
    gather(&view.v, &mut work.v);
    Arch::new().dispatch(Call { spec, view, memory, work, out });
}

fn gather(from: &Mat<'_>, to: &mut Vec<f32>) {
    to.clear();
    (0..from.rows).for_each(|t| to.extend_from_slice(row(from, t)));
}

/// A view to be gone through; `out [n, columns]`.
struct Call<'a> {
    spec: Spec,
    view: &'a View<'a>,
    memory: &'a mut Memory,
    work: &'a mut Workspace,
    out: &'a mut [f32],
}

impl WithSimd for Call<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) {
        match (self.spec.momentum, self.spec.erase) {
            (false, false) => self.blocks::<S, false, false>(simd),
            (false, true) => self.blocks::<S, false, true>(simd),
            (true, false) => self.blocks::<S, true, false>(simd),
            (true, true) => self.blocks::<S, true, true>(simd),
        }
    }
}

impl Call<'_> {
    #[inline(always)]
    fn blocks<S: Simd, const MOMENTUM: bool, const ERASE: bool>(&mut self, simd: S) {
        let (columns, lanes) = (self.view.v.columns, S::F32_LANES);
        let mut first = 0;
        while first < columns {
            match columns - first {
                rest if rest >= VECTORS * lanes => {
                    self.block::<S, VECTORS, false, MOMENTUM, ERASE>(simd, first, VECTORS * lanes);
                    first += VECTORS * lanes;
                }
                rest if rest >= lanes => {
                    self.block::<S, 1, false, MOMENTUM, ERASE>(simd, first, lanes);
                    first += lanes;
                }
                rest => {
                    self.block::<S, 1, true, MOMENTUM, ERASE>(simd, first, rest);
                    first += rest;
                }
            }
        }
    }

    /// Columns `first..first + width`. Where there are others, theirs lie between the rows and would share the cache.
    #[inline(always)]
    fn block<S: Simd, const N: usize, const SHORT: bool, const MOMENTUM: bool, const ERASE: bool>(
        &mut self,
        simd: S,
        first: usize,
        width: usize,
    ) {
        let Self { spec, view, memory, work: Workspace { q, k, v, m, s }, out } = self;
        let (columns, key) = (view.v.columns, view.k.columns);
        let tokens = Tokens { q, k, v, w: view.w, r: view.r, a: view.a, eta: view.eta, key, columns, first, width };
        let before = spec.read == Read::Before;
        if columns == width || view.tokens == 1 {
            let (m, s) = (&mut memory.m[first..], memory.s.get_mut(first..).unwrap_or_default());
            return tokens.run::<S, N, SHORT, MOMENTUM, ERASE>(simd, before, (m, s, columns), out);
        }
        for (own, all) in [(&mut *m, &memory.m), (&mut *s, &memory.s)] {
            own.clear();
            all.chunks_exact(columns).for_each(|row| own.extend_from_slice(&row[first..][..width]));
        }
        tokens.run::<S, N, SHORT, MOMENTUM, ERASE>(simd, before, (m, s, width), out);
        for (own, all) in [(m, &mut memory.m), (s, &mut memory.s)] {
            for (row, own) in all.chunks_exact_mut(columns).zip(own.chunks_exact(width)) {
                row[first..][..width].copy_from_slice(own);
            }
        }
    }
}

/// Columns `first..first + width` of a chunk: `q`, `k` `[n, key]`, `v [n, columns]`, scalars `[n]`.
struct Tokens<'a> {
    q: &'a [f32],
    k: &'a [f32],
    v: &'a [f32],
    w: &'a [f32],
    r: &'a [f32],
    a: &'a [f32],
    eta: &'a [f32],
    key: usize,
    columns: usize,
    first: usize,
    width: usize,
}

impl Tokens<'_> {
    /// Goes through the tokens; rows of `m` and `s` begin `stride` numbers apart.
    #[inline(always)]
    fn run<S: Simd, const N: usize, const SHORT: bool, const MOMENTUM: bool, const ERASE: bool>(
        &self,
        simd: S,
        before: bool,
        (m, s, stride): (&mut [f32], &mut [f32], usize),
        out: &mut [f32],
    ) {
        let Self { key, columns, first, width, .. } = *self;
        let count = self.w.len();
        let token = |t: usize| t * key..(t + 1) * key;
        let (mut p, mut y) = ([simd.splat_f32s(0.0); N], [simd.splat_f32s(0.0); N]);
        for ((m, &k), &q) in m.chunks(stride).zip(&self.k[token(0)]).zip(&self.q[token(0)]) {
            let m = load::<S, N, SHORT>(simd, &m[..width]);
            for n in 0..N {
                p[n] = simd.mul_add_f32s(simd.splat_f32s(k), m[n], p[n]);
                y[n] = simd.mul_add_f32s(simd.splat_f32s(q), m[n], y[n]);
            }
        }
        for t in 0..count {
            // The last token has none behind it; what it takes for that one is not used.
            let next = (t + 1).min(count - 1);
            let place = t * columns + first..t * columns + first + width;
            if before {
                store::<S, N, SHORT>(simd, &mut out[place.clone()], y);
            }
            let mut z = load::<S, N, SHORT>(simd, &self.v[place.clone()]);
            for n in 0..N {
                z[n] = simd.mul_f32s(simd.splat_f32s(self.w[t]), z[n]);
                if ERASE {
                    z[n] = simd.mul_add_f32s(simd.splat_f32s(-self.r[t]), p[n], z[n]);
                }
            }
            (p, y) = ([simd.splat_f32s(0.0); N], [simd.splat_f32s(0.0); N]);
            let a = simd.splat_f32s(self.a[t]);
            let eta = simd.splat_f32s(if MOMENTUM { self.eta[t] } else { 0.0 });
            let keys = self.k[token(t)].iter().zip(&self.k[token(next)]);
            let keys = keys.zip(&self.q[token(if before { next } else { t })]);
            let mut ss = s.chunks_mut(stride);
            for (m, ((&k, &ahead), &q)) in m.chunks_mut(stride).zip(keys) {
                let mut x = load::<S, N, SHORT>(simd, &m[..width]);
                let k = simd.splat_f32s(k);
                if MOMENTUM {
                    let Some(s) = ss.next() else { return };
                    let mut step = load::<S, N, SHORT>(simd, &s[..width]);
                    for n in 0..N {
                        step[n] = simd.mul_add_f32s(k, z[n], simd.mul_f32s(eta, step[n]));
                        x[n] = simd.mul_add_f32s(a, x[n], step[n]);
                    }
                    store::<S, N, SHORT>(simd, &mut s[..width], step);
                } else {
                    for n in 0..N {
                        x[n] = simd.mul_add_f32s(k, z[n], simd.mul_f32s(a, x[n]));
                    }
                }
                for n in 0..N {
                    y[n] = simd.mul_add_f32s(simd.splat_f32s(q), x[n], y[n]);
                    if ERASE {
                        p[n] = simd.mul_add_f32s(simd.splat_f32s(ahead), x[n], p[n]);
                    }
                }
                store::<S, N, SHORT>(simd, &mut m[..width], x);
            }
            if !before {
                store::<S, N, SHORT>(simd, &mut out[place], y);
            }
        }
    }
}

/// `N` vectors; a row's last may be shorter than a vector.
#[inline(always)]
fn load<S: Simd, const N: usize, const SHORT: bool>(simd: S, x: &[f32]) -> [S::f32s; N] {
    if SHORT {
        return [simd.partial_load_f32s(x); N];
    }
    let (vectors, _) = S::as_simd_f32s(&x[..N * S::F32_LANES]);
    std::array::from_fn(|n| vectors[n])
}

/// The way back of [`load`].
#[inline(always)]
fn store<S: Simd, const N: usize, const SHORT: bool>(simd: S, x: &mut [f32], values: [S::f32s; N]) {
    if SHORT {
        return simd.partial_store_f32s(x, values[0]);
    }
    let (vectors, _) = S::as_mut_simd_f32s(&mut x[..N * S::F32_LANES]);
    vectors.copy_from_slice(&values);
}
