//! A neural memory as a layer.

mod decode;

use super::{
    Context, Counts, GatedRule, InitialState, Linear, Mixer, Projection, ProjectionTail, RmsNorm,
    gating::{Gating, RetentionForm},
    output_projection::{OutputDims, OutputProjection},
    rule_call::{Anchor, RuleCall, State, run},
    several_writes::Writes,
    write_inputs::WriteInputs,
};
use crate::{
    Builder, Error, Features, LayerCache, MemoryConfig, Parameters, Result, RuleConfig, Tape, Var, gates::NORM_EPSILON,
};
use hecate_core::{Backend, Dims, Kernel, Sequences, Shape, Slots, Tensor, for_each_rule, primitives::GateFunction};

/// Coefficients `1/i!` of polynomial features over their sum, with which unit rows stay unit rows.
const UNIT_POLY2: [f32; 3] = [0.4, 0.4, 0.2];

/// Queries, keys, values and gates from the residual stream, a rule, and the way back:
///
/// ```text
/// q, k = φ(l2norm(silu(conv(x W))))     v = silu(conv(x W))        per head; φ: features, the identity or poly2
/// v: of norm 1 for some rules (GatedRule)
/// log a = −exp(A_log) softplus(x W_a + dt_bias)  (0: no decay)     other gates: GatedRule
/// forgotten: a X, or B + a (X − B) where memories go back to what they start from (MemoryConfig::retain)
/// y = (rmsnorm(rule(q, k, v, gates)) · silu(x W_g)) W_o
/// ```
///
/// Parameters are named as in flash-linear-attention's Gated DeltaNet.
#[derive(Clone, Debug)]
pub struct Memory<R: GatedRule> {
    pub(super) rule: R,
    pub(super) layer: MemoryLayer,
}

/// A [`Memory`] but for its rule.
#[derive(Clone, Debug)]
pub(super) struct MemoryLayer {
    /// Memories side by side, `H`.
    heads: usize,
    /// [`MemoryForm::sharing`].
    sharing: usize,
    /// Width of the rule's keys, `K`: that of the features.
    key: usize,
    /// Width of a head's values, `V`.
    value: usize,
    features: Features,
    /// Of a token.
    writes: Writes,
    /// Projections to queries, keys and values.
    qkv: [Projection; 3],
    gating: Gating,
    output: OutputProjection,
    initial: InitialState,
    /// Whether what is forgotten goes back to `initial`.
    pub(super) anchored: bool,
    /// [`MemoryConfig::mean`].
    mean: bool,
    /// [`MemoryForm::norm_epsilon`].
    norm_epsilon: f32,
}

/// What memories of released models have their own way, beside what a [`MemoryConfig`] says. The default is Hecate's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MemoryForm {
    /// `ε` of the norms of queries and keys, `x / √(|x|² + ε²)`, at least 0.
    pub norm_epsilon: f32,
    /// Factor of queries after their norm, over 0. It is that of what is read, so the norm of outputs takes it: with mean
    /// squares of the unscaled `ε / scale²` is added.
    pub query_scale: f32,
    /// Whether maps to logits have a bias.
    pub biased: bool,
    /// What is made of the output's gate.
    pub gate: GateFunction,
    /// Memories side by side that have the same queries and keys, a divisor of all: there are as many fewer heads of these than
    /// of values and gates. 1 where each has its own.
    pub sharing: usize,
    /// The least that `log a` can be, under 0: the "safe gate" of Kimi delta attention, `log a = L σ(exp(A_log) (x + dt_bias))`. None
    /// where nothing bounds it.
    pub retention_bound: Option<f32>,
}

impl Default for MemoryForm {
    fn default() -> Self {
        Self {
            norm_epsilon: NORM_EPSILON,
            query_scale: 1.0,
            biased: true,
            gate: GateFunction::Silu,
            sharing: 1,
            retention_bound: None,
        }
    }
}

impl MemoryForm {
    /// Refuses what no norm and no query can be multiplied with, and so many memories that cannot be shared out.
    fn check(&self, heads: usize) -> Result<()> {
        let Self { norm_epsilon, query_scale, sharing, retention_bound, .. } = *self;
        if let Some(bound) = retention_bound.filter(|bound| !(bound.is_finite() && *bound < 0.0)) {
            return Err(Error::config("bound of retention", bound, "a finite number under 0"));
        }
        if sharing == 0 || !heads.is_multiple_of(sharing) {
            let expected = format!("a divisor of the {heads} memories");
            return Err(Error::config("memories with the same queries and keys", sharing, expected));
        }
        if !(norm_epsilon.is_finite() && norm_epsilon >= 0.0) {
            return Err(Error::config(
                "ε of the norms of queries and keys",
                norm_epsilon,
                "a finite number of at least 0",
            ));
        }
        if query_scale.is_finite() && query_scale > 0.0 {
            return Ok(());
        }
        Err(Error::config("factor of queries", query_scale, "a finite number over 0"))
    }
}

impl<R: GatedRule> Memory<R> {
    /// A memory beside a residual stream of width `hidden`.
    ///
    /// # Errors
    /// [`Error::Config`](crate::Error::Config) for options and widths that do not go together. The device's own failures.
    pub fn new<B: Backend>(
        build: &mut Builder<'_, B>,
        config: &MemoryConfig<R>,
        hidden: usize,
        norm_eps: f32,
    ) -> Result<Self> {
        Self::in_form(build, config, (hidden, norm_eps), MemoryForm::default())
    }

    /// As [`Memory::new`], in the form that a family of released models has.
    ///
    /// # Errors
    /// As [`Memory::new`].
    pub fn in_form<B: Backend>(
        build: &mut Builder<'_, B>,
        config: &MemoryConfig<R>,
        (hidden, norm_eps): (usize, f32),
        form: MemoryForm,
    ) -> Result<Self> {
        config.check(hidden)?;
        form.check(config.heads)?;
        let (rule, heads, (key, value)) = (config.rule, config.heads, config.widths(hidden));
        let anchored = config.is_anchored();
        let dims = dims(Sequences::batch(1, 1), heads, config.features.width(key), value);
        rule.check(&Dims { anchored, ..dims.clone() })?;
        let tail = ProjectionTail { taps: config.conv, activate: true };
        let writes = Writes(config.writes_per_token);
        let qkv = projections(build, hidden, ([heads / form.sharing, heads], writes), [key, key, value], tail)?;
        let logits = Gating::logits(build, rule, form.biased, [hidden, heads * writes.0], [dims.key, value])?;
        let output = OutputDims { hidden, heads, value };
        let retention = RetentionForm { key: dims.key, bound: form.retention_bound };
        let gate = OutputProjection::gate(build, config.gate, output)?;
        let norm_eps = norm_eps / (form.query_scale * form.query_scale);
        let layer = MemoryLayer {
            heads,
            sharing: form.sharing,
            key: dims.key,
            value,
            features: config.features,
            writes,
            qkv,
            gating: Gating::new(build, logits, config, hidden, retention)?,
            output: OutputProjection::with_gate(gate, build, output, norm_eps)?.with_function(form.gate),
            initial: InitialState::where_retained(build, rule, &dims, anchored)?,
            anchored,
            mean: config.mean,
            norm_epsilon: form.norm_epsilon,
        };
        Ok(Self { rule, layer })
    }
}

/// Projections to queries, keys and values of these widths, for so many heads of queries and keys, and of values.
fn projections<B: Backend>(
    build: &mut Builder<'_, B>,
    hidden: usize,
    ([key_heads, heads], Writes(writes)): ([usize; 2], Writes),
    [q, k, v]: [usize; 3],
    tail: ProjectionTail,
) -> Result<[Projection; 3]> {
    let mut project = |names, heads, width| Projection::new(build, names, hidden, (heads, width), tail);
    let q = project(("q_proj", "q_conv1d"), key_heads, q)?;
    // Of a token's writes side by side, each as wide as all heads.
    let mut of_writes = |names, heads, width| project(names, heads * writes, width);
    Ok([q, of_writes(("k_proj", "k_conv1d"), key_heads, k)?, of_writes(("v_proj", "v_conv1d"), heads, v)?])
}

impl MemoryLayer {
    /// Queries `[B,T,H,K]` of the tokens `x [B,T,hidden]`, and what they write.
    pub(super) fn tokens<B: Backend>(
        &self,
        rule: &dyn RuleCall<B>,
        tape: &Tape<'_, B>,
        x: &Var<B>,
        context: &mut Context<'_, B>,
    ) -> Result<(Var<B>, WriteInputs<B>)> {
        let [q, k, v] = &self.qkv;
        let (k, q) = (self.unit(tape, k, x, context)?, self.unit(tape, q, x, context)?);
        let v = v.forward(tape, x, context)?;
        let writes = self.writes(rule, tape, (k, v), || self.gating.forward(rule, tape, x))?;
        Ok((q, writes))
    }

    /// As [`MemoryLayer::tokens`], and the output's gate before SiLU: all linear maps of `x` at once where that is faster.
    fn tokens_and_gate<B: Backend>(
        &self,
        rule: &dyn RuleCall<B>,
        tape: &Tape<'_, B>,
        x: &Var<B>,
        context: &mut Context<'_, B>,
    ) -> Result<(Var<B>, WriteInputs<B>, Option<Var<B>>)> {
        let Some(mut products) = self.products_at_once(tape, x)? else {
            let (q, writes) = self.tokens(rule, tape, x, context)?;
            return Ok((q, writes, None));
        };
        let [q, k, v] = &self.qkv;
        let gate = self.output.gate.is_some().then(|| products.remove(3));
        let gates = products.split_off(3);
        let unit = Some(self.norm_epsilon);
        let each = [(k, &products[1], unit), (q, &products[0], unit), (v, &products[2], None)];
        let mut made = Projection::after_each(tape, each, context)?.into_iter();
        let mut next = || made.next().ok_or_else(|| Error::config("projections", "fewer", "three"));
        let (key, query, value) = (self.featured(tape, next()?)?, self.featured(tape, next()?)?, next()?);
        let writes = self.writes(rule, tape, (key, value), || self.gating.of_products(rule, tape, x, gates))?;
        Ok((query, writes, gate))
    }

    /// What the maps to queries, keys, values, to the output's gate where there is one, and to the gates make of `x`; none
    /// where one after another is as good.
    fn products_at_once<B: Backend>(&self, tape: &Tape<'_, B>, x: &Var<B>) -> Result<Option<Vec<Var<B>>>> {
        let maps: Vec<_> = self.qkv.iter().map(Projection::linear).chain(self.output.gate).collect();
        let all: Vec<_> = maps.iter().copied().chain(self.gating.maps()).collect();
        if let Some(products) = Linear::at_once(tape, &all, x)? {
            return Ok(Some(products));
        }
        // Gates may have a way of their own.
        let Some(mut products) = Linear::at_once(tape, &maps, x)? else { return Ok(None) };
        products.extend(self.gating.products(tape, x)?);
        Ok(Some(products))
    }

    /// What tokens write, of keys and values as they come, and gates.
    fn writes<B: Backend>(
        &self,
        rule: &dyn RuleCall<B>,
        tape: &Tape<'_, B>,
        (k, v): (Var<B>, Var<B>),
        gates: impl FnOnce() -> Result<Vec<Var<B>>>,
    ) -> Result<WriteInputs<B>> {
        let (k, v) = (self.writes.apart(tape, k)?, self.writes.apart(tape, v)?);
        let writes = WriteInputs::new(k, rule.values(tape, v)?, gates()?);
        if self.mean { rule.scale_step(tape, &writes) } else { Ok(writes) }
    }

    /// The state `[N,H,..]` before the call's tokens: what is remembered of the texts so far, or initial memories.
    pub(super) fn start<B: Backend>(
        &self,
        rule: &dyn RuleCall<B>,
        tape: &Tape<'_, B>,
        device: &B,
        context: &Context<'_, B>,
    ) -> Result<State<B>> {
        // A cache holds all slots or none.
        let remembered = rule.state_names().iter().map(|name| context.known(name).cloned()).collect();
        match remembered {
            Some(remembered) => Ok(remembered),
            None => self.initial.arrays(tape, device, self.state(rule, context.sequences.clone())),
        }
    }

    /// What the memory goes back to as it forgets; empty where that is zero.
    pub(super) fn anchor<B: Backend>(&self, rule: &dyn RuleCall<B>, tape: &Tape<'_, B>) -> Result<Anchor<B>> {
        let slots = if self.anchored { rule.anchors() } else { 0 };
        self.initial.anchor(tape, slots)
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

    /// Queries or keys of norm 1, or their polynomial features, which are of norm 1 too: `[B,T,H,K]`.
    fn unit<B: Backend>(
        &self,
        tape: &Tape<'_, B>,
        map: &Projection,
        x: &Var<B>,
        context: &mut Context<'_, B>,
    ) -> Result<Var<B>> {
        self.featured(tape, map.forward_l2_norm(tape, x, self.norm_epsilon, context)?)
    }

    /// Features of unit rows, for each memory that shares them.
    fn featured<B: Backend>(&self, tape: &Tape<'_, B>, x: Var<B>) -> Result<Var<B>> {
        let features = match self.features {
            Features::Identity => x,
            Features::Poly2 => tape.poly2(&x, UNIT_POLY2)?,
        };
        tape.repeat_heads(&features, self.sharing)
    }

    /// [`Mixer::forward`].
    fn forward<B: Backend>(
        &self,
        rule: &dyn RuleCall<B>,
        tape: &Tape<'_, B>,
        x: &Var<B>,
        context: &mut Context<'_, B>,
    ) -> Result<Var<B>> {
        context.check(x)?;
        if self.has_fused_decode(rule, tape, x, context) {
            return self.decode(rule, tape, (x, None), context);
        }
        let (q, writes, gate) = self.tokens_and_gate(rule, tape, x, context)?;
        let state = self.start(rule, tape, x.value().device(), context)?;
        let anchor = self.anchor(rule, tape)?;
        let (q, sequences) = (self.writes.at_last(tape, q)?, self.writes.sequences(&context.sequences));
        let outputs = run(rule, tape, &sequences, Some(&q), &writes, (state, &anchor))?;
        // What the rule was told is not held while its output is projected.
        drop((q, writes));
        let out = self.writes.last(tape, outputs.out)?;
        rule.state_names().iter().zip(&outputs.state).for_each(|(name, last)| context.carry(name, last));
        match gate {
            Some(gate) => self.output.of_factors(tape, Some(gate), &out),
            None => self.output(tape, x, &out),
        }
    }

    /// What the tokens `x [B,T,hidden]` with the queries `q [B,T,H,K]` read of the memory as it was before them, back to
    /// `[B,T,hidden]`; nothing is written.
    fn look_up<B: Backend>(
        &self,
        rule: &dyn RuleCall<B>,
        tape: &Tape<'_, B>,
        x: &Var<B>,
        q: Var<B>,
        context: &Context<'_, B>,
    ) -> Result<Var<B>> {
        let state = self.start(rule, tape, x.value().device(), context)?;
        let sequences = context.sequences.clone();
        let dims =
            Dims { batch: x.axes()[0], tokens: x.axes()[1], ..dims(sequences, self.heads, self.key, self.value) };
        self.output(tape, x, &rule.read(tape, &dims, q, state)?)
    }

    /// Arrays in the cache of `batch` texts that are about to start.
    pub(super) fn arrays<B: Backend>(
        &self,
        rule: &dyn RuleCall<B>,
        device: &B,
        parameters: &Parameters<B>,
        batch: usize,
    ) -> Result<Vec<(&'static str, Tensor<B>)>> {
        let convs = self.qkv.iter().filter_map(Projection::conv).map(|conv| conv.cache(device, batch));
        let mut arrays = convs.collect::<Result<Vec<_>>>()?;
        let shapes = self.state(rule, Sequences::batch(batch, 1));
        let fresh = self.initial.arrays(&Tape::inert(parameters), device, shapes)?;
        arrays.extend(rule.state_names().iter().copied().zip(fresh.into_iter().map(Var::into_value)));
        Ok(arrays)
    }

    /// Sizes of a call of `tokens` tokens a sequence.
    pub(super) fn dims(&self, sequences: Sequences, tokens: usize) -> Dims {
        Dims { tokens, ..dims(sequences, self.heads, self.key, self.value) }
    }

    /// Shapes of the state of these sequences.
    fn state<B: Backend>(&self, rule: &dyn RuleCall<B>, sequences: Sequences) -> Vec<Shape> {
        rule.state_shapes(&dims(sequences, self.heads, self.key, self.value))
    }

    /// From what was read `[B,T,H,V]` to the residual stream `[B,T,hidden]`; `x` makes the gate.
    pub(super) fn output<B: Backend>(&self, tape: &Tape<'_, B>, x: &Var<B>, read: &Var<B>) -> Result<Var<B>> {
        self.output.forward(tape, x, read)
    }
}

/// A memory of any rule whose state can be read without being written.
pub(super) trait ReadableMemory<B: Backend>: Mixer<B> {
    /// Names of the state's arrays in the cache.
    fn state_names(&self) -> &'static [&'static str];

    /// Unit queries `[B,T,H,K]` of the tokens `x [B,T,hidden]`.
    fn queries(&self, tape: &Tape<'_, B>, x: &Var<B>, context: &mut Context<'_, B>) -> Result<Var<B>>;

    /// What the tokens `x [B,T,hidden]` with the queries `q [B,T,H,K]` read of the memory as it was before them, back to
    /// `[B,T,hidden]`; nothing is written.
    fn look_up(&self, tape: &Tape<'_, B>, x: &Var<B>, q: Var<B>, context: &Context<'_, B>) -> Result<Var<B>>;
}

impl<B: Backend + Kernel<R>, R: GatedRule> ReadableMemory<B> for Memory<R> {
    fn state_names(&self) -> &'static [&'static str] {
        R::State::NAMES
    }

    fn queries(&self, tape: &Tape<'_, B>, x: &Var<B>, context: &mut Context<'_, B>) -> Result<Var<B>> {
        self.layer.queries(tape, x, context)
    }

    fn look_up(&self, tape: &Tape<'_, B>, x: &Var<B>, q: Var<B>, context: &Context<'_, B>) -> Result<Var<B>> {
        self.layer.look_up(&self.rule, tape, x, q, context)
    }
}

impl<B: Backend + Kernel<R>, R: GatedRule> Mixer<B> for Memory<R> {
    fn forward(&self, tape: &Tape<'_, B>, x: &Var<B>, context: &mut Context<'_, B>) -> Result<Var<B>> {
        self.layer.forward(&self.rule, tape, x, context)
    }

    fn forward_onto(
        &self,
        tape: &Tape<'_, B>,
        norm: &RmsNorm,
        x: &Var<B>,
        context: &mut Context<'_, B>,
    ) -> Result<Option<Var<B>>> {
        self.layer.forward_onto(&self.rule, tape, norm, x, context)
    }

    fn cache(&self, device: &B, parameters: &Parameters<B>, batch: usize) -> Result<LayerCache<B>> {
        Ok(LayerCache::new(self.layer.arrays(&self.rule, device, parameters, batch)?))
    }

    fn group(&self) -> usize {
        self.rule.group()
    }

    fn counts(&self) -> Counts {
        if self.rule.group() == 1 { Counts::Nobody } else { Counts::Host }
    }
}

/// A mixer over the rule of a configuration: `make(build, rule, config, hidden, norm_eps)`.
macro_rules! over {
    ($make:path, $rule_of:expr, $build:ident, $config:ident, $hidden:ident, $norm_eps:ident, $($rule:ident),*) => {
        match $rule_of {
            $(RuleConfig::$rule(rule) => Box::new($make($build, rule, $config, $hidden, $norm_eps)?),)*
        }
    };
}
pub(super) use over;

/// The memory that a configuration asks for.
pub(super) fn memory<B: Backend>(
    build: &mut Builder<'_, B>,
    config: &MemoryConfig,
    hidden: usize,
    norm_eps: f32,
) -> Result<Box<dyn ReadableMemory<B>>> {
    Ok(for_each_rule!(over, of_rule, config.rule, build, config, hidden, norm_eps,))
}

/// As [`Memory::new`], with this rule in the place of the configuration's.
pub(super) fn of_rule<B: Backend, R: GatedRule>(
    build: &mut Builder<'_, B>,
    rule: R,
    config: &MemoryConfig,
    hidden: usize,
    norm_eps: f32,
) -> Result<Memory<R>> {
    Memory::new(build, &config.with_rule(rule), hidden, norm_eps)
}

/// Sizes of a call of one token a sequence: states depend on nothing else.
fn dims(sequences: Sequences, heads: usize, key: usize, value: usize) -> Dims {
    Dims { batch: sequences.count(), tokens: 1, heads, key, value, sequences, anchored: false }
}
