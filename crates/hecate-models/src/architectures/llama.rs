//! Llama, and what has its shape, such as SmolLM2: attention over the whole text, with a norm before each branch.

use super::{
    Released,
    decoder::{Trunk, share, sizes},
    rope::Rope,
};
use crate::{
    Builder, Model, Result,
    layers::{Block, Branches, FullAttention, FullAttentionConfig, HeadNorm, Mlp, NormPlace, RmsNorm, Rotary},
};
use hecate_core::Backend;
use serde::{Deserialize, Serialize};

/// Base of the frequencies where none is told.
const BASE: f32 = 10_000.0;

/// Fields of `config.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Llama {
    #[serde(flatten)]
    trunk: Trunk,
    num_attention_heads: usize,
    /// As many as query heads unless given.
    num_key_value_heads: Option<usize>,
    /// A head's share of the hidden size unless given.
    head_dim: Option<usize>,
    #[serde(flatten)]
    rope: Rope,
}

impl Llama {
    fn attention(&self) -> Result<FullAttentionConfig> {
        let (hidden, heads) = (self.trunk.hidden_size, self.num_attention_heads);
        let width = self.head_dim.map_or_else(|| share("hidden_size", hidden, heads), Ok)?;
        let rotary = self.rope.rotary(width, 1.0)?.unwrap_or(Rotary { base: BASE, channels: width });
        Ok(FullAttentionConfig {
            hidden,
            heads,
            kv_heads: self.num_key_value_heads.unwrap_or(heads),
            width,
            rotary: Some(rotary),
            norm: HeadNorm::Nothing,
            gate: false,
            scale: None,
        })
    }
}

impl Released for Llama {
    const FIXED: &'static [(&'static str, &'static [&'static str])] = &[
        ("hidden_act", &["\"silu\"", "\"swish\""]),
        ("attention_bias", &["false"]),
        ("mlp_bias", &["false"]),
        ("pretraining_tp", &["1"]),
    ];

    fn check(&self) -> Result<()> {
        self.trunk.check()?;
        let attention = self.attention()?;
        sizes(&[
            ("num_attention_heads", attention.heads),
            ("num_key_value_heads", attention.kv_heads),
            ("head_dim", attention.width),
        ])
    }

    fn layers(&self) -> usize {
        self.trunk.num_hidden_layers
    }

    fn build<B: Backend>(&self, build: &mut Builder<'_, B>) -> Result<Box<dyn Model<B>>> {
        let (hidden, epsilon, attention) = (self.trunk.hidden_size, self.trunk.rms_norm_eps, self.attention()?);
        self.trunk.decoder().build(build, (RmsNorm::new, epsilon), |build, _| {
            let before_mixer = RmsNorm::new(build, "input_layernorm", hidden, epsilon)?;
            let mixer = FullAttention::new(&mut build.within("self_attn"), attention)?;
            let before_mlp = RmsNorm::new(build, "post_attention_layernorm", hidden, epsilon)?;
            let mlp = Mlp::new(&mut build.within("mlp"), hidden, self.trunk.intermediate_size)?;
            let branches = Branches { mixer: (before_mixer, Box::new(mixer)), mlp: Some((before_mlp, mlp)) };
            Ok(Block::of(build, NormPlace::Before, branches))
        })
    }
}
