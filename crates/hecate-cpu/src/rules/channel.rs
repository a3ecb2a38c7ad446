//! Linear memories that forget by key channel: equations (110)–(118).
//!
//! The state is `K` rows of `V` elements. A token goes over the rows twice forward, once to read what it erases and once to
//! write, and twice back. What was erased is all that a token leaves for its backward.

use crate::{
    recurrent::{Cell, Recurrent, StepBackward, StepForward, Token, heads},
    rows::{axpy, dot},
};
use hecate_core::{
    Dims,
    families::{Channel, ChannelForm, ChannelGate, ChannelRule, EraseKey, RetentionAxis, RewriteKey},
};

/// A form at a head's sizes.
pub(crate) struct ChannelCell {
    /// Which terms the step has.
    form: ChannelForm,
    /// Widths `K` and `V`.
    key: usize,
    value: usize,
    /// Where gates begin among those of a token; none where the form lacks them.
    theta: Option<usize>,
    erase: Option<usize>,
    rewrite: Option<usize>,
    factors: Option<usize>,
}

impl<R: ChannelRule> Recurrent<Channel> for R {
    type Cell = ChannelCell;

    fn cell(self, dims: &Dims) -> ChannelCell {
        let at = |gate| R::FORM.offset(gate, dims.key, dims.value);
        ChannelCell {
            form: R::FORM,
            key: dims.key,
            value: dims.value,
            theta: at(ChannelGate::Theta),
            erase: at(ChannelGate::Erase),
            rewrite: at(ChannelGate::Rewrite),
            factors: at(ChannelGate::Factors),
        }
    }
}

/// What a token's arguments mean, and its gradients: `[K]` each, then `[V]`.
pub(crate) struct Scratch {
    /// `a`, `e` and `b`.
    a: Vec<f32>,
    e: Vec<f32>,
    b: Vec<f32>,
    /// Gradients of `e` and `b`.
    de: Vec<f32>,
    db: Vec<f32>,
    /// `w`, and the gradients of `p` and `w`.
    w: Vec<f32>,
    dp: Vec<f32>,
    dw: Vec<f32>,
}

/// A part of a token's gates, of `width` elements.
#[inline(always)]
fn part(gates: &[f32], at: Option<usize>, width: usize) -> &[f32] {
    at.map_or(&[], |at| &gates[at..][..width])
}

/// `out_i = f(x_i, y_i)`.
#[inline(always)]
fn zip_into(out: &mut [f32], x: &[f32], y: &[f32], f: impl Fn(f32, f32) -> f32) {
    for ((out, x), y) in out.iter_mut().zip(x).zip(y) {
        *out = f(*x, *y);
    }
}

/// `out_i += f(x_i, y_i)`.
#[inline(always)]
fn zip_onto(out: &mut [f32], x: &[f32], y: &[f32], f: impl Fn(f32, f32) -> f32) {
    for ((out, x), y) in out.iter_mut().zip(x).zip(y) {
        *out += f(*x, *y);
    }
}

impl ChannelCell {
    /// `θ`.
    #[inline(always)]
    fn step(&self, gates: &[f32]) -> f32 {
        self.theta.map_or(1.0, |at| gates[at])
    }

    /// The token's `a`, `e`, `b` and `w`, (112).
    #[inline(always)]
    fn open(&self, token: &Token<'_>, scratch: &mut Scratch) {
        let Scratch { a, e, b, w, .. } = scratch;
        match self.form.retention {
            RetentionAxis::Head => a.fill(token.gates[0].exp()),
            RetentionAxis::Channel => a.iter_mut().zip(token.gates).for_each(|(a, log_a)| *a = log_a.exp()),
        }
        let own = part(token.gates, self.erase, if self.form.erase == EraseKey::Scaled { 1 } else { self.key });
        match self.form.erase {
            EraseKey::Nothing => e.fill(0.0),
            EraseKey::Key => e.copy_from_slice(token.k),
            EraseKey::Scaled => zip_into(e, token.k, token.k, |k, _| own[0] * k),
            EraseKey::Gated => zip_into(e, token.k, own, |k, g| g * k),
            EraseKey::Own => e.copy_from_slice(own),
        }
        let own = part(token.gates, self.rewrite, self.key);
        match self.form.rewrite {
            RewriteKey::Key => zip_into(b, token.k, token.k, |k, _| -k),
            RewriteKey::Erased => zip_into(b, e, own, |e, g| -g * e),
            RewriteKey::Own => b.copy_from_slice(own),
        }
        match self.factors {
            None => w.copy_from_slice(token.v),
            Some(at) => zip_into(w, token.v, &token.gates[at..], |v, factor| factor * v),
        }
    }

    /// What row `i` is multiplied by as the erase reads it: `e a`, or `e` of the memory before its decay.
    #[inline(always)]
    fn reads(&self, i: usize, scratch: &Scratch) -> f32 {
        if self.form.undecayed { scratch.e[i] } else { scratch.e[i] * scratch.a[i] }
    }

    /// (115) and (116) of all rows, with `dM` in the place of the state's gradient; returns `dθ`.
    #[inline(always)]
    fn writes_vjp(&self, p: &[f32], step: &mut StepBackward<'_, Scratch>) -> f32 {
        let StepBackward { token, states, dout, adjoint, scratch, grads, .. } = step;
        let (theta, mut dtheta) = (self.step(token.gates), 0.0);
        scratch.dp.fill(0.0);
        scratch.dw.fill(0.0);
        let rows = states.new.chunks_exact(self.value).zip(adjoint.state.chunks_exact_mut(self.value));
        for (i, (new, d)) in rows.enumerate() {
            grads.q[i] = dot(new, dout);
            axpy(d, token.q[i], dout);
            let written = dot(d, &scratch.w);
            grads.k[i] = theta * written;
            dtheta += token.k[i] * written;
            axpy(&mut scratch.dw, theta * token.k[i], d);
            if self.form.erases() {
                let erased = dot(d, p);
                scratch.db[i] = theta * erased;
                dtheta += scratch.b[i] * erased;
                axpy(&mut scratch.dp, theta * scratch.b[i], d);
            }
        }
        dtheta
    }

    /// (117) and (118): the gradients of `e` and of `log a`, and that of the state before the token.
    #[inline(always)]
    fn decay_vjp(&self, step: &mut StepBackward<'_, Scratch>) {
        let StepBackward { states, adjoint, scratch, grads, .. } = step;
        let rows = states.old.chunks_exact(self.value).zip(adjoint.state.chunks_exact_mut(self.value));
        for (i, (old, d)) in rows.enumerate() {
            let a = scratch.a[i];
            // Of `log a`, before what the erase adds to it.
            let mut da = dot(d, old);
            for d in d.iter_mut() {
                *d *= a;
            }
            if self.form.erases() {
                let read = dot(&scratch.dp, old);
                scratch.de[i] = if self.form.undecayed { read } else { a * read };
                da += if self.form.undecayed { 0.0 } else { scratch.e[i] * read };
                axpy(d, self.reads(i, scratch), &scratch.dp);
            }
            match self.form.retention {
                RetentionAxis::Head => grads.gates[0] += a * da,
                RetentionAxis::Channel => grads.gates[i] = a * da,
            }
        }
    }

    /// From the gradients of `b`, `e` and `w` to those of what they are made of.
    #[inline(always)]
    fn close(&self, step: &mut StepBackward<'_, Scratch>) {
        let StepBackward { token, scratch: Scratch { e, de, db, dw, .. }, grads, .. } = step;
        if self.form.erases() {
            match (self.form.rewrite, self.rewrite) {
                (RewriteKey::Erased, Some(at)) => {
                    zip_into(&mut grads.gates[at..][..self.key], e, db, |e, db| -e * db);
                    zip_onto(de, &token.gates[at..], db, |g, db| -g * db);
                }
                (RewriteKey::Own, Some(at)) => grads.gates[at..][..self.key].copy_from_slice(db),
                _ => zip_onto(grads.k, db, db, |db, _| -db),
            }
            match (self.form.erase, self.erase) {
                (EraseKey::Scaled, Some(at)) => {
                    let factor = token.gates[at];
                    grads.gates[at] = dot(token.k, de);
                    axpy(grads.k, factor, de);
                }
                (EraseKey::Gated, Some(at)) => {
                    zip_into(&mut grads.gates[at..][..self.key], token.k, de, |k, de| k * de);
                    zip_onto(grads.k, &token.gates[at..], de, |g, de| g * de);
                }
                (EraseKey::Own, Some(at)) => grads.gates[at..][..self.key].copy_from_slice(de),
                _ => axpy(grads.k, 1.0, de),
            }
        }
        match self.factors {
            None => grads.v.copy_from_slice(dw),
            Some(at) => {
                zip_into(grads.v, &token.gates[at..], dw, |factor, dw| factor * dw);
                zip_into(&mut grads.gates[at..][..self.value], token.v, dw, |v, dw| v * dw);
            }
        }
    }
}

heads!(ChannelCell);

impl Cell for ChannelCell {
    type Scratch = Scratch;

    fn scratch(&self) -> Scratch {
        let [a, e, b, de, db] = std::array::from_fn(|_| vec![0.0; self.key]);
        let [w, dp, dw] = std::array::from_fn(|_| vec![0.0; self.value]);
        Scratch { a, e, b, de, db, w, dp, dw }
    }

    /// `p`.
    fn record(&self) -> usize {
        if self.form.erases() { self.value } else { 0 }
    }

    #[inline(always)]
    fn forward(&self, step: StepForward<'_, Scratch>) {
        let StepForward { token, old, new, record: p, scratch, out, .. } = step;
        self.open(&token, scratch);
        let theta = self.step(token.gates);
        if self.form.erases() {
            // (111)
            p.fill(0.0);
            for (i, old) in old.chunks_exact(self.value).enumerate() {
                axpy(p, self.reads(i, scratch), old);
            }
        }
        out.fill(0.0);
        let rows = old.chunks_exact(self.value).zip(new.chunks_exact_mut(self.value));
        for (i, (old, new)) in rows.enumerate() {
            // (110), (113) and (114)
            let (a, k) = (scratch.a[i], theta * token.k[i]);
            zip_into(new, old, &scratch.w, |old, w| a * old + k * w);
            if self.form.erases() {
                axpy(new, theta * scratch.b[i], p);
            }
            axpy(out, token.q[i], new);
        }
    }

    #[inline(always)]
    fn backward(&self, mut step: StepBackward<'_, Scratch>) {
        self.open(&step.token, step.scratch);
        let dtheta = self.writes_vjp(step.record, &mut step);
        self.decay_vjp(&mut step);
        self.close(&mut step);
        if let Some(at) = self.theta {
            step.grads.gates[at] = dtheta;
        }
    }

    /// No gradient is taken at another state than the one before the token.
    fn merges_point(&self) -> bool {
        true
    }

    fn scratch_bytes(&self) -> usize {
        4 * (5 * self.key + 3 * self.value)
    }
}
