//! From the residual stream to the gates of a rule.

use super::{GatedRule, Limits, Linear};
use crate::{Builder, Error, Init, MemoryConfig, ParameterId, Result, Tape, Var};
use hecate_core::{Backend, DType, Of, Signal, Slots, Tensor, TokenGates};

/// Numbers of 16 bits that matrix units read of a row at once.
const ALIGNED: usize = 8;

/// The maps that make a rule's signals, in their order, with the width of each.
pub(super) type Signals = Vec<(Linear, Option<usize>)>;

/// The forgetting gate, and the others from the rule's signals.
#[derive(Clone, Debug)]
pub(super) struct Gating<R> {
    rule: R,
    heads: usize,
    signals: Signals,
    retention: Option<Retention>,
    limits: Limits,
}

/// Parameters of the forgetting gate.
#[derive(Clone, Copy, Debug)]
struct Retention {
    slope: ParameterId,
    offset: ParameterId,
    map: Linear,
}

impl Retention {
    fn new<B: Backend>(build: &mut Builder<'_, B>, hidden: usize, heads: usize) -> Result<Self> {
        Ok(Self {
            slope: build.parameter("A_log", [heads], Init::LogSlope)?,
            offset: build.parameter("dt_bias", [heads], Init::Horizon)?,
            map: Linear::new(build, "a_proj", hidden, heads, Init::Normal)?,
        })
    }

    /// `log a [B,T,H]` of what the map makes of the stream.
    fn log_a<B: Backend>(&self, tape: &Tape<'_, B>, y: &Var<B>) -> Result<Var<B>> {
        let [slope, offset] = [self.slope, self.offset].map(|id| tape.parameter(id));
        tape.retention(y, &slope, &offset)
    }

    /// As [`Retention::log_a`] of one token a text: what it is made of.
    fn token<B: Backend>(&self, tape: &Tape<'_, B>, x: &Var<B>) -> Result<(Signal<Tensor<B>>, Tensor<B>)> {
        let x = self.map.forward_wide(tape, x)?.into_value();
        let [bias, slope] = [self.offset, self.slope].map(|id| tape.parameter(id).into_value());
        Ok((Signal { x, bias }, slope))
    }
}

impl<R: GatedRule> Gating<R> {
    /// A linear map with bias for every signal of the rule.
    pub(super) fn signals<B: Backend>(
        build: &mut Builder<'_, B>,
        rule: R,
        hidden: usize,
        heads: usize,
    ) -> Result<Signals> {
        let signal = |(name, &width): (&str, &Option<usize>)| {
            Ok((Linear::with_bias(build, name, hidden, heads * width.unwrap_or(1), Init::Normal)?, width))
        };
        R::Signals::list(&rule.widths()).into_iter().map(signal).collect()
    }

    /// Parameters of the forgetting gate, beside those of the signals.
    pub(super) fn new<B: Backend>(
        build: &mut Builder<'_, B>,
        rule: R,
        signals: Signals,
        config: &MemoryConfig,
        hidden: usize,
    ) -> Result<Self> {
        let heads = config.heads;
        let retention = if config.decay { Some(Retention::new(build, hidden, heads)?) } else { None };
        let limits = Limits { step: config.step, momentum: config.momentum };
        Ok(Self { rule, heads, signals, retention, limits })
    }

    /// The gates of tokens `x [B,T,hidden]`.
    pub(super) fn forward<B: Backend>(&self, tape: &Tape<'_, B>, x: &Var<B>) -> Result<Of<R::Gates, Var<B>>> {
        let mut products = self.products(tape, x)?.into_iter();
        let mut maps = self.signals.iter();
        let signals = R::Signals::try_build(|_| {
            // One linear map was made for each signal, in this order.
            let (map, width) = maps.next().expect("a linear map for every signal");
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
        self.rule.gates_of(tape, log_a, signals, self.limits)
    }

    /// What the signals' maps, then that of the forgetting gate, make of the stream: together where a row of one alone would
    /// not suit matrix units.
    fn products<B: Backend>(&self, tape: &Tape<'_, B>, x: &Var<B>) -> Result<Vec<Var<B>>> {
        let retention = self.retention.as_ref().map(|retention| retention.map);
        let maps: Vec<Linear> = self.signals.iter().map(|(map, _)| *map).chain(retention).collect();
        if maps.iter().all(|map| map.suits(tape, ALIGNED)) {
            return maps.iter().map(|map| map.product(tape, x)).collect();
        }
        Linear::together(tape, &maps, x, ALIGNED)
    }

    /// Whether [`Gating::token`] knows the rule's gates.
    pub(super) fn has_token(&self) -> bool {
        self.rule.strengths(R::Signals::build(|_| Signal { x: (), bias: () }), self.limits).is_some()
    }

    /// As [`Gating::forward`] of one token a text, `x [N,1,hidden]`: what the gates are made of.
    pub(super) fn token<B: Backend>(&self, tape: &Tape<'_, B>, x: &Var<B>) -> Result<Option<TokenGates<Tensor<B>>>> {
        let mut maps = self.signals.iter();
        let signals = R::Signals::try_build(|_| {
            let (map, _) = maps.next().expect("a linear map for every signal");
            map.signal(tape, x)?.ok_or_else(|| Error::config("signal", "a map without bias", "one with"))
        })?;
        let Some((write, strengths)) = self.rule.strengths(signals, self.limits) else { return Ok(None) };
        let retention = self.retention.as_ref().map(|retention| retention.token(tape, x)).transpose()?;
        Ok(Some(TokenGates { retention, write, strengths }))
    }
}
