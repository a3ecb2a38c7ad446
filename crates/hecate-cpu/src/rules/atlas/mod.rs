//! One token of Atlas: equations (80)–(87).

mod chunk;
mod chunk_backward;
mod newton_schulz;

use crate::{
    recurrent::{Adjoint, Cell, Groups, Recurrent, States, Token, TokenGrads},
    rows::{axpy, dot, scale},
};
use hecate_core::{Dims, Read, rules::Atlas};
use newton_schulz::NewtonSchulz;

crate::recurrent::cells!(Atlas);

/// Tokens of the widest window that goes through products: wider ones write too many rows a token for that to pay.
const GROUPED_WINDOW: usize = 8;

impl Recurrent for Atlas {
    type Cell = AtlasCell;

    fn cell(self, dims: &Dims) -> AtlasCell {
        AtlasCell { rule: self, key: dims.key, value: dims.value, window: self.window as usize }
    }

    fn frozen(self) -> Option<u32> {
        self.frozen
    }
}

/// Atlas at known sizes.
pub(crate) struct AtlasCell {
    rule: Atlas,
    key: usize,
    value: usize,
    /// `c`.
    window: usize,
}

/// Room for one token.
pub(crate) struct Scratch {
    newton_schulz: NewtonSchulz,
    /// `γ_j g_j [c,V]`.
    steps: Vec<f32>,
}

/// The slots of a state, or of its gradient.
struct Parts<T> {
    m: T,
    s: T,
    kbuf: T,
    vbuf: T,
}

/// A token's gates; row `i` of its window, oldest first, has the weight `gamma[c − 1 − i]`.
struct Gates<'a> {
    a: f32,
    eta: f32,
    theta: f32,
    gamma: &'a [f32],
}

impl<'a> Gates<'a> {
    #[inline(always)]
    fn new(gates: &'a [f32]) -> Self {
        Self { a: gates[0].exp(), eta: gates[1].exp(), theta: gates[2], gamma: &gates[3..] }
    }

    #[inline(always)]
    fn weight(&self, row: usize) -> f32 {
        self.gamma[self.gamma.len() - 1 - row]
    }
}

/// Rows of a window, oldest first: those of a buffer `[c−1, width]`, then the token's own.
#[derive(Clone, Copy)]
struct Window<'a> {
    buffer: &'a [f32],
    own: &'a [f32],
}

impl<'a> Window<'a> {
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
    #[inline(always)]
    fn parts<'a>(&self, state: &'a [f32]) -> Parts<&'a [f32]> {
        let (m, rest) = state.split_at(self.key * self.value);
        let (s, rest) = rest.split_at(self.key * self.value);
        let (kbuf, vbuf) = rest.split_at((self.window - 1) * self.key);
        Parts { m, s, kbuf, vbuf }
    }

    #[inline(always)]
    fn parts_mut<'a>(&self, state: &'a mut [f32]) -> Parts<&'a mut [f32]> {
        let (m, rest) = state.split_at_mut(self.key * self.value);
        let (s, rest) = rest.split_at_mut(self.key * self.value);
        let (kbuf, vbuf) = rest.split_at_mut((self.window - 1) * self.key);
        Parts { m, s, kbuf, vbuf }
    }

    #[inline(always)]
    fn newton_schulz(&self) -> usize {
        self.rule.newton_schulz as usize
    }

    /// `e [c,V]`, equation (80).
    #[inline(always)]
    fn errors(&self, keys: Window<'_>, values: Window<'_>, point: &[f32], errors: &mut [f32]) {
        for (i, e) in errors.chunks_exact_mut(self.value).enumerate() {
            e.copy_from_slice(values.row(i));
            for (&k, m) in keys.row(i).iter().zip(point.chunks_exact(self.value)) {
                axpy(e, -k, m);
            }
        }
    }

    /// What the window adds to the momentum, equation (81).
    #[inline(always)]
    fn write(&self, gates: &Gates<'_>, keys: Window<'_>, errors: &[f32], s: &mut [f32]) {
        for (i, e) in errors.chunks_exact(self.value).enumerate() {
            let weight = gates.weight(i);
            for (&k, s) in keys.row(i).iter().zip(s.chunks_exact_mut(self.value)) {
                axpy(s, weight * k, e);
            }
        }
    }

    /// Equation (86); `d` holds the gradient of `S_t`.
    #[inline(always)]
    fn write_back(&self, step: Written<'_>, d: &mut Parts<&mut [f32]>, dpoint: &mut [f32], own: TokenGrads<'_>) {
        let Written { gates, keys, errors, point, steps } = step;
        let (width, last) = (self.value, self.window - 1);
        for i in 0..self.window {
            let (e, g) = (&errors[i * width..][..width], &mut steps[i * width..][..width]);
            let (k, weight) = (keys.row(i), gates.weight(i));
            g.fill(0.0);
            for (&k, ds) in k.iter().zip(d.s.chunks_exact(width)) {
                axpy(g, k, ds);
            }
            own.gates[3 + last - i] = dot(g, e);
            scale(g, weight);
            axpy(row_mut(d.vbuf, own.v, i), 1.0, g);
            let dk = row_mut(d.kbuf, own.k, i).iter_mut().zip(k);
            let rows = d.s.chunks_exact(width).zip(point.chunks_exact(width)).zip(dpoint.chunks_exact_mut(width));
            for ((dk, &k), ((ds, m), dm)) in dk.zip(rows) {
                *dk += weight * dot(e, ds) - dot(g, m);
                axpy(dm, -k, g);
            }
        }
    }

    /// `dM += qᵀ dy`, `dq = dy Mᵀ`.
    #[inline(always)]
    fn read_back(&self, q: &[f32], m: &[f32], dout: &[f32], dm: &mut [f32], dq: &mut [f32]) {
        let rows = m.chunks_exact(self.value).zip(dm.chunks_exact_mut(self.value));
        for ((&q, dq), (m, dm)) in q.iter().zip(dq).zip(rows) {
            *dq = dot(m, dout);
            axpy(dm, q, dout);
        }
    }
}

/// What [`AtlasCell::write`] was made of, and room for `γ_j g_j [c,V]`.
struct Written<'a> {
    gates: &'a Gates<'a>,
    keys: Window<'a>,
    errors: &'a [f32],
    point: &'a [f32],
    steps: &'a mut [f32],
}

impl Cell for AtlasCell {
    type Scratch = Scratch;

    fn scratch(&self) -> Scratch {
        let newton_schulz = NewtonSchulz::new(self.newton_schulz(), self.key, self.value);
        Scratch { newton_schulz, steps: vec![0.0; self.window * self.value] }
    }

    fn record(&self) -> usize {
        self.window * self.value
    }

    #[inline(always)]
    fn forward(
        &self,
        token: Token<'_>,
        old: &[f32],
        point: &[f32],
        new: &mut [f32],
        record: &mut [f32],
        scratch: &mut Scratch,
        out: &mut [f32],
    ) {
        let (gates, old, new) = (Gates::new(token.gates), self.parts(old), self.parts_mut(new));
        let keys = Window { buffer: old.kbuf, own: token.k };
        let values = Window { buffer: old.vbuf, own: token.v };
        self.errors(keys, values, self.parts(point).m, record);
        new.s.iter_mut().zip(old.s).for_each(|(new, old)| *new = gates.eta * old);
        self.write(&gates, keys, record, new.s);
        let update = match self.newton_schulz() {
            0 => &*new.s,
            _ => scratch.newton_schulz.forward(new.s),
        };
        out.fill(0.0);
        let width = self.value;
        let rows = new.m.chunks_exact_mut(width).zip(old.m.chunks_exact(width)).zip(update.chunks_exact(width));
        for (&q, ((new, old), update)) in token.q.iter().zip(rows) {
            for ((new, old), update) in new.iter_mut().zip(old).zip(update) {
                *new = gates.a * old + gates.theta * update;
            }
            axpy(out, q, if self.rule.read == Read::After { new } else { old });
        }
        for i in 1..self.window {
            new.kbuf[(i - 1) * self.key..][..self.key].copy_from_slice(keys.row(i));
            new.vbuf[(i - 1) * width..][..width].copy_from_slice(values.row(i));
        }
    }

    #[inline(always)]
    fn backward(
        &self,
        token: Token<'_>,
        states: States<'_>,
        record: &[f32],
        dout: &[f32],
        adjoint: Adjoint<'_>,
        scratch: &mut Scratch,
        grads: TokenGrads<'_>,
    ) {
        let gates = Gates::new(token.gates);
        let (old, new, mut d) = (self.parts(states.old), self.parts(states.new), self.parts_mut(adjoint.state));
        hand_back(d.kbuf, grads.k);
        hand_back(d.vbuf, grads.v);
        if self.rule.read == Read::After {
            self.read_back(token.q, new.m, dout, d.m, grads.q);
        }
        let update = match self.newton_schulz() {
            0 => new.s,
            _ => scratch.newton_schulz.forward(new.s),
        };
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
        let written = Written { gates: &gates, keys, errors: record, point, steps: &mut scratch.steps };
        let dpoint = self.parts_mut(adjoint.point).m;
        self.write_back(written, &mut d, dpoint, grads);
        scale(d.s, gates.eta);
    }

    fn groups(&self) -> Option<&dyn Groups<Scratch>> {
        let exact = self.rule.frozen.is_none() && self.rule.newton_schulz == 0;
        (exact && self.window <= GROUPED_WINDOW).then_some(self)
    }

    fn scratch_bytes(&self) -> usize {
        let token = self.window * self.value + NewtonSchulz::numbers(self.newton_schulz(), self.key, self.value);
        4 * if self.groups().is_some() { token + self.chunk_numbers() } else { token }
    }
}

/// Gradients of the window rows behind a token, `[c−1, width]`, as those of the rows before it and of the token's own,
/// which were rows `0 … c−2` and `c−1` of its window.
#[inline(always)]
fn hand_back(buffer: &mut [f32], own: &mut [f32]) {
    let Some(kept) = buffer.len().checked_sub(own.len()) else { return };
    own.copy_from_slice(&buffer[kept..]);
    buffer.copy_within(..kept, own.len());
    buffer[..own.len()].fill(0.0);
}
