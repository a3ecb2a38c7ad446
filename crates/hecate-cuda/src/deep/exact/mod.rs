//! Exact tokens of MLP memories, with all weights and momentum in registers of one block, or of two.
//!
//! # Blocks
//!
//! A sequence and head has a block, or a cluster of two with half of the hidden units each: of keys of 64, where every
//! memory can have two multiprocessors, or where one block has not the room. A warp has so many hidden units, with
//! their columns of `W0` and rows of `W1`, and a lane every 32nd element of these. Sums over keys and values are
//! exchanges inside a warp. Sums over hidden units are a thread's own, and then one over warps, of both blocks: the
//! only barrier of a token where memories decay. A token's read sees what the next token's key does, so both go through
//! the weights together.
//!
//! Blocks write their parts of sums into each other's shared memory, where a barrier counts what has come
//! (`recurrent/exchange.cuh`): the barrier of a cluster would wait for global memory too.
//!
//! Of (54) and (55) the state lies there, and of (55) exponentials beside it. What all of an image share, a norm or
//! sums of columns, is one more sum over the memory, once a token, after the write. It is taken on the scale that the
//! token before has left: fourth powers of (54) then need no 64 bits, and exponentials of (55) no search for the
//! largest. Where a token changes the state by so much that sums leave their range, the largest are looked for after
//! all, and sums taken again.
//!
//! # Backward
//!
//! Registers hold gradients of the state. States of an interval are made again from the kept one, by the code of the
//! forward, and lie in the workspace as threads hold them: the copy of the next one to shared memory runs beside the
//! work on this one. Each thread copies and reads its own part alone, so there is one barrier a token here too.
//!
//! # Numbers
//!
//! All have 32 bits, whatever the type of the arguments.
//!
//! # Memory
//!
//! States are kept as by the general kernels, so that either backward could follow either forward. A block of the
//! backward has its part of 65 states in its workspace, as theirs has all of them, and pre-activations and errors by
//! token. Where weights are exponentials, these lie beside the states. Anchors lie in the workspace too, as threads
//! hold them: the size of the block's weights in a forward, twice that in a backward, which has their gradients beside
//! them.
//!
//! # What it costs
//!
//! Of a forward, a token reads weights of `W0` twice, those of `W1` three times, and writes each once: with momentum
//! ten operations a weight. Two exchanges among lanes and one barrier, two of (54) and (55), are what a token takes
//! beside that. Its arguments are loaded a token ahead and converted when they are used: converted by a branch on their
//! type as they come, each would be waited for. An anchor is read once a token; a backward reads it twice, and reads
//! and writes its gradient.
//!
//! # What goes by the general kernels
//!
//! Keys and values of other widths than 32 or 64, more than 128 hidden units (256 of keys of 64 where there are
//! clusters), memories that are matrices, norms inside the memory, momentum that looks ahead, and of (54) other norms
//! than `q = 4`, and the literal map. Frozen groups have kernels of their own ([`frozen`](super::frozen)).

use crate::{
    Cuda,
    recurrent::{Grouped, near_limit},
    source::{KernelSource, kernel_source},
};
use hecate_core::{
    Checkpoints, Dims,
    families::{DeepForm, DeepOptions, DeepSpec},
};
use kernels::{Shared, kernels};

mod kernels;

pub(crate) const SOURCE: KernelSource = kernel_source!("exact", "exact.cu");

/// `UNIT_ROWS`, `PART_ROWS`, `NUMBERS`, `NORM_ROWS`.
const UNIT_ROWS: usize = 8;
const PART_ROWS: usize = 3;
const NUMBERS: usize = 8;
const NORM_ROWS: usize = 4;
/// Two barriers of an `Exchange`, of 64 bits.
const BARRIERS: usize = 4;

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
    if !plain || dims.key != dims.value {
        return None;
    }
    let properties = device.properties();
    // Clusters are there in code that is compiled for this GPU.
    let clusters = properties.capability.0 >= 9 && device.compiles();
    let idle = 2 * dims.sequences.count() * dims.heads <= properties.multiprocessors as usize;
    let Shared { kernels, blocks, units } = kernels(form, spec.retention, [dims.key, hidden], clusters, idle)?;
    let block = Block { width: dims.key, hidden: hidden / blocks, blocks, units, form, anchored: dims.anchored };
    let (start, near, far) = match pass {
        0 => (kernels.forward, block.sums(), block.anchors()),
        _ => (kernels.backward, block.sums() + block.images(), block.far()),
    };
    // Smaller GPUs have not so much shared memory.
    let threads = 32 * block.warps() as u32;
    let arrays = vec![near];
    (near <= near_limit(device)).then_some(Grouped {
        start,
        cluster: blocks,
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
    /// Hidden units of the block.
    hidden: usize,
    /// Blocks of a memory.
    blocks: usize,
    units: usize,
    form: DeepForm,
    anchored: bool,
}

impl Block {
    /// Elements of both layers.
    fn weights(&self) -> usize {
        2 * self.width * self.hidden
    }

    fn warps(&self) -> usize {
        self.hidden / self.units
    }

    /// Numbers by hidden unit, and parts of sums for two tokens, those of all blocks: `ExactPlaces`.
    fn sums(&self) -> usize {
        let by_warp = 2 * (PART_ROWS * self.width + NUMBERS) + NORM_ROWS;
        UNIT_ROWS * self.hidden + self.blocks * self.warps() * by_warp + BARRIERS
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
