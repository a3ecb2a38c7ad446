//! One token for every sequence: equations (1)–(5) from the memory before into the memory behind, without a copy between.

use super::{Linear, Scalars, Spec};
use crate::{
    Cpu,
    device::floats,
    simd::{dispatch, load_part, store_part},
};
use hecate_core::{Dims, Inputs, Outputs, Read, Result, Slots, Tensor};
use pulp::{Simd, WithSimd};
use rayon::prelude::*;
use std::ops::Range;

/// Numbers of memories below which threads are not worth their start.
const SERIAL: usize = 1 << 15;

/// A call of one token for every sequence. Rows of heads and their memories lie in the same order.
struct Call<'a> {
    spec: Spec,
    key: usize,
    value: usize,
    q: &'a [f32],
    k: &'a [f32],
    v: &'a [f32],
    scalars: &'a Scalars,
    m: &'a [f32],
    /// Empty without momentum.
    s: &'a [f32],
}

impl Cpu {
    /// A call whose sequences have one token each, when no backward will come.
    pub(super) fn decode<R: Linear>(
        &self,
        rule: R,
        dims: &Dims,
        inputs: &Inputs<R, Tensor<Self>>,
    ) -> Result<Outputs<R, Tensor<Self>>> {
        let scalars = rule.lower(&super::gates(inputs))?;
        let (q, k, v) = (floats(&inputs.q), floats(&inputs.k), floats(&inputs.v));
        let states: Vec<_> = R::State::list(&inputs.state).into_iter().map(|(_, x)| floats(x)).collect();
        let mut states = states.iter().map(|x| &x[..]);
        let (m, s) = (states.next().unwrap_or_default(), states.next().unwrap_or_default());
        let Dims { key, value, .. } = *dims;
        let call = Call { spec: rule.spec(), key, value, q: &q, k: &k, v: &v, scalars: &scalars, m, s };
        let (mut out, mut m, mut s) = (self.take(v.len()), self.take(m.len()), self.take(s.len()));
        match m.len() * (1 + usize::from(!s.is_empty())) {
            ..SERIAL => call.heads(&mut out, &mut m, &mut s),
            _ => self.run(|| call.parallel(&mut out, &mut m, &mut s)),
        }
        Ok(super::outputs(self, rule, dims, inputs.q.dtype(), out, [m, s]))
    }
}

impl Call<'_> {
    /// Every head in turn.
    fn heads(&self, out: &mut [f32], m: &mut [f32], s: &mut [f32]) {
        let (size, mut s) = (self.key * self.value, s.chunks_exact_mut(self.key * self.value));
        for (i, (out, m)) in out.chunks_exact_mut(self.value).zip(m.chunks_exact_mut(size)).enumerate() {
            dispatch(self.head(i, out, m, s.next().unwrap_or_default()));
        }
    }

    /// Every head, on all threads.
    fn parallel(&self, out: &mut [f32], m: &mut [f32], s: &mut [f32]) {
        let size = self.key * self.value;
        let heads = out.par_chunks_exact_mut(self.value).zip(m.par_chunks_exact_mut(size)).enumerate();
        let least = (SERIAL / 2).div_ceil(size);
        if s.is_empty() {
            heads.with_min_len(least).for_each(|(i, (out, m))| dispatch(self.head(i, out, m, &mut [])));
        } else {
            let heads = heads.zip(s.par_chunks_exact_mut(size)).with_min_len(least);
            heads.for_each(|((i, (out, m)), s)| dispatch(self.head(i, out, m, s)));
        }
    }

    /// Head `i`, sequences counted through.
    fn head<'h>(&'h self, i: usize, y: &'h mut [f32], m: &'h mut [f32], s: &'h mut [f32]) -> Head<'h> {
        fn part(x: &[f32], i: usize, size: usize) -> &[f32] {
            if x.is_empty() { x } else { &x[i * size..][..size] }
        }
        let gate = |x: &[f32]| x.get(i).copied().unwrap_or(0.0);
        let (scalars, size) = (self.scalars, self.key * self.value);
        // The one token of a frozen group predicts its target from the memory that it also erases from.
        let target = if self.spec.frozen.is_some() { gate(&scalars.w) } else { 0.0 };
        Head {
            before: self.spec.read == Read::Before,
            predicts: self.spec.erase || self.spec.frozen.is_some(),
            q: part(self.q, i, self.key),
            k: part(self.k, i, self.key),
            v: part(self.v, i, self.value),
            w: gate(&scalars.w),
            r: gate(&scalars.r) + target,
            a: gate(&scalars.a),
            eta: gate(&scalars.eta),
            old: [part(self.m, i, size), part(self.s, i, size)],
            m,
            s,
            y,
        }
    }
}

/// One head: `old` are `M` and `S` before the token, `m` and `s` behind it; `s` empty without momentum.
struct Head<'a> {
    before: bool,
    predicts: bool,
    q: &'a [f32],
    k: &'a [f32],
    v: &'a [f32],
    w: f32,
    r: f32,
    a: f32,
    eta: f32,
    old: [&'a [f32]; 2],
    m: &'a mut [f32],
    s: &'a mut [f32],
    y: &'a mut [f32],
}

impl WithSimd for Head<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) {
        let (many, columns) = (S::REGISTER_COUNT >= 32, self.v.len());
        let mut column = 0;
        while column < columns {
            column += S::F32_LANES
                * match (columns - column) / S::F32_LANES {
                    8.. if many => {
                        self.block::<S, 8>(simd, column);
                        8
                    }
                    4.. => {
                        self.block::<S, 4>(simd, column);
                        4
                    }
                    _ => {
                        self.block::<S, 1>(simd, column);
                        1
                    }
                };
        }
    }
}

impl Head<'_> {
    #[inline(always)]
    fn block<S: Simd, const N: usize>(&mut self, simd: S, column: usize) {
        let columns = self.v.len();
        let end = (column + N * S::F32_LANES).min(columns);
        let rows = self.old[0].chunks_exact(columns).map(|m| &m[column..end]);
        if self.before {
            let y = find::<S, N>(simd, self.q, rows.clone());
            store_part(simd, &mut self.y[column..end], y);
        }
        let w = simd.splat_f32s(self.w);
        let mut z = load_part::<S, N>(simd, &self.v[column..end]).map(|v| simd.mul_f32s(w, v));
        if self.predicts {
            let (p, r) = (find::<S, N>(simd, self.k, rows), simd.splat_f32s(-self.r));
            (0..N).for_each(|n| z[n] = simd.mul_add_e_f32s(r, p[n], z[n]));
        }
        let y = if self.s.is_empty() { self.write(simd, z, column..end) } else { self.step(simd, z, column..end) };
        if !self.before {
            store_part(simd, &mut self.y[column..end], y);
        }
    }

    /// `M = a M + kᵀ z`; the query's `q M`.
    #[inline(always)]
    fn write<S: Simd, const N: usize>(&mut self, simd: S, z: [S::f32s; N], own: Range<usize>) -> [S::f32s; N] {
        let (columns, a) = (self.v.len(), simd.splat_f32s(self.a));
        let mut y = [simd.splat_f32s(0.0); N];
        let rows = self.old[0].chunks_exact(columns).zip(self.m.chunks_exact_mut(columns));
        for ((old, m), (&k, &q)) in rows.zip(self.k.iter().zip(self.q)) {
            let mut x = load_part::<S, N>(simd, &old[own.clone()]);
            let (k, q) = (simd.splat_f32s(k), simd.splat_f32s(q));
            for n in 0..N {
                x[n] = simd.mul_add_e_f32s(k, z[n], simd.mul_f32s(a, x[n]));
                y[n] = simd.mul_add_e_f32s(q, x[n], y[n]);
            }
            store_part(simd, &mut m[own.clone()], x);
        }
        y
    }

    /// `S = η S + kᵀ z`, `M = a M + S`; the query's `q M`.
    #[inline(always)]
    fn step<S: Simd, const N: usize>(&mut self, simd: S, z: [S::f32s; N], own: Range<usize>) -> [S::f32s; N] {
        let (columns, a, eta) = (self.v.len(), simd.splat_f32s(self.a), simd.splat_f32s(self.eta));
        let mut y = [simd.splat_f32s(0.0); N];
        let [m, s] = self.old.map(|x| x.chunks_exact(columns));
        let rows = m.zip(s).zip(self.m.chunks_exact_mut(columns).zip(self.s.chunks_exact_mut(columns)));
        for (((old_m, old_s), (m, s)), (&k, &q)) in rows.zip(self.k.iter().zip(self.q)) {
            let mut x = load_part::<S, N>(simd, &old_m[own.clone()]);
            let mut step = load_part::<S, N>(simd, &old_s[own.clone()]);
            let (k, q) = (simd.splat_f32s(k), simd.splat_f32s(q));
            for n in 0..N {
                step[n] = simd.mul_add_e_f32s(k, z[n], simd.mul_f32s(eta, step[n]));
                x[n] = simd.mul_add_e_f32s(a, x[n], step[n]);
                y[n] = simd.mul_add_e_f32s(q, x[n], y[n]);
            }
            store_part(simd, &mut s[own.clone()], step);
            store_part(simd, &mut m[own.clone()], x);
        }
        y
    }
}

/// `x M` for columns of `M`, row by row.
#[inline(always)]
fn find<'m, S: Simd, const N: usize>(simd: S, x: &[f32], m: impl Iterator<Item = &'m [f32]>) -> [S::f32s; N] {
    let mut sums = [simd.splat_f32s(0.0); N];
    for (m, &x) in m.zip(x) {
        let (m, x) = (load_part::<S, N>(simd, m), simd.splat_f32s(x));
        (0..N).for_each(|n| sums[n] = simd.mul_add_e_f32s(x, m[n], sums[n]));
    }
    sums
}
