//! Mixers made of memories that are written at different times. The unit of all times is a token of the text.

use super::{
    MemoryConfig, Retain, RuleConfig,
    rule::{group, with_group},
};
use crate::{
    Error, Result,
    bounds::{CHUNK, ELEMENTS, LAYERS, SIZE, at_most, divides, product, room, taps, within},
};
use hecate_core::rules::{MomentumForm, Titans};
use serde::{Deserialize, Serialize};

/// How levels are put together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Wiring {
    /// Each level reads the sum of the mixer's input and of what the levels before it said.
    #[default]
    Chained,
    /// All levels read the mixer's input; what they say is added up with learned weights.
    Independent,
}

/// A continuum memory system: level `l` is constant for chunks of `periods[l]` tokens and written at their ends.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CmsConfig {
    /// What every level is made of; its rule exact, since the periods say how many tokens share a gradient point.
    pub memory: MemoryConfig,
    /// Tokens between two writes of each level, rising.
    pub periods: Vec<usize>,
    /// How the levels are put together.
    pub wiring: Wiring,
}

impl Default for CmsConfig {
    fn default() -> Self {
        Self { memory: MemoryConfig::default(), periods: vec![4, 16, 64], wiring: Wiring::Chained }
    }
}

/// A conductor: level `l` is written by the tokens at positions `0, periods[l], 2 periods[l], …` and read by all.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ConductorConfig {
    /// What every level is made of; its rule exact.
    pub memory: MemoryConfig,
    /// Tokens between two writes of each level, rising.
    pub periods: Vec<usize>,
    /// How the levels are put together.
    pub wiring: Wiring,
}

impl Default for ConductorConfig {
    fn default() -> Self {
        let periods = vec![1, 8, 64, 512];
        Self { memory: MemoryConfig::default(), periods, wiring: Wiring::Independent }
    }
}

/// One memory for the whole text, which changes at the ends of chunks, and local ones that forget all at the start of
/// every shard.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TntConfig {
    /// What all memories are made of; its rule exact, since the chunks say how many tokens share a gradient point.
    pub memory: MemoryConfig,
    /// Tokens a chunk of the global memory.
    pub chunk: usize,
    /// Tokens a chunk of each local memory, divisors of `shard`.
    pub locals: Vec<usize>,
    /// Tokens after which local memories start again.
    pub shard: usize,
}

impl Default for TntConfig {
    fn default() -> Self {
        Self { memory: MemoryConfig::default(), chunk: 64, locals: vec![8], shard: 64 }
    }
}

/// A self-referential memory: it makes its own keys, values and gates.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HopeConfig {
    /// Number of memories side by side.
    pub heads: usize,
    /// Width of a head's keys and values; absent: hidden size / heads.
    pub head_dim: Option<usize>,
    /// Tokens for which everything is made from the memory at their start.
    pub chunk: usize,
    /// Taps of the short convolutions on queries and inputs; 0 for none.
    pub conv: usize,
    /// Whether the output passes a gate `silu(g_proj x)`.
    pub gate: bool,
    /// Where what its memories forget goes: to their learned start, unless told otherwise. JSON without it is from before there
    /// was a choice, and means zero.
    #[serde(default = "Retain::former")]
    pub retain: Retain,
}

impl Default for HopeConfig {
    fn default() -> Self {
        Self { heads: 4, head_dim: None, chunk: 16, conv: 4, gate: true, retain: Retain::Initial }
    }
}

impl HopeConfig {
    /// Width of a head's keys and values.
    pub fn width(&self, hidden_size: usize) -> usize {
        self.head_dim.unwrap_or(hidden_size / self.heads.max(1))
    }

    /// Refuses widths that do not divide, and sizes whose products are too large. The five memories are `[D, 3D + 2]`.
    pub(crate) fn validate(&self, hidden_size: usize, path: impl Fn(&str) -> String) -> Result<()> {
        within(path("heads"), self.heads, 1..=SIZE)?;
        if self.head_dim.is_none() {
            divides(path("heads"), self.heads, hidden_size, "head_dim")?;
        }
        let width = self.width(hidden_size);
        within(path("head_dim"), width, 1..=SIZE)?;
        within(path("chunk"), self.chunk, 1..=SIZE)?;
        taps(path("conv"), self.conv)?;
        at_most(path("heads × head_dim × head_dim"), product(&[4, self.heads, width, width]), ELEMENTS)?;
        at_most(path("heads × head_dim × conv"), product(&[self.heads, width, self.conv]), ELEMENTS)?;
        // Values are as wide as three keys.
        room(path("chunk"), self.chunk, product(&[self.heads, width]), CHUNK)
    }

    /// Widths of all projections from and to the residual stream together.
    pub(super) fn inner(&self, hidden_size: usize) -> u128 {
        product(&[self.heads, 3 + usize::from(self.gate), self.width(hidden_size)])
    }
}

impl CmsConfig {
    /// With this many memories side by side, the rest at its defaults.
    pub(super) fn with_heads(heads: usize) -> Self {
        // Tokens of a chunk share a gradient point.
        Self { memory: MemoryConfig { heads, ..MemoryConfig::default() }.in_composition(2), ..Self::default() }
    }

    /// Refuses periods that do not rise, a frozen rule, and a memory that no chunk of a period could have.
    pub(crate) fn validate(&self, hidden_size: usize, path: impl Fn(&str) -> String) -> Result<()> {
        rising(&path("periods"), &self.periods)?;
        exact(&self.memory, &path, "the periods say how many tokens share a gradient point")?;
        heavy_ball(&self.memory, &path)?;
        let largest = self.periods.iter().copied().max().unwrap_or(1);
        unfinished(&self.memory, hidden_size, largest, path("periods"))?;
        self.periods.iter().try_for_each(|&period| self.memory.with_group(period).validate(hidden_size, inside(&path)))
    }
}

impl ConductorConfig {
    /// With this many memories side by side, the rest at its defaults.
    pub(super) fn with_heads(heads: usize) -> Self {
        Self { memory: MemoryConfig { heads, ..MemoryConfig::default() }.in_composition(1), ..Self::default() }
    }

    /// Refuses periods that do not rise, and a frozen rule.
    pub(crate) fn validate(&self, hidden_size: usize, path: impl Fn(&str) -> String) -> Result<()> {
        rising(&path("periods"), &self.periods)?;
        exact(&self.memory, &path, "a level is written one token at a time")?;
        self.memory.validate(hidden_size, inside(&path))
    }
}

impl TntConfig {
    /// With this many memories side by side, the rest at its defaults.
    pub(super) fn with_heads(heads: usize) -> Self {
        // Tokens of a chunk share a gradient point.
        Self { memory: MemoryConfig { heads, ..MemoryConfig::default() }.in_composition(2), ..Self::default() }
    }

    /// Refuses local chunks that do not divide the shard, and a frozen rule.
    pub(crate) fn validate(&self, hidden_size: usize, path: impl Fn(&str) -> String) -> Result<()> {
        within(path("chunk"), self.chunk, 1..=SIZE)?;
        within(path("shard"), self.shard, 1..=SIZE)?;
        within(path("locals"), self.locals.len(), 1..=LAYERS)?;
        for (i, &chunk) in self.locals.iter().enumerate() {
            within(path(&format!("locals[{i}]")), chunk, 1..=SIZE)?;
            if !self.shard.is_multiple_of(chunk) {
                let expected = format!("a divisor of shard = {}", self.shard);
                return Err(Error::config(path(&format!("locals[{i}]")), chunk, expected));
            }
        }
        exact(&self.memory, &path, "the chunks say how many tokens share a gradient point")?;
        heavy_ball(&self.memory, &path)?;
        let local = self.locals.iter().copied().max().unwrap_or(1);
        unfinished(&self.memory, hidden_size, self.chunk, path("chunk"))?;
        unfinished(&self.memory, hidden_size, local, path("locals"))?;
        let mut chunks = self.locals.iter().chain([&self.chunk]);
        chunks.try_for_each(|&chunk| self.memory.with_group(chunk).validate(hidden_size, inside(&path)))
    }
}

impl MemoryConfig {
    /// The same with one gradient point for each group of this many tokens.
    fn with_group(&self, tokens: usize) -> Self {
        Self { rule: with_group(self.rule, tokens), ..self.clone() }
    }
}

/// Paths of the memory's own fields.
fn inside(path: impl Fn(&str) -> String) -> impl Fn(&str) -> String {
    move |field| path(&format!("memory.{field}"))
}

/// Refuses periods that do not rise from at least one token.
fn rising(field: &str, periods: &[usize]) -> Result<()> {
    within(field, periods.len(), 1..=LAYERS)?;
    periods.iter().enumerate().try_for_each(|(l, &period)| within(format!("{field}[{l}]"), period, 1..=SIZE))?;
    match periods.windows(2).position(|pair| pair[1] <= pair[0]) {
        Some(l) => {
            let expected = format!("more than the period before it, {}", periods[l]);
            Err(Error::config(format!("{field}[{}]", l + 1), periods[l + 1], expected))
        }
        None => Ok(()),
    }
}

/// Refuses a frozen rule, and what takes one.
fn exact(memory: &MemoryConfig, path: impl Fn(&str) -> String, why: &str) -> Result<()> {
    memory.check_one_write(&path)?;
    memory.check_kept_as_left(&path)?;
    match group(memory.rule) {
        1 => Ok(()),
        group => Err(Error::config(path("memory.rule.frozen"), group, format!("null: {why}"))),
    }
}

/// Refuses momentum of a linear rule that looks ahead, where tokens share a gradient point.
fn heavy_ball(memory: &MemoryConfig, path: impl Fn(&str) -> String) -> Result<()> {
    match memory.rule {
        RuleConfig::Titans(Titans { momentum: MomentumForm::LookAhead, .. }) => {
            let expected = "heavy_ball: tokens of a chunk share a gradient point, which only networks look ahead from";
            Err(Error::config(path("memory.rule.momentum"), "look_ahead", expected))
        }
        _ => Ok(()),
    }
}

/// Refuses chunks of more tokens than anything can remember the writes of.
fn unfinished(memory: &MemoryConfig, hidden_size: usize, tokens: usize, field: String) -> Result<()> {
    let (key, value) = memory.widths(hidden_size);
    room(field, tokens, product(&[memory.heads, key.max(value)]), CHUNK)
}
