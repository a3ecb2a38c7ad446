//! Memories that are functions with weights: equations (33)–(59), one step for every structure, bias and retention.

pub(crate) mod activation;
mod backward;
mod bias;
mod groups;
mod norm;
mod retention;
mod softmax;
mod write;

use crate::{
    engine::chunk_backward,
    recurrent::{Adjoint, Cell, Groups, States, Token, TokenGrads},
    rows::axpy,
    sweep::{add_transposed, read},
};
use activation::activate;
use hecate_core::{
    Dims, Read,
    rules::{Activation, Bias, Deep, DeepRule, Retention, Structure},
};
use retention::Exposed;

/// A rule of this family at known sizes.
pub(crate) struct DeepCell {
    deep: Deep,
    key: usize,
    /// Width of the hidden layer; `None` for a matrix.
    hidden: Option<usize>,
    value: usize,
}

/// Room for one token.
pub(crate) struct Scratch {
    /// Weights at the gradient point and where the token reads; empty where the state is the weights.
    point: Exposed,
    seen: Exposed,
    /// Whether the first are those that the next token reads or the other way round, tokens going on as they did.
    shared: bool,
    /// `[5, D]`, `[6, V]`, `[K]`.
    hidden: Vec<f32>,
    value: Vec<f32>,
    key: Vec<f32>,
    /// As long as the longest row: for what is not read.
    zeros: Vec<f32>,
    /// What weights answer to a gradient, where they are powers: as long as the longest column.
    answer: Vec<f32>,
    /// For the log-softmax, where there is one.
    tiles: Vec<f32>,
    /// Of both layers, where groups go through the linear engine.
    layers: [chunk_backward::Workspace; 2],
}

/// One token's gates.
#[derive(Clone, Copy)]
struct Gates {
    a: f32,
    eta: f32,
    theta: f32,
    delta: f32,
}

/// What a token leaves for its backward.
struct Record<T> {
    /// At the key, `[D]` each: pre-activation, activation, slope, `b = W₁ u_o`, `δ`.
    pre: T,
    h: T,
    slope: T,
    back: T,
    delta: T,
    /// `[V]` each: error, `ψ`, `u_o`, normed output.
    error: T,
    u: T,
    u_o: T,
    normed: T,
    /// At the query: `[D]`, `[D]`, `[V]`.
    read_h: T,
    read_slope: T,
    read_normed: T,
    /// Deviations of the two norms.
    deviations: T,
}

impl DeepCell {
    pub(crate) fn new<R: DeepRule>(rule: R, dims: &Dims) -> Self {
        let deep = rule.deep();
        Self { deep, key: dims.key, hidden: deep.structure.hidden(dims.key), value: dims.value }
    }

    #[inline(always)]
    fn d(&self) -> usize {
        self.hidden.unwrap_or(0)
    }

    /// Numbers of the first weight matrix, and of all.
    #[inline(always)]
    fn sizes(&self) -> (usize, usize) {
        match self.hidden {
            None => (self.key * self.value, self.key * self.value),
            Some(hidden) => (self.key * hidden, (self.key + self.value) * hidden),
        }
    }

    #[inline(always)]
    fn activation(&self) -> Activation {
        match self.deep.structure {
            Structure::Mlp(memory) => memory.activation,
            Structure::Matrix(_) => Activation::default(),
        }
    }

    /// Gates come in the order `log_a`, `[log_eta]`, `theta`, `[delta]`.
    #[inline(always)]
    fn gates(&self, gates: &[f32]) -> Gates {
        let after = usize::from(self.deep.momentum);
        Gates {
            a: gates[0].exp(),
            eta: if self.deep.momentum { gates[1].exp() } else { 0.0 },
            theta: gates[1 + after],
            delta: if let Bias::Huber(_) = self.deep.bias { gates[2 + after] } else { 0.0 },
        }
    }

    /// Widths of a record's parts, in order.
    #[inline(always)]
    fn widths(&self) -> [usize; 13] {
        let (d, v) = (self.d(), self.value);
        let norm = if self.deep.structure.norm() { v } else { 0 };
        [d, d, d, d, d, v, v, v, norm, d, d, norm, 2]
    }

    #[inline(always)]
    fn parts_mut<'r>(&self, mut rest: &'r mut [f32]) -> Record<&'r mut [f32]> {
        let [pre, h, slope, back, delta, error, u, u_o, normed, read_h, read_slope, read_normed, deviations] =
            self.widths().map(|width| {
                let (own, behind) = std::mem::take(&mut rest).split_at_mut(width);
                rest = behind;
                own
            });
        let (read, key) = ((read_h, read_slope, read_normed), (pre, h, slope, back, delta));
        Record {
            pre: key.0,
            h: key.1,
            slope: key.2,
            back: key.3,
            delta: key.4,
            error,
            u,
            u_o,
            normed,
            read_h: read.0,
            read_slope: read.1,
            read_normed: read.2,
            deviations,
        }
    }

    #[inline(always)]
    fn parts<'r>(&self, mut rest: &'r [f32]) -> Record<&'r [f32]> {
        let [pre, h, slope, back, delta, error, u, u_o, normed, read_h, read_slope, read_normed, deviations] =
            self.widths().map(|width| {
                let (own, behind) = rest.split_at(width);
                rest = behind;
                own
            });
        Record { pre, h, slope, back, delta, error, u, u_o, normed, read_h, read_slope, read_normed, deviations }
    }

    /// Whether the state is not itself the weights.
    #[inline(always)]
    fn is_mapped(&self) -> bool {
        self.deep.retention != Retention::Decay
    }

    /// Numbers of the tiles of a log-softmax.
    fn tiles(&self) -> usize {
        match self.deep.retention {
            Retention::Kl { .. } => softmax::tiles(self.key.max(self.d())),
            _ => 0,
        }
    }

    /// Whether each number of a state takes part in the gradients of all weights of its matrix.
    #[inline(always)]
    fn pulls(&self) -> bool {
        matches!(self.deep.retention, Retention::Lq { .. })
    }

    /// Whether the weights that a token reads are those at the next one's gradient point.
    #[inline(always)]
    fn shares(&self) -> bool {
        self.is_mapped() && self.merges() && self.deep.read == Read::After
    }

    /// The weights of a state: itself, or written to `exposed` unless they are there.
    #[inline(always)]
    fn exposed<'w>(&self, state: &'w [f32], exposed: &'w mut Exposed, there: bool) -> &'w [f32] {
        let (first, all) = self.sizes();
        if !self.is_mapped() {
            return &state[..all];
        }
        let Exposed { weights, norms } = exposed;
        if there {
            return weights;
        }
        norms[0] = retention::expose(self.deep.retention, &state[..first], &mut weights[..first]);
        if first < all {
            norms[1] = retention::expose(self.deep.retention, &state[first..all], &mut weights[first..all]);
        }
        weights
    }

    /// `f(W; x)` without the residual, into `out`; `pre`, `h`, `slope` are left where there is a hidden layer, and the
    /// norm's deviation is returned.
    #[inline(always)]
    fn apply(
        &self,
        weights: &[f32],
        x: &[f32],
        (pre, h, slope): (&mut [f32], &mut [f32], &mut [f32]),
        out: &mut [f32],
    ) -> f32 {
        let (first, _) = self.sizes();
        if self.hidden.is_some() {
            read(pre, x, &weights[..first]);
            activate(self.activation(), pre, h, slope);
            read(out, h, &weights[first..]);
        } else {
            read(out, x, weights);
        }
        if self.deep.structure.norm() { norm::normalise(out) } else { 1.0 }
    }

    /// What the token teaches at the gradient point, left in the record: equations (34), (35), (39), (40).
    #[inline(always)]
    fn learn(&self, weights: &[f32], token: Token<'_>, delta: f32, record: &mut Record<&mut [f32]>) {
        let (first, _) = self.sizes();
        record.deviations[0] = self.apply(weights, token.k, (record.pre, record.h, record.slope), record.error);
        if self.deep.structure.norm() {
            record.normed.copy_from_slice(record.error);
        }
        if self.deep.structure.residual() {
            axpy(record.error, 1.0, token.k);
        }
        axpy(record.error, -1.0, token.v);
        bias::teach(self.deep.bias, record.error, delta, record.u);
        if self.deep.structure.norm() {
            record.u_o.fill(0.0);
            norm::add_jacobian(record.normed, record.deviations[0], record.u, record.u_o);
        } else {
            record.u_o.copy_from_slice(record.u);
        }
        if self.hidden.is_some() {
            record.back.fill(0.0);
            add_transposed(record.back, record.u_o, &weights[first..]);
            let pairs = record.back.iter().zip(record.slope.iter());
            record.delta.iter_mut().zip(pairs).for_each(|(delta, (back, slope))| *delta = back * slope);
        }
    }
}

impl Cell for DeepCell {
    type Scratch = Scratch;

    fn scratch(&self) -> Scratch {
        let (_, all) = self.sizes();
        let numbers = if self.is_mapped() { all } else { 0 };
        let exposed = || Exposed { weights: vec![0.0; numbers], ..Exposed::default() };
        Scratch {
            point: exposed(),
            seen: exposed(),
            shared: false,
            hidden: vec![0.0; 5 * self.d()],
            value: vec![0.0; 6 * self.value],
            key: vec![0.0; self.key],
            zeros: vec![0.0; self.key.max(self.d()).max(self.value)],
            answer: if self.pulls() { vec![0.0; self.key.max(self.d())] } else { Vec::new() },
            tiles: vec![0.0; self.tiles()],
            layers: Default::default(),
        }
    }

    fn record(&self) -> usize {
        self.widths().iter().sum()
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
        let gates = self.gates(token.gates);
        let mut record = self.parts_mut(record);
        if scratch.shared {
            std::mem::swap(&mut scratch.point, &mut scratch.seen);
        }
        let weights = self.exposed(point, &mut scratch.point, scratch.shared);
        self.learn(weights, token, gates.delta, &mut record);
        self.write(token, &gates, old, new, &mut record, scratch, out);
        record.deviations[1] = if self.is_mapped() {
            let after = self.deep.read == Read::After;
            let there = after && matches!(self.deep.retention, Retention::Kl { .. });
            let weights = self.exposed(if after { new } else { old }, &mut scratch.seen, there);
            // The pre-activations are needed for the second derivative alone, which a read does not have.
            let pre = &mut scratch.hidden[..self.d()];
            self.apply(weights, token.q, (pre, record.read_h, record.read_slope), out)
        } else if self.deep.structure.norm() {
            norm::normalise(out)
        } else {
            1.0
        };
        if self.deep.structure.norm() {
            record.read_normed.copy_from_slice(out);
        }
        if self.deep.structure.residual() {
            axpy(out, 1.0, token.q);
        }
        scratch.shared = self.shares();
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
        self.turn(token, states, &self.parts(record), dout, adjoint, scratch, grads);
    }

    fn forget(&self, scratch: &mut Scratch) {
        scratch.shared = false;
    }

    fn merges(&self) -> bool {
        self.deep.frozen.is_none()
    }

    fn groups(&self) -> Option<&dyn Groups<Scratch>> {
        let linear = self.deep.frozen.is_some() && !self.is_mapped() && self.hidden.is_some();
        linear.then_some(self as &dyn Groups<Scratch>)
    }

    fn scratch_bytes(&self) -> usize {
        let (_, all) = self.sizes();
        let token = if self.is_mapped() { 2 * all } else { 0 } + 8 * (self.d() + self.value) + 3 * self.key;
        let group = if self.groups().is_some() { self.group_numbers() } else { 0 };
        4 * (token + group + self.tiles())
    }
}

/// The cells of these rules.
macro_rules! cells {
    ($($rule:ty),* $(,)?) => { $(
        impl crate::recurrent::Recurrent for $rule {
            type Cell = crate::deep::DeepCell;

            fn cell(self, dims: &hecate_core::Dims) -> crate::deep::DeepCell {
                crate::deep::DeepCell::new(self, dims)
            }

            fn frozen(self) -> Option<u32> {
                self.frozen
            }
        }

        crate::recurrent::cells!($rule);
    )* };
}
pub(crate) use cells;
