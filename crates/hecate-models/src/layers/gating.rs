//! From the residual stream to the gates of a rule.

use super::{GatedRule, Limits, Linear, rule_call::RuleCall, several_writes::Writes};
use crate::{Builder, Init, MemoryConfig, ParameterId, Result, Tape, Var};
use hecate_core::{
    Backend, DType, GateKind, GateLogit, GateSlots, Slots, Tensor,
    primitives::{Map, Transpose, map},
};

/// Elements of 16 bits that matrix units read of a row at once.
const ALIGNED: usize = 8;

/// The maps that make a rule's logits, in their order, with the width of each.
pub(super) type LogitMaps = Vec<(Linear, Option<usize>)>;

/// The forgetting gate, and the others from the rule's logits.
#[derive(Clone, Debug)]
pub(super) struct Gating {
    heads: usize,
    /// Of a head, that forget apart ([`GatedRule::channels`]).
    channels: Option<usize>,
    /// Of a token, each with logits of its own.
    writes: Writes,
    logits: LogitMaps,
    retention: Option<Retention>,
    limits: Limits,
}

/// The forgetting gate: `log a = −forgetting exp(A_log) softplus(x W_a + dt_bias)`, as in Mamba-2, or with a bound `L` on what
/// a token can forget `log a = forgetting L σ(exp(A_log) (x W_a + dt_bias))`. Where the rule forgets by channel, as in Kimi Linear,
/// a head's channels have logits and offsets of their own, and its `A_log` in common.
#[derive(Clone, Copy, Debug)]
struct Retention {
    /// `A_log [H]`.
    a_log: ParameterId,
    /// `dt_bias [H]`, or `[H·K]`.
    dt_bias: ParameterId,
    /// `a_proj`, to as many logits.
    map: Linear,
    /// `K`, where the rule forgets by channel.
    channels: Option<usize>,
    /// `L`, under 0.
    bound: Option<f32>,
    /// [`MemoryConfig::forgetting`].
    forgetting: f32,
}

/// What forgets: its channels, and the least that `log a` can be.
#[derive(Clone, Copy, Debug)]
pub(super) struct RetentionForm {
    /// Width of the rule's keys.
    pub(super) key: usize,
    /// [`MemoryForm::retention_bound`](super::MemoryForm::retention_bound).
    pub(super) bound: Option<f32>,
}

impl Retention {
    fn new<B: Backend, R: GatedRule>(
        build: &mut Builder<'_, B>,
        hidden: usize,
        config: &MemoryConfig<R>,
        RetentionForm { key, bound }: RetentionForm,
    ) -> Result<Self> {
        let MemoryConfig { heads, forgetting, horizon, .. } = *config;
        let channels = config.rule.channels(key);
        let logits = heads * channels.unwrap_or(1);
        // With a slope of 1 the offset alone decides how long a fresh head remembers.
        let slope = if horizon.is_some() || bound.is_some() { Init::Constant(0.0) } else { Init::LogSlope };
        Ok(Self {
            forgetting,
            channels,
            bound,
            a_log: build.parameter("A_log", [heads], slope)?,
            dt_bias: build.parameter("dt_bias", [logits], horizon.map_or(Init::Horizon, Init::Horizons))?,
            map: Linear::wide(build, "a_proj", hidden, logits, Init::Normal)?,
        })
    }

    /// `A_log` of each logit, `[H]` or `[H·K]`.
    fn slopes<B: Backend>(&self, tape: &Tape<'_, B>) -> Result<Var<B>> {
        let a_log = tape.parameter(self.a_log)?;
        let Some(channels) = self.channels else { return Ok(a_log) };
        let (heads, device) = (a_log.axes()[0], a_log.value().device().clone());
        // Ones of a captured step are made on the device.
        let ones = Var::constant(map(Map::Exp, &Tensor::zeros(&device, [1, channels], DType::F32)?)?);
        let all = tape.matmul(&tape.reshape(&a_log, [heads, 1])?, &ones, Transpose::default())?;
        tape.reshape(&all, [heads * channels])
    }

    /// `log a` of the map's logits `y`, both `[B,T,H]` or `[B,T,H·K]`.
    fn log_a<B: Backend>(&self, tape: &Tape<'_, B>, y: &Var<B>) -> Result<Var<B>> {
        let (a_log, dt_bias) = (self.slopes(tape)?, tape.parameter(self.dt_bias)?);
        let log_a = match self.bound {
            None => tape.retention(y, &a_log, &dt_bias)?,
            Some(bound) => {
                let slope = tape.map(Map::Exp, &a_log)?;
                let y = tape.add(&tape.cast(DType::F32, y)?, &dt_bias)?;
                tape.scale(bound, &tape.map(Map::Sigmoid, &tape.mul(&y, &slope)?)?)?
            }
        };
        if self.forgetting == 1.0 { Ok(log_a) } else { tape.scale(self.forgetting, &log_a) }
    }

    /// As [`Retention::log_a`] of one token a text, of the map's logits: what it is made of.
    fn token<B: Backend>(&self, tape: &Tape<'_, B>, x: Var<B>) -> Result<(GateLogit<Tensor<B>>, Tensor<B>)> {
        let x = x.into_value();
        let bias = tape.parameter(self.dt_bias)?.into_value();
        let a_log = tape.parameter(self.a_log)?.into_value();
        Ok((GateLogit { x, bias }, a_log))
    }
}

impl Gating {
    /// A linear map for every logit of the rule, with or without bias; `widths` are those of keys and values.
    pub(super) fn logits<B: Backend, R: GatedRule>(
        build: &mut Builder<'_, B>,
        rule: R,
        biased: bool,
        [hidden, heads]: [usize; 2],
        widths: [usize; 2],
    ) -> Result<LogitMaps> {
        logit_maps(build, R::Logits::NAMES, R::Logits::into_vec(rule.widths(widths)), biased, [hidden, heads])
    }

    /// Parameters of the forgetting gate, where the rule has one, beside those of the logits.
    pub(super) fn new<B: Backend, R: GatedRule>(
        build: &mut Builder<'_, B>,
        logits: LogitMaps,
        config: &MemoryConfig<R>,
        hidden: usize,
        form: RetentionForm,
    ) -> Result<Self> {
        let (heads, channels) = (config.heads, config.rule.channels(form.key));
        let forgets = config.decay && R::Gates::KINDS.contains(&GateKind::Retention);
        let retention = if forgets { Some(Retention::new(build, hidden, config, form)?) } else { None };
        let limits = Limits { step: config.step, momentum: config.momentum };
        Ok(Self { heads, channels, writes: Writes(config.writes_per_token), logits, retention, limits })
    }

    /// What the layer allows its memories.
    pub(super) fn limits(&self) -> Limits {
        self.limits
    }

    /// Whether kernels of a whole layer form `log a` as it does: they know of no share and of no bound.
    pub(super) fn is_plain(&self) -> bool {
        self.retention.is_none_or(|retention| retention.forgetting == 1.0 && retention.bound.is_none())
    }

    /// The gates `[B,n·T,H,..]` of tokens `x [B,T,hidden]` with `n` writes each, in 32 bits. Without retention `log a` is 0.
    pub(super) fn forward<B: Backend>(
        &self,
        rule: &dyn RuleCall<B>,
        tape: &Tape<'_, B>,
        x: &Var<B>,
    ) -> Result<Vec<Var<B>>> {
        self.of_products(rule, tape, x, self.products(tape, x)?)
    }

    /// As [`Gating::forward`], of what the maps made of `x`.
    pub(super) fn of_products<B: Backend>(
        &self,
        rule: &dyn RuleCall<B>,
        tape: &Tape<'_, B>,
        x: &Var<B>,
        products: Vec<Var<B>>,
    ) -> Result<Vec<Var<B>>> {
        let [batch, tokens] = [0, 1].map(|axis| x.axes()[axis]);
        let mut products = products.into_iter();
        // The products of the logits' maps come first, in their order.
        let logit = |((map, width), y): (&(Linear, Option<usize>), Var<B>)| {
            let (y, heads) = (map.widened(tape, &y)?, self.heads * self.writes.0);
            let y = width.map_or(Ok(y.clone()), |width| tape.reshape(&y, [batch, tokens, heads, width]))?;
            self.writes.apart(tape, y)
        };
        let logits = self.logits.iter().zip(products.by_ref()).map(logit).collect::<Result<Vec<_>>>()?;
        let axes = [&[batch, tokens, self.heads], self.channels.as_slice()].concat();
        let log_a = match (&self.retention, products.next()) {
            (Some(retention), Some(y)) if self.channels.is_some() => tape.reshape(&retention.log_a(tape, &y)?, axes)?,
            (Some(retention), Some(y)) => retention.log_a(tape, &y)?,
            _ => Var::constant(Tensor::zeros(x.value().device(), axes, DType::F32)?),
        };
        rule.gates_of(tape, self.writes.at_first(tape, log_a)?, logits, self.limits)
    }

    /// What the logits' maps, then that of the forgetting gate, make of the stream: together where a row of one alone would
    /// not suit matrix units.
    pub(super) fn products<B: Backend>(&self, tape: &Tape<'_, B>, x: &Var<B>) -> Result<Vec<Var<B>>> {
        let maps = self.maps();
        if maps.iter().all(|map| map.suits(tape, ALIGNED)) {
            return maps.iter().map(|map| map.product(tape, x)).collect();
        }
        Linear::together(tape, &maps, x, ALIGNED)
    }

    /// The maps of all logits, then that of the forgetting gate.
    pub(super) fn maps(&self) -> Vec<Linear> {
        let retention = self.retention.as_ref().map(|retention| retention.map);
        self.logits.iter().map(|(map, _)| *map).chain(retention).collect()
    }

    /// The maps of all logits, and that of the forgetting gate where there is one.
    pub(super) fn token_maps(&self) -> (Vec<Linear>, Option<Linear>) {
        (self.logits.iter().map(|(map, _)| *map).collect(), self.retention.map(|retention| retention.map))
    }

    /// As [`Gating::forward`] of one token a text, of what the maps made of it: the logits that the gates are made of.
    pub(super) fn token_logits<B: Backend>(
        &self,
        tape: &Tape<'_, B>,
        products: Vec<Var<B>>,
    ) -> Result<Vec<GateLogit<Tensor<B>>>> {
        let logit = |((map, _), x): (&(Linear, Option<usize>), Var<B>)| map.signal(tape, x);
        self.logits.iter().zip(products).map(logit).collect()
    }

    /// As [`Gating::token_logits`], of the forgetting gate: its logit and `A_log`.
    pub(super) fn token_retention<B: Backend>(
        &self,
        tape: &Tape<'_, B>,
        product: Option<Var<B>>,
    ) -> Result<Option<(GateLogit<Tensor<B>>, Tensor<B>)>> {
        self.retention.as_ref().zip(product).map(|(retention, x)| retention.token(tape, x)).transpose()
    }
}

/// A linear map for every one of these names, of its width a head.
fn logit_maps<B: Backend>(
    build: &mut Builder<'_, B>,
    names: &[&str],
    widths: Vec<Option<usize>>,
    biased: bool,
    [hidden, heads]: [usize; 2],
) -> Result<LogitMaps> {
    let make = if biased { Linear::with_bias } else { Linear::wide };
    let map = |(name, width): (&&str, Option<usize>)| {
        Ok((make(build, name, hidden, heads * width.unwrap_or(1), Init::Normal)?, width))
    };
    names.iter().zip(widths).map(map).collect()
}
