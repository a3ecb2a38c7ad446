//! The exact chunk form without Newton-Schulz, forward: equations (15)–(22) with (93).
//!
//! A piece of `n` tokens has `u = c − 1 + n` keys and values, those before it included. Token `t` writes the rows
//! `(t, i)`, `i < c`, with key and value `t + i`; what depends on keys alone is computed once for each of them.

use super::AtlasCell;
use crate::{
    engine::{
        CHUNK, solve,
        tables::{Factors, Tables, reset},
    },
    product::{Mat, MatMut, product},
    recurrent::{Adjoint, Groups, Rows, TokenGrads},
    rows::{add_scaled_rows, axpy, scale, set_scaled_rows},
    simd::wide,
};
use hecate_core::Read;
use std::ops::Range;

/// Rows that a piece writes at most.
const ROWS: usize = 64;

/// A stretch of tokens, behind the keys and values of its first window, gates apart.
pub(super) struct Stretch<'a> {
    cell: &'a AtlasCell,
    tokens: usize,
    q: &'a [f32],
    /// `[c−1+N, K]`.
    pub(super) keys: Vec<f32>,
    /// `[c−1+N, V]`.
    values: Vec<f32>,
    a: Vec<f32>,
    eta: Vec<f32>,
    theta: Vec<f32>,
    /// `[N,c]`, weights of a window's rows, oldest first.
    gamma: Vec<f32>,
}

/// Some tokens of a stretch, at once.
pub(super) struct Piece<'a> {
    /// `n`.
    pub(super) tokens: usize,
    /// `c`.
    pub(super) window: usize,
    pub(super) read: Read,
    pub(super) q: Mat<'a>,
    /// `[u,K]`.
    pub(super) keys: Mat<'a>,
    /// `[u,V]`.
    pub(super) values: Mat<'a>,
    pub(super) factors: Factors<'a>,
    /// `[n,c]`.
    pub(super) gamma: &'a [f32],
}

impl<'a> Stretch<'a> {
    pub(super) fn new(cell: &'a AtlasCell, rows: Rows<'a>, state: &[f32]) -> Self {
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

    /// Tokens of each piece.
    pub(super) fn pieces(&self) -> impl DoubleEndedIterator<Item = Range<usize>> + use<> {
        let (tokens, most) = (self.tokens, ROWS / self.cell.window);
        (0..tokens.div_ceil(most)).map(move |i| i * most..((i + 1) * most).min(tokens))
    }

    pub(super) fn piece(&self, tokens: &Range<usize>) -> Piece<'_> {
        let AtlasCell { rule, key, value, window } = *self.cell;
        let (n, u) = (tokens.len(), tokens.len() + window - 1);
        Piece {
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

    /// `M` and `S` of `state` moved behind a piece, and what its tokens read, where `out` has room for it.
    pub(super) fn run(&self, tokens: &Range<usize>, state: &mut [f32], work: &mut Workspace, out: Option<&mut [f32]>) {
        let piece = self.piece(tokens);
        let state = self.cell.parts_mut(state);
        wide(
            (state.m, state.s, work, out),
            #[inline(always)]
            |(m, s, work, out)| {
                work.writes(&piece, m, s);
                if let Some(out) = out {
                    work.read(&piece, m, s, out);
                }
                work.carry(&piece, m, s);
            },
        );
    }

    /// The rows of the next window, into `state`.
    fn keep(&self, state: &mut [f32]) {
        let state = self.cell.parts_mut(state);
        state.kbuf.copy_from_slice(&self.keys[self.keys.len() - state.kbuf.len()..]);
        state.vbuf.copy_from_slice(&self.values[self.values.len() - state.vbuf.len()..]);
    }
}

/// Scratch for pieces.
#[derive(Default)]
pub(super) struct Workspace {
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
    /// What the state at the start leaves to learn of each written row, `[cn,V]`.
    pub(super) errors: Vec<f32>,
    /// `Z [cn,V]`.
    pub(super) z: Vec<f32>,
    /// `q keysᵀ [n,u]`.
    pub(super) g: Vec<f32>,
    /// `Y ∘ G` of the written rows, `[n,cn]`.
    pub(super) yg: Vec<f32>,
    /// `[u,V]` or `[n,V]`.
    pub(super) scratch: Vec<f32>,
}

impl Workspace {
    /// Tables and what is written: equations (15)–(19), (93).
    #[inline(always)]
    pub(super) fn writes(&mut self, piece: &Piece<'_>, m: &[f32], s: &[f32]) {
        let (rows, width, window) = (piece.written(), piece.width(), piece.window);
        self.tables.build(piece.factors);
        times(&mut self.of_m, piece.keys, m, width);
        times(&mut self.of_s, piece.keys, s, width);
        reset(&mut self.errors, rows * width);
        reset(&mut self.z, rows * width);
        for (row, e) in self.errors.chunks_exact_mut(width).enumerate() {
            let (t, of) = (row / window, piece.of(row) * width);
            e.copy_from_slice(&piece.values.data[of..][..width]);
            axpy(e, -self.tables.a[t], &self.of_m[of..][..width]);
            axpy(e, -self.tables.b[t], &self.of_s[of..][..width]);
        }
        set_scaled_rows(&mut self.z, piece.gamma, &self.errors, width);
        self.triangle(piece);
        solve::lower(&self.triangle, rows, &mut self.z, width);
    }

    /// `L ∘ N` and `γ∗(L ∘ N)`.
    #[inline(always)]
    fn triangle(&mut self, piece: &Piece<'_>) {
        let (rows, keys, window) = (piece.written(), piece.keys, piece.window);
        reset(&mut self.products, keys.rows * keys.rows);
        product(MatMut::new(&mut self.products, keys.rows, keys.rows), 0.0, 1.0, keys, keys.t());
        reset(&mut self.ln, rows * rows);
        reset(&mut self.triangle, rows * rows);
        for row in 0..rows {
            let (t, products) = (row / window, &self.products[piece.of(row) * keys.rows..][..keys.rows]);
            let own = row * rows..row * rows + t * window;
            spread(&mut self.ln[own.clone()], self.tables.writes(t, t), products, window);
            axpy(&mut self.triangle[own.clone()], piece.gamma[row], &self.ln[own]);
        }
    }

    /// `G` and `Y ∘ G`.
    #[inline(always)]
    pub(super) fn reads(&mut self, piece: &Piece<'_>) {
        let (n, rows, keys) = (piece.tokens, piece.written(), piece.keys);
        reset(&mut self.g, n * keys.rows);
        product(MatMut::new(&mut self.g, n, keys.rows), 0.0, 1.0, piece.q, keys.t());
        reset(&mut self.yg, n * rows);
        for t in 0..n {
            let seen = t + Tables::first_read(piece.read);
            let own = &mut self.yg[t * rows..][..seen * piece.window];
            spread(own, self.tables.writes(seen, seen), &self.g[t * keys.rows..][..keys.rows], piece.window);
        }
    }

    /// Equation (20).
    #[inline(always)]
    fn read(&mut self, piece: &Piece<'_>, m: &[f32], s: &[f32], out: &mut [f32]) {
        let (n, rows, width) = (piece.tokens, piece.written(), piece.width());
        let first = Tables::first_read(piece.read);
        self.reads(piece);
        times(&mut self.scratch, piece.q, m, width);
        set_scaled_rows(out, &self.tables.a[first..], &self.scratch, width);
        times(&mut self.scratch, piece.q, s, width);
        add_scaled_rows(out, &self.tables.b[first..], &self.scratch, width);
        product(MatMut::new(out, n, width), 1.0, 1.0, Mat::new(&self.yg, n, rows), Mat::new(&self.z, rows, width));
    }

    /// Equations (21) and (22).
    #[inline(always)]
    fn carry(&mut self, piece: &Piece<'_>, m: &mut [f32], s: &mut [f32]) {
        let (keys, width) = (piece.keys, piece.width());
        let (a, b, e) = self.tables.carried();
        scale(m, a);
        axpy(m, b, s);
        scale(s, e);
        for (state, factors) in [(m, self.tables.last_m()), (s, self.tables.last_s())] {
            reset(&mut self.scratch, keys.rows * width);
            gather(&mut self.scratch, factors, &self.z, piece);
            let sums = Mat::new(&self.scratch, keys.rows, width);
            product(MatMut::new(state, keys.columns, width), 1.0, 1.0, keys.t(), sums);
        }
    }
}

impl Piece<'_> {
    /// Rows written.
    #[inline(always)]
    pub(super) fn written(&self) -> usize {
        self.tokens * self.window
    }

    /// Columns of values.
    #[inline(always)]
    pub(super) fn width(&self) -> usize {
        self.values.columns
    }

    /// The key and value of a written row.
    #[inline(always)]
    pub(super) fn of(&self, row: usize) -> usize {
        row / self.window + row % self.window
    }
}

/// `out ← rows state`, `state [K,width]`.
#[inline(always)]
pub(super) fn times(out: &mut Vec<f32>, rows: Mat<'_>, state: &[f32], width: usize) {
    reset(out, rows.rows * width);
    product(MatMut::new(out, rows.rows, width), 0.0, 1.0, rows, Mat::new(state, rows.columns, width));
}

/// `out[(s,j)] = table[s] products[s + j]`: one row of a table and of products of keys, for written rows.
#[inline(always)]
fn spread(out: &mut [f32], table: &[f32], products: &[f32], window: usize) {
    for (s, (out, table)) in out.chunks_exact_mut(window).zip(table).enumerate() {
        for (out, product) in out.iter_mut().zip(&products[s..]) {
            *out = table * product;
        }
    }
}

/// Rows of keys `[u,width]` plus the written rows that have them, each times its token's factor.
#[inline(always)]
pub(super) fn gather(out: &mut [f32], factors: &[f32], written: &[f32], piece: &Piece<'_>) {
    let width = piece.width();
    for (row, x) in written.chunks_exact(width).enumerate() {
        axpy(&mut out[piece.of(row) * width..][..width], factors[row / piece.window], x);
    }
}

impl AtlasCell {
    /// Numbers that [`Groups`] needs for one stretch at most.
    pub(super) fn chunk_numbers(&self) -> usize {
        let Self { key, value, window, .. } = *self;
        let most = ROWS / window;
        let (u, all) = (most + window - 1, CHUNK + window - 1);
        let stretch = 2 * all * (key + value) + CHUNK * (3 + window);
        let states = CHUNK.div_ceil(most) * 2 * key * value;
        let squares = 4 * ROWS * ROWS + 4 * u * u + 2 * (most + 1) * (2 * most + 3);
        stretch + states + squares + 5 * ROWS * value + 7 * u * value + most * (key + ROWS)
    }
}

impl Groups<super::Scratch> for AtlasCell {
    fn forward(&self, rows: Rows<'_>, _: &mut super::Scratch, state: &mut [f32], _: &[f32], out: &mut [f32]) {
        let stretch = Stretch::new(self, rows, state);
        let mut work = Workspace::default();
        for tokens in stretch.pieces() {
            let out = &mut out[tokens.start * self.value..tokens.end * self.value];
            stretch.run(&tokens, state, &mut work, Some(out));
        }
        stretch.keep(state);
    }

    fn backward(
        &self,
        rows: Rows<'_>,
        _: &mut super::Scratch,
        start: &[f32],
        _: &[f32],
        dout: &[f32],
        adjoint: Adjoint<'_>,
        grads: TokenGrads<'_>,
    ) {
        super::chunk_backward::run(self, rows, start, dout, adjoint.state, grads);
    }
}
