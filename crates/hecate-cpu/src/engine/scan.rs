//! The recurrence token by token: equations (1)–(14).

use super::{
    Spec,
    lane::{Memory, Part, View, row},
    replay::Start,
};
use crate::{
    product::Mat,
    rows::{add_outer, add_transposed, axpy, dot, read, scale},
    simd::wide,
};
use hecate_core::Read;

/// Equations (1)–(5) over the tokens of a view; rows of `out`.
pub(crate) fn forward(spec: Spec, view: &View<'_>, memory: &mut Memory, out: &mut [&mut [f32]]) {
    let columns = view.v.columns;
    let mut scratch = (vec![0.0; columns], vec![0.0; columns]);
    wide(
        (memory, &mut scratch, out),
        #[inline(always)]
        |(memory, scratch, out)| {
            for (t, y) in out.iter_mut().enumerate() {
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
/// their logarithms.
pub(crate) fn backward(
    spec: Spec,
    view: &View<'_>,
    start: &Start<'_>,
    states: &mut States,
    dout: &Mat<'_>,
    dmemory: &mut Memory,
    part: Part<'_, '_>,
) {
    wide(
        (states, dmemory, part),
        #[inline(always)]
        |(states, dmemory, mut part)| {
            states.recompute(spec, view, start);
            let mut reverse = Reverse { spec, view, start, states, dz: vec![0.0; view.v.columns] };
            for t in (0..view.tokens).rev() {
                [&mut *part.dq, part.dk, part.dv].into_iter().for_each(|x| x[t].fill(0.0));
                reverse.step(t, row(dout, t), dmemory, &mut part);
            }
        },
    );
}

/// A chunk gone through backward.
struct Reverse<'a> {
    spec: Spec,
    view: &'a View<'a>,
    start: &'a Start<'a>,
    states: &'a States,
    /// `dz [columns]`, then `dp`.
    dz: Vec<f32>,
}

impl Reverse<'_> {
    #[inline(always)]
    fn step(&mut self, t: usize, dy: &[f32], dmemory: &mut Memory, part: &mut Part<'_, '_>) {
        if self.spec.read == Read::After {
            self.read(t, t + 1, dy, dmemory, part);
        }
        self.write(t, dmemory, part);
        if self.spec.frozen.is_some() {
            self.target(t, dmemory, part);
        }
        if self.spec.erase {
            self.erase(t, dmemory, part);
        }
        if self.spec.read == Read::Before {
            self.read(t, t, dy, dmemory, part);
        }
    }

    /// `M` before token `t`.
    #[inline(always)]
    fn m(&self, t: usize) -> &[f32] {
        let size = self.start.m.len();
        &self.states.m[t * size..][..size]
    }

    /// Token `t` of an array `[n, columns]`.
    #[inline(always)]
    fn token<'x>(&self, x: &'x [f32], t: usize) -> &'x [f32] {
        let columns = self.view.v.columns;
        &x[t * columns..][..columns]
    }

    /// Equations (6) and (13): token `t` read the memory before token `seen`.
    #[inline(always)]
    fn read(&self, t: usize, seen: usize, dy: &[f32], dmemory: &mut Memory, part: &mut Part<'_, '_>) {
        add_outer(&mut dmemory.m, 1.0, row(&self.view.q, t), dy);
        add_transposed(part.dq[t], dy, self.m(seen));
    }

    /// Equations (7)–(9) and (11). Without momentum `S_t` is the write itself, and its gradient is `dM`.
    #[inline(always)]
    fn write(&mut self, t: usize, dmemory: &mut Memory, part: &mut Part<'_, '_>) {
        let (view, size) = (self.view, self.start.s.len());
        part.da[t] = dot(&dmemory.m, self.m(t));
        if self.spec.momentum {
            axpy(&mut dmemory.s, 1.0, &dmemory.m);
            part.deta[t] = dot(&dmemory.s, &self.states.s[t * size..][..size]);
        }
        let ds = if self.spec.momentum { &dmemory.s } else { &dmemory.m };
        read(&mut self.dz, row(&view.k, t), ds);
        add_transposed(part.dk[t], self.token(&self.states.z, t), ds);
        axpy(part.dv[t], view.w[t], &self.dz);
        part.dw[t] = dot(&self.dz, self.token(&self.states.v, t));
        scale(&mut dmemory.m, view.a[t]);
        if self.spec.momentum {
            scale(&mut dmemory.s, view.eta[t]);
        }
    }

    /// Equation (12), without what happens at the group's first token.
    #[inline(always)]
    fn target(&self, t: usize, dmemory: &mut Memory, part: &mut Part<'_, '_>) {
        let negative: Vec<f32> = self.dz.iter().map(|dz| -self.view.w[t] * dz).collect();
        add_transposed(part.dk[t], &negative, self.start.group);
        add_outer(&mut dmemory.group, 1.0, row(&self.view.k, t), &negative);
    }

    /// `dr` of (9), (10), and what (11) adds to `dM`.
    #[inline(always)]
    fn erase(&mut self, t: usize, dmemory: &mut Memory, part: &mut Part<'_, '_>) {
        part.dr[t] = -dot(&self.dz, self.token(&self.states.p, t));
        scale(&mut self.dz, -self.view.r[t]);
        add_transposed(part.dk[t], &self.dz, self.m(t));
        add_outer(&mut dmemory.m, 1.0, row(&self.view.k, t), &self.dz);
    }
}
