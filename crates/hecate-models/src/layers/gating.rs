//! From the residual stream to the gates of a rule.

use super::{GateInputs, GatedRule, Limits, Linear};
use crate::{Builder, Error, Init, MemoryConfig, ParameterId, Result, Tape, Var};
use hecate_core::{Backend, DType, GateKind, GateLogit, GateSlots, Of, Slots, Tensor, TokenGates};

/// Elements of 16 bits that matrix units read of a row at once.
const ALIGNED: usize = 8;

/// The maps that make a rule's logits, in their order, with the width of each.
pub(super) type LogitMaps = Vec<(Linear, Option<usize>)>;

/// The forgetting gate, and the others from the rule's logits.
#[derive(Clone, Debug)]
pub(super) struct Gating<R> {
    rule: R,
    heads: usize,
    logits: LogitMaps,
    retention: Option<Retention>,
    limits: Limits,
}

/// Parameters of the forgetting gate: `log a = −exp(A_log) softplus(x W_a + dt_bias)`, as in Mamba-2.
#[derive(Clone, Copy, Debug)]
struct Retention {
    /// `A_log [H]`.
    a_log: ParameterId,
    /// `dt_bias [H]`.
    dt_bias: ParameterId,
    /// `a_proj`, to a logit a head.
    map: Linear,
}

impl Retention {
    fn new<B: Backend>(build: &mut Builder<'_, B>, hidden: usize, heads: usize) -> Result<Self> {
        Ok(Self {
            a_log: build.parameter("A_log", [heads], Init::LogSlope)?,
            dt_bias: build.parameter("dt_bias", [heads], Init::Horizon)?,
            map: Linear::new(build, "a_proj", hidden, heads, Init::Normal)?,
        })
    }

    /// `log a [B,T,H]` of the map's logits `y [B,T,H]`.
    fn log_a<B: Backend>(&self, tape: &Tape<'_, B>, y: &Var<B>) -> Result<Var<B>> {
        tape.retention(y, &tape.parameter(self.a_log)?, &tape.parameter(self.dt_bias)?)
    }

    /// As [`Retention::log_a`] of one token a text: what it is made of.
    fn token<B: Backend>(&self, tape: &Tape<'_, B>, x: &Var<B>) -> Result<(GateLogit<Tensor<B>>, Tensor<B>)> {
        let x = self.map.forward_wide(tape, x)?.into_value();
        let bias = tape.parameter(self.dt_bias)?.into_value();
        let a_log = tape.parameter(self.a_log)?.into_value();
        Ok((GateLogit { x, bias }, a_log))
    }
}

impl<R: GatedRule> Gating<R> {
    /// A linear map with bias for every logit of the rule.
    pub(super) fn logits<B: Backend>(
        build: &mut Builder<'_, B>,
        rule: R,
        hidden: usize,
        heads: usize,
    ) -> Result<LogitMaps> {
        let logit = |(name, &width): (&str, &Option<usize>)| {
            Ok((Linear::with_bias(build, name, hidden, heads * width.unwrap_or(1), Init::Normal)?, width))
        };
        R::Logits::list(&rule.widths()).into_iter().map(logit).collect()
    }

    /// Parameters of the forgetting gate, where the rule has one, beside those of the logits.
    pub(super) fn new<B: Backend, T>(
        build: &mut Builder<'_, B>,
        rule: R,
        logits: LogitMaps,
        config: &MemoryConfig<T>,
        hidden: usize,
    ) -> Result<Self> {
        let heads = config.heads;
        let forgets = config.decay && R::Gates::KINDS.contains(&GateKind::Retention);
        let retention = if forgets { Some(Retention::new(build, hidden, heads)?) } else { None };
        let limits = Limits { step: config.step, momentum: config.momentum };
        Ok(Self { rule, heads, logits, retention, limits })
    }

    /// The gates `[B,T,H,..]` of tokens `x [B,T,hidden]`, in 32 bits. Without retention `log a` is 0.
    pub(super) fn forward<B: Backend>(&self, tape: &Tape<'_, B>, x: &Var<B>) -> Result<Of<R::Gates, Var<B>>> {
        let mut products = self.products(tape, x)?.into_iter();
        let mut maps = self.logits.iter();
        let logits = R::Logits::try_build(|_| {
            // One linear map was made for each logit, in this order.
            let (map, width) = maps.next().expect("a linear map for every logit");
            let y = map.widened(tape, &products.next().expect("a product of every map"))?;
            width.map_or(Ok(y.clone()), |width| tape.reshape(&y, [x.axes()[0], x.axes()[1], self.heads, width]))
        })?;
        let log_a = match (&self.retention, products.next()) {
            (Some(retention), Some(y)) => retention.log_a(tape, &y)?,
            _ => {
                let shape = [x.axes()[0], x.axes()[1], self.heads];
                Var::constant(Tensor::zeros(x.value().device(), shape, DType::F32)?)
            }
        };
        self.rule.gates_of(GateInputs { tape, log_a, logits, limits: self.limits })
    }

    /// What the logits' maps, then that of the forgetting gate, make of the stream: together where a row of one alone would
    /// not suit matrix units.
    fn products<B: Backend>(&self, tape: &Tape<'_, B>, x: &Var<B>) -> Result<Vec<Var<B>>> {
        let retention = self.retention.as_ref().map(|retention| retention.map);
        let maps: Vec<Linear> = self.logits.iter().map(|(map, _)| *map).chain(retention).collect();
        if maps.iter().all(|map| map.suits(tape, ALIGNED)) {
            return maps.iter().map(|map| map.product(tape, x)).collect();
        }
        Linear::together(tape, &maps, x, ALIGNED)
    }

    /// Whether [`Gating::token`] knows the rule's gates.
    pub(super) fn has_token(&self) -> bool {
        self.rule.strengths(R::Logits::build(|_| GateLogit { x: (), bias: () }), self.limits).is_some()
    }

    /// As [`Gating::forward`] of one token a text, `x [N,1,hidden]`: what the gates are made of.
    pub(super) fn token<B: Backend>(&self, tape: &Tape<'_, B>, x: &Var<B>) -> Result<Option<TokenGates<Tensor<B>>>> {
        let mut maps = self.logits.iter();
        let logits = R::Logits::try_build(|_| {
            let (map, _) = maps.next().expect("a linear map for every logit");
            map.signal(tape, x)?.ok_or_else(|| Error::config("logit", "a map without bias", "one with"))
        })?;
        let Some((write, strengths)) = self.rule.strengths(logits, self.limits) else { return Ok(None) };
        let retention = self.retention.as_ref().map(|retention| retention.token(tape, x)).transpose()?;
        Ok(Some(TokenGates { retention, write, strengths }))
    }
}
