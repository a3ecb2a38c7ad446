//! One token for every sequence: equations (1)–(5), from the memory before into the one after, without a copy between.
//!
//! Decoding fetches a memory for little arithmetic, so each element is loaded and stored once where that is possible.
//! A rule that predicts first makes a pass of loads for `k M`, and then one of loads and stores.
//! A head is a task; small calls stay on the calling thread.

use super::scalars::Scalars;
use crate::{
    Cpu,
    buffer_pool::PooledBuf,
    device::floats,
    simd::{dispatch, load_part, store_part},
};
use hecate_core::{
    Dims, Read, Result, Tensor,
    families::{LinearKernelCall, LinearOutputs, LinearSpec},
};
use pulp::{Simd, WithSimd};
use rayon::prelude::*;
use std::ops::Range;

/// Elements of all memories below which threads are not worth their start.
const SERIAL: usize = 1 << 15;

/// A call of one token for every sequence. Rows of heads and their memories lie in the same order.
struct DecodeCall<'a> {
    spec: LinearSpec,
    /// `K`.
    key: usize,
    /// `V`.
    value: usize,
    /// `[N H, K]`.
    q: &'a [f32],
    /// `[N H, K]`.
    k: &'a [f32],
    /// `[N H, V]`.
    v: &'a [f32],
    /// `[N H]` each.
    scalars: &'a Scalars,
    /// Memories before the token, `[N H, K, V]`.
    m: &'a [f32],
    /// Empty without momentum.
    s: &'a [f32],
}

/// A call whose sequences have one token each, when no backward will come.
///
/// # Errors
/// Gates outside their ranges.
pub(super) fn run(kernel_call: LinearKernelCall<'_, Cpu>) -> Result<LinearOutputs<Tensor<Cpu>>> {
    let LinearKernelCall { what, device, spec, dims, inputs, .. } = kernel_call;
    let scalars = Scalars::new(what, spec.erase, inputs)?;
    let (q, k, v) = (floats(&inputs.q)?, floats(&inputs.k)?, floats(&inputs.v)?);
    let states = inputs.state.list().map(floats).collect::<Result<Vec<_>>>()?;
    let mut states = states.iter().map(|x| &x[..]);
    let (m, s) = (states.next().unwrap_or_default(), states.next().unwrap_or_default());
    let Dims { key, value, .. } = *dims;
    let call = DecodeCall { spec, key, value, q: &q, k: &k, v: &v, scalars: &scalars, m, s };
    let (out, states) = call.run(device, what)?;
    super::outputs(kernel_call, out, states)
}

impl DecodeCall<'_> {
    /// What is read `[N H, V]`, and the memories after the token; `what` is the rule's name.
    fn run(&self, device: &Cpu, what: &'static str) -> Result<(PooledBuf, [PooledBuf; 2])> {
        device.room(what, self.v.len() + self.m.len() + self.s.len())?;
        let take = |x: &[f32]| device.take(what, x.len());
        let (mut out, mut m, mut s) = (take(self.v)?, take(self.m)?, take(self.s)?);
        // Small calls: starting threads would take longer than the call.
        match m.len() * (1 + usize::from(!s.is_empty())) {
            ..SERIAL => self.heads(&mut out, &mut m, &mut s),
            _ => device.run(|| self.parallel(&mut out, &mut m, &mut s)),
        }
        Ok((out, [m, s]))
    }

    /// Every head in turn, on the calling thread.
    fn heads(&self, out: &mut [f32], m: &mut [f32], s: &mut [f32]) {
        let (size, mut s) = (self.key * self.value, s.chunks_exact_mut(self.key * self.value));
        for (i, (out, m)) in out.chunks_exact_mut(self.value).zip(m.chunks_exact_mut(size)).enumerate() {
            dispatch(self.head(i, out, m, s.next().unwrap_or_default()));
        }
    }

    /// Every head, on all threads; a task takes enough heads to be worth its start.
    fn parallel(&self, out: &mut [f32], m: &mut [f32], s: &mut [f32]) {
        let size = self.key * self.value;
        // Heads' parts of all arrays lie in the same order, so they zip.
        let heads = out.par_chunks_exact_mut(self.value).zip(m.par_chunks_exact_mut(size)).enumerate();
        let least = (SERIAL / 2).div_ceil(size);
        if s.is_empty() {
            heads.with_min_len(least).for_each(|(i, (out, m))| dispatch(self.head(i, out, m, &mut [])));
        } else {
            let heads = heads.zip(s.par_chunks_exact_mut(size)).with_min_len(least);
            heads.for_each(|((i, (out, m)), s)| dispatch(self.head(i, out, m, s)));
        }
    }

    /// Head `i`, counted through all sequences.
    fn head<'h>(&'h self, i: usize, y: &'h mut [f32], m: &'h mut [f32], s: &'h mut [f32]) -> DecodeHead<'h> {
        fn part(x: &[f32], i: usize, size: usize) -> &[f32] {
            if x.is_empty() { x } else { &x[i * size..][..size] }
        }
        let gate = |x: &[f32]| x.get(i).copied().unwrap_or(0.0);
        let (scalars, size) = (self.scalars, self.key * self.value);
        // A group of one token predicts its target from the memory that it also erases from.
        let target = if self.spec.frozen.is_some() { gate(&scalars.w) } else { 0.0 };
        DecodeHead {
            before: self.spec.read == Read::Before,
            predicts: self.spec.erases() || self.spec.frozen.is_some(),
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

/// One head: from the memory before the token to the one after it.
struct DecodeHead<'a> {
    /// Whether the token reads before it writes.
    before: bool,
    /// Whether the write needs `k M`.
    predicts: bool,
    /// `[K]`; `k` likewise.
    q: &'a [f32],
    k: &'a [f32],
    /// `[V]`.
    v: &'a [f32],
    /// Write strength.
    w: f32,
    /// Erase strength, with that of a frozen target.
    r: f32,
    /// Retention.
    a: f32,
    /// Momentum.
    eta: f32,
    /// `M` and `S` before the token, `[K,V]` each; the second is empty without momentum.
    old: [&'a [f32]; 2],
    /// Set: `M` after the token; `s` likewise.
    m: &'a mut [f32],
    s: &'a mut [f32],
    /// Set: what the token reads, `[V]`.
    y: &'a mut [f32],
}

impl WithSimd for DecodeHead<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) {
        let (many, columns) = (S::REGISTER_COUNT >= 32, self.v.len());
        let mut column = 0;
        // Eight vectors of sums where there are 32 registers; fewer at the right edge.
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

impl DecodeHead<'_> {
    /// `N` vectors of columns from `column` on: prediction, write and read.
    #[inline(always)]
    fn block<S: Simd, const N: usize>(&mut self, simd: S, column: usize) {
        let columns = self.v.len();
        let end = (column + N * S::F32_LANES).min(columns);
        // This block's columns of every row of the old memory.
        let rows = self.old[0].chunks_exact(columns).map(|m| &m[column..end]);
        // A read before the write sees the old memory.
        if self.before {
            let y = find::<S, N>(simd, self.q, rows.clone());
            store_part(simd, &mut self.y[column..end], y);
        }
        let w = simd.splat_f32s(self.w);
        let mut z = load_part::<S, N>(simd, &self.v[column..end]).map(|v| simd.mul_f32s(w, v));
        // Equation (1), and with it (2): what the write takes back.
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
        // Each row is loaded once, written once, and read on the way.
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

/// `x M` for a few columns of `M`, row by row; the sums stay in registers.
#[inline(always)]
fn find<'m, S: Simd, const N: usize>(simd: S, x: &[f32], m: impl Iterator<Item = &'m [f32]>) -> [S::f32s; N] {
    let mut sums = [simd.splat_f32s(0.0); N];
    for (m, &x) in m.zip(x) {
        let (m, x) = (load_part::<S, N>(simd, m), simd.splat_f32s(x));
        (0..N).for_each(|n| sums[n] = simd.mul_add_e_f32s(x, m[n], sums[n]));
    }
    sums
}
