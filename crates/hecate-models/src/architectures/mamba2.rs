//! Mamba-2: Hebbian memories and nothing else, one after another (Dao and Gu, "Transformers are SSMs").

use super::{
    Join, Released,
    decoder::{Decoder, sizes},
};
use crate::{
    Builder, Error, Model, Result,
    layers::{Block, Branches, Mamba2, Mamba2Config, NormPlace, RmsNorm},
};
use hecate_core::{Backend, primitives::GatePlace};
use serde::{Deserialize, Serialize};

/// Fields of `config.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Mamba2Model {
    vocab_size: usize,
    hidden_size: usize,
    num_hidden_layers: usize,
    num_heads: usize,
    /// Width of a head's values.
    head_dim: usize,
    /// Width of keys and queries.
    state_size: usize,
    /// Heads of keys and queries.
    n_groups: usize,
    /// All heads' values, in hidden sizes.
    expand: usize,
    /// Taps of convolutions.
    conv_kernel: usize,
    #[serde(default = "yes")]
    use_conv_bias: bool,
    layer_norm_epsilon: f32,
    #[serde(default)]
    tie_word_embeddings: bool,
}

fn yes() -> bool {
    true
}

impl Mamba2Model {
    fn decoder(&self) -> Decoder {
        Decoder {
            vocabulary: self.vocab_size,
            hidden: self.hidden_size,
            layers: self.num_hidden_layers,
            tied: self.tie_word_embeddings,
            embeddings: "embeddings",
        }
    }

    fn mixer(&self) -> Mamba2Config {
        Mamba2Config {
            hidden: self.hidden_size,
            heads: self.num_heads,
            value: self.head_dim,
            key: self.state_size,
            groups: self.n_groups,
            taps: self.conv_kernel,
            conv_bias: self.use_conv_bias,
            norm: Some(GatePlace::Before),
            factors: [1.0; 5],
            norm_eps: self.layer_norm_epsilon,
        }
    }
}

impl Released for Mamba2Model {
    /// Steps have no bounds, which transformers writes in a form of its own.
    const FIXED: &'static [(&'static str, &'static [&'static str])] = &[
        ("hidden_act", &["\"silu\"", "\"swish\""]),
        ("use_bias", &["false"]),
        ("time_step_limit", &["[0.0,{\"__float__\":\"Infinity\"}]"]),
    ];

    fn check(&self) -> Result<()> {
        self.decoder().check()?;
        sizes(&[("num_heads", self.num_heads), ("head_dim", self.head_dim), ("expand", self.expand)])?;
        let (inner, told) = (self.num_heads * self.head_dim, self.hidden_size.saturating_mul(self.expand));
        if inner != told {
            let expected = format!("{told}, `expand` times `hidden_size`");
            return Err(Error::config("num_heads × head_dim", inner, expected));
        }
        self.mixer().check()
    }

    fn layers(&self) -> usize {
        self.num_hidden_layers
    }

    /// The last norm has a name of its own.
    fn joins(&self, _: &dyn Fn(&str) -> bool) -> Vec<Join> {
        vec![Join::new(&["model.norm_f.weight".to_owned()], &["model.norm.weight".to_owned()])]
    }

    fn build<B: Backend>(&self, build: &mut Builder<'_, B>) -> Result<Box<dyn Model<B>>> {
        let (hidden, epsilon) = (self.hidden_size, self.layer_norm_epsilon);
        self.decoder().build(build, (RmsNorm::new, epsilon), |build, _| {
            let norm = RmsNorm::new(build, "norm", hidden, epsilon)?;
            let mixer = Mamba2::new(&mut build.within("mixer"), self.mixer())?;
            Ok(Block::of(build, NormPlace::Before, Branches { mixer: (norm, Box::new(mixer)), mlp: None }))
        })
    }
}
