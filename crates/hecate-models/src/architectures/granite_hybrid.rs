//! Granite 4 without experts: memories as Mamba-2's beside attention, and factors of embeddings, branches, attention and scores.

use super::{
    Join, Released,
    decoder::{Trunk, attention_layers, factors, memory_head, share, sizes},
    rope::Rope,
};
use crate::{
    Builder, Error, Model, Result,
    layers::{
        Block, Branches, FullAttention, FullAttentionConfig, HeadNorm, Mamba2, Mamba2Config, Mixer, Mlp, NormPlace,
        RmsNorm,
    },
};
use hecate_core::{Backend, primitives::GatePlace};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Fields of `config.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GraniteHybrid {
    #[serde(flatten)]
    trunk: Trunk,
    num_attention_heads: usize,
    num_key_value_heads: Option<usize>,
    head_dim: Option<usize>,
    layer_types: Option<Vec<String>>,
    /// `rope`; else tokens have no position.
    position_embedding_type: Option<String>,
    num_local_experts: usize,
    shared_intermediate_size: usize,
    embedding_multiplier: f32,
    residual_multiplier: f32,
    attention_multiplier: f32,
    /// What scores are divided by.
    logits_scaling: f32,
    mamba_n_heads: usize,
    mamba_d_head: Option<Value>,
    mamba_d_state: usize,
    mamba_n_groups: usize,
    mamba_expand: usize,
    mamba_d_conv: usize,
    mamba_conv_bias: bool,
    #[serde(flatten)]
    rope: Rope,
}

impl GraniteHybrid {
    fn memory(&self) -> Result<Mamba2Config> {
        let (hidden, heads) = (self.trunk.hidden_size, self.mamba_n_heads);
        let inner = hidden.saturating_mul(self.mamba_expand);
        Ok(Mamba2Config {
            hidden,
            heads,
            value: memory_head("mamba_d_head", self.mamba_d_head.as_ref(), inner, heads)?,
            key: self.mamba_d_state,
            groups: self.mamba_n_groups,
            taps: self.mamba_d_conv,
            conv_bias: self.mamba_conv_bias,
            norm: Some(GatePlace::Before),
            factors: [1.0; 5],
            norm_eps: self.trunk.rms_norm_eps,
        })
    }

    fn attention(&self) -> Result<FullAttentionConfig> {
        let (hidden, heads) = (self.trunk.hidden_size, self.num_attention_heads);
        let width = self.head_dim.map_or_else(|| share("hidden_size", hidden, heads), Ok)?;
        let rotary = match self.position_embedding_type.as_deref() {
            Some("rope") => self.rope.rotary(width, 1.0)?,
            None | Some("nope") => None,
            Some(other) => return Err(Error::config("position_embedding_type", other, "`rope`, `nope` or null")),
        };
        let (kv_heads, scale) = (self.num_key_value_heads.unwrap_or(heads), Some(self.attention_multiplier));
        Ok(FullAttentionConfig { hidden, heads, kv_heads, width, rotary, norm: HeadNorm::Nothing, gate: false, scale })
    }

    /// Which blocks are attention. Published files have the names before.
    fn attends(&self) -> Result<Vec<bool>> {
        let now = |name: &String| match name.as_str() {
            "attention" => "full_attention".to_owned(),
            "mamba" => "linear_attention".to_owned(),
            other => other.to_owned(),
        };
        let types = self.layer_types.as_ref().map(|types| types.iter().map(now).collect::<Vec<_>>());
        attention_layers(types.as_deref(), "linear_attention", self.trunk.num_hidden_layers, |_| false)
    }

    fn block<B: Backend>(&self, build: &mut Builder<'_, B>, attends: bool) -> Result<Block<B>> {
        let (hidden, epsilon) = (self.trunk.hidden_size, self.trunk.rms_norm_eps);
        let before_mixer = RmsNorm::new(build, "input_layernorm", hidden, epsilon)?;
        let mixer: Box<dyn Mixer<B>> = if attends {
            Box::new(FullAttention::new(&mut build.within("self_attn"), self.attention()?)?)
        } else {
            Box::new(Mamba2::new(&mut build.within("mamba"), self.memory()?)?)
        };
        let before_mlp = RmsNorm::new(build, "post_attention_layernorm", hidden, epsilon)?;
        let mlp = Mlp::new(&mut build.within("shared_mlp"), hidden, self.shared_intermediate_size)?;
        let branches = Branches { mixer: (before_mixer, mixer), mlp: Some((before_mlp, mlp)) };
        Ok(Block::of(build, NormPlace::Before, branches).scaled(self.residual_multiplier))
    }
}

impl Released for GraniteHybrid {
    /// Steps have no bounds, which transformers writes in a form of its own.
    const FIXED: &'static [(&'static str, &'static [&'static str])] = &[
        ("hidden_act", &["\"silu\"", "\"swish\""]),
        ("attention_bias", &["false"]),
        ("mamba_proj_bias", &["false"]),
        ("normalization_function", &["\"rmsnorm\""]),
        ("time_step_limit", &["[0.0,{\"__float__\":\"Infinity\"}]"]),
    ];

    fn check(&self) -> Result<()> {
        self.trunk.check()?;
        if self.num_local_experts > 0 {
            return Err(Error::config("num_local_experts", self.num_local_experts, "0: experts are not built yet"));
        }
        let [embedding, residual] = [self.embedding_multiplier, self.residual_multiplier];
        factors(&[("embedding_multiplier", embedding), ("residual_multiplier", residual)])?;
        factors(&[("logits_scaling", self.logits_scaling)])?;
        let FullAttentionConfig { heads, kv_heads, width, .. } = self.attention()?;
        let inner = ("shared_intermediate_size", self.shared_intermediate_size);
        sizes(&[inner, ("num_attention_heads", heads), ("num_key_value_heads", kv_heads), ("head_dim", width)])?;
        self.attends()?;
        self.memory()?.check()
    }

    fn layers(&self) -> usize {
        self.trunk.num_hidden_layers
    }

    /// An MLP's maps have names of their own, and the gate's rows stand before those of the other map.
    fn joins(&self, _: &dyn Fn(&str) -> bool) -> Vec<Join> {
        let of_layer = |layer: usize| {
            let at = |name: &str| format!("model.layers.{layer}.shared_mlp.{name}.weight");
            [
                Join::new(&[at("input_linear")], &[at("gate_proj"), at("up_proj")]),
                Join::new(&[at("output_linear")], &[at("down_proj")]),
            ]
        };
        (0..self.trunk.num_hidden_layers).flat_map(of_layer).collect()
    }

    fn build<B: Backend>(&self, build: &mut Builder<'_, B>) -> Result<Box<dyn Model<B>>> {
        let (attends, norm) = (self.attends()?, (RmsNorm::new as _, self.trunk.rms_norm_eps));
        let factors = [self.embedding_multiplier, self.logits_scaling.recip()];
        self.trunk.decoder().build_scaled(build, norm, factors, |build, i| self.block(build, attends[i]))
    }
}
