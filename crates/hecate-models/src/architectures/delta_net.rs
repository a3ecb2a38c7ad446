//! DeltaNet of flash-linear-attention: the delta rule without retention (Yang et al., "Parallelizing Linear Transformers with the
//! Delta Rule over Sequence Length").

use super::{
    Released,
    decoder::{Decoder, share, sizes},
};
use crate::{
    Builder, Error, MemoryConfig, Model, Result,
    layers::{Block, Branches, Memory, MemoryForm, Mlp, NormPlace, RmsNorm},
};
use hecate_core::{Backend, primitives::GateFunction, rules::Delta};
use serde::{Deserialize, Serialize};

/// `√1e-6`: to squares of the norms of queries and keys 1e-6 is added.
pub(super) const NORM_EPSILON: f32 = 1e-3;

/// Fields of `config.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct DeltaNet {
    vocab_size: usize,
    hidden_size: usize,
    num_hidden_layers: usize,
    num_heads: usize,
    /// All heads' keys, as a share of the hidden size.
    expand_k: f64,
    /// All heads' values, as a share of the hidden size.
    expand_v: f64,
    use_gate: bool,
    conv_size: usize,
    allow_neg_eigval: bool,
    hidden_ratio: Option<f64>,
    intermediate_size: Option<usize>,
    norm_eps: f32,
    tie_word_embeddings: bool,
}

/// Those of the family's own code.
impl Default for DeltaNet {
    fn default() -> Self {
        Self {
            vocab_size: 32000,
            hidden_size: 2048,
            num_hidden_layers: 24,
            num_heads: 16,
            expand_k: 1.0,
            expand_v: 1.0,
            use_gate: false,
            conv_size: 4,
            allow_neg_eigval: false,
            hidden_ratio: Some(4.0),
            intermediate_size: None,
            norm_eps: 1e-6,
            tie_word_embeddings: false,
        }
    }
}

impl DeltaNet {
    fn decoder(&self) -> Decoder {
        Decoder {
            vocabulary: self.vocab_size,
            hidden: self.hidden_size,
            layers: self.num_hidden_layers,
            tied: self.tie_word_embeddings,
            embeddings: "embeddings",
        }
    }

    fn memory(&self) -> Result<MemoryConfig<Delta>> {
        let width =
            |name, expand: f64| share(name, (self.hidden_size as f64 * expand).round() as usize, self.num_heads);
        Ok(MemoryConfig {
            heads: self.num_heads,
            key_dim: Some(width("hidden_size × expand_k", self.expand_k)?),
            value_dim: Some(width("hidden_size × expand_v", self.expand_v)?),
            conv: self.conv_size,
            gate: self.use_gate,
            decay: false,
            step: if self.allow_neg_eigval { 2.0 } else { 1.0 },
            ..MemoryConfig::default()
        })
    }
}

/// How memories of flash-linear-attention are formed, with keys of this width, which so many of them share.
pub(super) fn form(key: usize, gate: GateFunction, sharing: usize) -> MemoryForm {
    let query_scale = (key as f32).sqrt().recip();
    MemoryForm { norm_epsilon: NORM_EPSILON, query_scale, biased: false, gate, sharing, retention_bound: None }
}

/// Width inside of MLPs: what is told, else two thirds of `ratio` hidden sizes, and up to a multiple of 256.
pub(super) fn inner(intermediate: Option<usize>, hidden: usize, ratio: Option<f64>) -> Result<usize> {
    let missing = || Error::config("hidden_ratio", "null", "a number, or an `intermediate_size`");
    let drawn = |ratio: f64| ((hidden as f64 * ratio * 2.0 / 3.0) as usize).div_ceil(256).saturating_mul(256);
    intermediate.map_or_else(|| ratio.map(drawn).ok_or_else(missing), Ok)
}

impl Released for DeltaNet {
    const FIXED: &'static [(&'static str, &'static [&'static str])] = &[
        ("hidden_act", &["\"swish\"", "\"silu\""]),
        ("attn_mode", &["\"chunk\"", "\"fused_recurrent\""]),
        ("attn", &[]),
        ("attnres_block_size", &[]),
        ("use_beta", &["true"]),
        ("use_short_conv", &["true"]),
        ("conv_bias", &["false"]),
        ("qk_norm", &["\"l2\""]),
        ("qk_activation", &["\"silu\""]),
    ];

    fn check(&self) -> Result<()> {
        self.decoder().check()?;
        let inner = inner(self.intermediate_size, self.hidden_size, self.hidden_ratio)?;
        sizes(&[("num_heads", self.num_heads), ("intermediate_size", inner), ("conv_size", self.conv_size)])?;
        self.memory()?.check(self.hidden_size)
    }

    fn layers(&self) -> usize {
        self.num_hidden_layers
    }

    fn build<B: Backend>(&self, build: &mut Builder<'_, B>) -> Result<Box<dyn Model<B>>> {
        let (hidden, epsilon, memory) = (self.hidden_size, self.norm_eps, self.memory()?);
        let form = form(memory.key_dim.unwrap_or(1), GateFunction::Silu, 1);
        let inner = inner(self.intermediate_size, hidden, self.hidden_ratio)?;
        self.decoder().build(build, (RmsNorm::new, epsilon), |build, _| {
            let before_mixer = RmsNorm::new(build, "attn_norm", hidden, epsilon)?;
            let mixer = Memory::in_form(&mut build.within("attn"), &memory, (hidden, epsilon), form)?;
            let before_mlp = RmsNorm::new(build, "mlp_norm", hidden, epsilon)?;
            let mlp = Mlp::new(&mut build.within("mlp"), hidden, inner)?;
            let branches = Branches { mixer: (before_mixer, Box::new(mixer)), mlp: Some((before_mlp, mlp)) };
            Ok(Block::of(build, NormPlace::Before, branches))
        })
    }
}
