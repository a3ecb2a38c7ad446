//! Exact tokens of MLP memories, with all weights and momentum in registers of one block.
//!
//! # Blocks
//!
//! A sequence and head has a block. A warp has so many hidden units, with their columns of `W0` and rows of `W1`, and a lane
//! every 32nd element of these. Sums over keys and values are exchanges inside a warp. Sums over hidden units are a thread's
//! own, and then one over warps: the only barrier of a token where memories decay. A token's read sees what the next token's key
//! does, so both go through the weights together.
//!
//! Of (54) and (55) the state lies there, and of (55) exponentials beside it. What all of an image share, a norm or sums of
//! columns, is one more sum over the block.
//!
//! # Backward
//!
//! Registers hold gradients of the state. States of an interval are made again from the kept one, by the code of the forward,
//! and lie in the workspace as threads hold them: the copy of the next one to shared memory runs beside the work on this one.
//! Each thread copies and reads its own part alone, so there is one barrier a token here too.
//!
//! # Numbers
//!
//! All have 32 bits, whatever the type of the arguments.
//!
//! # Memory
//!
//! States are kept as by the general kernels, so that either backward could follow either forward. A block of the backward has
//! 65 states in its workspace, as theirs has, and pre-activations and errors by token. Where weights are exponentials, these
//! lie beside the states. Anchors lie in the workspace too, as threads hold them: the weights' size in a forward, twice that in a
//! backward, which has their gradients beside them.
//!
//! # What it costs
//!
//! Of a forward, a token reads each weight of a `[K,D]` and `[D,V]` memory twice and writes it once, with momentum nine
//! operations a weight. Two exchanges among lanes and one barrier are what a token takes beside that. An anchor is read once a
//! token; a backward reads it twice, and reads and writes its gradient.
//!
//! # What goes by the general kernels
//!
//! Keys and values of other widths than 32 or 64, more than 128 hidden units, memories that are matrices, norms inside the
//! memory, momentum that looks ahead, and of (54) other norms than `q = 4`, and the literal map. Frozen groups have kernels
//! of their own ([`frozen`](super::frozen)).

use crate::{
    Cuda,
    recurrent::{Grouped, StepKernels, near_limit, step_kernels},
    source::{KernelSource, kernel_source},
};
use hecate_core::{
    Checkpoints, Dims,
    families::{DeepForm, DeepOptions, DeepSpec},
    rules::{Map, Retention},
};

pub(crate) const SOURCE: KernelSource = kernel_source!("exact", "exact.cu");

step_kernels! { TITANS_32: SOURCE, DeepOptions {
    "exact_titans_32_forward" Titans32Forward, "exact_titans_32_backward" Titans32Backward
} }
step_kernels! { TITANS_64: SOURCE, DeepOptions {
    "exact_titans_64_forward" Titans64Forward, "exact_titans_64_backward" Titans64Backward
} }
step_kernels! { HUBER_32: SOURCE, DeepOptions {
    "exact_huber_32_forward" Huber32Forward, "exact_huber_32_backward" Huber32Backward
} }
step_kernels! { HUBER_64: SOURCE, DeepOptions {
    "exact_huber_64_forward" Huber64Forward, "exact_huber_64_backward" Huber64Backward
} }
step_kernels! { HUBER_MOMENTUM_32: SOURCE, DeepOptions {
    "exact_huber_momentum_32_forward" HuberMomentum32Forward, "exact_huber_momentum_32_backward" HuberMomentum32Backward
} }
step_kernels! { HUBER_MOMENTUM_64: SOURCE, DeepOptions {
    "exact_huber_momentum_64_forward" HuberMomentum64Forward, "exact_huber_momentum_64_backward" HuberMomentum64Backward
} }

step_kernels! { MONETA_32: SOURCE, DeepOptions {
    "exact_moneta_32_forward" Moneta32Forward, "exact_moneta_32_backward" Moneta32Backward
} }
step_kernels! { MONETA_64: SOURCE, DeepOptions {
    "exact_moneta_64_forward" Moneta64Forward, "exact_moneta_64_backward" Moneta64Backward
} }

step_kernels! { MEMORA_32: SOURCE, DeepOptions {
    "exact_memora_32_forward" Memora32Forward, "exact_memora_32_backward" Memora32Backward
} }
step_kernels! { MEMORA_64: SOURCE, DeepOptions {
    "exact_memora_64_forward" Memora64Forward, "exact_memora_64_backward" Memora64Backward
} }

/// Hidden units at most: registers have room for no more.
const MOST_HIDDEN: usize = 128;
/// `UNIT_ROWS`, `PART_ROWS`, `NUMBERS`; two norms a warp, of 64 bits.
const UNIT_ROWS: usize = 8;
const PART_ROWS: usize = 4;
const NUMBERS: usize = 8;
const NORMS: usize = 4;

/// The kernels of a form for keys and values of this width, and the hidden units of a warp: `UNITS`.
fn kernels(form: DeepForm, retention: Retention, width: usize) -> Option<(StepKernels<DeepOptions>, usize)> {
    let by_width = match form {
        DeepForm::L2Momentum => [TITANS_32, TITANS_64],
        DeepForm::Huber => [HUBER_32, HUBER_64],
        DeepForm::HuberMomentum => [HUBER_MOMENTUM_32, HUBER_MOMENTUM_64],
        // Weights are third powers of the state.
        DeepForm::LpLq if retention == (Retention::Lq { q: 4.0, map: Map::Mirror }) => [MONETA_32, MONETA_64],
        DeepForm::LpLq => return None,
        DeepForm::L2Kl => [MEMORA_32, MEMORA_64],
    };
    match width {
        32 => Some((by_width[0], 8)),
        64 => Some((by_width[1], 16)),
        _ => None,
    }
}

/// The kernel for a pass of a call, 0 forward and 1 backward, where it suits one.
pub(super) fn exact(
    device: &Cuda,
    spec: DeepSpec,
    form: DeepForm,
    dims: &Dims,
    pass: usize,
) -> Option<Grouped<DeepOptions>> {
    let hidden = spec.structure.hidden(dims.key)?;
    let plain = spec.frozen.is_none() && !spec.structure.norm() && !spec.looks_ahead() && !spec.renorm;
    // A product of lanes' sums needs 32 units or more.
    let fits = hidden.is_multiple_of(32) && (32..=MOST_HIDDEN).contains(&hidden);
    if !plain || !fits || dims.key != dims.value {
        return None;
    }
    let (kernels, units) = kernels(form, spec.retention, dims.key)?;
    let block = Block { width: dims.key, hidden, warps: hidden / units, units, form, anchored: dims.anchored };
    let (start, near, far) = match pass {
        0 => (kernels.forward, block.sums(), block.anchors()),
        _ => (kernels.backward, block.sums() + block.images(), block.far()),
    };
    // Smaller GPUs have not so much shared memory.
    let threads = 32 * block.warps as u32;
    let arrays = vec![near];
    (near <= near_limit(device)).then_some(Grouped {
        start,
        cluster: 1,
        together: false,
        threads,
        exchanged: far,
        arrays,
        record: 0,
    })
}

/// Sizes of a block's arrays.
struct Block {
    width: usize,
    hidden: usize,
    warps: usize,
    units: usize,
    form: DeepForm,
    anchored: bool,
}

impl Block {
    /// Elements of both layers.
    fn weights(&self) -> usize {
        2 * self.width * self.hidden
    }

    /// Numbers by hidden unit, and parts of sums for two tokens: `ExactPlaces`.
    fn sums(&self) -> usize {
        self.warps * (UNIT_ROWS * self.units + 2 * (PART_ROWS * self.width + NUMBERS) + NORMS)
    }

    /// Whether an image has two more matrices than weights: momentum, or exponentials beside logarithms.
    fn more(&self) -> bool {
        self.form.momentum() || self.form == DeepForm::L2Kl
    }

    /// Weights after and before a token, and the other matrices before it.
    fn images(&self) -> usize {
        (if self.more() { 3 } else { 2 }) * self.weights()
    }

    /// Images of the anchors, in global memory; there it is the caches that serve them.
    fn anchors(&self) -> usize {
        if self.anchored { self.weights() } else { 0 }
    }

    /// In global memory: images of an interval's states, gradients, anchors and their gradients, and records.
    fn far(&self) -> usize {
        let [image, state] = [self.more(), self.form.momentum()].map(|more| if more { 2 } else { 1 } * self.weights());
        Checkpoints::INTERVAL * (image + 3 * self.hidden + self.width + 4) + state + 2 * self.anchors()
    }
}
