//! Weights of each write of a chunk in each later state: tables of products of gates.
//!
//! Row `t` belongs to the state after token `t`, row 0 to the state before the chunk.
//! Column `j` belongs to write `j`, column 0 to the momentum before the chunk.
//! The tables are built by the recursions (15)–(17), (32), (93), never as exponentials of differences.
//! All terms are products and sums of factors that are not negative: nothing cancels, and zeros are exact.
//! They serve all value columns of a head, so a chunk of 64 tokens makes them once.

use crate::rows::{axpy, dot};
use hecate_core::Read;

/// Gates of a chunk's tokens, `[n]` each.
#[derive(Clone, Copy)]
pub(crate) struct Factors<'a> {
    /// Retention `a`.
    pub(crate) a: &'a [f32],
    /// Momentum `η`; empty for rules without.
    pub(crate) eta: &'a [f32],
    /// What a token adds of `S` to `M`, `θ` of (93); empty where it is 1.
    pub(crate) emission: &'a [f32],
}

/// Gradients of [`Factors`], to be overwritten; empty where those are.
pub(crate) struct FactorGrads<'a> {
    pub(crate) a: &'a mut [f32],
    pub(crate) eta: &'a mut [f32],
    pub(crate) emission: &'a mut [f32],
}

/// The tables of one chunk of `n` tokens, all row-major.
#[derive(Default)]
pub(crate) struct Tables {
    /// Tokens.
    n: usize,
    /// `A[t]`, `n + 1`.
    pub(crate) a: Vec<f32>,
    /// `E[t,j]`, `(n+1)²`; empty without momentum, where it is the identity.
    e: Vec<f32>,
    /// `c[t,j]`, `(n+1)²`; column 0 is the weight of `S₀`.
    c: Vec<f32>,
    /// `b[t] = c[t,0]`, `n + 1`; zero without momentum.
    pub(crate) b: Vec<f32>,
}

impl Tables {
    /// Row of the tables that the first token's read takes: 1 after its write, 0 before.
    pub(crate) fn first_read(read: Read) -> usize {
        match read {
            Read::After => 1,
            Read::Before => 0,
        }
    }

    /// Fills the tables: equations (15)–(17), (93). `O(n²)` per chunk.
    #[inline(always)]
    pub(crate) fn build(&mut self, Factors { a, eta, emission }: Factors<'_>) {
        let (n, stride) = (a.len(), a.len() + 1);
        self.n = n;
        reset(&mut self.a, stride);
        reset(&mut self.b, stride);
        reset(&mut self.c, stride * stride);
        reset(&mut self.e, if eta.is_empty() { 0 } else { stride * stride });
        // Row 0 is the state before the chunk: it is itself, and holds none of the chunk's writes.
        self.a[0] = 1.0;
        if let Some(first) = self.e.first_mut() {
            *first = 1.0;
        }
        for t in 1..=n {
            self.a[t] = a[t - 1] * self.a[t - 1];
            let (past, now) = self.c.split_at_mut(t * stride);
            axpy(&mut now[..t], a[t - 1], &past[(t - 1) * stride..][..t]);
            let emission = emission.get(t - 1).copied().unwrap_or(1.0);
            // Without momentum a write enters the memory as it is.
            if self.e.is_empty() {
                now[t] = emission;
                continue;
            }
            let (past, e) = self.e.split_at_mut(t * stride);
            axpy(&mut e[..t], eta[t - 1], &past[(t - 1) * stride..][..t]);
            e[t] = 1.0;
            axpy(&mut now[..=t], emission, &e[..=t]);
            // Column 0 apart: it scales `S₀`, the others the writes.
            self.b[t] = now[0];
        }
    }

    /// `c[t, 1..=count]`: weights of the first `count` writes in `M_t`.
    #[inline(always)]
    pub(crate) fn write_weights(&self, t: usize, count: usize) -> &[f32] {
        &self.c[t * (self.n + 1) + 1..][..count]
    }

    /// `c[C, 1..]`: weights of all writes in the chunk's last `M`.
    #[inline(always)]
    pub(crate) fn last_m(&self) -> &[f32] {
        self.write_weights(self.n, self.n)
    }

    /// `E[C, 1..]`: weights of all writes in the last `S`; empty without momentum.
    #[inline(always)]
    pub(crate) fn last_s(&self) -> &[f32] {
        self.e.get(self.n * (self.n + 1) + 1..).unwrap_or_default()
    }

    /// `(A[C], c[C,0], E[C,0])`: how `M₀` and `S₀` enter the last `M`, and `S₀` the last `S`.
    #[inline(always)]
    pub(crate) fn carried(&self) -> (f32, f32, f32) {
        let n = self.n;
        (self.a[n], self.b[n], self.e.get(n * (n + 1)).copied().unwrap_or(0.0))
    }
}

/// Gradients of the tables, in the same shapes. Engines add to them, then [`TableGrads::gates`] goes back.
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

    /// Row `t` of `dc`, all `n + 1` columns.
    #[inline(always)]
    pub(crate) fn c_row(&mut self, t: usize) -> &mut [f32] {
        let stride = self.a.len();
        &mut self.c[t * stride..][..stride]
    }

    /// Row `t` of `dE`, all `n + 1` columns; only with momentum.
    #[inline(always)]
    pub(crate) fn e_row(&mut self, t: usize) -> &mut [f32] {
        let stride = self.a.len();
        &mut self.e[t * stride..][..stride]
    }

    /// Gradients of the gates of each token, from the last to the first: equations (32), (93).
    #[inline(always)]
    pub(crate) fn gates(&mut self, tables: &Tables, Factors { a, eta, emission }: Factors<'_>, grads: FactorGrads<'_>) {
        let stride = tables.n + 1;
        for t in (1..=tables.n).rev() {
            let (past, now) = self.c.split_at_mut(t * stride);
            let (now, past) = (&now[..=t], &mut past[(t - 1) * stride..][..t]);
            // A gate scales the row before it, so its gradient is the inner product of the two rows.
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

/// Becomes `count` zeros, in the memory that is there.
#[inline(always)]
pub(crate) fn reset(x: &mut Vec<f32>, count: usize) {
    x.clear();
    x.resize(count, 0.0);
}
