//! The recurrence token by token: equations (1)–(14).
//!
//! This is the reference of the engine: each function does what its equation says, in that order.
//! It is also the fastest form for sequences of a few tokens.

use super::chunk_view::{ChunkGrads, ChunkStart, ChunkView, Memory};
use crate::{
    product::Mat,
    rows::{add_outer, add_transposed, axpy, dot, read, scale},
    simd::wide,
};
use hecate_core::{Read, families::LinearSpec};

/// Equations (1)–(5) over the tokens of a view; `out` are `n` rows `[columns]`, `memory` moves past the view.
pub(crate) fn forward(spec: LinearSpec, view: &ChunkView<'_>, memory: &mut Memory, out: &mut [&mut [f32]]) {
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
/// One token. `z` and `p`, `[columns]` each, are left in `scratch` for the backward.
#[inline(always)]
fn step(
    spec: LinearSpec,
    view: &ChunkView<'_>,
    t: usize,
    memory: &mut Memory,
    scratch: &mut (Vec<f32>, Vec<f32>),
    y: &mut [f32],
) {
    let (z, p) = (&mut scratch.0, &mut scratch.1);
    let (k, q) = (view.k.row(t), view.q.row(t));
    // Equation (2), from left to right: the target, its frozen prediction, the strengths.
    z.copy_from_slice(view.v.row(t));
    if spec.frozen.is_some() {
        read(p, k, &memory.group);
        axpy(z, -1.0, p);
    }
    scale(z, view.w[t]);
    // Equation (1): the prediction that is erased.
    if spec.erases() {
        read(p, k, &memory.m);
        axpy(z, -view.r[t], p);
    }
    if spec.read == Read::Before {
        // Equation (5), for rules that read before they write.
        read(y, q, &memory.m);
    }
    write(spec, view, t, k, z, memory);
    if spec.read == Read::After {
        read(y, q, &memory.m);
    }
}

/// Equations (3) and (4).
/// Equations (3) and (4): the memory after the write `z`, row by row of `K`.
#[inline(always)]
fn write(spec: LinearSpec, view: &ChunkView<'_>, t: usize, k: &[f32], z: &[f32], memory: &mut Memory) {
    // Both matrices row by row: the momentum is updated and added in one pass.
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

/// What the backward of a chunk needs of its forward, computed again.
#[derive(Default)]
pub(crate) struct States {
    /// `M` before each token and after the last, `[n+1, K, columns]`.
    m: Vec<f32>,
    /// `S` likewise; empty without momentum.
    s: Vec<f32>,
    /// What each token wrote, `[n, columns]`.
    z: Vec<f32>,
    /// What each token predicted, `[n, columns]`; meaningless for rules that never erase.
    p: Vec<f32>,
    /// The target `v − f k M_c` of each token, `[n, columns]`.
    v: Vec<f32>,
}

impl States {
    /// Runs the chunk's tokens again from its start. What they read is dropped.
    #[inline(always)]
    fn recompute(&mut self, spec: LinearSpec, view: &ChunkView<'_>, start: &ChunkStart<'_>) {
        let columns = view.v.columns;
        // The arrays keep their memory from chunk to chunk.
        for x in [&mut self.m, &mut self.s, &mut self.z, &mut self.p, &mut self.v] {
            x.clear();
        }
        let mut memory = Memory { m: start.m.to_vec(), s: start.s.to_vec(), group: start.group.to_vec() };
        let mut scratch = (vec![0.0; columns], vec![0.0; columns]);
        let mut y = vec![0.0; columns];
        for t in 0..view.tokens {
            self.m.extend_from_slice(&memory.m);
            self.s.extend_from_slice(&memory.s);
            self.v.extend_from_slice(view.v.row(t));
            if spec.frozen.is_some() {
                read(&mut y, view.k.row(t), start.group);
                axpy(&mut self.v[t * columns..], -1.0, &y);
            }
            // The same step as in the forward, so the states are the same bits.
            step(spec, view, t, &mut memory, &mut scratch, &mut y);
            self.z.extend_from_slice(&scratch.0);
            self.p.extend_from_slice(&scratch.1);
        }
        self.m.extend_from_slice(&memory.m);
        self.s.extend_from_slice(&memory.s);
    }
}

/// Equations (6)–(14) over the tokens of a view, from the last to the first.
///
/// `dout [n, columns]`; `dmemory` moves from after the view to before it.
/// Gradients are those of `a` and `η` themselves, not of their logarithms.
pub(crate) fn backward(
    spec: LinearSpec,
    view: &ChunkView<'_>,
    start: &ChunkStart<'_>,
    states: &mut States,
    dout: &Mat<'_>,
    dmemory: &mut Memory,
    part: ChunkGrads<'_, '_>,
) {
    wide(
        (states, dmemory, part),
        #[inline(always)]
        |(states, dmemory, mut part)| {
            states.recompute(spec, view, start);
            // The states of the whole chunk are there; only gradients move now.
            let mut reverse = Reverse { spec, view, start, states, dz: vec![0.0; view.v.columns] };
            for t in (0..view.tokens).rev() {
                // The parts of a token add to its gradients.
                [&mut *part.dq, part.dk, part.dv].into_iter().for_each(|x| x[t].fill(0.0));
                reverse.step(t, dout.row(t), dmemory, &mut part);
            }
        },
    );
}

/// A chunk gone through backward.
struct Reverse<'a> {
    spec: LinearSpec,
    view: &'a ChunkView<'a>,
    start: &'a ChunkStart<'a>,
    states: &'a States,
    /// `dz [columns]`; after [`Reverse::erase`] it holds `dp`.
    dz: Vec<f32>,
}

impl Reverse<'_> {
    /// Token `t`: its parts in the reverse order of the forward.
    #[inline(always)]
    fn step(&mut self, t: usize, dy: &[f32], dmemory: &mut Memory, part: &mut ChunkGrads<'_, '_>) {
        if self.spec.read == Read::After {
            self.read(t, t + 1, dy, dmemory, part);
        }
        self.write(t, dmemory, part);
        if self.spec.frozen.is_some() {
            self.target(t, dmemory, part);
        }
        if self.spec.erases() {
            self.erase(t, dmemory, part);
        }
        if self.spec.read == Read::Before {
            self.read(t, t, dy, dmemory, part);
        }
    }

    /// `M` before token `t`, `[K, columns]`.
    #[inline(always)]
    fn m(&self, t: usize) -> &[f32] {
        let size = self.start.m.len();
        &self.states.m[t * size..][..size]
    }

    /// Row `t` of an array `[n, columns]`.
    #[inline(always)]
    fn token<'x>(&self, x: &'x [f32], t: usize) -> &'x [f32] {
        let columns = self.view.v.columns;
        &x[t * columns..][..columns]
    }

    /// Equations (6) and (13): token `t` read the memory before token `seen`. Adds to `dM` and sets `dq`.
    #[inline(always)]
    fn read(&self, t: usize, seen: usize, dy: &[f32], dmemory: &mut Memory, part: &mut ChunkGrads<'_, '_>) {
        add_outer(&mut dmemory.m, 1.0, self.view.q.row(t), dy);
        add_transposed(part.dq[t], dy, self.m(seen));
    }

    /// Equations (7)–(9) and (11): the gradients of `a`, `η`, `k`, `v` and `w`, and the decay of `dM` and `dS`.
    /// Without momentum `S_t` is the write itself, and its gradient is `dM`.
    #[inline(always)]
    fn write(&mut self, t: usize, dmemory: &mut Memory, part: &mut ChunkGrads<'_, '_>) {
        // `K columns`, or 0 without momentum.
        let (view, size) = (self.view, self.start.s.len());
        // Gradients of the gates come first: they need `dM` before it decays.
        part.da[t] = dot(&dmemory.m, self.m(t));
        if self.spec.momentum {
            axpy(&mut dmemory.s, 1.0, &dmemory.m);
            part.deta[t] = dot(&dmemory.s, &self.states.s[t * size..][..size]);
        }
        // The write is `kᵀ z`: its gradient goes to both factors.
        let ds = if self.spec.momentum { &dmemory.s } else { &dmemory.m };
        read(&mut self.dz, view.k.row(t), ds);
        add_transposed(part.dk[t], self.token(&self.states.z, t), ds);
        // The value and its strength, by equation (9).
        axpy(part.dv[t], view.w[t], &self.dz);
        part.dw[t] = dot(&self.dz, self.token(&self.states.v, t));
        // What is left is the gradient of the memory before the token.
        scale(&mut dmemory.m, view.a[t]);
        if self.spec.momentum {
            scale(&mut dmemory.s, view.eta[t]);
        }
    }

    /// Equation (12): what the frozen target adds to `dk` and `dM_c`, but for the group's first token.
    #[inline(always)]
    fn target(&self, t: usize, dmemory: &mut Memory, part: &mut ChunkGrads<'_, '_>) {
        // `−w dz` is the gradient of the prediction `k M_c`.
        let negative: Vec<f32> = self.dz.iter().map(|dz| -self.view.w[t] * dz).collect();
        add_transposed(part.dk[t], &negative, self.start.group);
        add_outer(&mut dmemory.group, 1.0, self.view.k.row(t), &negative);
    }

    /// `dr` of (9), `dk` of (10), and what (11) adds to `dM`.
    #[inline(always)]
    fn erase(&mut self, t: usize, dmemory: &mut Memory, part: &mut ChunkGrads<'_, '_>) {
        part.dr[t] = -dot(&self.dz, self.token(&self.states.p, t));
        // `dp = −r dz` reaches the key and the memory before the token.
        scale(&mut self.dz, -self.view.r[t]);
        add_transposed(part.dk[t], &self.dz, self.m(t));
        add_outer(&mut dmemory.m, 1.0, self.view.k.row(t), &self.dz);
    }
}
