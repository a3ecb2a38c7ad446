//! Refusing configurations that no model can be made of.

use super::{AttentionConfig, Config, MemoryConfig, MixerConfig, RuleConfig};
use crate::{Error, Result};
use hecate_core::{Dims, Rule, Sequences, for_each_rule, rules::*};

macro_rules! check_rule {
    ($config:ident, $dims:ident, $($rule:ident),*) => {
        match $config { $(RuleConfig::$rule(rule) => <$rule as Rule>::check(rule, &$dims)?),* }
    };
}

impl Config {
    /// Refuses sizes and options that do not fit together.
    ///
    /// # Errors
    /// [`Error::Config`] naming the field as a path (`layers[2].mixer.heads`), what it is and what it can be.
    pub fn validate(&self) -> Result<()> {
        at_least("vocabulary_size", self.vocabulary_size, 2)?;
        at_least("hidden_size", self.hidden_size, 1)?;
        at_least("intermediate_size", self.mlp_size(), 1)?;
        at_least("layers", self.layers.len(), 1)?;
        positive("norm_eps", self.norm_eps)?;
        positive("initializer_range", self.initializer_range)?;
        for (i, layer) in self.layers.iter().enumerate() {
            let path = |field: &str| format!("layers[{i}].mixer.{field}");
            match &layer.mixer {
                MixerConfig::Memory(memory) => memory.validate(self.hidden_size, path)?,
                MixerConfig::Attention(attention) => attention.validate(self.hidden_size, path)?,
            }
        }
        Ok(())
    }
}

impl MemoryConfig {
    fn validate(&self, hidden_size: usize, path: impl Fn(&str) -> String) -> Result<()> {
        at_least(path("heads"), self.heads, 1)?;
        if self.key_dim.is_none() || self.value_dim.is_none() {
            divides(path("heads"), self.heads, hidden_size, "key_dim and value_dim")?;
        }
        let (key, value) = self.widths(hidden_size);
        at_least(path("key_dim"), key, 1)?;
        at_least(path("value_dim"), value, 1)?;
        taps(path("conv"), self.conv)?;
        self.rule
            .check(Dims { batch: 1, tokens: 1, heads: self.heads, key, value, sequences: Sequences::batch(1, 1) })
            .map_err(|error| Error::config(path("rule"), format!("refused ({error})"), "options that go together"))
    }
}

impl RuleConfig {
    fn check(self, dims: Dims) -> hecate_core::Result<()> {
        for_each_rule!(check_rule, self, dims,);
        Ok(())
    }
}

impl AttentionConfig {
    fn validate(&self, hidden_size: usize, path: impl Fn(&str) -> String) -> Result<()> {
        at_least(path("heads"), self.heads, 1)?;
        if self.head_dim.is_none() {
            divides(path("heads"), self.heads, hidden_size, "head_dim")?;
        }
        let (kv_heads, width) = self.sizes(hidden_size);
        at_least(path("kv_heads"), kv_heads, 1)?;
        if !self.heads.is_multiple_of(kv_heads) {
            return Err(Error::config(path("kv_heads"), kv_heads, format!("a divisor of heads = {}", self.heads)));
        }
        if width == 0 || !width.is_multiple_of(2) {
            return Err(Error::config(path("head_dim"), width, "an even number over 0, for rotary positions"));
        }
        at_least(path("window"), self.window, 2)?;
        positive(path("rope_base"), self.rope_base)?;
        taps(path("conv"), self.conv)
    }
}

fn at_least(field: impl Into<String>, found: usize, least: usize) -> Result<()> {
    if found >= least {
        return Ok(());
    }
    Err(Error::config(field, found, format!("at least {least}")))
}

fn positive(field: impl Into<String>, found: f32) -> Result<()> {
    if found.is_finite() && found > 0.0 {
        return Ok(());
    }
    Err(Error::config(field, found, "a finite number over 0"))
}

fn divides(field: String, heads: usize, hidden_size: usize, instead: &str) -> Result<()> {
    if hidden_size.is_multiple_of(heads) {
        return Ok(());
    }
    Err(Error::config(field, heads, format!("a divisor of hidden_size = {hidden_size}, or {instead} given")))
}

fn taps(field: String, found: usize) -> Result<()> {
    if found != 1 {
        return Ok(());
    }
    Err(Error::config(field, found, "0 for no convolution, or at least 2 taps"))
}
