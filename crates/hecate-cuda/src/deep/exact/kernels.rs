//! Which kernels there are, and for which memories.
//!
//! A name ends in what the kernel is compiled for. `_32` and `_64` are widths of keys and values, with up to 128 hidden
//! units in one block. `_pair_128` and `_pair_256` are of width 64, with up to so many hidden units in a cluster of two.
//! All these are sizes of registers, which a kernel has to know when it is compiled.

use super::SOURCE;
use crate::recurrent::{StepKernels, step_kernels};
use hecate_core::{
    families::{DeepForm, DeepOptions},
    rules::{Map, Retention},
};

// Squared errors, decay and momentum.
step_kernels! { TITANS_32: SOURCE, DeepOptions {
    "exact_titans_32_forward" Titans32Forward, "exact_titans_32_backward" Titans32Backward
} }
step_kernels! { TITANS_64: SOURCE, DeepOptions {
    "exact_titans_64_forward" Titans64Forward, "exact_titans_64_backward" Titans64Backward
} }
// Huber's error and decay, without momentum.
step_kernels! { HUBER_32: SOURCE, DeepOptions {
    "exact_huber_32_forward" Huber32Forward, "exact_huber_32_backward" Huber32Backward
} }
step_kernels! { HUBER_64: SOURCE, DeepOptions {
    "exact_huber_64_forward" Huber64Forward, "exact_huber_64_backward" Huber64Backward
} }
// Huber's error and decay, with momentum.
step_kernels! { HUBER_MOMENTUM_32: SOURCE, DeepOptions {
    "exact_huber_momentum_32_forward" HuberMomentum32Forward, "exact_huber_momentum_32_backward" HuberMomentum32Backward
} }
step_kernels! { HUBER_MOMENTUM_64: SOURCE, DeepOptions {
    "exact_huber_momentum_64_forward" HuberMomentum64Forward, "exact_huber_momentum_64_backward" HuberMomentum64Backward
} }

// An ℓp error, and weights that are an image of the state; no momentum.
step_kernels! { MONETA_32: SOURCE, DeepOptions {
    "exact_moneta_32_forward" Moneta32Forward, "exact_moneta_32_backward" Moneta32Backward
} }
step_kernels! { MONETA_64: SOURCE, DeepOptions {
    "exact_moneta_64_forward" Moneta64Forward, "exact_moneta_64_backward" Moneta64Backward
} }

// Squared errors, and a KL divergence that keeps weights near the last; no momentum.
step_kernels! { MEMORA_32: SOURCE, DeepOptions {
    "exact_memora_32_forward" Memora32Forward, "exact_memora_32_backward" Memora32Backward
} }
step_kernels! { MEMORA_64: SOURCE, DeepOptions {
    "exact_memora_64_forward" Memora64Forward, "exact_memora_64_backward" Memora64Backward
} }

// Two blocks a memory: each has half of the hidden units, and they exchange sums through the cluster's shared memory.
step_kernels! { TITANS_PAIR_128: SOURCE, DeepOptions {
    "exact_titans_pair_128_forward" TitansPair128Forward, "exact_titans_pair_128_backward" TitansPair128Backward
} }
step_kernels! { TITANS_PAIR_256: SOURCE, DeepOptions {
    "exact_titans_pair_256_forward" TitansPair256Forward, "exact_titans_pair_256_backward" TitansPair256Backward
} }
step_kernels! { HUBER_PAIR_128: SOURCE, DeepOptions {
    "exact_huber_pair_128_forward" HuberPair128Forward, "exact_huber_pair_128_backward" HuberPair128Backward
} }
step_kernels! { HUBER_PAIR_256: SOURCE, DeepOptions {
    "exact_huber_pair_256_forward" HuberPair256Forward, "exact_huber_pair_256_backward" HuberPair256Backward
} }
step_kernels! { HUBER_MOMENTUM_PAIR_128: SOURCE, DeepOptions {
    "exact_huber_momentum_pair_128_forward" HuberMomentumPair128Forward,
    "exact_huber_momentum_pair_128_backward" HuberMomentumPair128Backward
} }
step_kernels! { HUBER_MOMENTUM_PAIR_256: SOURCE, DeepOptions {
    "exact_huber_momentum_pair_256_forward" HuberMomentumPair256Forward,
    "exact_huber_momentum_pair_256_backward" HuberMomentumPair256Backward
} }
step_kernels! { MONETA_PAIR_128: SOURCE, DeepOptions {
    "exact_moneta_pair_128_forward" MonetaPair128Forward, "exact_moneta_pair_128_backward" MonetaPair128Backward
} }
step_kernels! { MONETA_PAIR_256: SOURCE, DeepOptions {
    "exact_moneta_pair_256_forward" MonetaPair256Forward, "exact_moneta_pair_256_backward" MonetaPair256Backward
} }
step_kernels! { MEMORA_PAIR_128: SOURCE, DeepOptions {
    "exact_memora_pair_128_forward" MemoraPair128Forward, "exact_memora_pair_128_backward" MemoraPair128Backward
} }
step_kernels! { MEMORA_PAIR_256: SOURCE, DeepOptions {
    "exact_memora_pair_256_forward" MemoraPair256Forward, "exact_memora_pair_256_backward" MemoraPair256Backward
} }

/// Hidden units at most that one block has in registers.
const MOST_HIDDEN: usize = 128;

/// Kernels, the blocks that share a memory in them, and the hidden units of a warp: `BLOCKS` and `UNITS`.
pub(super) struct Shared {
    /// Forward and backward of one form and size.
    pub(super) kernels: StepKernels<DeepOptions>,
    /// 1 or 2.
    pub(super) blocks: usize,
    /// 8 or 16: times warps and blocks, the most hidden units there is room for.
    pub(super) units: usize,
}

/// The kernels of a form for keys and values of so many elements and so many hidden units. Two blocks share a memory where
/// the GPU has `clusters`, if one has no room for it or every memory can have two multiprocessors (`idle`).
pub(super) fn kernels(
    form: DeepForm,
    retention: Retention,
    [width, hidden]: [usize; 2],
    clusters: bool,
    idle: bool,
) -> Option<Shared> {
    let [narrow, wide, pair, wide_pair] = match form {
        DeepForm::L2Momentum => [TITANS_32, TITANS_64, TITANS_PAIR_128, TITANS_PAIR_256],
        DeepForm::Huber => [HUBER_32, HUBER_64, HUBER_PAIR_128, HUBER_PAIR_256],
        DeepForm::HuberMomentum => {
            [HUBER_MOMENTUM_32, HUBER_MOMENTUM_64, HUBER_MOMENTUM_PAIR_128, HUBER_MOMENTUM_PAIR_256]
        }
        // Weights are third powers of the state.
        DeepForm::LpLq if retention == (Retention::Lq { q: 4.0, map: Map::Mirror }) => {
            [MONETA_32, MONETA_64, MONETA_PAIR_128, MONETA_PAIR_256]
        }
        DeepForm::LpLq => return None,
        DeepForm::L2Kl => [MEMORA_32, MEMORA_64, MEMORA_PAIR_128, MEMORA_PAIR_256],
    };
    // Whole warps of units, and as many threads a block as values have elements.
    let fits = |most: usize| hidden.is_multiple_of(32) && (32..=most).contains(&hidden);
    match width {
        32 if fits(MOST_HIDDEN) => Some(Shared { kernels: narrow, blocks: 1, units: 8 }),
        64 if fits(MOST_HIDDEN) && clusters && idle => Some(Shared { kernels: pair, blocks: 2, units: 8 }),
        64 if fits(MOST_HIDDEN) => Some(Shared { kernels: wide, blocks: 1, units: 16 }),
        64 if fits(2 * MOST_HIDDEN) && clusters => Some(Shared { kernels: wide_pair, blocks: 2, units: 16 }),
        _ => None,
    }
}
