//! Mamba-2 as a layer: a Hebbian memory whose steps say how much it forgets, too.

use super::{
    Context, Counts, Linear, Mixer, ShortConv,
    rule_call::{RuleCall, run},
    write_inputs::WriteInputs,
};
use crate::{
    Builder, Error, Init, LayerCache, ParameterId, Parameters, Result, Tape, Var,
    bounds::{ELEMENTS, SIZE, at_most, product, within},
};
use hecate_core::{
    Backend, DType, Dims, Read, Sequences, Shape, Tensor,
    primitives::{self, GatePlace, Map, Transpose},
    rules::Hebbian,
};

/// What tokens read is what they wrote as well.
const RULE: Hebbian = Hebbian { read: Read::After };

/// Sizes and options of a [`Mamba2`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mamba2Config {
    /// Width of the residual stream.
    pub hidden: usize,
    /// Memories side by side, `H`.
    pub heads: usize,
    /// Width of a head's values, `P`.
    pub value: usize,
    /// Width of keys and queries, `N`.
    pub key: usize,
    /// Heads of keys and queries `G`, a divisor of `H`: neighbours among the memories share them.
    pub groups: usize,
    /// Taps of the convolution, at least 2.
    pub taps: usize,
    /// Whether the convolution has a bias.
    pub conv_bias: bool,
    /// Where the gate of what is read stands to its norm; none without a norm.
    pub norm: Option<GatePlace>,
    /// What `z`, `x`, `B`, `C` and `dt` are times as they come from the map.
    pub factors: [f32; 5],
    /// Added to mean squares of what is read.
    pub norm_eps: f32,
}

impl Mamba2Config {
    /// Width of all values, `H · P`.
    fn inner(&self) -> usize {
        self.heads * self.value
    }

    /// Width of all keys, `G · N`.
    fn keys(&self) -> usize {
        self.groups * self.key
    }

    /// Refuses sizes that nothing has, and memories that cannot share keys so.
    ///
    /// # Errors
    /// [`Error::Config`] naming the size.
    pub(crate) fn check(&self) -> Result<()> {
        let Self { hidden, heads, value, key, groups, taps, .. } = *self;
        let sizes = [("hidden", hidden), ("heads", heads), ("head's values", value), ("head's keys", key)];
        sizes.into_iter().try_for_each(|(name, size)| within(name, size, 1..=SIZE))?;
        within("taps", taps, 2..=SIZE)?;
        if let Some(factor) = self.factors.iter().find(|factor| !factor.is_finite()) {
            return Err(Error::config("factor of a memory's inputs", factor, "a finite number"));
        }
        if groups == 0 || !heads.is_multiple_of(groups) {
            return Err(Error::config("heads of keys", groups, format!("a divisor of the {heads} heads")));
        }
        at_most("elements of a map", product(&[hidden, heads, value]), ELEMENTS / 4)?;
        at_most("elements of a map", product(&[hidden, groups, key]), ELEMENTS / 4)?;
        at_most("elements of a memory", product(&[heads, key, value]), ELEMENTS)
    }
}

/// Memories `[N,P]` that are written by `k = B` and `v = x`, and read by `q = C`:
///
/// ```text
/// z ‖ x ‖ B ‖ C ‖ dt = u W_in       x, B, C = silu(conv(x ‖ B ‖ C) + bias)
/// dt = softplus(dt + dt_bias)       log a = −exp(A_log) dt        one a head
/// M = a M + dt Bᵀ x                 o = C M + D x
/// y = (rmsnorm(o · silu(z)) · w) W_out      a norm for each group of H / G heads
/// ```
///
/// Elsewhere the gate comes after the norm, or there is no norm ([`Mamba2Config::norm`]).
///
/// Parameters `in_proj`, `conv1d`, `dt_bias [H]`, `A_log [H]`, `D [H]`, `norm.weight [H · P]` with a norm, and `out_proj`.
/// Source: Dao and Gu, "Transformers are SSMs", as transformers has it.
#[derive(Clone, Copy, Debug)]
pub struct Mamba2 {
    config: Mamba2Config,
    inward: Linear,
    conv: ShortConv,
    dt_bias: ParameterId,
    a_log: ParameterId,
    /// `D`: how much of its value a token reads beside the memory.
    skip: ParameterId,
    /// Of all heads, `[H · P]`; none without a norm.
    norm: Option<ParameterId>,
    back: Linear,
    /// Share of what is projected back that is dropped.
    dropout: f32,
}

impl Mamba2 {
    /// A layer beside a residual stream.
    ///
    /// # Errors
    /// [`Error::Config`] for sizes that nothing has and keys that cannot be shared so; the device's own failures.
    pub fn new<B: Backend>(build: &mut Builder<'_, B>, config: Mamba2Config) -> Result<Self> {
        config.check()?;
        let Mamba2Config { hidden, heads, taps, .. } = config;
        let (inner, convolved) = (config.inner(), config.inner() + 2 * config.keys());
        let conv = if config.conv_bias { ShortConv::with_bias } else { ShortConv::new };
        Ok(Self {
            config,
            inward: Linear::new(build, "in_proj", hidden, inner + convolved + heads, Init::Normal)?,
            conv: conv(build, "conv1d", convolved, taps)?,
            dt_bias: build.parameter("dt_bias", [heads], Init::Horizon)?,
            a_log: build.parameter("A_log", [heads], Init::LogSlope)?,
            skip: build.parameter("D", [heads], Init::Constant(1.0))?,
            norm: match config.norm {
                Some(_) => Some(build.within("norm").parameter("weight", [inner], Init::Constant(1.0))?),
                None => None,
            },
            back: Linear::new(build, "out_proj", inner, hidden, Init::Residual)?,
            dropout: build.dropout().attention,
        })
    }

    /// Names and shapes of what is remembered of these texts.
    fn state<B: Backend>(&self, sequences: Sequences) -> Vec<(&'static str, Shape)> {
        let Mamba2Config { heads, key, value, .. } = self.config;
        let batch = sequences.count();
        let dims = Dims { batch, tokens: 1, heads, key, value, sequences, anchored: false };
        let rule: &dyn RuleCall<B> = &RULE;
        rule.state_names().iter().copied().zip(rule.state_shapes(&dims)).collect()
    }

    /// `log a` and the steps, both `[B,T,H]` in 32 bits, of the map's logits.
    fn gates<B: Backend>(&self, tape: &Tape<'_, B>, dt: &Var<B>) -> Result<Vec<Var<B>>> {
        let dt = tape.add(&tape.cast(DType::F32, dt)?, &tape.parameter(self.dt_bias)?)?;
        let dt = tape.map(Map::Softplus, &dt)?;
        let slope = tape.scale(-1.0, &tape.map(Map::Exp, &tape.parameter(self.a_log)?)?)?;
        Ok(vec![tape.mul(&dt, &slope)?, dt])
    }

    /// `D x` of values `[B,T,H,P]`.
    fn skipped<B: Backend>(&self, tape: &Tape<'_, B>, v: &Var<B>) -> Result<Var<B>> {
        let Mamba2Config { heads, value, .. } = self.config;
        let column = tape.reshape(&tape.parameter(self.skip)?, [heads, 1])?;
        let each = tape.matmul(&column, &ones(v.value().device(), [1, value])?, Transpose::default())?;
        tape.mul(v, &tape.cast(v.value().dtype(), &each)?)
    }

    /// What was read `[B,T,H,P]`, gated by `z [B,T,H·P]` and normed: `[B,T,H·P]`.
    fn output<B: Backend>(&self, tape: &Tape<'_, B>, read: &Var<B>, z: &Var<B>) -> Result<Var<B>> {
        let read = tape.reshape(read, z.axes())?;
        let gated = |x: &Var<B>| tape.gated(Map::Silu, x, z);
        match (self.norm, self.config.norm) {
            (Some(weight), Some(GatePlace::After)) => gated(&self.normed(tape, weight, &read)?),
            (Some(weight), _) => self.normed(tape, weight, &gated(&read)?),
            (None, _) => gated(&read),
        }
    }

    /// `x [B,T,H·P]` after a norm of each group, times `weight [H·P]`.
    fn normed<B: Backend>(&self, tape: &Tape<'_, B>, weight: ParameterId, x: &Var<B>) -> Result<Var<B>> {
        let Mamba2Config { groups, norm_eps, .. } = self.config;
        let width = self.config.inner() / groups;
        let of_groups = tape.reshape(x, [x.axes()[0], x.axes()[1], groups, width])?;
        let plain = tape.cast(x.value().dtype(), &ones(x.value().device(), [width])?)?;
        let normed = tape.reshape(&tape.rms_norm(&of_groups, &plain, norm_eps)?, x.axes())?;
        tape.mul(&normed, &tape.weight(weight)?)
    }

    /// `z [B,T,H·P]`, `x ‖ B ‖ C` and `dt [B,T,H]` of the tokens `[B,T,hidden]`, times their factors.
    fn projected<B: Backend>(&self, tape: &Tape<'_, B>, x: &Var<B>) -> Result<[Var<B>; 3]> {
        let (inner, keys, factors) = (self.config.inner(), self.config.keys(), self.config.factors);
        let y = self.inward.forward(tape, x)?;
        if factors[1..4] == [1.0; 3] {
            let parts = tape.split(&y, 2, &[inner, inner + 2 * keys, self.config.heads])?;
            return Ok([tape.scale(factors[0], &parts[0])?, parts[1].clone(), tape.scale(factors[4], &parts[2])?]);
        }
        let parts = tape.split(&y, 2, &[inner, inner, keys, keys, self.config.heads])?;
        let parts = parts.iter().zip(factors).map(|(part, factor)| tape.scale(factor, part));
        let parts = parts.collect::<Result<Vec<_>>>()?;
        Ok([parts[0].clone(), tape.concat(&[&parts[1], &parts[2], &parts[3]], 2)?, parts[4].clone()])
    }
}

/// Ones, made on the device, since a captured step does not hear from the host.
fn ones<B: Backend>(device: &B, shape: impl Into<Shape>) -> Result<Var<B>> {
    Ok(Var::constant(primitives::map(Map::Exp, &Tensor::zeros(device, shape, DType::F32)?)?))
}

impl<B: Backend> Mixer<B> for Mamba2 {
    fn forward(&self, tape: &Tape<'_, B>, x: &Var<B>, context: &mut Context<'_, B>) -> Result<Var<B>> {
        context.check(x)?;
        let Mamba2Config { heads, value, key, groups, .. } = self.config;
        let ([batch, tokens], inner, keys) =
            ([0, 1].map(|axis| x.axes()[axis]), self.config.inner(), self.config.keys());
        let [z, xbc, dt] = self.projected(tape, x)?;
        let convolved = self.conv.forward(tape, &xbc, context)?;
        let written = tape.split(&convolved, 2, &[inner, keys, keys])?;
        let shared = |y: &Var<B>| tape.repeat_heads(&tape.reshape(y, [batch, tokens, groups, key])?, heads / groups);
        let v = tape.reshape(&written[0], [batch, tokens, heads, value])?;
        let (k, q) = (shared(&written[1])?, shared(&written[2])?);
        let names = self.state::<B>(context.sequences.clone());
        let state = names.iter().map(|(name, shape)| context.state(x.value().device(), name, shape.clone()));
        let state = state.collect::<Result<_>>()?;
        let writes = WriteInputs::new(k, v.clone(), self.gates(tape, &dt)?);
        let outputs = run(&RULE, tape, &context.sequences, Some(&q), &writes, (state, &Vec::new()))?;
        names.iter().zip(&outputs.state).for_each(|((name, _), last)| context.carry(name, last));
        let read = tape.add(&outputs.out, &self.skipped(tape, &v)?)?;
        let y = self.output(tape, &read, &z)?;
        self.back.forward(tape, &tape.dropout(self.dropout, &y)?)
    }

    /// The last inputs of the convolution, and the memories `[N,H,N,P]` of all heads.
    fn cache(&self, device: &B, _: &Parameters<B>, batch: usize) -> Result<LayerCache<B>> {
        let mut arrays = vec![self.conv.cache(device, batch)?];
        for (name, shape) in self.state::<B>(Sequences::batch(batch, 1)) {
            arrays.push((name, Tensor::zeros(device, shape, DType::F32)?));
        }
        Ok(LayerCache::new(arrays))
    }

    /// The work is the same wherever a call stands.
    fn counts(&self) -> Counts {
        Counts::Nobody
    }
}
