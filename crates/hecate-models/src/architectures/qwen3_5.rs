//! Qwen 3.5 without experts: gated delta rules beside gated attention with norms of queries and keys. Of models that see, the
//! text's part.

use super::{
    Join, Released,
    decoder::{Trunk, attention_layers, sharing, sizes},
    delta_net::form,
    gated_deltanet::{GATED, gate_function},
    rope::Rope,
};
use crate::{
    Builder, Error, MemoryConfig, Model, Result,
    layers::{Block, Branches, FullAttention, FullAttentionConfig, HeadNorm, Memory, Mixer, Mlp, NormPlace, RmsNorm},
};
use hecate_core::{Backend, rules::Delta};
use serde::{Deserialize, Serialize};

/// Share of a head's channels that rotary positions turn, unless the fields say otherwise.
const PARTIAL: f32 = 0.25;

/// Fields of `config.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Qwen35 {
    #[serde(flatten)]
    trunk: Trunk,
    num_attention_heads: usize,
    num_key_value_heads: usize,
    head_dim: usize,
    layer_types: Option<Vec<String>>,
    full_attention_interval: Option<usize>,
    linear_num_key_heads: usize,
    linear_num_value_heads: usize,
    linear_key_head_dim: usize,
    linear_value_head_dim: usize,
    linear_conv_kernel_dim: usize,
    output_gate_type: Option<String>,
    #[serde(flatten)]
    rope: Rope,
}

impl Qwen35 {
    /// The memory, and how many value heads share a key head.
    fn memory(&self) -> Result<(MemoryConfig<Delta>, usize)> {
        let heads = self.linear_num_value_heads;
        let sharing = sharing(("linear_num_key_heads", self.linear_num_key_heads), ("linear_num_value_heads", heads))?;
        let memory = MemoryConfig {
            rule: GATED,
            heads,
            key_dim: Some(self.linear_key_head_dim),
            value_dim: Some(self.linear_value_head_dim),
            conv: self.linear_conv_kernel_dim,
            ..MemoryConfig::default()
        };
        Ok((memory, sharing))
    }

    fn attention(&self) -> Result<FullAttentionConfig> {
        let base = || Error::config("rope_parameters.rope_theta", "missing", "the base of rotary positions");
        let rotary = self.rope.rotary(self.head_dim, PARTIAL)?.ok_or_else(base)?;
        let (heads, kv_heads, width) = (self.num_attention_heads, self.num_key_value_heads, self.head_dim);
        let (hidden, norm) = (self.trunk.hidden_size, HeadNorm::Each(self.trunk.rms_norm_eps));
        Ok(FullAttentionConfig { hidden, heads, kv_heads, width, rotary: Some(rotary), norm, gate: true, scale: None })
    }

    /// Which blocks are attention.
    fn attends(&self) -> Result<Vec<bool>> {
        let period = self.full_attention_interval.unwrap_or(4).max(1);
        let last = |i: usize| (i + 1).is_multiple_of(period);
        attention_layers(self.layer_types.as_deref(), "linear_attention", self.trunk.num_hidden_layers, last)
    }

    fn block<B: Backend>(&self, build: &mut Builder<'_, B>, attends: bool) -> Result<Block<B>> {
        let (hidden, epsilon) = (self.trunk.hidden_size, self.trunk.rms_norm_eps);
        let before_mixer = RmsNorm::one_plus(build, "input_layernorm", hidden, epsilon)?;
        let mixer: Box<dyn Mixer<B>> = if attends {
            Box::new(FullAttention::new(&mut build.within("self_attn"), self.attention()?)?)
        } else {
            let gate = gate_function("output_gate_type", self.output_gate_type.as_deref().unwrap_or("swish"))?;
            let (memory, sharing) = self.memory()?;
            let form = form(self.linear_key_head_dim, gate, sharing);
            Box::new(Memory::in_form(&mut build.within("linear_attn"), &memory, (hidden, epsilon), form)?)
        };
        let before_mlp = RmsNorm::one_plus(build, "post_attention_layernorm", hidden, epsilon)?;
        let mlp = Mlp::new(&mut build.within("mlp"), hidden, self.trunk.intermediate_size)?;
        let branches = Branches { mixer: (before_mixer, mixer), mlp: Some((before_mlp, mlp)) };
        Ok(Block::of(build, NormPlace::Before, branches))
    }
}

impl Released for Qwen35 {
    const FIXED: &'static [(&'static str, &'static [&'static str])] =
        &[("hidden_act", &["\"silu\"", "\"swish\""]), ("attention_bias", &["false"]), ("attn_output_gate", &["true"])];

    fn check(&self) -> Result<()> {
        self.trunk.check()?;
        let FullAttentionConfig { heads, kv_heads, width, .. } = self.attention()?;
        sizes(&[("num_attention_heads", heads), ("num_key_value_heads", kv_heads), ("head_dim", width)])?;
        self.attends()?;
        gate_function("output_gate_type", self.output_gate_type.as_deref().unwrap_or("swish"))?;
        self.memory()?.0.check(self.trunk.hidden_size)
    }

    fn layers(&self) -> usize {
        self.trunk.num_hidden_layers
    }

    /// Maps to queries, keys and values are one, as are their convolutions; a head's rows of queries stand before those of its
    /// gate.
    fn joins(&self, _: &dyn Fn(&str) -> bool) -> Vec<Join> {
        let mut joins = Vec::new();
        for (layer, attends) in self.attends().unwrap_or_default().into_iter().enumerate() {
            let at = |name: &str| format!("model.layers.{layer}.{name}.weight");
            let linear = |name: &str| at(&format!("linear_attn.{name}"));
            let [query, gate] = ["q_proj", "gate_proj"].map(|name| at(&format!("self_attn.{name}")));
            if attends {
                joins.push(Join {
                    tensors: vec![query.clone()],
                    parameters: vec![query, gate],
                    turns: self.num_attention_heads,
                });
                continue;
            }
            for (theirs, ours) in [
                ("in_proj_qkv", &["q_proj", "k_proj", "v_proj"][..]),
                ("conv1d", &["q_conv1d", "k_conv1d", "v_conv1d"]),
                ("in_proj_z", &["g_proj"]),
                ("in_proj_b", &["b_proj"]),
                ("in_proj_a", &["a_proj"]),
                ("norm", &["o_norm"]),
                ("out_proj", &["o_proj"]),
            ] {
                joins.push(Join::new(&[linear(theirs)], &ours.iter().map(|name| linear(name)).collect::<Vec<_>>()));
            }
        }
        joins
    }

    fn build<B: Backend>(&self, build: &mut Builder<'_, B>) -> Result<Box<dyn Model<B>>> {
        let attends = self.attends()?;
        self.trunk
            .decoder()
            .build(build, (RmsNorm::one_plus, self.trunk.rms_norm_eps), |build, i| self.block(build, attends[i]))
    }
}
