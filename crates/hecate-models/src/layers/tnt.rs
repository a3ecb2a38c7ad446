//! A memory for the whole text, and local ones for its shards.

use super::{
    Context, GatedRule, Memory, Mixer,
    chunked::{Chunked, Chunks},
    gating::{Gating, RetentionForm},
    memory::{MemoryLayer, of_rule},
    packed::text_by_text,
    rule_call::{RuleCall, TextCall},
    sharded::{Sharded, Shards},
    write_inputs::{lengths_between_multiples, with_tokens},
};
use crate::{Builder, LayerCache, Parameters, Result, Tape, TntConfig, Var, config::check_same};
use hecate_core::{
    Backend, DType, Dims, Inputs, Kernel, Sequences, Tensor, memory,
    rules::{Hebbian, Matrix, WriteGates},
};

/// TNT: one global memory `V` and local memories `W_i`, all of one rule, with shared queries, keys and values and with
/// gates of their own:
///
/// ```text
/// P_t = Σ k_jᵀ k_j / |k_j|²      over the tokens j ≤ t of the shard
/// o_t = V_c(q_t) + Σ_i W_i,t(q_t P_t)
/// out = (rmsnorm(o) · silu(x W_g)) W_o
/// ```
///
/// `V_c` is the global memory at the start of `t`'s chunk of `C_G` tokens, when it has also taken the chunks before.
/// `W_i` starts from a learned state at every multiple of `S` tokens. It takes its gradients at the starts of chunks of
/// `C_i`, and is read as the rule says. `P` projects queries onto the keys that the shard has seen. It is a Hebbian
/// memory, since `|k| = 1` here. Chunks and shards are counted from the start of the text.
/// Source: "TNT: Improving Chunkwise Training for Test-Time Memorization", eqs 3–7, 13–15, and appendix C for where `P`
/// starts.
#[derive(Clone, Debug)]
pub struct Tnt<R: GatedRule> {
    /// Projections, gates and initial state of the global memory.
    memory: Memory<R>,
    /// How the global memory is written.
    global: Chunked<R>,
    locals: Vec<Local<R>>,
    /// Tokens a shard, `S`.
    shard: usize,
}

/// A local memory, with gates of its own.
#[derive(Clone, Debug)]
struct Local<R> {
    gating: Gating,
    sharded: Sharded<R>,
}

impl<R: GatedRule> Tnt<R> {
    /// Memories beside a residual stream of width `hidden`; parameters of the global one as in [`Memory`], of the
    /// local ones `locals.<i>.…`.
    ///
    /// # Errors
    /// [`Error::Config`](crate::Error::Config) for a configuration of another rule, and options that do not go together. The
    /// device's own failures.
    pub fn new<B: Backend>(
        build: &mut Builder<'_, B>,
        rule: R,
        config: &TntConfig,
        hidden: usize,
        norm_eps: f32,
    ) -> Result<Self> {
        check_same(rule, config.memory.rule)?;
        config.validate(hidden, str::to_owned)?;
        let memory = of_rule(build, rule, &config.memory, hidden, norm_eps)?;
        let (dims, heads) = (memory.layer.dims(Sequences::batch(1, 1), 1), config.memory.heads);
        let local = |(i, &chunk): (usize, &usize)| {
            let build = &mut build.within(&format!("locals.{i}"));
            let retention = RetentionForm { key: dims.key, bound: None };
            let logits = Gating::logits(build, rule, true, [hidden, heads], [dims.key, dims.value])?;
            Ok(Local {
                gating: Gating::new(build, logits, &config.memory.with_rule(rule), hidden, retention)?,
                sharded: Sharded::new(build, rule, &dims, chunk, config.shard, memory.layer.anchored)?,
            })
        };
        let locals = config.locals.iter().enumerate().map(local).collect::<Result<_>>()?;
        Ok(Self { memory, global: Chunked::new(rule, config.chunk), locals, shard: config.shard })
    }

    /// The same, of any rule.
    fn of_any<B: Backend + Kernel<R>>(&self) -> TntOfAny<'_, B> {
        let Memory { rule, layer } = &self.memory;
        let locals = self.locals.iter().map(|local| (&local.gating, local.sharded.shards())).collect();
        TntOfAny { rule, layer, global: self.global.chunks(), locals, shard: self.shard }
    }
}

/// [`Tnt`] of any rule.
struct TntOfAny<'a, B: Backend> {
    rule: &'a dyn RuleCall<B>,
    layer: &'a MemoryLayer,
    global: Chunks<'a, B>,
    locals: Vec<(&'a Gating, Shards<'a, B>)>,
    shard: usize,
}

impl<B: Backend> TntOfAny<'_, B> {
    /// A plain batch `x [B,T,hidden]`, to the same shape. Parts of the cache: the global memory, `P`, the local ones.
    fn mix(&self, tape: &Tape<'_, B>, x: &Var<B>, context: &mut Context<'_, B>) -> Result<Var<B>> {
        let Self { rule, layer, .. } = *self;
        let (q, writes) = layer.tokens(rule, tape, x, context)?;
        let state = layer.start(rule, tape, x.value().device(), context)?;
        let dims = layer.dims(context.sequences.clone(), x.axes()[1]);
        let keys = KeyProjection { shard: self.shard, dims: &dims };
        let projected = keys.project(tape, &q, writes.keys(), &mut context.part(1))?;
        let global = self.global.rule.scale_step(tape, &writes)?;
        let call = TextCall { q: &q, writes: &global, dims: &dims, anchor: &layer.anchor(rule, tape)? };
        let mut o = self.global.forward(tape, call, state, context)?;
        for (i, (gating, shards)) in self.locals.iter().enumerate() {
            // The same keys and values with gates of its own.
            let gates = gating.forward(rule, tape, x)?;
            let writes = shards.rule.scale_step(tape, &writes.with_gates(|slot, _| Ok(gates[slot].clone()))?)?;
            let call = TextCall { q: &projected, writes: &writes, dims: &dims, anchor: &shards.anchor(tape)? };
            o = tape.add(&o, &shards.forward(tape, call, &mut context.part(2 + i))?)?;
        }
        layer.output(tape, x, &o)
    }

    /// [`Mixer::cache`].
    fn cache(&self, device: &B, parameters: &Parameters<B>, batch: usize) -> Result<LayerCache<B>> {
        let dims = self.layer.dims(Sequences::batch(batch, 1), 1);
        let p = Dims { value: dims.key, ..dims.clone() }.matrices();
        let p = LayerCache::new(vec![("p", Tensor::zeros(device, p, DType::F32)?)]);
        let mut parts = vec![self.global.cache(device, &dims)?, p];
        for (_, shards) in &self.locals {
            parts.push(shards.cache(device, &dims)?);
        }
        Ok(LayerCache::new(self.layer.arrays(self.rule, device, parameters, batch)?).with_parts(parts))
    }
}

/// `P`, the Hebbian memory of the keys of a shard.
struct KeyProjection<'a> {
    /// Tokens a shard, `S`.
    shard: usize,
    /// Sizes of the call whose keys it takes.
    dims: &'a Dims,
}

impl KeyProjection<'_> {
    /// `q_t P_t`: queries projected onto the keys of the shard, `[B,T,H,K]`; the context carries `P [B,H,K,K]`.
    fn project<B: Backend>(
        &self,
        tape: &Tape<'_, B>,
        q: &Var<B>,
        k: &Var<B>,
        context: &mut Context<'_, B>,
    ) -> Result<Var<B>> {
        let (device, dims) = (q.value().device(), Dims { value: self.dims.key, ..self.dims.clone() });
        let mut p = context.state(device, "p", dims.matrices())?;
        let (mut out, mut at) = (Vec::new(), context.position % self.shard);
        let lengths = lengths_between_multiples(at, q.axes()[1], self.shard);
        for (q, k) in tape.split(q, 1, &lengths)?.into_iter().zip(tape.split(k, 1, &lengths)?) {
            if at.is_multiple_of(self.shard) {
                p = Var::constant(Tensor::zeros(device, dims.matrices(), DType::F32)?);
            }
            at += q.axes()[1];
            let dims = with_tokens(&dims, q.axes()[1]);
            // No decay and steps of one: the sum of `kᵀ k`.
            let log_a = Var::constant(Tensor::zeros(device, dims.scalars(), DType::F32)?);
            let ones = memory::filled("tnt", dims.scalars().count(), 1.0)?;
            let theta = Var::constant(Tensor::from_f32(device, dims.scalars(), ones)?);
            let (v, gates, state) = (k.clone(), WriteGates { log_a, theta }, Matrix { m: p });
            let outputs =
                tape.memory(Hebbian::default(), &dims.sequences, Inputs { q, k, v, gates, state, anchor: None })?;
            p = outputs.state.m;
            out.push(outputs.out);
        }
        context.keep("p", p.value());
        tape.concat(&out.iter().collect::<Vec<_>>(), 1)
    }
}

impl<B: Backend + Kernel<R>, R: GatedRule> Mixer<B> for Tnt<R> {
    fn forward(&self, tape: &Tape<'_, B>, x: &Var<B>, context: &mut Context<'_, B>) -> Result<Var<B>> {
        context.check(x)?;
        let tnt = self.of_any();
        text_by_text(tape, x, context, &mut |x, context| tnt.mix(tape, x, context))
    }

    fn cache(&self, device: &B, parameters: &Parameters<B>, batch: usize) -> Result<LayerCache<B>> {
        self.of_any().cache(device, parameters, batch)
    }
}
