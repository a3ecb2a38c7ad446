//! A neural memory as a layer.

mod decode;

use super::{Behind, Context, Fresh, GatedRule, Mixer, Projection, gating::Gating, readout::Readout};
use crate::{Builder, Features, LayerCache, MemoryConfig, Parameters, Result, Tape, Var};
use hecate_core::{Backend, Dims, Inputs, Kernel, Of, Sequences, Shape, Slots, Tensor};

/// Added to the norms of queries and keys.
pub(super) const NORM_EPSILON: f32 = 1e-6;

/// Coefficients `1/i!` of polynomial features over their sum, with which unit rows stay unit rows.
const UNIT_POLY2: [f32; 3] = [0.4, 0.4, 0.2];

/// Queries, keys, values and gates from the residual stream, a rule, and the way back:
///
/// ```text
/// q, k = φ(l2norm(silu(conv(x W))))     v = silu(conv(x W))        per head; φ: features, the identity or poly2
/// v: of norm 1 for some rules (GatedRule)
/// log a = −exp(A_log) softplus(x W_a + dt_bias)  (0: no decay)     other gates: GatedRule
/// y = (rmsnorm(rule(q, k, v, gates)) · silu(x W_g)) W_o
/// ```
///
/// Parameters are named as in flash-linear-attention's Gated DeltaNet.
#[derive(Clone, Debug)]
pub struct Memory<R: GatedRule> {
    rule: R,
    heads: usize,
    key: usize,
    value: usize,
    features: Features,
    qkv: [Projection; 3],
    gating: Gating<R>,
    readout: Readout,
    fresh: Fresh,
}

/// What a rule is told of tokens: everything but the state.
pub(super) struct Tokens<R: GatedRule, B: Backend> {
    /// Unit queries `[B,T,H,K]`.
    pub(super) q: Var<B>,
    /// Unit keys `[B,T,H,K]`.
    pub(super) k: Var<B>,
    /// Values `[B,T,H,V]`.
    pub(super) v: Var<B>,
    /// Gates `[B,T,H,..]`.
    pub(super) gates: Of<R::Gates, Var<B>>,
}

impl<R: GatedRule> Memory<R> {
    /// A memory beside a residual stream of width `hidden`.
    ///
    /// # Errors
    /// The device's own failures.
    pub fn new<B: Backend>(
        build: &mut Builder<'_, B>,
        rule: R,
        config: &MemoryConfig,
        hidden: usize,
        norm_eps: f32,
    ) -> Result<Self> {
        let (heads, (key, value)) = (config.heads, config.widths(hidden));
        let features = config.features.width(key);
        let behind = Behind { taps: config.conv, activate: true };
        let mut project = |names, width| Projection::new(build, names, hidden, (heads, width), behind);
        let qkv = [
            project(("q_proj", "q_conv1d"), key)?,
            project(("k_proj", "k_conv1d"), key)?,
            project(("v_proj", "v_conv1d"), value)?,
        ];
        let signals = Gating::signals(build, rule, hidden, heads)?;
        let gate = Readout::gate(build, config.gate, (hidden, heads * value))?;
        Ok(Self {
            rule,
            heads,
            key: features,
            value,
            features: config.features,
            qkv,
            gating: Gating::new(build, rule, signals, config, hidden)?,
            readout: Readout::behind(gate, build, (hidden, heads, value), norm_eps)?,
            fresh: Fresh::new(build, rule, &dims(Sequences::batch(1, 1), heads, features, value))?,
        })
    }

    /// What the tokens `x [B,T,hidden]` tell the rule.
    pub(super) fn tokens<B: Backend>(
        &self,
        tape: &Tape<'_, B>,
        x: &Var<B>,
        context: &mut Context<'_, B>,
    ) -> Result<Tokens<R, B>> {
        let k = self.unit(tape, &self.qkv[1], x, context)?;
        let q = self.queries(tape, x, context)?;
        let v = self.rule.values(tape, self.qkv[2].forward(tape, x, context)?)?;
        Ok(Tokens { q, k, v, gates: self.gating.forward(tape, x)? })
    }

    /// The state in front of the call's tokens: what is remembered of the texts so far, or fresh memories.
    pub(super) fn start<B: Backend>(
        &self,
        tape: &Tape<'_, B>,
        device: &B,
        context: &Context<'_, B>,
    ) -> Result<Of<R::State, Var<B>>> {
        match R::State::try_build(|name| context.known(name).cloned().ok_or(())) {
            Ok(remembered) => Ok(remembered),
            Err(()) => self.fresh.vars::<B, R::State>(tape, device, self.state(context.sequences.clone())),
        }
    }

    /// Unit queries `[B,T,H,K]` of the tokens `x [B,T,hidden]`.
    pub(super) fn queries<B: Backend>(
        &self,
        tape: &Tape<'_, B>,
        x: &Var<B>,
        context: &mut Context<'_, B>,
    ) -> Result<Var<B>> {
        self.unit(tape, &self.qkv[0], x, context)
    }

    /// Queries or keys of norm 1, or their polynomial features.
    fn unit<B: Backend>(
        &self,
        tape: &Tape<'_, B>,
        map: &Projection,
        x: &Var<B>,
        context: &mut Context<'_, B>,
    ) -> Result<Var<B>> {
        let x = map.forward_unit(tape, x, NORM_EPSILON, context)?;
        match self.features {
            Features::Identity => Ok(x),
            Features::Poly2 => tape.poly2(&x, UNIT_POLY2),
        }
    }

    /// What the tokens `x [B,T,hidden]` with the queries `q` read of the memory in front of them, to the residual
    /// stream; nothing is written.
    pub(super) fn look_up<B: Backend + Kernel<R>>(
        &self,
        tape: &Tape<'_, B>,
        x: &Var<B>,
        q: Var<B>,
        context: &Context<'_, B>,
    ) -> Result<Var<B>> {
        let state = self.start(tape, x.value().device(), context)?;
        let sequences = context.sequences.clone();
        let dims =
            Dims { batch: x.axes()[0], tokens: x.axes()[1], ..dims(sequences, self.heads, self.key, self.value) };
        let outputs = tape.memory(self.rule, &dims.sequences, self.rule.reading(&dims, q, state)?)?;
        self.output(tape, x, &outputs.out)
    }

    /// Arrays in the cache of `batch` texts that are about to start.
    pub(super) fn arrays<B: Backend>(
        &self,
        device: &B,
        parameters: &Parameters<B>,
        batch: usize,
    ) -> Result<Vec<(&'static str, Tensor<B>)>> {
        let convs = self.qkv.iter().filter_map(Projection::conv).map(|conv| conv.cache(device, batch));
        let mut arrays = convs.collect::<Result<Vec<_>>>()?;
        let fresh = self.fresh.tensors::<B, R::State>(device, parameters, self.state(Sequences::batch(batch, 1)))?;
        arrays.extend(R::State::NAMES.iter().copied().zip(R::State::into_vec(fresh)));
        Ok(arrays)
    }

    /// Sizes of a call of `tokens` tokens a sequence.
    pub(super) fn dims(&self, sequences: Sequences, tokens: usize) -> Dims {
        Dims { tokens, ..dims(sequences, self.heads, self.key, self.value) }
    }

    fn state(&self, sequences: Sequences) -> Of<R::State, Shape> {
        self.rule.state(&dims(sequences, self.heads, self.key, self.value))
    }

    /// What was read `[B,T,H,V]`, to the residual stream.
    pub(super) fn output<B: Backend>(&self, tape: &Tape<'_, B>, x: &Var<B>, read: &Var<B>) -> Result<Var<B>> {
        self.readout.forward(tape, x, read)
    }
}

impl<B: Backend + Kernel<R>, R: GatedRule> Mixer<B> for Memory<R> {
    fn forward(&self, tape: &Tape<'_, B>, x: &Var<B>, context: &mut Context<'_, B>) -> Result<Var<B>> {
        if self.decodes(tape, x, context) {
            return self.decode(tape, x, context);
        }
        let Tokens { q, k, v, gates } = self.tokens(tape, x, context)?;
        let state = self.start(tape, x.value().device(), context)?;
        let outputs = tape.memory(self.rule, &context.sequences, Inputs { q, k, v, gates, state })?;
        R::State::list(&outputs.state).into_iter().for_each(|(name, last)| context.carry(name, last));
        self.output(tape, x, &outputs.out)
    }

    fn cache(&self, device: &B, parameters: &Parameters<B>, batch: usize) -> Result<LayerCache<B>> {
        Ok(LayerCache::new(self.arrays(device, parameters, batch)?))
    }

    fn group(&self) -> usize {
        self.rule.group()
    }

    fn steady(&self) -> bool {
        self.rule.group() == 1
    }
}

/// Sizes of a call of one token a sequence: states depend on nothing else.
fn dims(sequences: Sequences, heads: usize, key: usize, value: usize) -> Dims {
    Dims { batch: sequences.count(), tokens: 1, heads, key, value, sequences }
}
