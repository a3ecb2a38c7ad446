//! Memories in parallel or in series, each with a clock of its own.

use super::{
    Context, GatedRule, Memory, Mixer, RmsNorm,
    chunked::{Chunked, Chunks},
    memory::{MemoryLayer, of_rule},
    packed::text_by_text,
    periodic_update::{PeriodicUpdate, Updates},
    rule_call::{RuleCall, TextCall},
};
use crate::{
    Builder, CmsConfig, ConductorConfig, Init, LayerCache, MemoryConfig, ParameterId, Parameters, Result, Tape, Var,
    Wiring, config::check_same,
};
use hecate_core::{Backend, Kernel, Sequences};

/// When a level is written.
#[derive(Clone, Copy, Debug)]
enum Clock<R> {
    /// Chunk by chunk.
    Chunks(Chunked<R>),
    /// By every so many tokens.
    Periodic(PeriodicUpdate<R>),
}

/// A memory with projections and gates of its own, written on a clock.
#[derive(Clone, Debug)]
struct Level<R: GatedRule> {
    memory: Memory<R>,
    clock: Clock<R>,
    /// Before a level that reads what other levels say.
    norm: Option<RmsNorm>,
    /// Weight `[hidden]` of its output beside those of other levels.
    weight: Option<ParameterId>,
}

/// What all levels of one mixer have in common.
struct LevelsSpec<'a, R> {
    rule: R,
    memory: &'a MemoryConfig,
    /// Tokens between writes, level by level.
    periods: &'a [usize],
    wiring: Wiring,
    /// Width of the residual stream.
    hidden: usize,
    /// `ε` of norms.
    norm_eps: f32,
}

/// Levels: memories that are written every `C₁ < C₂ < …` tokens. The step is a token of the text, counted from the
/// text's start, also while decoding.
///
/// * **Continuum memory system** ([`Levels::cms`]): level `l` is constant for chunks of `C_l` tokens, and has taken the
///   chunk's writes, their gradients taken at the chunk's start, at its end. Behrouz et al., "Nested Learning" (HOPE),
///   eqs 70–74, with memories of any rule instead of MLPs.
/// * **Conductor** ([`Levels::conductor`]): level `l` is written by the tokens at multiples of `C_l` and read by all.
///   Its writes cost `Σ 1/C_l` of a plain memory's: 1.143 for 1, 8, 64, 512.
///
/// With `y_l = level_l(·)`, [`Wiring::Independent`] is `Σ_l w_l ∘ y_l(x)` with learned weights, and
/// [`Wiring::Chained`] is `Σ_l y_l(norm_l(x + y_1 + … + y_{l−1}))`, the first level without a norm.
#[derive(Clone, Debug)]
pub struct Levels<R: GatedRule>(Vec<Level<R>>);

impl<R: GatedRule> Levels<R> {
    /// A continuum memory system beside a residual stream of width `hidden`; parameters `levels.<l>.…`.
    ///
    /// # Errors
    /// [`Error::Config`](crate::Error::Config) for a configuration of another rule, and options that do not go together. The
    /// device's own failures.
    pub fn cms<B: Backend>(
        build: &mut Builder<'_, B>,
        rule: R,
        config: &CmsConfig,
        hidden: usize,
        norm_eps: f32,
    ) -> Result<Self> {
        check_same(rule, config.memory.rule)?;
        config.validate(hidden, str::to_owned)?;
        let CmsConfig { memory, periods, wiring, .. } = config;
        let spec = LevelsSpec { rule, memory, periods, wiring: *wiring, hidden, norm_eps };
        Self::new(build, &spec, |period| Clock::Chunks(Chunked::new(rule, period)))
    }

    /// A conductor beside a residual stream of width `hidden`; parameters `levels.<l>.…`.
    ///
    /// # Errors
    /// [`Error::Config`](crate::Error::Config) for a configuration of another rule, and options that do not go together. The
    /// device's own failures.
    pub fn conductor<B: Backend>(
        build: &mut Builder<'_, B>,
        rule: R,
        config: &ConductorConfig,
        hidden: usize,
        norm_eps: f32,
    ) -> Result<Self> {
        check_same(rule, config.memory.rule)?;
        config.validate(hidden, str::to_owned)?;
        let ConductorConfig { memory, periods, wiring, .. } = config;
        let spec = LevelsSpec { rule, memory, periods, wiring: *wiring, hidden, norm_eps };
        Self::new(build, &spec, |period| Clock::Periodic(PeriodicUpdate::new(rule, period)))
    }

    /// One level a period; chained levels after the first have a norm, independent ones a weight.
    fn new<B: Backend>(
        build: &mut Builder<'_, B>,
        spec: &LevelsSpec<'_, R>,
        clock: impl Fn(usize) -> Clock<R>,
    ) -> Result<Self> {
        let LevelsSpec { rule, memory, periods, wiring, hidden, norm_eps } = *spec;
        let chained = wiring == Wiring::Chained;
        let level = |(l, &period): (usize, &usize)| {
            let build = &mut build.within(&format!("levels.{l}"));
            let norm = if chained && l > 0 { Some(RmsNorm::new(build, "norm", hidden, norm_eps)?) } else { None };
            let scale = Init::Constant(1.0);
            let weight = if chained { None } else { Some(build.parameter("weight", [hidden], scale)?) };
            let memory = of_rule(build, rule, memory, hidden, norm_eps)?;
            Ok(Level { memory, clock: clock(period), norm, weight })
        };
        Ok(Self(periods.iter().enumerate().map(level).collect::<Result<_>>()?))
    }
}

impl<R: GatedRule> Level<R> {
    /// The same, of any rule.
    fn of_any<B: Backend + Kernel<R>>(&self) -> LevelOfAny<'_, B> {
        let clock = match &self.clock {
            Clock::Chunks(chunked) => ClockOfAny::Chunks(chunked.chunks()),
            Clock::Periodic(update) => ClockOfAny::Periodic(update.updates()),
        };
        LevelOfAny {
            rule: &self.memory.rule,
            layer: &self.memory.layer,
            clock,
            norm: self.norm.as_ref(),
            weight: self.weight,
        }
    }
}

/// [`Clock`] of any rule.
enum ClockOfAny<'a, B: Backend> {
    Chunks(Chunks<'a, B>),
    Periodic(Updates<'a, B>),
}

/// [`Level`] of any rule.
struct LevelOfAny<'a, B: Backend> {
    rule: &'a dyn RuleCall<B>,
    layer: &'a MemoryLayer,
    clock: ClockOfAny<'a, B>,
    norm: Option<&'a RmsNorm>,
    weight: Option<ParameterId>,
}

impl<B: Backend> LevelOfAny<'_, B> {
    /// What the level says of `x [B,T,hidden]`, of the same shape, a plain batch.
    fn forward(&self, tape: &Tape<'_, B>, x: &Var<B>, context: &mut Context<'_, B>) -> Result<Var<B>> {
        let Self { rule, layer, .. } = *self;
        let (q, mut writes) = layer.tokens(rule, tape, x, context)?;
        let state = layer.start(rule, tape, x.value().device(), context)?;
        let dims = layer.dims(context.sequences.clone(), x.axes()[1]);
        if let ClockOfAny::Chunks(chunks) = &self.clock {
            writes = chunks.rule.scale_step(tape, &writes)?;
        }
        let anchor = layer.anchor(rule, tape)?;
        let call = TextCall { q: &q, writes: &writes, dims: &dims, anchor: &anchor };
        let read = match &self.clock {
            ClockOfAny::Chunks(chunks) => chunks.forward(tape, call, state, context)?,
            ClockOfAny::Periodic(updates) => updates.forward(tape, call, state, context)?,
        };
        let y = layer.output(tape, x, &read)?;
        self.weight.map_or(Ok(y.clone()), |weight| tape.mul(&y, &tape.weight(weight)?))
    }

    /// What the level remembers of `batch` texts: its memory's arrays, and the unfinished chunk where it has chunks.
    fn cache(&self, device: &B, parameters: &Parameters<B>, batch: usize) -> Result<LayerCache<B>> {
        let cache = LayerCache::new(self.layer.arrays(self.rule, device, parameters, batch)?);
        Ok(match &self.clock {
            ClockOfAny::Chunks(chunks) => {
                let dims = self.layer.dims(Sequences::batch(batch, 1), 1);
                cache.with_parts(vec![chunks.cache(device, &dims)?])
            }
            ClockOfAny::Periodic(_) => cache,
        })
    }
}

/// [`Levels`] of any rule: `x [B,T,hidden]` to the same shape.
fn forward<B: Backend>(
    levels: &[LevelOfAny<'_, B>],
    tape: &Tape<'_, B>,
    x: &Var<B>,
    context: &mut Context<'_, B>,
) -> Result<Var<B>> {
    context.check(x)?;
    text_by_text(tape, x, context, &mut |x, context| {
        let mut sum: Option<Var<B>> = None;
        for (l, level) in levels.iter().enumerate() {
            let input = match (level.norm, &sum) {
                (Some(norm), Some(said)) => norm.forward(tape, &tape.add(x, said)?)?,
                _ => x.clone(),
            };
            let y = level.forward(tape, &input, &mut context.part(l))?;
            sum = Some(sum.map_or_else(|| Ok(y.clone()), |said| tape.add(&said, &y))?);
        }
        Ok(sum.unwrap_or_else(|| x.clone()))
    })
}

impl<B: Backend + Kernel<R>, R: GatedRule> Mixer<B> for Levels<R> {
    fn forward(&self, tape: &Tape<'_, B>, x: &Var<B>, context: &mut Context<'_, B>) -> Result<Var<B>> {
        forward(&self.0.iter().map(Level::of_any).collect::<Vec<_>>(), tape, x, context)
    }

    fn cache(&self, device: &B, parameters: &Parameters<B>, batch: usize) -> Result<LayerCache<B>> {
        let levels =
            self.0.iter().map(|level| level.of_any().cache(device, parameters, batch)).collect::<Result<_>>()?;
        Ok(LayerCache::new(Vec::new()).with_parts(levels))
    }
}
