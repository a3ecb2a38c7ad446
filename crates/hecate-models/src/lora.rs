//! What an adapter of a model is like.

use crate::{
    Error, Result,
    bounds::{SIZE, within},
};
use serde::{Deserialize, Serialize};

/// Low-rank adapters (LoRA): each of some linear maps `W [outputs, inputs]` is frozen, and becomes `W + s B A` with `A [r, inputs]`
/// and `B [outputs, r]`, which learn. Source: Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models".
///
/// ```
/// use hecate_models::Lora;
///
/// let lora = Lora { targets: vec!["q_proj".to_owned(), "v_proj".to_owned()], ..Lora::of_rank(8) };
/// assert_eq!(lora.scale(), 2.0);
/// assert!(lora.is_target("model.layers.0.self_attn.q_proj") && !lora.is_target("model.layers.0.self_attn.o_proj"));
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Lora {
    /// `r`, at least 1.
    pub rank: usize,
    /// What `s` is made of: `α / r`.
    pub alpha: f32,
    /// Whether `s` is `α / √r` instead. Source: Kalajdzievski, "A rank stabilization scaling factor for fine-tuning with LoRA".
    pub rank_stabilised: bool,
    /// Which maps, by the last words of their names in the files of the model: `q_proj`, or `mlp.up_proj`.
    pub targets: Vec<String>,
}

impl Lora {
    /// Maps of memories, attention and MLPs in files of all families, but for those of gates. No model has all of them.
    pub const TARGETS: [&'static str; 17] = [
        "in_proj",
        "in_proj_qkv",
        "in_proj_z",
        "out_proj",
        "q_proj",
        "k_proj",
        "v_proj",
        "g_proj",
        "o_proj",
        "gate_proj",
        "up_proj",
        "down_proj",
        "input_linear",
        "output_linear",
        "w1",
        "w2",
        "w3",
    ];

    /// Of this rank, with `s = 2` and no target yet.
    pub fn of_rank(rank: usize) -> Self {
        Self { rank, alpha: 2.0 * rank as f32, rank_stabilised: false, targets: Vec::new() }
    }

    /// `s`.
    pub fn scale(&self) -> f32 {
        let rank = self.rank as f32;
        self.alpha / if self.rank_stabilised { rank.sqrt() } else { rank }
    }

    /// Whether the map of this name is one of the targets.
    pub fn is_target(&self, map: &str) -> bool {
        self.targets.iter().any(|target| ends_with(map, target))
    }

    /// Refuses what makes no sense.
    ///
    /// # Errors
    /// [`Error::Config`] naming the setting.
    pub fn check(&self) -> Result<()> {
        within("rank", self.rank, 1..=SIZE)?;
        match self.alpha.is_finite() && self.alpha > 0.0 {
            true => Ok(()),
            false => Err(Error::config("alpha", self.alpha, "a finite number above 0")),
        }
    }
}

/// Whether these are the last words of a name, with points between words.
pub(crate) fn ends_with(name: &str, words: &str) -> bool {
    name.strip_suffix(words).is_some_and(|rest| !words.is_empty() && (rest.is_empty() || rest.ends_with('.')))
}
