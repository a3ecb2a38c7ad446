//! What learning costs in memory.

use crate::{
    AttentionConfig, Features, LanguageModel, MemoryConfig, MixerConfig, Precision, config::Elements,
    language_model::ALIGNED,
};
use hecate_core::{Backend, Dims, Sequences};

/// Tokens between the states that rules keep for their gradients.
const CHECKPOINT_INTERVAL: usize = 64;

/// Bytes of a 32-bit float.
const WIDE: usize = 4;

/// What a step holds at most, in bytes, part by part.
///
/// With `N` learned elements, `R = B T` tokens a pass, `d` the width of the stream, `m` that inside the MLP, `V` the
/// vocabulary and `e` the bytes of an activation (4, or 2 with [`Precision::Bf16`]):
///
/// ```text
/// weights      4 N
/// rounded      e N with 16-bit activations, else 0: the copies that meet them, and in the end the copies' gradients
/// moments      8 N
/// gradients    4 N, but while they gather what they were made of is let go: only what is more than that counts
/// activations  e R (2 d + Σ_layers (4 d + 3 m + mixer))
/// states       4 ⌈T/64⌉ B × elements of the rule's state, layer by layer
/// scores       2 e R V: the scores of all tokens, and their gradient; V rounded up to a multiple of 64 for 16 bits
/// ```
///
/// What the tape keeps of a block: both norms' arguments and results (`4 d`), and of the MLP the gate, the other half and
/// what is let through (`3 m`). Of a memory with `H` heads, keys of width `K` and values of width `V'`:
///
/// ```text
/// queries and keys   each 2 H K: before the convolution and after the norm; 3 H K without a convolution, with what
///                    follows SiLU; polynomial features come on top
/// values             2 H V'
/// what was read      3 H V': before its norm, the gate, and what it lets through; 2 H V' without a gate
/// gates              4 bytes × 4 for each, at most: itself and what it was made of
/// ```
///
/// Of attention, with `H` query heads and `H'` key-value heads of width `D`: queries, keys, values and what was seen,
/// `(2 H + 2 H') D`, and one array more of each of the first three where they are convolved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Footprint {
    /// All parameters, in 32 bits.
    pub weights: usize,
    /// Their copies in the type of activations.
    pub rounded: usize,
    /// The optimiser's moments.
    pub moments: usize,
    /// Gradients of all parameters.
    pub gradients: usize,
    /// What the tape keeps of the forward.
    pub activations: usize,
    /// States that rules keep.
    pub states: usize,
    /// Scores of all tokens, and their gradient.
    pub scores: usize,
}

impl Footprint {
    /// The most that is held at once: at the start of the backward, or at its end.
    pub fn total(&self) -> usize {
        let Self { weights, rounded, moments, gradients, activations, states, scores } = *self;
        weights + rounded + moments + gradients.max(activations + states + scores)
    }
}

impl<B: Backend> LanguageModel<B> {
    /// What a step of learning costs with `batch` sequences of `tokens` tokens a pass; none where a mixer is composed of
    /// several parts.
    pub fn footprint(&self, batch: usize, tokens: usize) -> Option<Footprint> {
        let count = self.parameters().elements();
        let config = self.config();
        let rows = batch * tokens;
        let size = self.precision().dtype().size();
        let scores = match self.precision() {
            Precision::F32 => config.vocabulary_size,
            Precision::Bf16 => config.vocabulary_size.next_multiple_of(ALIGNED),
        };
        let mut all = Footprint {
            weights: WIDE * count,
            rounded: if self.precision() == Precision::F32 { 0 } else { size * count },
            moments: 2 * WIDE * count,
            gradients: WIDE * count,
            activations: size * rows * 2 * config.hidden_size,
            states: 0,
            scores: 2 * size * rows * scores,
        };
        for layer in &config.layers {
            let block = 4 * config.hidden_size + 3 * config.mlp_size();
            let TapeElements { narrow, wide, states } = match &layer.mixer {
                MixerConfig::Memory(memory) => memory.tape_elements(config.hidden_size, batch, tokens),
                MixerConfig::Attention(attention) => attention.tape_elements(config.hidden_size),
                _ => return None,
            };
            all.activations += rows * (size * (block + narrow) + WIDE * wide);
            all.states += WIDE * states;
        }
        Some(all)
    }
}

/// Elements of a mixer that the tape keeps for the backward pass.
struct TapeElements {
    /// Of a token, in the type of activations.
    narrow: usize,
    /// Of a token, in 32 bits.
    wide: usize,
    /// Of all states of all texts, in 32 bits.
    states: usize,
}

impl MemoryConfig {
    /// What the tape keeps of a pass of `batch` texts of `tokens` tokens.
    fn tape_elements(&self, hidden: usize, batch: usize, tokens: usize) -> TapeElements {
        let (key, value) = self.widths(hidden);
        let width = self.features.width(key);
        let features = if self.features == Features::Identity { 0 } else { width };
        let queries = if self.conv > 0 { 2 } else { 3 } * key + features;
        let read = if self.gate { 3 } else { 2 };
        let narrow = self.heads * (2 * queries + (2 + read) * value);
        let dims =
            Dims { batch: 1, tokens: 1, heads: self.heads, key: width, value, sequences: Sequences::batch(1, 1) };
        let Elements { state, gates } = Elements::of(self.rule, &dims);
        // Reciprocal norms of what was read, and of queries and keys without a convolution.
        let wide = 4 * gates as usize + if self.conv > 0 { 1 } else { 3 } * self.heads;
        TapeElements { narrow, wide, states: batch * tokens.div_ceil(CHECKPOINT_INTERVAL) * state as usize }
    }
}

impl AttentionConfig {
    /// What the tape keeps of a token; there is no state, and log-sum-exp is an element a head.
    fn tape_elements(&self, hidden: usize) -> TapeElements {
        let (kv_heads, width) = self.sizes(hidden);
        let convolved = if self.conv > 0 { self.heads + 2 * kv_heads } else { 0 };
        let narrow = width * (2 * (self.heads + kv_heads) + convolved);
        TapeElements { narrow, wide: self.heads, states: 0 }
    }
}
