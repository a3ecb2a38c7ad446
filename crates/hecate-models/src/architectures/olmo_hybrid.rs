//! OLMo-Hybrid: gated delta rules with norms before their branches, and attention with norms behind them.

use super::{
    Join, Released,
    decoder::{Trunk, attention_layers, share, sharing, sizes},
    delta_net::form,
    gated_deltanet::GATED,
    rope::Rope,
};
use crate::{
    Builder, MemoryConfig, Model, Result,
    layers::{Block, Branches, FullAttention, FullAttentionConfig, HeadNorm, Memory, Mixer, Mlp, NormPlace, RmsNorm},
};
use hecate_core::{Backend, primitives::GateFunction, rules::Delta};
use serde::{Deserialize, Serialize};

/// Added to mean squares of what memories read, whatever the configuration says of other norms.
const OUTPUT_EPSILON: f32 = 1e-5;

/// Fields of `config.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OlmoHybrid {
    #[serde(flatten)]
    trunk: Trunk,
    num_attention_heads: usize,
    num_key_value_heads: Option<usize>,
    head_dim: Option<usize>,
    layer_types: Option<Vec<String>>,
    linear_num_key_heads: Option<usize>,
    linear_num_value_heads: Option<usize>,
    linear_key_head_dim: Option<usize>,
    linear_value_head_dim: Option<usize>,
    #[serde(default = "taps")]
    linear_conv_kernel_dim: usize,
    #[serde(default = "negative")]
    linear_allow_neg_eigval: bool,
    #[serde(flatten)]
    rope: Rope,
}

fn taps() -> usize {
    4
}

fn negative() -> bool {
    true
}

impl OlmoHybrid {
    /// The memory, and how many value heads share a key head.
    fn memory(&self) -> Result<(MemoryConfig<Delta>, usize)> {
        let heads = [self.linear_num_key_heads, self.linear_num_value_heads];
        let [keys, heads] = heads.map(|heads| heads.unwrap_or(self.num_attention_heads));
        let key = self.linear_key_head_dim.unwrap_or((0.75 * self.trunk.hidden_size as f64 / keys as f64) as usize);
        let sharing = sharing(("linear_num_key_heads", keys), ("linear_num_value_heads", heads))?;
        let memory = MemoryConfig {
            rule: GATED,
            heads,
            key_dim: Some(key),
            value_dim: Some(self.linear_value_head_dim.unwrap_or(2 * key)),
            conv: self.linear_conv_kernel_dim,
            step: if self.linear_allow_neg_eigval { 2.0 } else { 1.0 },
            ..MemoryConfig::default()
        };
        Ok((memory, sharing))
    }

    fn attention(&self) -> Result<FullAttentionConfig> {
        let (hidden, heads) = (self.trunk.hidden_size, self.num_attention_heads);
        let width = self.head_dim.map_or_else(|| share("hidden_size", hidden, heads), Ok)?;
        let rotary = self.rope.rotary(width, 1.0)?;
        let (kv_heads, norm) = (self.num_key_value_heads.unwrap_or(heads), HeadNorm::Together(self.trunk.rms_norm_eps));
        Ok(FullAttentionConfig { hidden, heads, kv_heads, width, rotary, norm, gate: false, scale: None })
    }

    /// Which blocks are attention.
    fn attends(&self) -> Result<Vec<bool>> {
        let fourth = |i: usize| (i + 1).is_multiple_of(4);
        attention_layers(self.layer_types.as_deref(), "linear_attention", self.trunk.num_hidden_layers, fourth)
    }

    /// A block: attention with [`NormPlace::After`], or a memory with [`NormPlace::Before`].
    fn block<B: Backend>(&self, build: &mut Builder<'_, B>, attends: bool) -> Result<Block<B>> {
        let (hidden, epsilon) = (self.trunk.hidden_size, self.trunk.rms_norm_eps);
        let (place, [of_mixer, of_mlp], mixer): (_, _, Box<dyn Mixer<B>>) = if attends {
            let attention = FullAttention::new(&mut build.within("self_attn"), self.attention()?)?;
            (NormPlace::After, ["post_attention_layernorm", "post_feedforward_layernorm"], Box::new(attention))
        } else {
            let (memory, sharing) = self.memory()?;
            let form = form(memory.key_dim.unwrap_or(1), GateFunction::Silu, sharing);
            let sizes = (hidden, OUTPUT_EPSILON);
            let memory = Memory::in_form(&mut build.within("linear_attn"), &memory, sizes, form)?;
            (NormPlace::Before, ["input_layernorm", "post_attention_layernorm"], Box::new(memory))
        };
        let of_mixer = RmsNorm::new(build, of_mixer, hidden, epsilon)?;
        let of_mlp = RmsNorm::new(build, of_mlp, hidden, epsilon)?;
        let mlp = Mlp::new(&mut build.within("mlp"), hidden, self.trunk.intermediate_size)?;
        Ok(Block::of(build, place, Branches { mixer: (of_mixer, mixer), mlp: Some((of_mlp, mlp)) }))
    }
}

impl Released for OlmoHybrid {
    const FIXED: &'static [(&'static str, &'static [&'static str])] =
        &[("hidden_act", &["\"silu\"", "\"swish\""]), ("attention_bias", &["false"])];

    fn check(&self) -> Result<()> {
        self.trunk.check()?;
        let attention = self.attention()?;
        let own = [("num_attention_heads", attention.heads), ("num_key_value_heads", attention.kv_heads)];
        sizes(&[own[0], own[1], ("head_dim", attention.width)])?;
        self.attends()?;
        self.memory()?.0.check(self.trunk.hidden_size)
    }

    fn layers(&self) -> usize {
        self.trunk.num_hidden_layers
    }

    /// Norms have other names in published files, and convolutions are one or three; those of three may be cut at other rows
    /// than those of queries, keys and values.
    fn joins(&self, has: &dyn Fn(&str) -> bool) -> Vec<Join> {
        let mut joins = Vec::new();
        for layer in 0..self.trunk.num_hidden_layers {
            let at = |name: &str| format!("model.layers.{layer}.{name}.weight");
            let published =
                [("attention_layer_norm", "input_layernorm"), ("feedforward_layer_norm", "post_attention_layernorm")];
            let renamed = published.iter().filter(|(theirs, _)| has(&at(theirs)));
            joins.extend(renamed.map(|(theirs, ours)| Join::new(&[at(theirs)], &[at(ours)])));
            let three = ["q", "k", "v"].map(|name| at(&format!("linear_attn.{name}_conv1d")));
            let one = at("linear_attn.conv1d");
            if has(&one) {
                joins.push(Join::new(&[one], &three));
            } else if three.iter().all(|name| has(name)) {
                joins.push(Join::new(&three, &three));
            }
        }
        joins
    }

    fn build<B: Backend>(&self, build: &mut Builder<'_, B>) -> Result<Box<dyn Model<B>>> {
        let attends = self.attends()?;
        self.trunk
            .decoder()
            .build(build, (RmsNorm::new, self.trunk.rms_norm_eps), |build, i| self.block(build, attends[i]))
    }
}
