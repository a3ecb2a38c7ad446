//! One token of Atlas: equations (80)–(87).
//!
//! Every token writes the errors of a window of `c` keys and values: its own and the `c − 1` before it.
//! The window's rows are part of the state, so that a text may be cut between any two tokens.
//! Where Newton-Schulz steps are asked for, they run on the momentum `[K,V]` of every token ([`newton_schulz`]).
//! Without them the rule is linear in its state, and goes through matrix products where windows are short ([`grouped`]) or groups
//! frozen ([`frozen`]).

mod chunk;
mod chunk_backward;
mod frozen;
mod grouped;
mod newton_schulz;

use crate::{
    recurrent::{Cell, GroupedForm, Recurrent, StepBackward, StepForward, TokenGrads, heads},
    rows::{axpy, dot, scale, set_scaled, set_sum},
};
use hecate_core::{Dims, Read, families::Own, rules::Atlas};
use newton_schulz::NewtonSchulz;

/// Tokens of the widest window that goes through products.
/// Wider ones write too many rows a token for that to pay.
const GROUPED_WINDOW: usize = 8;

impl Recurrent<Own> for Atlas {
    type Cell = AtlasCell;

    fn cell(self, dims: &Dims) -> AtlasCell {
        AtlasCell { rule: self, key: dims.key, value: dims.value, window: self.window as usize }
    }
}

/// Atlas at known sizes.
pub(crate) struct AtlasCell {
    /// Options.
    rule: Atlas,
    /// `K`.
    key: usize,
    /// `V`.
    value: usize,
    /// `c`.
    window: usize,
}

/// Workspace for one token.
pub(crate) struct Scratch {
    /// Empty where no steps are asked for.
    newton_schulz: NewtonSchulz,
    /// `γ_j g_j [c,V]`.
    steps: Vec<f32>,
}

/// The slots of a state, or of its gradient, in their order.
struct Parts<T> {
    /// Memory `[K,V]`.
    m: T,
    /// Momentum `[K,V]`.
    s: T,
    /// Keys of the window before the token, oldest first: `[c−1,K]`.
    kbuf: T,
    /// Values of the window, `[c−1,V]`.
    vbuf: T,
}

/// A token's gates.
struct Gates<'a> {
    /// Retention.
    a: f32,
    /// Momentum.
    eta: f32,
    /// What a token adds of the momentum to the memory.
    theta: f32,
    /// Weights of the window's rows, newest first: row `i`, oldest first, has `gamma[c − 1 − i]`.
    gamma: &'a [f32],
}

impl<'a> Gates<'a> {
    /// The gates in the order `log_a`, `log_eta`, `theta`, then `gamma [c]`.
    #[inline(always)]
    fn new(gates: &'a [f32]) -> Self {
        Self { a: gates[0].exp(), eta: gates[1].exp(), theta: gates[2], gamma: &gates[3..] }
    }

    /// Weight of a row, counted from the oldest.
    #[inline(always)]
    fn weight(&self, row: usize) -> f32 {
        self.gamma[self.gamma.len() - 1 - row]
    }
}

/// Rows of a window, oldest first: those of a buffer `[c−1, width]`, then the token's own.
#[derive(Clone, Copy)]
struct Window<'a> {
    /// `[c−1, width]`, in the state.
    buffer: &'a [f32],
    /// The token's own row.
    own: &'a [f32],
}

impl<'a> Window<'a> {
    /// Row `i`; after the buffer comes the token's own.
    #[inline(always)]
    fn row(self, i: usize) -> &'a [f32] {
        self.buffer.chunks_exact(self.own.len()).nth(i).unwrap_or(self.own)
    }
}

/// Row `i` of the gradients of a [`Window`].
#[inline(always)]
fn row_mut<'a>(buffer: &'a mut [f32], own: &'a mut [f32], i: usize) -> &'a mut [f32] {
    buffer.chunks_exact_mut(own.len()).nth(i).unwrap_or(own)
}

impl AtlasCell {
    /// The slots of a state.
    #[inline(always)]
    fn parts<'a>(&self, state: &'a [f32]) -> Parts<&'a [f32]> {
        let (m, rest) = state.split_at(self.key * self.value);
        let (s, rest) = rest.split_at(self.key * self.value);
        let (kbuf, vbuf) = rest.split_at((self.window - 1) * self.key);
        Parts { m, s, kbuf, vbuf }
    }

    /// The slots of a state to be written, or of a gradient.
    #[inline(always)]
    fn parts_mut<'a>(&self, state: &'a mut [f32]) -> Parts<&'a mut [f32]> {
        let (m, rest) = state.split_at_mut(self.key * self.value);
        let (s, rest) = rest.split_at_mut(self.key * self.value);
        let (kbuf, vbuf) = rest.split_at_mut((self.window - 1) * self.key);
        Parts { m, s, kbuf, vbuf }
    }

    /// Steps of Newton-Schulz.
    #[inline(always)]
    fn newton_schulz(&self) -> usize {
        self.rule.newton_schulz as usize
    }

    /// Equation (80): errors `e [c,V]` of the window's rows at the gradient point `[K,V]`.
    #[inline(always)]
    fn errors(&self, keys: Window<'_>, values: Window<'_>, point: &[f32], errors: &mut [f32]) {
        for (i, e) in errors.chunks_exact_mut(self.value).enumerate() {
            // `e = v − k M`, row by row of `M`: the row is loaded once for all columns.
            e.copy_from_slice(values.row(i));
            for (&k, m) in keys.row(i).iter().zip(point.chunks_exact(self.value)) {
                axpy(e, -k, m);
            }
        }
    }

    /// Equation (81): what the window adds to the momentum `s [K,V]`, one rank-1 update a row.
    #[inline(always)]
    fn write(&self, gates: &Gates<'_>, keys: Window<'_>, errors: &[f32], s: &mut [f32]) {
        for (i, e) in errors.chunks_exact(self.value).enumerate() {
            let weight = gates.weight(i);
            for (&k, s) in keys.row(i).iter().zip(s.chunks_exact_mut(self.value)) {
                axpy(s, weight * k, e);
            }
        }
    }

    /// Equation (86): back through the write. `d` holds the gradient of `S_t`.
    /// Each row of the window has its gradient in the buffers, the token's own in `own`.
    #[inline(always)]
    fn write_back(&self, step: WindowWrite<'_>, d: &mut Parts<&mut [f32]>, dpoint: &mut [f32], own: TokenGrads<'_>) {
        let WindowWrite { gates, keys, errors, point, steps } = step;
        let (width, last) = (self.value, self.window - 1);
        for i in 0..self.window {
            let (e, g) = (&errors[i * width..][..width], &mut steps[i * width..][..width]);
            let (k, weight) = (keys.row(i), gates.weight(i));
            // `g = k dS`: the gradient of the row's error, before its weight.
            g.fill(0.0);
            for (&k, ds) in k.iter().zip(d.s.chunks_exact(width)) {
                axpy(g, k, ds);
            }
            // The weight's gradient is the inner product of what it scales with the momentum's gradient.
            own.gates[3 + last - i] = dot(g, e);
            scale(g, weight);
            axpy(row_mut(d.vbuf, own.v, i), 1.0, g);
            // The key appears twice: in the outer product, and in the error's prediction.
            let dk = row_mut(d.kbuf, own.k, i).iter_mut().zip(k);
            let rows = d.s.chunks_exact(width).zip(point.chunks_exact(width)).zip(dpoint.chunks_exact_mut(width));
            for ((dk, &k), ((ds, m), dm)) in dk.zip(rows) {
                *dk += weight * dot(e, ds) - dot(g, m);
                axpy(dm, -k, g);
            }
        }
    }

    /// Back through a read: `dM += qᵀ dy`, `dq = dy Mᵀ`.
    #[inline(always)]
    fn read_back(&self, q: &[f32], m: &[f32], dout: &[f32], dm: &mut [f32], dq: &mut [f32]) {
        let rows = m.chunks_exact(self.value).zip(dm.chunks_exact_mut(self.value));
        for ((&q, dq), (m, dm)) in q.iter().zip(dq).zip(rows) {
            *dq = dot(m, dout);
            axpy(dm, q, dout);
        }
    }
}

/// What [`AtlasCell::write`] was made of.
struct WindowWrite<'a> {
    gates: &'a Gates<'a>,
    /// Of the window.
    keys: Window<'a>,
    /// `[c,V]`.
    errors: &'a [f32],
    /// The memory at the gradient point, `[K,V]`.
    point: &'a [f32],
    /// For `γ_j g_j [c,V]`.
    steps: &'a mut [f32],
}

heads!(AtlasCell);

impl Cell for AtlasCell {
    type Scratch = Scratch;

    fn scratch(&self) -> Scratch {
        let newton_schulz = NewtonSchulz::new(self.newton_schulz(), self.key, self.value);
        Scratch { newton_schulz, steps: vec![0.0; self.window * self.value] }
    }

    /// The window's errors `[c,V]`: they need the memory at the point, which the backward does not walk again.
    fn record(&self) -> usize {
        self.window * self.value
    }

    #[inline(always)]
    fn forward(&self, step: StepForward<'_, Scratch>) {
        let StepForward { token, old, point, new, record, scratch, out } = step;
        let (gates, old, new) = (Gates::new(token.gates), self.parts(old), self.parts_mut(new));
        let keys = Window { buffer: old.kbuf, own: token.k };
        let values = Window { buffer: old.vbuf, own: token.v };
        // The errors are the record: the backward needs them, and they are rows.
        self.errors(keys, values, self.parts(point).m, record);
        set_scaled(new.s, gates.eta, old.s);
        self.write(&gates, keys, record, new.s);
        let update = match self.newton_schulz() {
            0 => &*new.s,
            _ => scratch.newton_schulz.forward(new.s),
        };
        out.fill(0.0);
        let width = self.value;
        // Memory, update and read in one pass over the rows.
        let rows = new.m.chunks_exact_mut(width).zip(old.m.chunks_exact(width)).zip(update.chunks_exact(width));
        for (&q, ((new, old), update)) in token.q.iter().zip(rows) {
            set_sum(new, gates.a, old, gates.theta, update);
            axpy(out, q, if self.rule.read == Read::After { new } else { old });
        }
        // The window moves on by one row: the oldest falls out, the token's own comes in.
        for i in 1..self.window {
            new.kbuf[(i - 1) * self.key..][..self.key].copy_from_slice(keys.row(i));
            new.vbuf[(i - 1) * width..][..width].copy_from_slice(values.row(i));
        }
    }

    #[inline(always)]
    fn backward(&self, step: StepBackward<'_, Scratch>) {
        let StepBackward { token, states, record, dout, adjoint, scratch, grads } = step;
        let gates = Gates::new(token.gates);
        let (old, new, mut d) = (self.parts(states.old), self.parts(states.new), self.parts_mut(adjoint.state));
        // The window after the token holds its own row: that gradient is the token's.
        shift_window_grads(d.kbuf, grads.k);
        shift_window_grads(d.vbuf, grads.v);
        if self.rule.read == Read::After {
            self.read_back(token.q, new.m, dout, d.m, grads.q);
        }
        let update = match self.newton_schulz() {
            0 => new.s,
            _ => scratch.newton_schulz.forward(new.s),
        };
        // Gates come as logarithms, hence their own value as a factor.
        grads.gates[0] = gates.a * dot(d.m, old.m);
        grads.gates[2] = dot(d.m, update);
        match self.newton_schulz() {
            0 => axpy(d.s, gates.theta, d.m),
            _ => scratch.newton_schulz.backward(gates.theta, d.m, d.s),
        }
        grads.gates[1] = gates.eta * dot(d.s, old.s);
        scale(d.m, gates.a);
        if self.rule.read == Read::Before {
            self.read_back(token.q, old.m, dout, d.m, grads.q);
        }
        let keys = Window { buffer: old.kbuf, own: token.k };
        let point = self.parts(states.point).m;
        let written = WindowWrite { gates: &gates, keys, errors: record, point, steps: &mut scratch.steps };
        let dpoint = self.parts_mut(adjoint.point).m;
        self.write_back(written, &mut d, dpoint, grads);
        scale(d.s, gates.eta);
    }

    /// The rule without Newton-Schulz: frozen, or exact with windows short enough to pay.
    fn groups(&self) -> Option<&dyn GroupedForm<Scratch>> {
        let pays = self.rule.frozen.is_some() || self.window <= GROUPED_WINDOW;
        (self.rule.newton_schulz == 0 && pays).then_some(self)
    }

    fn scratch_bytes(&self) -> usize {
        let token = self.window * self.value + NewtonSchulz::elements(self.newton_schulz(), self.key, self.value);
        let chunk = if self.rule.frozen.is_some() { self.frozen_elements() } else { self.chunk_elements() };
        4 * if self.groups().is_some() { token + chunk } else { token }
    }
}

/// Moves gradients of the window after a token to the window before it.
///
/// `buffer [c−1, width]` are those of the rows after the token.
/// They were rows `1 … c−1` of its window: the last is the token's own, and the oldest row has none yet.
#[inline(always)]
fn shift_window_grads(buffer: &mut [f32], own: &mut [f32]) {
    let Some(kept) = buffer.len().checked_sub(own.len()) else { return };
    own.copy_from_slice(&buffer[kept..]);
    buffer.copy_within(..kept, own.len());
    buffer[..own.len()].fill(0.0);
}
