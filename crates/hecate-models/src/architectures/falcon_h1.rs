//! Falcon-H1: in every block attention and a memory as Mamba-2's side by side, and factors nearly everywhere.

use super::{
    Join, Released,
    decoder::{Trunk, factors, memory_head, share, sizes},
    rope::Rope,
};
use crate::{
    Builder, Error, Model, Result,
    layers::{
        Block, Branches, FullAttention, FullAttentionConfig, HeadNorm, Mamba2, Mamba2Config, Mlp, NormPlace, RmsNorm,
        SideBySide, SidePart,
    },
};
use hecate_core::{Backend, primitives::GatePlace};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Fields of `config.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FalconH1 {
    #[serde(flatten)]
    trunk: Trunk,
    num_attention_heads: usize,
    num_key_value_heads: Option<usize>,
    head_dim: Option<usize>,
    embedding_multiplier: f32,
    lm_head_multiplier: f32,
    attention_in_multiplier: f32,
    attention_out_multiplier: f32,
    key_multiplier: f32,
    ssm_in_multiplier: f32,
    ssm_out_multiplier: f32,
    /// Of `z`, `x`, `B`, `C` and `dt`.
    ssm_multipliers: [f32; 5],
    /// Of an MLP's gate, and of what comes out.
    mlp_multipliers: [f32; 2],
    /// Width of all values; that of the stream times `mamba_expand` unless given.
    mamba_d_ssm: Option<usize>,
    mamba_expand: usize,
    mamba_n_heads: usize,
    mamba_d_head: Option<Value>,
    mamba_d_state: usize,
    mamba_n_groups: usize,
    mamba_d_conv: usize,
    mamba_conv_bias: bool,
    mamba_rms_norm: bool,
    mamba_norm_before_gate: bool,
    #[serde(flatten)]
    rope: Rope,
}

impl FalconH1 {
    fn memory(&self) -> Result<Mamba2Config> {
        let (hidden, heads) = (self.trunk.hidden_size, self.mamba_n_heads);
        let inner = self.mamba_d_ssm.unwrap_or_else(|| hidden.saturating_mul(self.mamba_expand));
        let place = if self.mamba_norm_before_gate { GatePlace::After } else { GatePlace::Before };
        Ok(Mamba2Config {
            hidden,
            heads,
            value: memory_head("mamba_d_head", self.mamba_d_head.as_ref(), inner, heads)?,
            key: self.mamba_d_state,
            groups: self.mamba_n_groups,
            taps: self.mamba_d_conv,
            conv_bias: self.mamba_conv_bias,
            norm: self.mamba_rms_norm.then_some(place),
            factors: self.ssm_multipliers,
            norm_eps: self.trunk.rms_norm_eps,
        })
    }

    /// Keys meet queries in scores alone, so scores take the factor of keys.
    fn attention(&self) -> Result<FullAttentionConfig> {
        let (hidden, heads) = (self.trunk.hidden_size, self.num_attention_heads);
        let width = self.head_dim.map_or_else(|| share("hidden_size", hidden, heads), Ok)?;
        let base = || Error::config("rope_parameters.rope_theta", "missing", "the base of rotary positions");
        Ok(FullAttentionConfig {
            hidden,
            heads,
            kv_heads: self.num_key_value_heads.unwrap_or(heads),
            width,
            rotary: Some(self.rope.rotary(width, 1.0)?.ok_or_else(base)?),
            norm: HeadNorm::Nothing,
            gate: false,
            scale: Some(self.key_multiplier / (width as f32).sqrt()),
        })
    }

    fn block<B: Backend>(&self, build: &mut Builder<'_, B>) -> Result<Block<B>> {
        let (hidden, epsilon) = (self.trunk.hidden_size, self.trunk.rms_norm_eps);
        let before_mixer = RmsNorm::new(build, "input_layernorm", hidden, epsilon)?;
        let memory = SidePart {
            mixer: Box::new(Mamba2::new(&mut build.within("mamba"), self.memory()?)?),
            inward: self.ssm_in_multiplier,
            outward: self.ssm_out_multiplier,
        };
        let attention = SidePart {
            mixer: Box::new(FullAttention::new(&mut build.within("self_attn"), self.attention()?)?),
            inward: self.attention_in_multiplier,
            outward: self.attention_out_multiplier,
        };
        let mixer = Box::new(SideBySide::new(memory, vec![attention]));
        let before_mlp = RmsNorm::new(build, "pre_ff_layernorm", hidden, epsilon)?;
        let mlp = Mlp::new(&mut build.within("feed_forward"), hidden, self.trunk.intermediate_size)?;
        let mlp = Some((before_mlp, mlp.scaled(self.mlp_multipliers)));
        Ok(Block::of(build, NormPlace::Before, Branches { mixer: (before_mixer, mixer), mlp }))
    }
}

impl Released for FalconH1 {
    /// Steps have no bounds, which transformers writes in a form of its own.
    const FIXED: &'static [(&'static str, &'static [&'static str])] = &[
        ("hidden_act", &["\"silu\"", "\"swish\""]),
        ("attention_bias", &["false"]),
        ("mlp_bias", &["false"]),
        ("mamba_proj_bias", &["false"]),
        ("projectors_bias", &["false"]),
        ("time_step_limit", &["[0.0,{\"__float__\":\"Infinity\"}]"]),
    ];

    fn check(&self) -> Result<()> {
        self.trunk.check()?;
        let [embedding, scores] = [self.embedding_multiplier, self.lm_head_multiplier];
        factors(&[("embedding_multiplier", embedding), ("lm_head_multiplier", scores)])?;
        factors(&self.mlp_multipliers.map(|factor| ("mlp_multipliers", factor)))?;
        let [inward, outward] = [self.attention_in_multiplier, self.attention_out_multiplier];
        factors(&[("attention_in_multiplier", inward), ("attention_out_multiplier", outward)])?;
        let [inward, outward] = [self.ssm_in_multiplier, self.ssm_out_multiplier];
        factors(&[("ssm_in_multiplier", inward), ("ssm_out_multiplier", outward)])?;
        let FullAttentionConfig { heads, kv_heads, width, .. } = self.attention()?;
        sizes(&[("num_attention_heads", heads), ("num_key_value_heads", kv_heads), ("head_dim", width)])?;
        self.memory()?.check()
    }

    fn layers(&self) -> usize {
        self.trunk.num_hidden_layers
    }

    /// The last norm has a name of its own.
    fn joins(&self, _: &dyn Fn(&str) -> bool) -> Vec<Join> {
        vec![Join::new(&["model.final_layernorm.weight".to_owned()], &["model.norm.weight".to_owned()])]
    }

    fn build<B: Backend>(&self, build: &mut Builder<'_, B>) -> Result<Box<dyn Model<B>>> {
        let norm = (RmsNorm::new as _, self.trunk.rms_norm_eps);
        let factors = [self.embedding_multiplier, self.lm_head_multiplier];
        self.trunk.decoder().build_scaled(build, norm, factors, |build, _| self.block(build))
    }
}
