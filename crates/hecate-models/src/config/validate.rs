//! Refusing configurations that no model can be made of.

use super::{
    AttentionConfig, CmsConfig, ComposedConfig, ConductorConfig, Config, Features, LayerConfig, MacConfig,
    MemoryConfig, MixerConfig, Retain, RuleConfig,
    rule::{Elements, group},
};
use crate::{
    Error, Result,
    bounds::{ELEMENTS, LAYERS, SIZE, WINDOW, at_most, divides, product, room, taps, within},
};
use hecate_core::{Dims, Sequences, rules::Erase};

/// Most writes of a token, each of which costs as much as a token of one.
const WRITES: usize = 64;

/// Widest keys that polynomial features are made of: half a million features.
const POLY2: usize = 1024;

impl Config {
    /// Refuses sizes and options that do not fit together.
    ///
    /// # Errors
    /// [`Error::Config`] naming the field as a path (`layers[2].mixer.heads`), what it is and what it can be.
    pub fn validate(&self) -> Result<()> {
        within("vocabulary_size", self.vocabulary_size, 2..=SIZE)?;
        within("hidden_size", self.hidden_size, 1..=SIZE)?;
        within("intermediate_size", self.mlp_size(), 1..=SIZE)?;
        within("layers", self.layers.len(), 1..=LAYERS)?;
        positive("norm_eps", self.norm_eps)?;
        positive("initializer_range", self.initializer_range)?;
        self.dropout().check()?;
        let tables = 2 - usize::from(self.tie_word_embeddings);
        let mut matrices = product(&[tables, self.vocabulary_size, self.hidden_size]);
        for (i, layer) in self.layers.iter().enumerate() {
            // Layers alike are refused alike.
            if i == 0 || self.layers[i - 1] != *layer {
                layer.mixer.validate(self.hidden_size, |field| format!("layers[{i}].mixer.{field}"))?;
            }
            matrices += self.layer_matrices(layer);
            // Here and not after the last: a model that is too large is known before all of its layers are looked at.
            at_most("number of parameters", matrices, ELEMENTS)?;
        }
        Ok(())
    }

    /// Elements of a layer's matrices: MLP and projections. Norms, gates and convolutions are left out, as they are small.
    fn layer_matrices(&self, layer: &LayerConfig) -> u128 {
        let mlp = product(&[3, self.hidden_size, self.mlp_size()]);
        mlp.saturating_add(layer.mixer.inner(self.hidden_size).saturating_mul(self.hidden_size as u128))
    }
}

impl MixerConfig {
    /// Refuses what [`Config::validate`] names; `path` gives a field its path.
    pub(crate) fn validate(&self, hidden_size: usize, path: impl Fn(&str) -> String) -> Result<()> {
        match self {
            Self::Memory(memory) => memory.validate(hidden_size, path),
            Self::Attention(attention) => attention.validate(hidden_size, path),
            Self::Mag(config) | Self::Mal(config) => config.validate(hidden_size, path),
            Self::Mac(config) => config.validate(hidden_size, path),
            Self::Cms(cms) => cms.validate(hidden_size, path),
            Self::Conductor(conductor) => conductor.validate(hidden_size, path),
            Self::Tnt(tnt) => tnt.validate(hidden_size, path),
            Self::Hope(hope) => hope.validate(hidden_size, path),
        }
    }

    /// Widths of all projections from and to the residual stream together.
    fn inner(&self, hidden_size: usize) -> u128 {
        match self {
            Self::Memory(memory) => memory.inner(hidden_size),
            Self::Attention(attention) => attention.inner(hidden_size),
            Self::Mag(ComposedConfig { memory, attention, persistent })
            | Self::Mal(ComposedConfig { memory, attention, persistent })
            | Self::Mac(MacConfig { memory, attention, persistent, .. }) => {
                // The projection of MAL's attention is its last; the others have one more.
                let more = if matches!(self, Self::Mal(_)) { 0 } else { hidden_size as u128 };
                memory.inner(hidden_size) + attention.inner(hidden_size) + *persistent as u128 + more
            }
            Self::Cms(CmsConfig { memory, periods, .. }) | Self::Conductor(ConductorConfig { memory, periods, .. }) => {
                periods.len() as u128 * memory.inner(hidden_size)
            }
            Self::Tnt(tnt) => tnt.memory.inner(hidden_size),
            Self::Hope(hope) => hope.inner(hidden_size),
        }
    }
}

impl ComposedConfig {
    /// Refuses what [`Config::validate`] names; `path` gives a field its path.
    pub(crate) fn validate(&self, hidden_size: usize, path: impl Fn(&str) -> String) -> Result<()> {
        self.memory.check_one_write(&path)?;
        self.memory.validate(hidden_size, |field| path(&format!("memory.{field}")))?;
        self.attention.validate(hidden_size, |field| path(&format!("attention.{field}")))?;
        within(path("persistent"), self.persistent, 0..=SIZE)?;
        at_most(path("persistent × hidden_size"), product(&[self.persistent, hidden_size]), ELEMENTS)
    }
}

impl MacConfig {
    /// As [`ComposedConfig`]; a segment must be whole groups of a frozen rule.
    pub(crate) fn validate(&self, hidden_size: usize, path: impl Fn(&str) -> String) -> Result<()> {
        let Self { memory, attention, persistent, segment } = self.clone();
        ComposedConfig { memory, attention, persistent }.validate(hidden_size, &path)?;
        within(path("segment"), segment, 1..=SIZE)?;
        // Attention sees two rows for each token.
        let rows = AttentionConfig { window: 2 * self.seen(), ..self.attention.clone() };
        rows.validate(hidden_size, |field| path(&format!("attention.{field}")))?;
        self.memory.check_kept_as_left(&path)?;
        let group = group(self.memory.rule);
        if segment.is_multiple_of(group) {
            return Ok(());
        }
        let expected = format!("a multiple of {group}, the frozen rule's groups (`memory.rule.frozen`)");
        Err(Error::config(path("segment"), segment, expected))
    }
}

impl MemoryConfig {
    /// Widths of all projections from and to the residual stream together.
    fn inner(&self, hidden_size: usize) -> u128 {
        let (key, value) = self.widths(hidden_size);
        let (reads, writes) = (key + (1 + usize::from(self.gate)) * value, key + value);
        product(&[self.heads, reads]) + product(&[self.heads, self.writes_per_token, writes])
    }

    /// Refuses widths that do not divide, steps and momentum out of range, and sizes whose products are too large.
    pub(crate) fn validate(&self, hidden_size: usize, path: impl Fn(&str) -> String) -> Result<()> {
        within(path("heads"), self.heads, 1..=SIZE)?;
        if self.key_dim.is_none() || self.value_dim.is_none() {
            divides(path("heads"), self.heads, hidden_size, "key_dim and value_dim")?;
        }
        let (key, value) = self.widths(hidden_size);
        within(path("key_dim"), key, 1..=SIZE)?;
        within(path("value_dim"), value, 1..=SIZE)?;
        taps(path("conv"), self.conv)?;
        self.check_step(path("step"))?;
        self.check_momentum(path("momentum"))?;
        self.check_mean(path("mean"))?;
        self.check_retain(path("retain"))?;
        self.check_forgetting(path("forgetting"))?;
        self.check_horizon(path("horizon"))?;
        self.check_writes(path("writes_per_token"))?;
        if self.features == Features::Poly2 {
            within(path("key_dim (features: poly2)"), key, 1..=POLY2)?;
        }
        let features = self.features.width(key);
        at_most(path("heads × key_dim × value_dim"), product(&[self.heads, features, value]), ELEMENTS)?;
        let channels = product(&[self.heads, self.writes_per_token, key.max(value)]);
        at_most(path("heads × writes_per_token × width × conv"), channels.saturating_mul(self.conv as u128), ELEMENTS)?;
        // A state's shape depends on no length.
        let dims = Dims {
            batch: 1,
            tokens: 1,
            heads: self.heads,
            key: features,
            value,
            sequences: Sequences::batch(1, 1),
            anchored: self.decay && self.retention() == Retain::Initial,
        };
        let Elements { state, gates } = Elements::of(self.rule, &dims);
        at_most(path("rule") + ": elements of a memory", state, ELEMENTS)?;
        let gates = gates.saturating_mul(product(&[self.writes_per_token, hidden_size]));
        at_most(path("rule") + ": elements of the gates × hidden_size", gates, ELEMENTS)?;
        self.rule
            .check(&dims)
            .map_err(|error| Error::config(path("rule"), format!("refused ({error})"), "options that go together"))
    }

    /// Lets through steps with which a memory stays bounded for unit keys: `θ ≤ 1 + a` where the undecayed memory is
    /// erased.
    fn check_step(&self, field: String) -> Result<()> {
        let expected = match self.rule {
            _ if self.step == 1.0 => return Ok(()),
            RuleConfig::Delta(_) if !(self.step > 0.0 && self.step <= 2.0) => "above 0 and at most 2",
            RuleConfig::Delta(rule) => {
                let bounded = rule.frozen.is_none() && (!self.decay || rule.erase == Erase::Decayed);
                if self.step < 1.0 || bounded {
                    return Ok(());
                }
                "at most 1, or `frozen: null` with either `decay: false` or `erase: decayed`"
            }
            _ => "1: only the delta rule has other steps",
        };
        Err(Error::config(field, self.step, expected))
    }

    /// Refuses no write, and several in groups of tokens, whose writes would count one by one.
    fn check_writes(&self, field: String) -> Result<()> {
        let group = group(self.rule);
        if self.writes_per_token != 1 && group > 1 {
            let expected = format!("1: the rule's groups of {group} tokens (`rule.frozen`) have one write a token");
            return Err(Error::config(field, self.writes_per_token, expected));
        }
        within(field, self.writes_per_token, 1..=WRITES)
    }

    /// Refuses lengths that go back as groups start, and neurons, where memories are read between groups: what these answered is
    /// not in their potentials, and without a current they are silent.
    pub(super) fn check_kept_as_left(&self, path: impl Fn(&str) -> String) -> Result<()> {
        if matches!(self.rule, RuleConfig::Lif(_)) {
            let expected = "a rule whose memory can be read without a write: only layers that are a memory alone, mag and mal have neurons";
            return Err(Error::config(path("memory.rule"), "lif", expected));
        }
        if !self.rule.needs_anchor() {
            return Ok(());
        }
        let expected = "false: only layers that are a memory alone, mag and mal set lengths back; others read memories as they were left";
        Err(Error::config(path("memory.rule.renorm"), true, expected))
    }

    /// Refuses several writes a token in a composition, at whose tokens a text is cut.
    pub(super) fn check_one_write(&self, path: impl Fn(&str) -> String) -> Result<()> {
        match self.writes_per_token {
            1 => Ok(()),
            writes => {
                let expected = "1: only layers that are a memory alone have several";
                Err(Error::config(path("memory.writes_per_token"), writes, expected))
            }
        }
    }

    /// Lets through a momentum below 1 for the rules that bound it.
    fn check_momentum(&self, field: String) -> Result<()> {
        let expected = match self.rule {
            _ if self.momentum == 1.0 => return Ok(()),
            RuleConfig::Titans(_) | RuleConfig::TitansMlp(_) | RuleConfig::YaadMomentum(_) => {
                if self.momentum > 0.0 && self.momentum < 1.0 {
                    return Ok(());
                }
                "above 0 and at most 1"
            }
            _ => "1: only titans, titans_mlp and yaad_momentum have another",
        };
        Err(Error::config(field, self.momentum, expected))
    }

    /// Refuses a mean over groups of one token: it would look as if it had worked.
    fn check_mean(&self, field: String) -> Result<()> {
        if !self.mean || group(self.rule) > 1 {
            return Ok(());
        }
        let expected = format!("false: {} has no frozen groups of 2 tokens or more (`rule.frozen`)", self.rule.name());
        Err(Error::config(field, self.mean, expected))
    }
}

impl AttentionConfig {
    /// Widths of all projections together.
    fn inner(&self, hidden_size: usize) -> u128 {
        let (kv_heads, width) = self.sizes(hidden_size);
        product(&[2 * (self.heads + kv_heads), width])
    }

    /// Refuses heads that do not divide, and odd widths, which rotary positions cannot pair.
    pub(crate) fn validate(&self, hidden_size: usize, path: impl Fn(&str) -> String) -> Result<()> {
        within(path("heads"), self.heads, 1..=SIZE)?;
        if self.head_dim.is_none() {
            divides(path("heads"), self.heads, hidden_size, "head_dim")?;
        }
        let (kv_heads, width) = self.sizes(hidden_size);
        within(path("kv_heads"), kv_heads, 1..=SIZE)?;
        if !self.heads.is_multiple_of(kv_heads) {
            return Err(Error::config(path("kv_heads"), kv_heads, format!("a divisor of heads = {}", self.heads)));
        }
        within(path("head_dim"), width, 0..=SIZE)?;
        if width == 0 || !width.is_multiple_of(2) {
            return Err(Error::config(path("head_dim"), width, "an even number over 0, for rotary positions"));
        }
        within(path("window"), self.window, 2..=SIZE)?;
        positive(path("rope_base"), self.rope_base)?;
        room(path("window"), self.window, product(&[kv_heads, width]), WINDOW)?;
        taps(path("conv"), self.conv)?;
        at_most(path("heads × head_dim × conv"), product(&[self.heads, width, self.conv]), ELEMENTS)
    }
}

/// Refuses what is not above 0; NaN too.
fn positive(field: impl Into<String>, found: f32) -> Result<()> {
    if found.is_finite() && found > 0.0 {
        return Ok(());
    }
    Err(Error::config(field, found, "a finite number over 0"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    /// A text of a few tokens takes the room of a window or a chunk: what would take gigabytes is refused, and by how much.
    #[test]
    fn room_for_tokens_is_bounded() {
        for (mixer, field) in [
            (r#"{"kind":"tnt","chunk":16777215}"#, "mixer.chunk"),
            (r#"{"kind":"tnt","shard":16777215,"locals":[16777215]}"#, "mixer.locals"),
            (r#"{"kind":"cms","periods":[4,16777215]}"#, "mixer.periods"),
            (r#"{"kind":"hope","chunk":16777215}"#, "mixer.chunk"),
            (r#"{"kind":"attention","window":16777215}"#, "mixer.window"),
            (r#"{"kind":"mac","segment":16777215,"attention":{"window":16777215}}"#, "mixer.attention.window"),
            (r#"{"kind":"mac","segment":131072,"attention":{"window":131072}}"#, "mixer.attention.window"),
            (r#"{"kind":"mag","attention":{"window":16777215}}"#, "mixer.attention.window"),
        ] {
            let text = format!(r#"{{"hidden_size":16,"layers":[{{"mixer":{mixer}}}]}}"#);
            let told = Config::from_json(&text).and_then(|config| config.validate()).unwrap_err().to_string();
            assert!(told.contains(field) && told.contains("B for a text of any length"), "{mixer}: {told}");
        }
        // As long as published ones, and longer.
        for mixer in [r#"{"kind":"tnt","chunk":2048}"#, r#"{"kind":"attention","window":65536}"#] {
            let text = format!(r#"{{"hidden_size":1024,"layers":[{{"mixer":{mixer}}}]}}"#);
            Config::from_json(&text).and_then(|config| config.validate()).unwrap();
        }
    }

    /// A model of sixty thousand blocks is refused for its size, before each of them is looked at.
    #[test]
    fn work_ends_with_the_first_reason() {
        let layers = LayerConfig::default().repeated(LAYERS).unwrap();
        let config = Config { layers, ..Config::default() };
        let began = Instant::now();
        let told = config.validate().unwrap_err().to_string();
        assert!(told.contains("number of parameters"), "{told}");
        assert!(began.elapsed() < Duration::from_millis(300), "{:?}", began.elapsed());
    }
}
