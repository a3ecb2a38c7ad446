//! LFM2: gated short convolutions, which remember a few tokens, beside attention with norms of queries and keys.

use super::{
    Join, Released,
    decoder::{Decoder, attention_layers, share, sizes},
    rope::Rope,
};
use crate::{
    Builder, Error, Model, Result,
    layers::{
        Block, Branches, FullAttention, FullAttentionConfig, GatedConv, HeadNorm, Mixer, Mlp, NormPlace, RmsNorm,
        Rotary,
    },
};
use hecate_core::Backend;
use serde::{Deserialize, Serialize};

/// Base of the frequencies where none is told.
const BASE: f32 = 1e6;

/// Fields of `config.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Lfm2 {
    vocab_size: usize,
    hidden_size: usize,
    intermediate_size: usize,
    /// The name before, which counts where both are there.
    block_ff_dim: Option<usize>,
    num_hidden_layers: usize,
    norm_eps: f32,
    tie_word_embeddings: Option<bool>,
    /// The name before, which counts where both are there.
    tie_embedding: Option<bool>,
    num_attention_heads: usize,
    num_key_value_heads: usize,
    head_dim: Option<usize>,
    layer_types: Option<Vec<String>>,
    /// Which blocks are attention, where there are no types: all of them unless given.
    full_attn_idxs: Option<Vec<usize>>,
    /// Taps of convolutions.
    #[serde(rename = "conv_L_cache")]
    conv_taps: usize,
    block_auto_adjust_ff_dim: bool,
    /// Null is none, and then nothing is rounded either.
    #[serde(default = "one")]
    block_ffn_dim_multiplier: Option<f64>,
    block_multiple_of: usize,
    #[serde(flatten)]
    rope: Rope,
}

fn one() -> Option<f64> {
    Some(1.0)
}

impl Lfm2 {
    fn decoder(&self) -> Decoder {
        Decoder {
            vocabulary: self.vocab_size,
            hidden: self.hidden_size,
            layers: self.num_hidden_layers,
            tied: self.tie_embedding.or(self.tie_word_embeddings).unwrap_or(true),
            embeddings: "embed_tokens",
        }
    }

    /// Width inside of MLPs: two thirds of what is told, times a factor, up to the next multiple, cut as Python does.
    fn inner(&self) -> usize {
        let told = self.block_ff_dim.unwrap_or(self.intermediate_size);
        match (self.block_auto_adjust_ff_dim, self.block_ffn_dim_multiplier) {
            (false, _) => told,
            (true, None) => told.saturating_mul(2) / 3,
            (true, Some(factor)) => {
                let inner = (factor * (told.saturating_mul(2) / 3) as f64) as usize;
                inner.div_ceil(self.block_multiple_of.max(1)).saturating_mul(self.block_multiple_of)
            }
        }
    }

    fn attention(&self) -> Result<FullAttentionConfig> {
        let (hidden, heads) = (self.hidden_size, self.num_attention_heads);
        let width = self.head_dim.map_or_else(|| share("hidden_size", hidden, heads), Ok)?;
        let rotary = self.rope.rotary(width, 1.0)?.unwrap_or(Rotary { base: BASE, channels: width });
        let (kv_heads, norm) = (self.num_key_value_heads, HeadNorm::EachAlone(self.norm_eps));
        Ok(FullAttentionConfig { hidden, heads, kv_heads, width, rotary: Some(rotary), norm, gate: false, scale: None })
    }

    /// Which blocks are attention.
    fn attends(&self) -> Result<Vec<bool>> {
        let untold = |i| self.full_attn_idxs.as_ref().is_none_or(|all| all.contains(&i));
        attention_layers(self.layer_types.as_deref(), "conv", self.num_hidden_layers, untold)
    }

    fn block<B: Backend>(&self, build: &mut Builder<'_, B>, attends: bool) -> Result<Block<B>> {
        let (hidden, epsilon) = (self.hidden_size, self.norm_eps);
        let before_mixer = RmsNorm::new(build, "operator_norm", hidden, epsilon)?;
        let mixer: Box<dyn Mixer<B>> = if attends {
            Box::new(FullAttention::new(&mut build.within("self_attn"), self.attention()?)?)
        } else {
            Box::new(GatedConv::new(&mut build.within("conv"), hidden, self.conv_taps)?)
        };
        let before_mlp = RmsNorm::new(build, "ffn_norm", hidden, epsilon)?;
        let mlp = Mlp::new(&mut build.within("feed_forward"), hidden, self.inner())?;
        let branches = Branches { mixer: (before_mixer, mixer), mlp: Some((before_mlp, mlp)) };
        Ok(Block::of(build, NormPlace::Before, branches))
    }
}

impl Released for Lfm2 {
    const FIXED: &'static [(&'static str, &'static [&'static str])] =
        &[("conv_bias", &["false"]), ("block_use_swiglu", &["true"])];

    fn check(&self) -> Result<()> {
        self.decoder().check()?;
        sizes(&[("block_multiple_of", self.block_multiple_of), ("intermediate_size", self.intermediate_size)])?;
        let factor = self.block_ffn_dim_multiplier.unwrap_or(1.0);
        if !(factor.is_finite() && factor > 0.0) {
            return Err(Error::config("block_ffn_dim_multiplier", factor, "a finite number over 0"));
        }
        sizes(&[("width inside of MLPs", self.inner()), ("conv_L_cache", self.conv_taps)])?;
        self.attends()?;
        let FullAttentionConfig { heads, kv_heads, width, .. } = self.attention()?;
        sizes(&[("num_attention_heads", heads), ("num_key_value_heads", kv_heads), ("head_dim", width)])
    }

    fn layers(&self) -> usize {
        self.num_hidden_layers
    }

    /// Norms and maps have names of their own.
    fn joins(&self, _: &dyn Fn(&str) -> bool) -> Vec<Join> {
        let renamed = |theirs: String, ours: String| Join::new(&[theirs + ".weight"], &[ours + ".weight"]);
        let mut joins = vec![renamed("model.embedding_norm".to_owned(), "model.norm".to_owned())];
        for (layer, attends) in self.attends().unwrap_or_default().into_iter().enumerate() {
            let of_mlp = ("feed_forward", ["w1", "w3", "w2"], ["gate_proj", "up_proj", "down_proj"]);
            let of_attention =
                ("self_attn", ["q_layernorm", "k_layernorm", "out_proj"], ["q_norm", "k_norm", "o_proj"]);
            let at = |part: &str, name: &str| format!("model.layers.{layer}.{part}.{name}");
            for (part, theirs, ours) in [of_mlp].into_iter().chain(attends.then_some(of_attention)) {
                joins.extend(theirs.iter().zip(ours).map(|(theirs, ours)| renamed(at(part, theirs), at(part, ours))));
            }
        }
        joins
    }

    fn build<B: Backend>(&self, build: &mut Builder<'_, B>) -> Result<Box<dyn Model<B>>> {
        let attends = self.attends()?;
        self.decoder().build(build, (RmsNorm::new, self.norm_eps), |build, i| self.block(build, attends[i]))
    }
}
