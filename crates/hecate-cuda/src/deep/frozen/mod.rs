//! Frozen groups of deep memories as products on tensor cores, with a cluster of blocks a memory.
//!
//! All inner gradients of a group are taken at the weights it starts with: they are products of a group's rows with these.
//! The weights are then a linear recurrence of what the tokens write. Reads inside the group are masked products and one of
//! the first weights (`frozen.cuh`). No weights are kept by token, forward or backward.
//!
//! # Blocks
//!
//! A sequence and head has a cluster of up to eight blocks, each with its columns of the hidden layer: of both matrices, of
//! their momentum and of their gradients. Outputs are sums over blocks. So are gradients of outputs, queries, keys and gates.
//! Blocks leave their parts in global memory, meet, and add them up in order: no sum depends on who came first. Forward they
//! meet twice a group, backward three times, and once more where a norm is behind what was read. Where GPUs or compilers have no
//! clusters, blocks meet by counters in global memory if all of them run at once, and else a memory has one block.
//!
//! A matrix is the second layer alone, with keys and queries in place of the hidden layer, and has one block.
//!
//! # Numbers
//!
//! Arrays have 32 bits, in shared memory as far as they fit and else in the block's workspace, which stays in the cache.
//! Factors of products are rounded to 10 bits of fraction (`mma` of tf32) and added up in 32: arguments of bfloat16 are exact,
//! and weights lose an eighth of what such an argument lost when it was rounded. With other arguments a factor is the sum of two
//! such parts, of 20 bits together, and a product is three.
//!
//! # Memory
//!
//! Beside arguments and results a call keeps the states that the kernels by tokens keep: one every 64 tokens. A block has the
//! workspace that [`Places`] counts, and there are no more clusters at a time than keep the GPU busy. States inside an interval
//! are made again in the backward, from the one before them.
//!
//! # What goes token by token
//!
//! Groups of less than 16 tokens or more than 64, columns set back to their lengths, and widths that eight does not divide. What
//! other retentions than decay have for groups is in [`mapped`]. Both kinds keep the same states, so that either backward could
//! follow either forward.
//!
//! # What it costs
//!
//! With `D` hidden columns, momentum and groups of `G`, a forward has 11 products of `G K D` multiply-adds a group and six
//! smaller ones; a backward has about three times as many. At `(B,T,H,D) = (4,2048,16,64)` and a hidden layer four times as
//! wide, 64 clusters of two blocks take 32 steps of 0.3 GFLOP. That is a few microseconds a step: what a step takes is the
//! way from one product to the next, about 140 µs forward and 650 backward. Blocks with half as many columns each take longer
//! in all, so columns are divided no further than multiprocessors are free.
//!
//! # Blocks whose factors fit shared memory
//!
//! With arguments of bfloat16, where all factors fit it with 16 bits, a pass goes by other kernels, in a third to two thirds of the time: [`resident`].
//! Those may keep states as halves, which no other kernels read.

pub(crate) mod mapped;
pub(crate) mod resident;

use crate::{
    Cuda,
    recurrent::{Grouped, StepKernels, step_kernels},
    source::{KernelSource, kernel_source},
};
use hecate_core::{
    DType, Dims,
    families::{DeepOptions, DeepSpec},
    rules::Retention,
};

pub(crate) const FORWARD: KernelSource = kernel_source!("frozen_forward", "frozen_forward.cu");
pub(crate) const BACKWARD: KernelSource = kernel_source!("frozen_backward", "frozen_backward.cu");
pub(crate) const MATRIX: KernelSource = kernel_source!("frozen_matrix", "frozen_matrix.cu");

step_kernels! { ONE, TOGETHER: FORWARD, BACKWARD, DeepOptions {
    "frozen_forward_1" Forward1, "frozen_backward_1" Backward1
} }
step_kernels! { TWO: FORWARD, BACKWARD, DeepOptions {
    "frozen_forward_2" Forward2, "frozen_backward_2" Backward2
} }
step_kernels! { FOUR: FORWARD, BACKWARD, DeepOptions {
    "frozen_forward_4" Forward4, "frozen_backward_4" Backward4
} }
step_kernels! { EIGHT: FORWARD, BACKWARD, DeepOptions {
    "frozen_forward_8" Forward8, "frozen_backward_8" Backward8
} }

step_kernels! { OF_MATRIX: MATRIX, DeepOptions {
    "frozen_matrix" Matrix, "frozen_matrix_backward" MatrixBackward
} }

/// Kernels by the blocks that share a memory.
struct ByBlocks {
    /// As a cluster.
    clusters: [(usize, StepKernels<DeepOptions>); 4],
    /// Where there are no clusters: any number of blocks, which meet by counters.
    together: StepKernels<DeepOptions>,
}

const BY_BLOCKS: ByBlocks = ByBlocks { clusters: [(1, ONE), (2, TWO), (4, FOUR), (8, EIGHT)], together: TOGETHER };

/// `FROZEN_THREADS`.
const THREADS: u32 = 256;
/// Tokens of a group and of a sequence from which on products pay, and tokens of a group at most.
// A product has rows for sixteen tokens: shorter groups would leave most of them empty.
const LEAST_TOKENS: usize = 16;
const MOST_TOKENS: usize = 64;
/// Hidden columns of a block, at most where there are clusters for more.
///
/// Both matrices of 64 rows fit shared memory beside the hidden layer then; their momentum does not. Narrower ones were
/// slower: each step has a cost of its own.
const WIDEST: usize = 128;

/// Whether a call of these sizes goes by groups: even widths, and groups that fill products.
///
/// Tensor cores are to take 32-bit numbers.
fn suits(device: &Cuda, spec: DeepSpec, dims: &Dims) -> bool {
    let group = spec.frozen.map_or(0, |group| group as usize);
    let hidden = inner_width(spec, dims);
    // Threads read four neighbours, products take eight terms at once.
    let whole = [dims.key, dims.value, hidden].iter().all(|&width| width > 0 && width.is_multiple_of(8));
    let long = (LEAST_TOKENS..=MOST_TOKENS).contains(&group) && dims.sequences.longest() >= LEAST_TOKENS;
    !spec.renorm && whole && long && device.properties().capability.0 >= 8
}

/// Columns of the hidden layer, or rows of a matrix.
fn inner_width(spec: DeepSpec, dims: &Dims) -> usize {
    spec.structure.hidden(dims.key).unwrap_or(dims.key)
}

/// Blocks that share a memory, their kernels, and whether they meet by counters.
type SharedBy = (usize, StepKernels<DeepOptions>, bool);

/// One block for every multiprocessor, and as clusters enough of them that what each has is narrow. A block's hidden columns are a
/// multiple of `tile`. A matrix has one block.
fn of_blocks(device: &Cuda, dims: &Dims, places: &Places, tile: usize, kernels: &ByBlocks) -> SharedBy {
    let hidden = places.width;
    let alone = (1, kernels.clusters[0].1, false);
    if !places.deep {
        return alone;
    }
    let multiprocessors = device.properties().multiprocessors as usize;
    // Each has a cluster.
    let memories = dims.sequences.count() * dims.heads;
    // Clusters are in code that is compiled for this GPU, and not in what is for all.
    let clusters = device.properties().capability.0 >= 9 && device.compiles();
    let fits = |&&(count, _): &&(usize, _)| {
        // Who meets by counters has to run at once.
        let needed = clusters && hidden / (count / 2) > WIDEST;
        hidden.is_multiple_of(tile * count) && (needed || memories * count <= multiprocessors)
    };
    match kernels.clusters[1..].iter().rfind(fits) {
        Some(&(count, as_cluster)) if clusters => (count, as_cluster, false),
        Some(&(count, _)) => (count, kernels.together, true),
        None => alone,
    }
}

/// The kernel for a pass of a call, 0 forward and 1 backward, where it suits one.
pub(super) fn grouped(
    device: &Cuda,
    spec: DeepSpec,
    momentum: bool,
    dims: &Dims,
    dtype: DType,
    pass: usize,
) -> Option<Grouped<DeepOptions>> {
    if !suits(device, spec, dims) {
        return None;
    }
    let (deep, width) = (spec.structure.hidden(dims.key).is_some(), inner_width(spec, dims));
    let (group, norm) = (spec.frozen? as usize, spec.structure.norm());
    let places = Places { key: dims.key, value: dims.value, width, deep, group, momentum, norm };
    if spec.retention != Retention::Decay {
        return mapped::grouped(device, spec, dims, &places, pass);
    }
    // Halves round as bfloat16 does; arguments that are finer keep what they have.
    if dtype == DType::Bf16
        && let Some(resident) = resident::grouped(device, spec, dims, &places, pass)
    {
        return Some(resident);
    }
    // Every block of a cluster has as many hidden columns as the others.
    let (cluster, kernels, together) =
        if deep { of_blocks(device, dims, &places, 8, &BY_BLOCKS) } else { (1, OF_MATRIX, false) };
    let places = Places { width: width / cluster, ..places };
    let (start, arrays) =
        if pass == 0 { (kernels.forward, places.forward()) } else { (kernels.backward, places.backward()) };
    Some(Grouped { start, cluster, together, threads: THREADS, exchanged: places.exchanged(), arrays, record: 0 })
}

/// Numbers of a token that a block has, `TokenNumbers::COUNT`, and in a backward, `TokenNumbers::BACK`.
const TOKEN_NUMBERS: usize = 18;
const TOKEN_GRADIENTS: usize = 8;

/// Sizes of a block's arrays, in the order of `frozen.cuh`, `frozen_norm.cuh` and `frozen_reverse.cuh`.
#[derive(Clone, Copy)]
struct Places {
    key: usize,
    value: usize,
    /// Hidden columns of the block, or those of keys where there is no hidden layer.
    width: usize,
    /// Whether there is one.
    deep: bool,
    group: usize,
    momentum: bool,
    /// Whether a norm comes after the last matrix.
    norm: bool,
}

impl Places {
    // All counts are of numbers of 32 bits.
    /// Rows of a group to the next sixteen.
    fn rows(&self) -> usize {
        self.group.next_multiple_of(16)
    }

    /// Rows lie four elements further apart than they are wide.
    fn panels(sizes: &[(usize, usize)]) -> impl Iterator<Item = usize> {
        sizes.iter().map(|(rows, width)| rows * (width + 4))
    }

    /// A panel of the hidden layer.
    fn inner(&self) -> (usize, usize) {
        if self.deep { (self.rows(), self.width) } else { (0, 0) }
    }

    /// Both matrices, and both of momentum.
    fn state(&self) -> [(usize, usize); 4] {
        let low = if self.deep { (self.key, self.width) } else { (0, 0) };
        let high = (self.width, self.value);
        // Without momentum two of them are empty.
        if self.momentum { [low, high, low, high] } else { [low, high, (0, 0), (0, 0)] }
    }

    /// Predictions twice, of which one place may have outputs again; outputs or their gradients; gradients of queries, keys and gates.
    fn exchanged(&self) -> usize {
        self.rows() * (3 * self.value + 2 * self.key + 4)
    }

    /// What a norm has: s by token, x̂ and inner gradients; all empty without one.
    fn of_norm(&self) -> [usize; 3] {
        let rows = if self.norm { self.rows() } else { 0 };
        [rows, rows * (self.value + 4), rows * (self.value + 4)]
    }

    /// Of a forward, and the first of a backward.
    fn forward(&self) -> Vec<usize> {
        let rows = self.rows();
        let (hidden, [key, value]) = (self.inner(), [self.key, self.value].map(|width| (rows, width)));
        let (square, [low, high, low_s, high_s]) = ((rows, rows), self.state());
        // Rows that are scaled before a product may be keys or values.
        let widest = (rows, self.key.max(self.value));
        // Numbers by token; z0, h, x0, x1, k, u, hq, square, q, c, z1, v, spare, s0, s1.
        let panels =
            [hidden, hidden, low, high, key, value, hidden, square, key, square, value, value, widest, low_s, high_s];
        [TOKEN_NUMBERS * rows].into_iter().chain(Self::panels(&panels)).chain(self.of_norm()).collect()
    }

    /// Of a backward.
    fn backward(&self) -> Vec<usize> {
        let rows = self.rows();
        let (hidden, [key, value]) = (self.inner(), [self.key, self.value].map(|width| (rows, width)));
        let (square, state) = ((rows, rows), self.state());
        // Gradients of what the forward makes on its way, panel by panel.
        // dhq, dh, preq, pre, back, dout, dq, dk, dz1, less, dsquare, dc, e, then gradients of the state.
        let own = [[hidden; 5].as_slice(), &[value, key, key, value, value, square, square, square], &state].concat();
        // States before groups, but of the first and the last of an interval.
        let groups = (MOST_TOKENS / self.group).saturating_sub(2);
        let begun = groups * state.iter().map(|(rows, width)| rows * width).sum::<usize>();
        self.forward().into_iter().chain([TOKEN_GRADIENTS * rows]).chain(Self::panels(&own)).chain([begun]).collect()
    }
}
