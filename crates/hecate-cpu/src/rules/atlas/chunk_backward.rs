//! The exact chunk form of Atlas, backward: equations (23)–(32) with (93).
//!
//! States at the segments' starts are computed again first, then the segments go in reverse.
//! Gradients of keys and values are added to `u` rows: neighbouring segments share the rows of a window.
//!
//! A segment has `n` tokens, each of which writes `c` rows, those of its window: `cn` written rows in all. Their keys
//! are `u = n + c − 1` rows of the chunk, and products with keys are made for these and not for written rows.

use super::{
    AtlasCell, Parts,
    chunk::{Segment, SubChunk, Workspace, gather, times},
};
use crate::{
    linear::{
        solve,
        tables::{FactorGrads, TableGrads, Tables, reset},
    },
    product::{Mat, MatMut, product},
    recurrent::{TokenGrads, TokenRows},
    rows::{add_scaled_rows, axpy, dot, scale, set_scaled_rows},
    simd::wide,
};

/// Workspace of one segment on its way back.
#[derive(Default)]
struct SegmentBackward {
    /// What the forward left: tables, products, pseudo-values.
    forward: Workspace,
    /// Gradients of the tables.
    dtables: TableGrads,
    /// `Λ [cn,V]`, then `γ∗Λ = −dP`.
    lambda: Vec<f32>,
    /// `−dP Zᵀ [cn,cn]`, and later `dO Zᵀ [n,cn]`.
    square: Vec<f32>,
    /// Gradient of [`Workspace::products`], `[u,u]`.
    dproducts: Vec<f32>,
    /// Gradient of [`Workspace::g`], `[n,u]`.
    dg: Vec<f32>,
    /// `keys dM_C`, then the gradient of `keys M₀`, `[u,V]`; the second is the same of `S`.
    sums: [Vec<f32>; 2],
    /// What one state sends back to the queries, `[n,K]`.
    queries: Vec<f32>,
    /// Gradients of `a`, `η`, `θ`, `[n]` each.
    dfactors: [Vec<f32>; 3],
}

/// Gradients that a segment adds to or sets. Rows of keys and values are shared with its neighbours.
struct SegmentGrads<'a> {
    /// `[n,K]`, added to.
    dq: &'a mut [f32],
    /// `[u,K]`, added to.
    dkeys: &'a mut [f32],
    /// `[u,V]`, added to.
    dvalues: &'a mut [f32],
    /// `[n, 3 + c]`, set.
    dgates: &'a mut [f32],
}

/// Gradients of a chunk; `dstate` goes from after it to before it.
pub(super) fn run(
    cell: &AtlasCell,
    rows: TokenRows<'_>,
    start: &[f32],
    dout: &[f32],
    dstate: &mut [f32],
    grads: TokenGrads<'_>,
) {
    let AtlasCell { key, value, window, .. } = *cell;
    let (sub_chunk, mut work) = (SubChunk::new(cell, rows, start), SegmentBackward::default());
    let segments: Vec<_> = sub_chunk.segments().collect();
    // Elements of `M` and `S` together.
    let size = 2 * key * value;
    let mut states = vec![0.0; segments.len() * size];
    let mut state = start.to_vec();
    // Only M and S are kept a segment: the windows are rows of the chunk.
    for (tokens, kept) in segments.iter().zip(states.chunks_exact_mut(size)) {
        kept.copy_from_slice(&state[..size]);
        // The state after the last segment is not asked for.
        if tokens.end < rows.tokens {
            sub_chunk.run(tokens, &mut state, &mut work.forward, None);
        }
    }
    // Gradients of the window's rows grow into those of all rows of the chunk.
    let mut d = cell.parts_mut(dstate);
    let mut dkeys = with_window(d.kbuf, grads.k.len());
    let mut dvalues = with_window(d.vbuf, grads.v.len());
    for (tokens, start) in segments.iter().zip(states.chunks_exact(size)).rev() {
        let segment = sub_chunk.segment(tokens);
        // A segment's rows of keys and values begin with its window.
        let part = SegmentGrads {
            dq: &mut grads.q[tokens.start * key..tokens.end * key],
            dkeys: &mut dkeys[tokens.start * key..(tokens.end + window - 1) * key],
            dvalues: &mut dvalues[tokens.start * value..(tokens.end + window - 1) * value],
            dgates: &mut grads.gates[tokens.start * (3 + window)..tokens.end * (3 + window)],
        };
        let dout = &dout[tokens.start * value..tokens.end * value];
        wide(
            (&mut work, &mut d, part),
            #[inline(always)]
            |(work, d, mut part)| work.run(&segment, start.split_at(size / 2), dout, d, &mut part),
        );
    }
    // The first rows are those of the window before the chunk, which is part of the state.
    let (dk, dv) = (dkeys.split_at((window - 1) * key), dvalues.split_at((window - 1) * value));
    d.kbuf.copy_from_slice(dk.0);
    d.vbuf.copy_from_slice(dv.0);
    grads.k.copy_from_slice(dk.1);
    grads.v.copy_from_slice(dv.1);
}

/// Gradients of a chunk's rows and of the window before it: zeros, then those of the window after it.
fn with_window(last: &[f32], own: usize) -> Vec<f32> {
    let mut all = vec![0.0; own];
    // The last rows are the next call's window: their gradient came with the final state.
    all.extend_from_slice(last);
    all
}

impl SegmentBackward {
    /// One segment; `d` holds the gradients of `M` and `S` after it, then before it.
    #[inline(always)]
    fn run(
        &mut self,
        segment: &Segment<'_>,
        (m, s): (&[f32], &[f32]),
        dout: &[f32],
        d: &mut Parts<&mut [f32]>,
        part: &mut SegmentGrads<'_>,
    ) {
        // The segment's own forward again, from the state at its start.
        self.forward.pseudo_values(segment, m, s);
        self.forward.reads(segment);
        // Every step below adds to the tables' gradients.
        self.dtables.clear(&self.forward.tables);
        self.pseudo_value_grads(segment, dout, d);
        self.targets(segment, part);
        self.erases(segment);
        self.reads(segment, [m, s], dout, part);
        self.states(segment, [m, s], dout, d, part);
        self.factors(segment, part);
    }

    /// `Λ` of (23), (24), and `dc[C,·]`, `dE[C,·]` of (31).
    #[inline(always)]
    fn pseudo_value_grads(&mut self, segment: &Segment<'_>, dout: &[f32], d: &Parts<&mut [f32]>) {
        let (n, rows, width, window) = (segment.tokens, segment.written_rows(), segment.width(), segment.window);
        // A written row's column is its token: its rows add to the same element of the tables.
        let Self { forward, dtables, lambda, sums, .. } = self;
        let tables = &forward.tables;
        reset(lambda, rows * width);
        // `(Y ∘ G)ᵀ dO`, `[cn,V]`.
        let yg = Mat::new(&forward.yg, n, rows);
        product(MatMut::new(lambda, rows, width), 0.0, 1.0, yg.t(), Mat::new(dout, n, width));
        // The end states reach written rows through their keys: products for `u` keys serve all `cn` rows.
        let [of_m, of_s] = sums;
        times(of_m, segment.keys, d.m, width);
        times(of_s, segment.keys, d.s, width);
        let (c, e) = (tables.last_m(), tables.last_s());
        for (row, (lambda, z)) in lambda.chunks_exact_mut(width).zip(forward.z.chunks_exact(width)).enumerate() {
            let (t, of) = (row / window, segment.of(row) * width);
            axpy(lambda, c[t], &of_m[of..][..width]);
            axpy(lambda, e[t], &of_s[of..][..width]);
            dtables.c_row(n)[1 + t] += dot(&of_m[of..][..width], z);
            dtables.e_row(n)[1 + t] += dot(&of_s[of..][..width], z);
        }
        // `Λ` of (24), in place of `dZ`.
        solve::lower_transposed(&forward.triangle, rows, lambda, width);
    }

    /// `dγ = dw + dr`, `dV`, and `−dP` in place of `Λ`: equation (25).
    #[inline(always)]
    fn targets(&mut self, segment: &Segment<'_>, part: &mut SegmentGrads<'_>) {
        let (rows, width, window) = (segment.written_rows(), segment.width(), segment.window);
        let Self { forward, lambda, .. } = self;
        // V − P: what the start left to learn, less what was written before in the segment.
        let (ln, z) = (Mat::new(&forward.ln, rows, rows), Mat::new(&forward.z, rows, width));
        product(MatMut::new(&mut forward.errors, rows, width), 1.0, -1.0, ln, z);
        for (row, (lambda, e)) in lambda.chunks_exact_mut(width).zip(forward.errors.chunks_exact(width)).enumerate() {
            // Rows of a window come oldest first, weights newest first.
            let (t, i) = (row / window, row % window);
            part.dgates[t * (3 + window) + 2 + window - i] = dot(lambda, e);
            // `w = r = γ` here, so `γ∗Λ` is `dV` and minus `dP` at once.
            scale(lambda, segment.gamma[row]);
            axpy(&mut part.dvalues[segment.of(row) * width..][..width], 1.0, lambda);
        }
    }

    /// What the erased predictions give back: `dN`, `dL`, `da⁻`, `db⁻`. Equations (26), (28), (31).
    /// In `sums`, the gradients of `keys M₀` and `keys S₀`.
    #[inline(always)]
    fn erases(&mut self, segment: &Segment<'_>) {
        let (rows, width, window, u) = (segment.written_rows(), segment.width(), segment.window, segment.keys.rows);
        let Self { forward, dtables, lambda, square, dproducts, sums, .. } = self;
        // `−dP Zᵀ [cn,cn]`: rows of predictions against rows written.
        reset(square, rows * rows);
        reset(dproducts, u * u);
        let z = Mat::new(&forward.z, rows, width);
        product(MatMut::new(square, rows, rows), 0.0, -1.0, Mat::new(lambda, rows, width), z.t());
        // What written rows send back to `keys M₀` and `keys S₀`, gathered by key.
        for (sums, factors) in sums.iter_mut().zip([&forward.tables.a, &forward.tables.b]) {
            sums.fill(0.0);
            gather(sums, factors, lambda, segment);
            scale(sums, -1.0);
        }
        for (row, (square, lambda)) in square.chunks_exact(rows).zip(lambda.chunks_exact(width)).enumerate() {
            let (t, of) = (row / window, segment.of(row));
            // The row's own products of keys, and their gradients.
            let (products, dproducts) = (&forward.products[of * u..][..u], &mut dproducts[of * u..][..u]);
            let dtable = &mut dtables.c_row(t)[..=t];
            scatter(&mut dtable[1..], dproducts, square, forward.tables.write_weights(t, t), products, window);
            // `lambda` is minus `dP`, hence the signs: column 0 is the influence of `S₀`.
            dtable[0] -= dot(lambda, &forward.of_s[of * width..][..width]);
            dtables.a[t] -= dot(lambda, &forward.of_m[of * width..][..width]);
        }
    }

    /// What the reads give back: `dQ`, `dG`, `dY`, `da⁺`, `db⁺`. Equations (26), (27), (31).
    #[inline(always)]
    fn reads(&mut self, segment: &Segment<'_>, states: [&[f32]; 2], dout: &[f32], part: &mut SegmentGrads<'_>) {
        let (n, rows, width, key, u) =
            (segment.tokens, segment.written_rows(), segment.width(), segment.q.columns, segment.keys.rows);
        let Self { forward, dtables, square, dg, queries, .. } = self;
        let tables = &forward.tables;
        let first = Tables::first_read(segment.read);
        // `dO Zᵀ [n,cn]`: reads against rows written.
        reset(square, n * rows);
        reset(dg, n * u);
        let dout = Mat::new(dout, n, width);
        product(MatMut::new(square, n, rows), 0.0, 1.0, dout, Mat::new(&forward.z, rows, width).t());
        for (t, (square, dg)) in square.chunks_exact(rows).zip(dg.chunks_exact_mut(u)).enumerate() {
            let seen = t + first;
            let (dtable, g) = (&mut dtables.c_row(seen)[1..=seen], &forward.g[t * u..][..u]);
            scatter(dtable, dg, square, tables.write_weights(seen, seen), g, segment.window);
        }
        reset(queries, n * key);
        // The reads of the start: their gradients by the query and by the tables' first columns.
        for (slot, (state, factors)) in states.into_iter().zip([&tables.a, &tables.b]).enumerate() {
            product(MatMut::new(queries, n, key), 0.0, 1.0, dout, Mat::new(state, key, width).t());
            add_scaled_rows(part.dq, &factors[first..], queries, key);
            for (t, (x, q)) in queries.chunks_exact(key).zip(segment.q.data.chunks_exact(key)).enumerate() {
                *[&mut dtables.a[t + first], &mut dtables.c[(t + first) * (n + 1)]][slot] += dot(x, q);
            }
        }
        let dg = Mat::new(dg, n, u);
        product(MatMut::new(part.dq, n, key), 1.0, 1.0, dg, segment.keys);
        product(MatMut::new(part.dkeys, u, key), 1.0, 1.0, dg.t(), segment.q);
    }

    /// What the states at both ends give back to `dK`, and the states' own gradients: (28)–(31).
    #[inline(always)]
    fn states(
        &mut self,
        segment: &Segment<'_>,
        [m, s]: [&[f32]; 2],
        dout: &[f32],
        d: &mut Parts<&mut [f32]>,
        part: &mut SegmentGrads<'_>,
    ) {
        let (n, width, key, u) = (segment.tokens, segment.width(), segment.q.columns, segment.keys.rows);
        let Self { forward, dtables, dproducts, sums, .. } = self;
        let tables = &forward.tables;
        // All that reaches the keys is a product into the same `[u,K]`.
        let mut add = |rows: Mat<'_>, by: Mat<'_>| product(MatMut::new(part.dkeys, u, key), 1.0, 1.0, rows, by);
        add(Mat::new(dproducts, u, u), segment.keys);
        // `N = K Kᵀ` has each key on both sides.
        add(Mat::new(dproducts, u, u).t(), segment.keys);
        let ends = [(&*d.m, m, tables.last_m()), (&*d.s, s, tables.last_s())];
        for ((dstate, state, factors), sums) in ends.into_iter().zip(&*sums) {
            reset(&mut forward.scratch, u * width);
            gather(&mut forward.scratch, factors, &forward.z, segment);
            add(Mat::new(&forward.scratch, u, width), Mat::new(dstate, key, width).t());
            add(Mat::new(sums, u, width), Mat::new(state, key, width).t());
        }
        // The state at the start enters that at the end through three scalars.
        let (a, b, e) = tables.carried();
        dtables.a[n] += dot(d.m, m);
        dtables.c_row(n)[0] += dot(d.m, s);
        dtables.e_row(n)[0] += dot(d.s, s);
        scale(d.s, e);
        axpy(d.s, b, d.m);
        scale(d.m, a);
        let first = Tables::first_read(segment.read);
        reset(&mut forward.scratch, n * width);
        let pairs = [(&mut *d.m, &tables.a, &sums[0]), (&mut *d.s, &tables.b, &sums[1])];
        for (dstate, factors, sums) in pairs {
            let mut add = |rows: Mat<'_>, by: &[f32]| {
                let by = Mat::new(by, rows.rows, width);
                product(MatMut::new(dstate, key, width), 1.0, 1.0, rows.t(), by);
            };
            add(segment.keys, sums);
            set_scaled_rows(&mut forward.scratch, &factors[first..], dout, width);
            add(segment.q, &forward.scratch);
        }
    }

    /// Gradients of the gates that the tables are made of: equations (32), (93), (14).
    #[inline(always)]
    fn factors(&mut self, segment: &Segment<'_>, part: &mut SegmentGrads<'_>) {
        // Of the factors themselves; the gates are their logarithms, but for the last.
        self.dfactors.iter_mut().for_each(|x| reset(x, segment.tokens));
        let [a, eta, emission] = &mut self.dfactors;
        self.dtables.gates(&self.forward.tables, segment.factors, FactorGrads { a, eta, emission });
        for (t, gates) in part.dgates.chunks_exact_mut(3 + segment.window).enumerate() {
            gates[0] = segment.factors.a[t] * self.dfactors[0][t];
            gates[1] = segment.factors.eta[t] * self.dfactors[1][t];
            gates[2] = self.dfactors[2][t];
        }
    }
}

/// The adjoint of [`spread`](super::chunk), for one row of `dX Zᵀ`.
/// `dtable[s] += Σ_j products[s+j] outer[(s,j)]`, `dproducts[s+j] += table[s] outer[(s,j)]`.
#[inline(always)]
fn scatter(dtable: &mut [f32], dproducts: &mut [f32], outer: &[f32], table: &[f32], products: &[f32], window: usize) {
    for (s, ((dtable, table), outer)) in dtable.iter_mut().zip(table).zip(outer.chunks_exact(window)).enumerate() {
        *dtable += dot(&products[s..][..window], outer);
        axpy(&mut dproducts[s..][..window], *table, outer);
    }
}
