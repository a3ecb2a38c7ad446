//! Gated DeltaNet of flash-linear-attention: the delta rule on memories that forget first (Yang et al., "Gated Delta Networks").

use super::{
    Released,
    decoder::{Decoder, sharing, sizes},
    delta_net::{form, inner},
};
use crate::{
    Builder, Error, MemoryConfig, Model, Result,
    layers::{Block, Branches, Memory, Mlp, NormPlace, RmsNorm},
};
use hecate_core::{
    Backend,
    primitives::GateFunction,
    rules::{Delta, Erase},
};
use serde::{Deserialize, Serialize};

/// Fields of `config.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct GatedDeltaNet {
    vocab_size: usize,
    hidden_size: usize,
    num_hidden_layers: usize,
    num_heads: usize,
    /// As many as key heads unless given.
    num_v_heads: Option<usize>,
    /// Width of a key.
    head_dim: usize,
    /// Width of a value, as a share of that.
    expand_v: f64,
    use_gate: bool,
    output_gate_activation: String,
    conv_size: usize,
    allow_neg_eigval: bool,
    hidden_ratio: Option<f64>,
    intermediate_size: Option<usize>,
    norm_eps: f32,
    tie_word_embeddings: bool,
}

/// Those of the family's own code.
impl Default for GatedDeltaNet {
    fn default() -> Self {
        Self {
            vocab_size: 32000,
            hidden_size: 2048,
            num_hidden_layers: 21,
            num_heads: 6,
            num_v_heads: None,
            head_dim: 256,
            expand_v: 2.0,
            use_gate: true,
            output_gate_activation: "swish".into(),
            conv_size: 4,
            allow_neg_eigval: false,
            hidden_ratio: Some(4.0),
            intermediate_size: None,
            norm_eps: 1e-6,
            tie_word_embeddings: false,
        }
    }
}

/// A delta rule that erases what is left after forgetting.
pub(super) const GATED: Delta = Delta { erase: Erase::Decayed, read: hecate_core::Read::After, frozen: None };

/// The function of an output's gate, of its name in the field `name`.
pub(super) fn gate_function(name: &str, found: &str) -> Result<GateFunction> {
    match found {
        "swish" | "silu" => Ok(GateFunction::Silu),
        "sigmoid" => Ok(GateFunction::Sigmoid),
        other => Err(Error::config(name, format!("`{other}`"), "`swish` or `sigmoid`")),
    }
}

impl GatedDeltaNet {
    fn decoder(&self) -> Decoder {
        Decoder {
            vocabulary: self.vocab_size,
            hidden: self.hidden_size,
            layers: self.num_hidden_layers,
            tied: self.tie_word_embeddings,
            embeddings: "embeddings",
        }
    }

    fn value_heads(&self) -> usize {
        self.num_v_heads.unwrap_or(self.num_heads)
    }

    /// Value heads that share a key head.
    fn sharing(&self) -> Result<usize> {
        sharing(("num_heads", self.num_heads), ("num_v_heads", self.value_heads()))
    }

    fn memory(&self) -> MemoryConfig<Delta> {
        MemoryConfig {
            rule: GATED,
            heads: self.value_heads(),
            key_dim: Some(self.head_dim),
            value_dim: Some((self.head_dim as f64 * self.expand_v) as usize),
            conv: self.conv_size,
            gate: self.use_gate,
            step: if self.allow_neg_eigval { 2.0 } else { 1.0 },
            ..MemoryConfig::default()
        }
    }
}

impl Released for GatedDeltaNet {
    const FIXED: &'static [(&'static str, &'static [&'static str])] = &[
        ("hidden_act", &["\"swish\"", "\"silu\""]),
        ("attn_mode", &["\"chunk\"", "\"fused_recurrent\""]),
        ("attn", &[]),
        ("attnres_block_size", &[]),
        ("use_short_conv", &["true"]),
        ("conv_bias", &["false"]),
    ];

    fn check(&self) -> Result<()> {
        self.decoder().check()?;
        gate_function("output_gate_activation", &self.output_gate_activation)?;
        let inner = inner(self.intermediate_size, self.hidden_size, self.hidden_ratio)?;
        sizes(&[("num_heads", self.num_heads), ("intermediate_size", inner), ("conv_size", self.conv_size)])?;
        self.sharing()?;
        self.memory().check(self.hidden_size)
    }

    fn layers(&self) -> usize {
        self.num_hidden_layers
    }

    fn build<B: Backend>(&self, build: &mut Builder<'_, B>) -> Result<Box<dyn Model<B>>> {
        let (hidden, epsilon, memory) = (self.hidden_size, self.norm_eps, self.memory());
        let gate = gate_function("output_gate_activation", &self.output_gate_activation)?;
        let form = form(self.head_dim, gate, self.sharing()?);
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
