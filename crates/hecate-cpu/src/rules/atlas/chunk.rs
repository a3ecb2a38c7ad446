//! The exact chunk form of Atlas without Newton-Schulz, forward: equations (15)–(22) with (93).
//!
//! A chunk of at most 64 tokens ([`SubChunk`]) goes in segments whose written rows fit one triangular system.
//!
//! A segment of `n` tokens has `u = c − 1 + n` keys and values, those before it included.
//! Token `t` writes the rows `(t, i)`, `i < c`, with key and value `t + i`.
//! That is `c n` rows, but only `u` different keys: what depends on keys alone is computed once for each of them.
//! Written rows are spread from those results, and gathered back into them.

use super::AtlasCell;
use crate::{
    linear::{
        solve,
        tables::{Factors, Tables, reset},
    },
    product::{Mat, MatMut, product},
    recurrent::TokenRows,
    rows::{add_scaled_rows, axpy, scale, set_scaled_rows},
    simd::wide,
};
use hecate_core::Read;
use std::ops::Range;

/// Rows that a segment writes at most: the size of its triangular system.
pub(super) const ROWS: usize = 64;

/// A chunk's tokens, with the keys and values of its first window in front, and the gates apart.
pub(super) struct SubChunk<'a> {
    /// Sizes and options.
    cell: &'a AtlasCell,
    /// `N`.
    tokens: usize,
    /// `[N,K]`.
    q: &'a [f32],
    /// `[c−1+N, K]`.
    pub(super) keys: Vec<f32>,
    /// `[c−1+N, V]`.
    values: Vec<f32>,
    /// Retention `[N]`.
    a: Vec<f32>,
    /// Momentum `[N]`.
    eta: Vec<f32>,
    /// What is added of the momentum, `[N]`.
    theta: Vec<f32>,
    /// `[N,c]`, weights of a window's rows, oldest first.
    gamma: Vec<f32>,
}

/// Some tokens of a chunk, at once.
pub(super) struct Segment<'a> {
    /// `n`.
    pub(super) tokens: usize,
    /// `c`.
    pub(super) window: usize,
    /// When a token reads.
    pub(super) read: Read,
    /// `[n,K]`.
    pub(super) q: Mat<'a>,
    /// `[u,K]`.
    pub(super) keys: Mat<'a>,
    /// `[u,V]`.
    pub(super) values: Mat<'a>,
    /// Gates, `[n]` each.
    pub(super) factors: Factors<'a>,
    /// `[n,c]`.
    pub(super) gamma: &'a [f32],
}

impl<'a> SubChunk<'a> {
    /// Joins the window in `state` and the chunk's rows; gates become factors.
    pub(super) fn new(cell: &'a AtlasCell, rows: TokenRows<'a>, state: &[f32]) -> Self {
        let before = cell.parts(state);
        let gates = || rows.gates.chunks_exact(3 + cell.window);
        let joined = |before: &[f32], own: &[f32]| [before, own].concat();
        Self {
            cell,
            tokens: rows.tokens,
            q: rows.q,
            keys: joined(before.kbuf, rows.k),
            values: joined(before.vbuf, rows.v),
            a: gates().map(|gates| gates[0].exp()).collect(),
            eta: gates().map(|gates| gates[1].exp()).collect(),
            theta: gates().map(|gates| gates[2]).collect(),
            gamma: gates().flat_map(|gates| gates[3..].iter().rev()).copied().collect(),
        }
    }

    /// Tokens of each segment: as many as write at most [`ROWS`] rows.
    pub(super) fn segments(&self) -> impl DoubleEndedIterator<Item = Range<usize>> + use<> {
        let (tokens, most) = (self.tokens, ROWS / self.cell.window);
        (0..tokens.div_ceil(most)).map(move |i| i * most..((i + 1) * most).min(tokens))
    }

    /// Views of the rows and gates of a segment's tokens.
    pub(super) fn segment(&self, tokens: &Range<usize>) -> Segment<'_> {
        let AtlasCell { rule, key, value, window } = *self.cell;
        let (n, u) = (tokens.len(), tokens.len() + window - 1);
        Segment {
            tokens: n,
            window,
            read: rule.read,
            q: Mat::new(&self.q[tokens.start * key..][..n * key], n, key),
            keys: Mat::new(&self.keys[tokens.start * key..][..u * key], u, key),
            values: Mat::new(&self.values[tokens.start * value..][..u * value], u, value),
            factors: Factors {
                a: &self.a[tokens.clone()],
                eta: &self.eta[tokens.clone()],
                emission: &self.theta[tokens.clone()],
            },
            gamma: &self.gamma[tokens.start * window..tokens.end * window],
        }
    }

    /// Moves `M` and `S` of `state` past a segment.
    /// What its tokens read goes to `out [n,V]`, if there is one: the backward's recomputation reads nothing.
    pub(super) fn run(&self, tokens: &Range<usize>, state: &mut [f32], work: &mut Workspace, out: Option<&mut [f32]>) {
        let segment = self.segment(tokens);
        let state = self.cell.parts_mut(state);
        wide(
            (state.m, state.s, work, out),
            #[inline(always)]
            |(m, s, work, out)| {
                work.pseudo_values(&segment, m, s);
                if let Some(out) = out {
                    work.read(&segment, m, s, out);
                }
                work.carry(&segment, m, s);
            },
        );
    }

    /// The rows of the next window, into `state`.
    pub(super) fn keep(&self, state: &mut [f32]) {
        let state = self.cell.parts_mut(state);
        state.kbuf.copy_from_slice(&self.keys[self.keys.len() - state.kbuf.len()..]);
        state.vbuf.copy_from_slice(&self.values[self.values.len() - state.vbuf.len()..]);
    }
}

/// Workspace of one segment; its arrays grow to the longest one.
#[derive(Default)]
pub(super) struct Workspace {
    /// Weights of writes in later states; a token's rows share its column.
    pub(super) tables: Tables,
    /// `keys keysᵀ [u,u]`.
    pub(super) products: Vec<f32>,
    /// `L ∘ N` of the written rows, `[cn,cn]`.
    pub(super) ln: Vec<f32>,
    /// `γ∗(L ∘ N) [cn,cn]`.
    pub(super) triangle: Vec<f32>,
    /// `keys M₀ [u,V]`.
    pub(super) of_m: Vec<f32>,
    /// `keys S₀ [u,V]`.
    pub(super) of_s: Vec<f32>,
    /// What the state at the start leaves to learn of each written row: its error without the segment's own writes.
    pub(super) errors: Vec<f32>,
    /// Pseudo-values `Z [cn,V]`.
    pub(super) z: Vec<f32>,
    /// `q keysᵀ [n,u]`.
    pub(super) g: Vec<f32>,
    /// `Y ∘ G` of the written rows, `[n,cn]`.
    pub(super) yg: Vec<f32>,
    /// `[u,V]` or `[n,V]`.
    pub(super) scratch: Vec<f32>,
}

impl Workspace {
    /// Tables and pseudo-values: equations (15)–(19), (93). `m` and `s` `[K,V]` are the state at the segment's start.
    #[inline(always)]
    pub(super) fn pseudo_values(&mut self, segment: &Segment<'_>, m: &[f32], s: &[f32]) {
        let (rows, width, window) = (segment.written_rows(), segment.width(), segment.window);
        self.tables.build(segment.factors);
        times(&mut self.of_m, segment.keys, m, width);
        times(&mut self.of_s, segment.keys, s, width);
        reset(&mut self.errors, rows * width);
        reset(&mut self.z, rows * width);
        for (row, e) in self.errors.chunks_exact_mut(width).enumerate() {
            let (t, of) = (row / window, segment.of(row) * width);
            e.copy_from_slice(&segment.values.data[of..][..width]);
            axpy(e, -self.tables.a[t], &self.of_m[of..][..width]);
            axpy(e, -self.tables.b[t], &self.of_s[of..][..width]);
        }
        set_scaled_rows(&mut self.z, segment.gamma, &self.errors, width);
        self.triangle(segment);
        solve::lower(&self.triangle, rows, &mut self.z, width);
    }

    /// `L ∘ N` and `γ∗(L ∘ N)` of the written rows, out of the products of the `u` keys.
    /// A token's own rows do not see each other: they are written at once.
    #[inline(always)]
    fn triangle(&mut self, segment: &Segment<'_>) {
        let (rows, keys, window) = (segment.written_rows(), segment.keys, segment.window);
        reset(&mut self.products, keys.rows * keys.rows);
        product(MatMut::new(&mut self.products, keys.rows, keys.rows), 0.0, 1.0, keys, keys.t());
        reset(&mut self.ln, rows * rows);
        reset(&mut self.triangle, rows * rows);
        for row in 0..rows {
            let (t, products) = (row / window, &self.products[segment.of(row) * keys.rows..][..keys.rows]);
            let own = row * rows..row * rows + t * window;
            spread(&mut self.ln[own.clone()], self.tables.write_weights(t, t), products, window);
            axpy(&mut self.triangle[own.clone()], segment.gamma[row], &self.ln[own]);
        }
    }

    /// `G = q keysᵀ` and `Y ∘ G`, spread to the written rows that each token sees.
    #[inline(always)]
    pub(super) fn reads(&mut self, segment: &Segment<'_>) {
        let (n, rows, keys) = (segment.tokens, segment.written_rows(), segment.keys);
        reset(&mut self.g, n * keys.rows);
        product(MatMut::new(&mut self.g, n, keys.rows), 0.0, 1.0, segment.q, keys.t());
        reset(&mut self.yg, n * rows);
        for t in 0..n {
            let seen = t + Tables::first_read(segment.read);
            let own = &mut self.yg[t * rows..][..seen * segment.window];
            spread(own, self.tables.write_weights(seen, seen), &self.g[t * keys.rows..][..keys.rows], segment.window);
        }
    }

    /// Equation (20): `out [n,V]`.
    #[inline(always)]
    fn read(&mut self, segment: &Segment<'_>, m: &[f32], s: &[f32], out: &mut [f32]) {
        let (n, rows, width) = (segment.tokens, segment.written_rows(), segment.width());
        let first = Tables::first_read(segment.read);
        self.reads(segment);
        times(&mut self.scratch, segment.q, m, width);
        set_scaled_rows(out, &self.tables.a[first..], &self.scratch, width);
        times(&mut self.scratch, segment.q, s, width);
        add_scaled_rows(out, &self.tables.b[first..], &self.scratch, width);
        product(MatMut::new(out, n, width), 1.0, 1.0, Mat::new(&self.yg, n, rows), Mat::new(&self.z, rows, width));
    }

    /// Equations (21) and (22): the state at the segment's end.
    #[inline(always)]
    fn carry(&mut self, segment: &Segment<'_>, m: &mut [f32], s: &mut [f32]) {
        let (keys, width) = (segment.keys, segment.width());
        let (a, b, e) = self.tables.carried();
        scale(m, a);
        axpy(m, b, s);
        scale(s, e);
        for (state, factors) in [(m, self.tables.last_m()), (s, self.tables.last_s())] {
            reset(&mut self.scratch, keys.rows * width);
            gather(&mut self.scratch, factors, &self.z, segment);
            let sums = Mat::new(&self.scratch, keys.rows, width);
            product(MatMut::new(state, keys.columns, width), 1.0, 1.0, keys.t(), sums);
        }
    }
}

impl Segment<'_> {
    /// Rows written, `c n`.
    #[inline(always)]
    pub(super) fn written_rows(&self) -> usize {
        self.tokens * self.window
    }

    /// Columns of values, `V`.
    #[inline(always)]
    pub(super) fn width(&self) -> usize {
        self.values.columns
    }

    /// Which of the segment's `u` keys and values a written row has.
    #[inline(always)]
    pub(super) fn of(&self, row: usize) -> usize {
        row / self.window + row % self.window
    }
}

/// `out ← rows state`, for `rows [n,K]` and `state [K,width]`.
#[inline(always)]
pub(super) fn times(out: &mut Vec<f32>, rows: Mat<'_>, state: &[f32], width: usize) {
    reset(out, rows.rows * width);
    product(MatMut::new(out, rows.rows, width), 0.0, 1.0, rows, Mat::new(state, rows.columns, width));
}

/// `out[(s,j)] = table[s] products[s + j]`: one row of the tables and of the products of keys, for written rows.
#[inline(always)]
fn spread(out: &mut [f32], table: &[f32], products: &[f32], window: usize) {
    for (s, (out, table)) in out.chunks_exact_mut(window).zip(table).enumerate() {
        for (out, product) in out.iter_mut().zip(&products[s..]) {
            *out = table * product;
        }
    }
}

/// Adds written rows `[cn, width]` to the rows `[u, width]` of their keys, each times its token's factor.
#[inline(always)]
pub(super) fn gather(out: &mut [f32], factors: &[f32], written: &[f32], segment: &Segment<'_>) {
    let width = segment.width();
    for (row, x) in written.chunks_exact(width).enumerate() {
        axpy(&mut out[segment.of(row) * width..][..width], factors[row / segment.window], x);
    }
}
