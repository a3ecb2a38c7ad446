//! The recurrence token by token: equations (1)–(14).

use super::{
    Spec,
    lane::{Memory, Part, Start, View, row},
    tables::reset,
};
use crate::{
    product::Mat,
    rows::{axpy, dot, scale},
    simd::wide,
};
use hecate_core::Read;

/// Equations (1)–(5) over the tokens of a view; `out [n, columns]`.
pub(crate) fn forward(spec: Spec, view: &View<'_>, memory: &mut Memory, out: &mut [f32]) {
    let columns = view.v.columns;
    let mut scratch = (vec![0.0; columns], vec![0.0; columns]);
    wide(
        (memory, &mut scratch, out),
        #[inline(always)]
        |(memory, scratch, out)| {
            for (t, y) in out.chunks_exact_mut(columns).enumerate() {
                step(spec, view, t, memory, scratch, y);
            }
        },
    );
}

/// One token; `(z, p)` are left in `scratch`.
#[inline(always)]
fn step(spec: Spec, view: &View<'_>, t: usize, memory: &mut Memory, scratch: &mut (Vec<f32>, Vec<f32>), y: &mut [f32]) {
    let (z, p) = (&mut scratch.0, &mut scratch.1);
    let (k, q) = (row(&view.k, t), row(&view.q, t));
    z.copy_from_slice(row(&view.v, t));
    if spec.frozen.is_some() {
        read(p, k, &memory.group);
        axpy(z, -1.0, p);
    }
    scale(z, view.w[t]);
    if spec.erase {
        read(p, k, &memory.m);
        axpy(z, -view.r[t], p);
    }
    if spec.read == Read::Before {
        read(y, q, &memory.m);
    }
    write(spec, view, t, k, z, memory);
    if spec.read == Read::After {
        read(y, q, &memory.m);
    }
}

/// Equations (3) and (4).
#[inline(always)]
fn write(spec: Spec, view: &View<'_>, t: usize, k: &[f32], z: &[f32], memory: &mut Memory) {
    let (a, columns) = (view.a[t], z.len());
    if spec.momentum {
        let eta = view.eta[t];
        for ((m, s), &k) in memory.m.chunks_exact_mut(columns).zip(memory.s.chunks_exact_mut(columns)).zip(k) {
            for ((m, s), z) in m.iter_mut().zip(s).zip(z) {
                *s = eta * *s + k * z;
                *m = a * *m + *s;
            }
        }
    } else {
        for (m, &k) in memory.m.chunks_exact_mut(columns).zip(k) {
            for (m, z) in m.iter_mut().zip(z) {
                *m = a * *m + k * z;
            }
        }
    }
}

/// `y = x M`.
#[inline(always)]
fn read(y: &mut [f32], x: &[f32], m: &[f32]) {
    y.fill(0.0);
    for (m, &x) in m.chunks_exact(y.len()).zip(x) {
        axpy(y, x, m);
    }
}

/// `x += y Mᵀ`.
#[inline(always)]
fn add_transposed(x: &mut [f32], y: &[f32], m: &[f32]) {
    for (x, m) in x.iter_mut().zip(m.chunks_exact(y.len())) {
        *x += dot(y, m);
    }
}

/// `M += factor xᵀ y`.
#[inline(always)]
fn add_outer(m: &mut [f32], factor: f32, x: &[f32], y: &[f32]) {
    for (m, &x) in m.chunks_exact_mut(y.len()).zip(x) {
        axpy(m, factor * x, y);
    }
}

/// States of a chunk, computed again: `M` and `S` before each token and after the last, `[n+1, K, columns]`, and `z`,
/// `p`, `v − f k M_c` of each token, `[n, columns]`.
#[derive(Default)]
pub(crate) struct States {
    m: Vec<f32>,
    s: Vec<f32>,
    z: Vec<f32>,
    p: Vec<f32>,
    v: Vec<f32>,
}

impl States {
    #[inline(always)]
    fn recompute(&mut self, spec: Spec, view: &View<'_>, start: &Start<'_>) {
        let columns = view.v.columns;
        for x in [&mut self.m, &mut self.s, &mut self.z, &mut self.p, &mut self.v] {
            x.clear();
        }
        let mut memory = Memory { m: start.m.to_vec(), s: start.s.to_vec(), group: start.group.to_vec() };
        let mut scratch = (vec![0.0; columns], vec![0.0; columns]);
        let mut y = vec![0.0; columns];
        for t in 0..view.tokens {
            self.m.extend_from_slice(&memory.m);
            self.s.extend_from_slice(&memory.s);
            self.v.extend_from_slice(row(&view.v, t));
            if spec.frozen.is_some() {
                read(&mut y, row(&view.k, t), start.group);
                axpy(&mut self.v[t * columns..], -1.0, &y);
            }
            step(spec, view, t, &mut memory, &mut scratch, &mut y);
            self.z.extend_from_slice(&scratch.0);
            self.p.extend_from_slice(&scratch.1);
        }
        self.m.extend_from_slice(&memory.m);
        self.s.extend_from_slice(&memory.s);
    }
}

/// Equations (6)–(14) over the tokens of a view, from last to first; gradients of `a` and `η` themselves, not of
/// their logarithms. `part.dk` starts at zero.
pub(crate) fn backward(
    spec: Spec,
    view: &View<'_>,
    start: &Start<'_>,
    states: &mut States,
    dout: &Mat<'_>,
    dmemory: &mut Memory,
    part: Part<'_>,
) {
    wide(
        (states, dmemory, part),
        #[inline(always)]
        |(states, dmemory, mut part)| {
            states.recompute(spec, view, start);
            let mut dz = Vec::new();
            for t in (0..view.tokens).rev() {
                step_backward(spec, view, t, start, states, row(dout, t), dmemory, &mut dz, &mut part);
            }
        },
    );
}

#[inline(always)]
#[allow(clippy::too_many_arguments)]
fn step_backward(
    spec: Spec,
    view: &View<'_>,
    t: usize,
    start: &Start<'_>,
    states: &States,
    dy: &[f32],
    dmemory: &mut Memory,
    dz: &mut Vec<f32>,
    part: &mut Part<'_>,
) {
    let (key, columns) = (view.k.columns, view.v.columns);
    let size = key * columns;
    let (q, k) = (row(&view.q, t), row(&view.k, t));
    let (dq, dk) = (&mut part.dq[t * key..][..key], &mut part.dk[t * key..][..key]);
    let of = |x: &'_ [f32], t: usize| -> std::ops::Range<usize> {
        if x.is_empty() { 0..0 } else { t * size..(t + 1) * size }
    };
    let (before, after) = (&states.m[of(&states.m, t)], &states.m[of(&states.m, t + 1)]);
    let s_before = &states.s[of(&states.s, t)];
    let token = t * columns..(t + 1) * columns;
    if spec.read == Read::After {
        add_outer(&mut dmemory.m, 1.0, q, dy);
        add_transposed(dq, dy, after);
    }
    part.da[t] = dot(&dmemory.m, before);
    // Without momentum S_t is the write itself and its gradient is dM.
    if spec.momentum {
        axpy(&mut dmemory.s, 1.0, &dmemory.m);
        part.deta[t] = dot(&dmemory.s, s_before);
    }
    let ds = if spec.momentum { &dmemory.s } else { &dmemory.m };
    reset(dz, columns);
    read(dz, k, ds);
    add_transposed(dk, &states.z[token.clone()], ds);
    let dv = &mut part.dv[token.clone()];
    axpy(dv, view.w[t], dz);
    part.dw[t] = dot(dz, &states.v[token.clone()]);
    scale(&mut dmemory.m, view.a[t]);
    if spec.momentum {
        scale(&mut dmemory.s, view.eta[t]);
    }
    if spec.frozen.is_some() {
        scale(dv, -1.0);
        add_transposed(dk, dv, start.group);
        add_outer(&mut dmemory.group, 1.0, k, dv);
        scale(dv, -1.0);
    }
    if spec.erase {
        part.dr[t] = -dot(dz, &states.p[token]);
        scale(dz, -view.r[t]);
        add_transposed(dk, dz, before);
        add_outer(&mut dmemory.m, 1.0, k, dz);
    }
    if spec.read == Read::Before {
        add_outer(&mut dmemory.m, 1.0, q, dy);
        add_transposed(dq, dy, before);
    }
}
