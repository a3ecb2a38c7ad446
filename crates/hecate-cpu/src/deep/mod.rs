//! Memories that are functions with weights: equations (33)–(59).
//!
//! A state holds the weights of a matrix or of an MLP with one hidden layer, and their momentum where there is one.
//! A token asks the memory for the value of its key, and the error's gradient is what it writes.
//! One cell serves every structure, attentional bias and retention: rules are options of it.
//!
//! - [`activation`], [`norm`], [`bias`]: the functions inside, each with the derivatives that the backward needs;
//! - [`retention`], [`lq`], [`softmax`], [`late_softmax`]: how the state maps to the weights, and the pullback of that map;
//! - [`write`](self::write), [`found`], [`backward`], [`inner_backward`]: one token forward and back;
//! - [`groups`], [`inner_grads`], [`anchored`]: frozen groups of memories that decay as matrix products;
//! - [`mapped_groups`]: those of other retentions, whose inner gradients are products.
//!
//! # The backward of a gradient
//!
//! A token writes a gradient, so its backward differentiates a gradient once more.
//! That needs second derivatives of the activation and of the norm, and the derivative of the bias.
//! All of them are vectors `[D]` or `[V]`; the only matrices are weights, states and their gradients.

pub(crate) mod activation;
pub(crate) mod anchored;
mod backward;
mod bias;
pub(crate) mod found;
mod groups;
mod inner_backward;
mod inner_grads;
mod late_softmax;
mod lq;
mod mapped_groups;
mod norm;
mod record;
mod retention;
mod softmax;
mod write;

use crate::{
    fused_gemv::{Momentum, add_transposed, read},
    linear::chunk_backward,
    recurrent::{Cell, Decay, GroupedForm, Recurrent, StepBackward, StepForward, Token, heads},
    rows::{axpy, scale},
};
use activation::activate;
use groups::QueryReads;
use hecate_core::{
    Dims, Read,
    families::{Deep, DeepForm, DeepRule, DeepSpec},
    rules::{Activation, AttentionalBias, Retention, Structure},
};
use inner_grads::InnerGrads;
use record::Record;
use retention::{MappedWeights, Weights};
use write::Advance;

/// A rule of this family at known sizes. `D` is the hidden width, `K` and `V` those of keys and values.
pub(crate) struct DeepCell {
    /// Structure, attentional bias, retention and options.
    spec: DeepSpec,
    /// Which gates and matrices there are.
    form: DeepForm,
    /// `K`.
    key: usize,
    /// Width of the hidden layer; `None` for a matrix.
    hidden: Option<usize>,
    /// `V`.
    value: usize,
    /// Whether what a token finds is another state than its gradient point.
    anchored: bool,
    /// [`Cell::renormed`].
    renormed: Vec<[usize; 2]>,
}

/// Workspace for one token.
pub(crate) struct Scratch {
    /// Weights at the gradient point and where the token reads; empty where the state is the weights.
    point: MappedWeights,
    /// Where the token reads.
    seen: MappedWeights,
    /// Whether the weights at `seen` are those of the next token's point, or on the way back the other way round.
    /// The buffers then change places instead of being computed twice.
    shared: bool,
    /// `[5, D]`, `[6, V]`, `[K]`.
    hidden: Vec<f32>,
    /// `[6, V]`: parts are named where they are split.
    value: Vec<f32>,
    /// `[K]`: the gradient of the key in the rank-1 write.
    key: Vec<f32>,
    /// As long as the longest row: what is passed for a query that reads nothing.
    zeros: Vec<f32>,
    /// Columns that a log-softmax works on; empty for other retentions.
    tiles: Vec<f32>,
    /// For columns that are distributions: a query whose mean is taken off, as long as the longest.
    query: Vec<f32>,
    /// For tokens of a group whose log-softmaxes come late.
    late: Late,
    /// Of both layers, where frozen groups go through the linear engine.
    layers: [chunk_backward::Workspace; 2],
    /// Of a chunk: inner gradients, and what queries read.
    inner: InnerGrads,
    reads: QueryReads,
}

/// What [`late_softmax`] leaves from token to token; columns of both layers after each other, `[D+V]`.
#[derive(Default)]
struct Late {
    /// Whether tokens go this way.
    on: bool,
    /// Whether their weights are asked for.
    keeps: bool,
    /// What columns of the state are too large by.
    shifts: Vec<f32>,
    /// What powers are to be multiplied by.
    factors: Vec<f32>,
}

/// One token's gates.
#[derive(Clone, Copy)]
struct Gates {
    /// Retention.
    decay: Decay,
    /// Momentum, of no consequence without.
    momentum: Momentum,
    /// `η`; 0 without.
    eta: f32,
    /// Step size.
    theta: f32,
    /// Threshold of Huber's bias; 0 for others.
    delta: f32,
}

impl DeepCell {
    /// The cell of `rule` at the sizes of a call.
    pub(crate) fn new<R: DeepRule>(rule: R, dims: &Dims) -> Self {
        let spec = rule.spec();
        let Dims { key, value, anchored, .. } = *dims;
        let hidden = spec.structure.hidden(key);
        let renormed = match hidden {
            _ if !spec.renorm => Vec::new(),
            None => vec![[key, value]],
            Some(hidden) => vec![[key, hidden], [hidden, value]],
        };
        Self { spec, form: R::FORM, key, hidden, value, anchored, renormed }
    }

    /// `D`, or 0 for a matrix.
    #[inline(always)]
    fn d(&self) -> usize {
        self.hidden.unwrap_or(0)
    }

    /// Elements of the first weight matrix, and of all.
    #[inline(always)]
    fn sizes(&self) -> (usize, usize) {
        match self.hidden {
            None => (self.key * self.value, self.key * self.value),
            Some(hidden) => (self.key * hidden, (self.key + self.value) * hidden),
        }
    }

    /// Elements of the layer before the last one; none of a matrix, whose only layer is the last.
    #[inline(always)]
    fn low(&self) -> usize {
        if self.hidden.is_some() { self.sizes().0 } else { 0 }
    }

    /// Width of what goes into the last layer.
    #[inline(always)]
    fn inputs(&self) -> usize {
        self.hidden.unwrap_or(self.key)
    }

    /// `σ` of the hidden layer; any for a matrix, which has none.
    #[inline(always)]
    fn activation(&self) -> Activation {
        match self.spec.structure {
            Structure::Mlp(memory) => memory.activation,
            Structure::Matrix(_) => Activation::default(),
        }
    }

    /// A token's gates, which come in the order `log_a`, `[log_eta]`, `theta`, `[delta]`.
    #[inline(always)]
    fn gates(&self, gates: &[f32]) -> Gates {
        let after = usize::from(self.form.momentum());
        let (decay, log_eta) = (Decay::of(gates[0]), if self.form.momentum() { gates[1] } else { f32::NEG_INFINITY });
        let ahead = self.spec.looks_ahead();
        Gates {
            decay,
            eta: log_eta.exp(),
            momentum: if ahead { Momentum::look_ahead(decay.a, log_eta) } else { Momentum::heavy_ball(log_eta.exp()) },
            theta: gates[1 + after],
            delta: if let AttentionalBias::Huber(_) = self.spec.bias { gates[2 + after] } else { 0.0 },
        }
    }

    /// Whether the state is not itself the weights.
    #[inline(always)]
    fn is_mapped(&self) -> bool {
        self.spec.retention != Retention::Decay
    }

    /// Whether a token's read is part of its write: the write leaves the weights that are read.
    #[inline(always)]
    fn reads_on_write(&self) -> bool {
        match self.spec.retention {
            Retention::Decay => true,
            Retention::Kl { .. } | Retention::Lq { .. } => self.spec.read == Read::After,
        }
    }

    /// Elements of the tiles of a log-softmax.
    fn tiles(&self) -> usize {
        match self.spec.retention {
            Retention::Kl { .. } => softmax::tiles(self.key.max(self.d())),
            _ => 0,
        }
    }

    /// Whether every element of a state takes part in all weights of its matrix, through the norm `ν`.
    /// The pullback then needs a sum over the whole matrix, made of what layers gave in the forward.
    #[inline(always)]
    fn has_shared_norm(&self) -> bool {
        matches!(self.spec.retention, Retention::Lq { .. })
    }

    /// Whether the weights that a token reads are those at the next one's gradient point.
    #[inline(always)]
    fn shares(&self) -> bool {
        self.is_mapped() && self.merges_point() && self.spec.read == Read::After
    }

    /// The weights of a state: the state itself, or written to `mapped` unless they are `there` already.
    #[inline(always)]
    fn to_weights<'w>(&self, state: &'w [f32], mapped: &'w mut MappedWeights, there: bool) -> Weights<'w> {
        let (first, all) = self.sizes();
        if !self.is_mapped() {
            return Weights { layers: &state[..all], factors: [1.0; 2] };
        }
        let MappedWeights { weights, norms, factors } = mapped;
        if !there {
            norms[0] = retention::to_weights(self.spec.retention, self.key, &state[..first], &mut weights[..first]);
            if first < all {
                let (x, w) = (&state[first..all], &mut weights[first..all]);
                norms[1] = retention::to_weights(self.spec.retention, self.inputs(), x, w);
            }
            *factors = [1.0; 2];
        }
        Weights { layers: weights, factors: *factors }
    }

    /// `f(W; x)` without the residual, into `out [V]`, for `x [K]`.
    ///
    /// `pre`, `h`, `slope` `[D]` are left where there is a hidden layer, and what there is before the norm in `output`, unless
    /// that is empty. Returns the norm's deviation, 1 without a norm.
    #[inline(always)]
    fn apply(
        &self,
        Weights { layers, factors }: Weights<'_>,
        x: &[f32],
        (pre, h, slope): (&mut [f32], &mut [f32], &mut [f32]),
        output: &mut [f32],
        out: &mut [f32],
    ) -> f32 {
        let (first, _) = self.sizes();
        if self.hidden.is_some() {
            read(pre, x, &layers[..first]);
            self.scale(pre, factors[0]);
            activate(self.activation(), pre, h, slope);
            read(out, h, &layers[first..]);
            self.scale(out, factors[1]);
        } else {
            read(out, x, layers);
            self.scale(out, factors[0]);
        }
        output.copy_from_slice(&out[..output.len()]);
        if self.spec.structure.norm() { norm::normalise(out) } else { 1.0 }
    }

    /// What a layer's weights are to be multiplied by, taken into what they gave.
    #[inline(always)]
    fn scale(&self, out: &mut [f32], factor: f32) {
        if self.has_shared_norm() {
            scale(out, factor);
        }
    }

    /// The inner gradient at the point, left in the record: equations (34), (35), (39), (40).
    /// It is factored: the first layer's is `kᵀ δ`, the last one's `hᵀ u_o`.
    #[inline(always)]
    fn inner_grad(&self, weights: Weights<'_>, token: Token<'_>, delta: f32, record: &mut Record<&mut [f32]>) {
        let (first, _) = self.sizes();
        let hidden = (&mut *record.pre, &mut *record.h, &mut *record.slope);
        record.deviations[0] = self.apply(weights, token.k, hidden, record.output, record.error);
        if self.spec.structure.norm() {
            record.normed.copy_from_slice(record.error);
        }
        if self.spec.structure.residual() {
            axpy(record.error, 1.0, token.k);
        }
        axpy(record.error, -1.0, token.v);
        bias::inner_grad(self.spec.bias, record.error, delta, record.u);
        record.shrink[0] = bias::clip(self.spec.clip, record.u);
        if self.spec.structure.norm() {
            record.u_o.fill(0.0);
            norm::add_jacobian(record.normed, record.deviations[0], record.u, record.u_o);
        } else {
            record.u_o.copy_from_slice(record.u);
        }
        if self.hidden.is_some() {
            record.back.fill(0.0);
            add_transposed(record.back, record.u_o, &weights.layers[first..]);
            self.scale(record.back, weights.factors[1]);
            let pairs = record.back.iter().zip(record.slope.iter());
            record.delta.iter_mut().zip(pairs).for_each(|(delta, (back, slope))| *delta = back * slope);
        }
    }
}

heads!(DeepCell);

impl Cell for DeepCell {
    type Scratch = Scratch;

    fn scratch(&self) -> Scratch {
        let (_, all) = self.sizes();
        let elements = if self.is_mapped() { all } else { 0 };
        let mapped = || MappedWeights { weights: vec![0.0; elements], ..MappedWeights::default() };
        Scratch {
            point: mapped(),
            seen: mapped(),
            shared: false,
            hidden: vec![0.0; 5 * self.d()],
            value: vec![0.0; 6 * self.value],
            key: vec![0.0; self.key],
            zeros: vec![0.0; self.key.max(self.d()).max(self.value)],
            tiles: vec![0.0; self.tiles()],
            query: vec![0.0; self.key.max(self.d())],
            late: Late::default(),
            layers: Default::default(),
            inner: InnerGrads::default(),
            reads: QueryReads::default(),
        }
    }

    fn record(&self) -> usize {
        self.widths().iter().sum()
    }

    #[inline(always)]
    fn forward(&self, step: StepForward<'_, Scratch>) {
        let StepForward { token, old, point, new, record, scratch, out } = step;
        let gates = self.gates(token.gates);
        let mut record = self.parts_mut(record);
        // What the last token read at is this token's point.
        if scratch.shared {
            std::mem::swap(&mut scratch.point, &mut scratch.seen);
        }
        let weights = self.to_weights(point, &mut scratch.point, scratch.shared);
        self.inner_grad(weights, token, gates.delta, &mut record);
        // With an anchor, `old` is what the token finds, and no gate forgets.
        let step = Advance { token, gates, old, anchor: &[], new, record: &mut record, out };
        self.advance(step, scratch);
        record.norms.iter_mut().zip(scratch.point.norms).for_each(|(norm, made)| *norm = made);
        scratch.shared = self.shares();
    }

    /// See [`backward`].
    #[inline(always)]
    fn backward(&self, step: StepBackward<'_, Scratch>) {
        self.token_vjp(step);
    }

    fn reset_shared(&self, scratch: &mut Scratch) {
        scratch.shared = false;
    }

    fn merges_point(&self) -> bool {
        self.spec.frozen.is_none() && !self.anchored && !self.spec.looks_ahead()
    }

    fn ahead(&self) -> usize {
        if self.spec.looks_ahead() { self.sizes().1 } else { 0 }
    }

    fn shift(&self, state: &mut [f32], sign: f32) {
        if let Retention::Kl { .. } = self.spec.retention {
            let (low, high) = state.split_at_mut(self.low());
            for (layer, rows) in [(low, self.key), (high, self.inputs())] {
                let equal = sign * (rows as f32).ln();
                layer.iter_mut().for_each(|x| *x += equal);
            }
        }
    }

    fn renormed(&self) -> &[[usize; 2]] {
        &self.renormed
    }

    fn groups(&self) -> Option<&dyn GroupedForm<Scratch>> {
        // Columns that are set back and momentum that looks ahead are left to the engine. Maps of states have neither.
        let grouped = self.spec.frozen.is_some() && !self.spec.looks_ahead() && !self.spec.renorm;
        grouped.then_some(self as &dyn GroupedForm<Scratch>)
    }

    fn scratch_bytes(&self) -> usize {
        let (_, all) = self.sizes();
        let token = if self.is_mapped() { 2 * all } else { 0 } + 8 * (self.d() + self.value) + 4 * self.key + self.d();
        let states = if self.is_mapped() { self.mapped_group_elements() } else { 0 };
        let group = if self.groups().is_some() { self.group_elements() + states } else { 0 };
        4 * (token + group + self.tiles())
    }
}

impl<R: DeepRule> Recurrent<Deep> for R {
    type Cell = DeepCell;

    fn cell(self, dims: &Dims) -> DeepCell {
        DeepCell::new(self, dims)
    }
}
