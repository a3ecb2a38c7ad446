//! Influence of each write of a chunk on each later state: products of gates, built by recursion (15)–(17), (32), (93).

use crate::rows::{axpy, dot};
use hecate_core::Read;

/// Gates of a chunk's tokens: retention, momentum (empty: none), and emission, `θ` of (93) (empty: 1).
#[derive(Clone, Copy)]
pub(crate) struct Factors<'a> {
    pub(crate) a: &'a [f32],
    pub(crate) eta: &'a [f32],
    pub(crate) emission: &'a [f32],
}

/// Gradients of [`Factors`], to be overwritten; empty where those are.
pub(crate) struct FactorGrads<'a> {
    pub(crate) a: &'a mut [f32],
    pub(crate) eta: &'a mut [f32],
    pub(crate) emission: &'a mut [f32],
}

/// The tables of one chunk of `n` tokens; index 0 is the state before the chunk.
#[derive(Default)]
pub(crate) struct Tables {
    /// Tokens.
    n: usize,
    /// `A[t]`, `n + 1`.
    pub(crate) a: Vec<f32>,
    /// `E[t,j]`, `(n+1)²`; empty without momentum, where it is the identity.
    e: Vec<f32>,
    /// `c[t,j]`, `(n+1)²`; column 0 is the influence of `S₀`.
    c: Vec<f32>,
    /// `b[t] = c[t,0]`, `n + 1`; zero without momentum.
    pub(crate) b: Vec<f32>,
}

impl Tables {
    /// Row of the side that a read of the first token takes: 1 after its write, 0 before.
    pub(crate) fn first_read(read: Read) -> usize {
        match read {
            Read::After => 1,
            Read::Before => 0,
        }
    }

    /// Equations (15)–(17), (93).
    #[inline(always)]
    pub(crate) fn build(&mut self, Factors { a, eta, emission }: Factors<'_>) {
        let (n, stride) = (a.len(), a.len() + 1);
        self.n = n;
        reset(&mut self.a, stride);
        reset(&mut self.b, stride);
        reset(&mut self.c, stride * stride);
        reset(&mut self.e, if eta.is_empty() { 0 } else { stride * stride });
        self.a[0] = 1.0;
        if let Some(first) = self.e.first_mut() {
            *first = 1.0;
        }
        for t in 1..=n {
            self.a[t] = a[t - 1] * self.a[t - 1];
            let (past, now) = self.c.split_at_mut(t * stride);
            axpy(&mut now[..t], a[t - 1], &past[(t - 1) * stride..][..t]);
            let emission = emission.get(t - 1).copied().unwrap_or(1.0);
            if self.e.is_empty() {
                now[t] = emission;
                continue;
            }
            let (past, e) = self.e.split_at_mut(t * stride);
            axpy(&mut e[..t], eta[t - 1], &past[(t - 1) * stride..][..t]);
            e[t] = 1.0;
            axpy(&mut now[..=t], emission, &e[..=t]);
            self.b[t] = now[0];
        }
    }

    /// `c[t, 1..=count]`: how the first `count` writes stand in `M_t`.
    #[inline(always)]
    pub(crate) fn writes(&self, t: usize, count: usize) -> &[f32] {
        &self.c[t * (self.n + 1) + 1..][..count]
    }

    /// `c[C, 1..]`.
    #[inline(always)]
    pub(crate) fn last_m(&self) -> &[f32] {
        self.writes(self.n, self.n)
    }

    /// `E[C, 1..]`; empty without momentum.
    #[inline(always)]
    pub(crate) fn last_s(&self) -> &[f32] {
        self.e.get(self.n * (self.n + 1) + 1..).unwrap_or_default()
    }

    /// `(A[C], c[C,0], E[C,0])`.
    #[inline(always)]
    pub(crate) fn carried(&self) -> (f32, f32, f32) {
        let n = self.n;
        (self.a[n], self.b[n], self.e.get(n * (n + 1)).copied().unwrap_or(0.0))
    }
}

/// Gradients of the tables, same shapes.
#[derive(Default)]
pub(crate) struct TableGrads {
    pub(crate) a: Vec<f32>,
    pub(crate) e: Vec<f32>,
    pub(crate) c: Vec<f32>,
}

impl TableGrads {
    /// Zeros for a chunk like that of `tables`.
    #[inline(always)]
    pub(crate) fn clear(&mut self, tables: &Tables) {
        reset(&mut self.a, tables.a.len());
        reset(&mut self.e, tables.e.len());
        reset(&mut self.c, tables.c.len());
    }

    /// Row `t` of `dc`, all columns.
    #[inline(always)]
    pub(crate) fn c_row(&mut self, t: usize) -> &mut [f32] {
        let stride = self.a.len();
        &mut self.c[t * stride..][..stride]
    }

    /// Row `t` of `dE`, all columns; only with momentum.
    #[inline(always)]
    pub(crate) fn e_row(&mut self, t: usize) -> &mut [f32] {
        let stride = self.a.len();
        &mut self.e[t * stride..][..stride]
    }

    /// Equations (32), (93): gradients of the gates of each token.
    #[inline(always)]
    pub(crate) fn gates(&mut self, tables: &Tables, Factors { a, eta, emission }: Factors<'_>, grads: FactorGrads<'_>) {
        let stride = tables.n + 1;
        for t in (1..=tables.n).rev() {
            let (past, now) = self.c.split_at_mut(t * stride);
            let (now, past) = (&now[..=t], &mut past[(t - 1) * stride..][..t]);
            grads.a[t - 1] = self.a[t] * tables.a[t - 1] + dot(&now[..t], &tables.c[(t - 1) * stride..][..t]);
            self.a[t - 1] += a[t - 1] * self.a[t];
            axpy(past, a[t - 1], &now[..t]);
            if eta.is_empty() {
                continue;
            }
            let (past, e) = self.e.split_at_mut(t * stride);
            if let Some(demission) = grads.emission.get_mut(t - 1) {
                *demission = dot(now, &tables.e[t * stride..][..=t]);
            }
            axpy(&mut e[..=t], emission.get(t - 1).copied().unwrap_or(1.0), now);
            grads.eta[t - 1] = dot(&e[..t], &tables.e[(t - 1) * stride..][..t]);
            axpy(&mut past[(t - 1) * stride..][..t], eta[t - 1], &e[..t]);
        }
    }
}

/// `count` zeros, in the memory that is there.
#[inline(always)]
pub(crate) fn reset(x: &mut Vec<f32>, count: usize) {
    x.clear();
    x.resize(count, 0.0);
}
