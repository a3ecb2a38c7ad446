//! What learning costs in memory.

mod mixers;

use crate::{
    Config, Dropout, Error, Precision, Result,
    pieces::{ALIGNED, piece},
};
use hecate_core::{Backend, Bytes, Checkpoints, DeviceMemory};
use mixers::TapeElements;

/// Bytes of a 32-bit float.
const WIDE: u128 = 4;

/// Most texts, and tokens of a text, that are told apart: more than any memory holds, so few that no sum overflows.
const MOST: usize = if usize::BITS < 64 { usize::MAX } else { 1 << 44 };

/// What a step holds at most, in bytes, part by part.
///
/// There are `N` learned elements and `R = B T` tokens a pass. `d` is the width of the stream, `m` that inside the MLP,
/// `V` the vocabulary, `e` the bytes of an activation (4, or 2 with [`Precision::Bf16`]):
///
/// ```text
/// weights      4 N
/// rounded      e N with 16-bit activations, else 0: the copies that meet them, and in the end the copies' gradients
/// moments      8 N
/// gradients    4 N, but while they gather what they were made of is let go: only what is more than that counts
/// activations  e R (2 d + Σ_layers (4 d + 3 m + mixer))
/// states       4 ⌈T/64⌉ B × elements of the rule's state, layer by layer
/// scores       2 e R' V: scores, and their gradient, of the R' ≤ R tokens that have them at a time: e R' V is at most 256 MiB,
///              and R' a quarter of R where V is 32,768 or more; V rounded up to a multiple of 64 for 16 bits. Where
///              R' < R, 2 e R d + 4 V d more: what gathers over them
/// ```
///
/// [`Precision::Fp8`] is counted as [`Precision::Bf16`]: the 8-bit copies of one product's factors come on top, as the library's
/// workspace of 32 MiB does.
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
/// Attention has `H` query heads and `H'` key-value heads of width `D`. Queries, keys, values and what was seen take
/// `(2 H + 2 H') D`. Where the first three are convolved, each takes one array more.
///
/// Mixers that are composed of several parts keep at most the sum of these and of what joins them: pieces of texts, and
/// for every piece the states before and after it.
///
/// Dropout keeps a mask of each array that it drops of: of a block `2 d`, `m`, and at most half of what is kept of the mixer.
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
    /// Scores of the tokens that have them at a time, and their gradient.
    pub scores: usize,
}

impl Footprint {
    /// Of this many learned elements, whatever is made of them: no activations, states and scores.
    pub fn of_elements(elements: u128, precision: Precision) -> Self {
        let bytes = |size: u128| usize::try_from(size.saturating_mul(elements)).unwrap_or(usize::MAX);
        let rounded = if precision == Precision::F32 { 0 } else { precision.dtype().size() as u128 };
        let (weights, moments) = (bytes(WIDE), bytes(2 * WIDE));
        Self { weights, rounded: bytes(rounded), moments, gradients: weights, ..Self::default() }
    }

    /// With `elements` learned by blocks of this configuration.
    pub(crate) fn of_blocks(config: &Config, elements: u128, precision: Precision, call: Pass) -> Self {
        let call = Pass { batch: call.batch.min(MOST), tokens: call.tokens.min(MOST), ..call };
        let (hidden, size) = (call.hidden as u128, precision.dtype().size() as u128);
        let rows = (call.batch as u128).saturating_mul(call.tokens as u128);
        let scores = match precision {
            Precision::F32 => config.vocabulary_size,
            Precision::Bf16 | Precision::Fp8 => config.vocabulary_size.saturating_add(ALIGNED - 1) / ALIGNED * ALIGNED,
        };
        let at_once = piece(usize::try_from(rows).unwrap_or(usize::MAX), scores, precision.dtype().size()) as u128;
        // Of several pieces gradients gather: that of the stream, and in 16 bits that of the head, which is added to in place.
        let gathered = match at_once < rows {
            true => rows.saturating_mul(2 * size * hidden).saturating_add(WIDE * scores as u128 * hidden),
            false => 0,
        };
        // Of layers alike one is counted.
        let layers = config.layers.chunk_by(|a, b| a == b).map(|run| {
            let TapeElements { narrow, wide, states } = run[0].mixer.tape_elements(call);
            let block = 4 * hidden + 3 * config.mlp_size() as u128 + masks(config, narrow);
            let tokens = rows.saturating_mul(size * (block + narrow) + WIDE * wide);
            [tokens, WIDE.saturating_mul(states)].map(|bytes| bytes.saturating_mul(run.len() as u128))
        });
        let [activations, states] = layers.fold([rows.saturating_mul(size * 2 * hidden), 0], |sum, layer| {
            [sum[0].saturating_add(layer[0]), sum[1].saturating_add(layer[1])]
        });
        let bytes = |bytes: u128| usize::try_from(bytes).unwrap_or(usize::MAX);
        Self {
            activations: bytes(activations),
            states: bytes(states),
            scores: bytes(at_once.saturating_mul(2 * size * scores as u128).saturating_add(gathered)),
            ..Self::of_elements(elements, precision)
        }
    }

    /// The most that is held at once: at the start of the backward, or at its end; `usize::MAX` where it is more.
    pub fn total(&self) -> usize {
        let Self { weights, rounded, moments, gradients, activations, states, scores } = *self;
        let passing = [activations, states, scores].into_iter().fold(0, usize::saturating_add);
        [weights, rounded, moments, gradients.max(passing)].into_iter().fold(0, usize::saturating_add)
    }

    /// Refuses to learn on a device that has less than this free, beside the `present` bytes that are there already.
    /// Devices that do not say what they have refuse nothing.
    ///
    /// # Errors
    /// [`Error::DoesNotFit`]; the device's own failures.
    pub fn check<B: Backend>(&self, device: &B, present: usize) -> Result<()> {
        let Some(DeviceMemory { total, free }) = device.memory()? else { return Ok(()) };
        let needed = self.total().saturating_sub(present) as u128;
        if needed <= free.into() {
            return Ok(());
        }
        let [needed, free, total] = [needed, free.into(), total.into()].map(Bytes);
        Err(Error::DoesNotFit { needed, free, total })
    }
}

/// Elements of a block's masks a token, where the mixer keeps `narrow` elements.
fn masks(config: &Config, narrow: u128) -> u128 {
    let Dropout { attention, activation, hidden } = config.dropout();
    let (mlp, stream) = (config.mlp_size() as u128, config.hidden_size as u128);
    let sizes = [(attention, narrow / 2), (activation, mlp), (hidden, 2 * stream)];
    sizes.into_iter().filter(|&(share, _)| share > 0.0).map(|(_, size)| size).sum()
}

/// Sizes of a pass.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pass {
    /// Width of the stream.
    pub(crate) hidden: usize,
    pub(crate) batch: usize,
    pub(crate) tokens: usize,
}

impl Pass {
    /// States of all texts where each is cut into pieces of `length` tokens, and every piece is `calls` calls that keep
    /// states for their backward, and leaves `more`.
    fn states(self, length: usize, calls: usize, more: usize) -> u128 {
        let length = length.clamp(1, self.tokens.max(1));
        let kept = calls as u128 * Checkpoints::new(None).count(length) as u128 + more as u128;
        (self.batch as u128).saturating_mul(self.tokens.div_ceil(length) as u128).saturating_mul(kept)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::LanguageModel;
    use hecate_cpu::Cpu;

    const MIXERS: [&str; 12] =
        ["delta", "titans", "attention", "atlas", "trellis", "mag", "mal", "mac", "cms", "conductor", "tnt", "hope"];

    #[test]
    fn sizes_are_known_before_there_is_a_model() {
        let device = Cpu::new();
        for mixer in MIXERS {
            let config = Config::uniform(mixer, 3, 32, 2).unwrap();
            let model = LanguageModel::new(&device, &config, 0).unwrap();
            let before = Footprint::of(&device, &config, Precision::F32, 2, 100).unwrap();
            assert_eq!(before, model.footprint(2, 100), "{mixer}");
            assert_eq!(before.weights, 4 * model.parameters().elements(), "{mixer}");
        }
    }

    #[test]
    fn sizes_beyond_all_memory_stay_there() {
        let device = Cpu::new();
        for mixer in MIXERS {
            let config = Config::uniform(mixer, 1, 32, 2).unwrap();
            for (batch, tokens) in [(usize::MAX, usize::MAX), (usize::MAX, 1), (1, usize::MAX)] {
                let footprint = Footprint::of(&device, &config, Precision::Bf16, batch, tokens).unwrap();
                assert!(footprint.total() > 1 << 50, "{mixer}");
                let told = footprint.check(&device, 0).unwrap_err().to_string();
                assert!(told.contains("does not fit") && told.contains("GB"), "{told}");
            }
            assert!(Footprint::of(&device, &config, Precision::F32, 0, 0).unwrap().check(&device, 0).is_ok());
        }
    }
}
