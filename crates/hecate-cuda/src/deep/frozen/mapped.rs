//! Frozen groups of MLP memories whose weights are an image of the state: [MEMORA's](hecate_core::rules::Memora) and
//! [MONETA's](hecate_core::rules::Moneta).
//!
//! # What a group is
//!
//! Inner gradients of a group are products of its rows with the weights that it starts with, as where memories decay. They go
//! by the same code. The states between are sums of what the tokens write. But a read takes an image of such a sum, element by
//! element: `exp` of (55), or `|x|² x` of (54). No masked product makes that. So states go through registers, token by token:
//! a state moves, and its image is read. Sums over rows, of columns and for the norm are left as parts, since no write of the
//! group waits for them. Warps have tiles of 32 rows and columns, and meet every eight tokens to add up (`sweep.cuh`).
//!
//! Backward, states are computed from the last to the first: `X_{t−1} = (X_t − k z) / a`. One is kept every eight tokens. Where
//! `a` would let errors grow over 2⁸ between two of those, a state is computed from the kept one before it.
//!
//! # Numbers
//!
//! States, their gradients, images and sums have 32 bits. Products are those of the other kernels, with factors of 10 bits of
//! fraction. Exponentials are relative to the largest of a column where a bound on what was written says that they could pass
//! `2^±30`. States of (54) count in a power of two, by token, over which none of their elements can be: fourth powers stay finite.
//!
//! # What it costs
//!
//! A token's step over an element is two operations for the write, and a power and three or four more for the read. Backward it
//! is about three times that, forward included. At `(B,T,H,D) = (4,2048,16,64)` and a hidden layer four times as wide these are 4.3
//! billion elements: 1.2 ms of an H100's exponentials forward, and the same twice backward.
//!
//! # What goes token by token
//!
//! What the other kernels leave out, reads before the write, anchors, and widths that 32 does not divide. Of (54), other norms
//! than `q = 4`, and the literal map.

use super::{Places, THREADS, TOKEN_GRADIENTS, TOKEN_NUMBERS};
use crate::{
    Cuda,
    recurrent::{Grouped, StepKernels, step_kernels},
    source::{KernelSource, kernel_source},
};
use hecate_core::{
    Dims, Read,
    families::{DeepOptions, DeepSpec},
    rules::{Map, Retention},
};

pub(crate) const MEMORA: KernelSource = kernel_source!("memora_groups", "mapped/memora_groups.cu");
pub(crate) const MONETA: KernelSource = kernel_source!("moneta_groups", "mapped/moneta_groups.cu");

// By the blocks of a cluster.
step_kernels! { MEMORA_1: MEMORA, DeepOptions { "memora_groups_1" Memora1, "memora_groups_backward_1" MemoraBackward1 } }
step_kernels! { MEMORA_2: MEMORA, DeepOptions { "memora_groups_2" Memora2, "memora_groups_backward_2" MemoraBackward2 } }
step_kernels! { MEMORA_4: MEMORA, DeepOptions { "memora_groups_4" Memora4, "memora_groups_backward_4" MemoraBackward4 } }
step_kernels! { MEMORA_8: MEMORA, DeepOptions { "memora_groups_8" Memora8, "memora_groups_backward_8" MemoraBackward8 } }
step_kernels! { MONETA_1: MONETA, DeepOptions { "moneta_groups_1" Moneta1, "moneta_groups_backward_1" MonetaBackward1 } }
step_kernels! { MONETA_2: MONETA, DeepOptions { "moneta_groups_2" Moneta2, "moneta_groups_backward_2" MonetaBackward2 } }
step_kernels! { MONETA_4: MONETA, DeepOptions { "moneta_groups_4" Moneta4, "moneta_groups_backward_4" MonetaBackward4 } }
step_kernels! { MONETA_8: MONETA, DeepOptions { "moneta_groups_8" Moneta8, "moneta_groups_backward_8" MonetaBackward8 } }

/// Kernels by the blocks of a cluster.
type ByCluster = [(usize, StepKernels<DeepOptions>); 4];
const OF_MEMORA: ByCluster = [(1, MEMORA_1), (2, MEMORA_2), (4, MEMORA_4), (8, MEMORA_8)];
const OF_MONETA: ByCluster = [(1, MONETA_1), (2, MONETA_2), (4, MONETA_4), (8, MONETA_8)];

/// `TILE`, `CHUNK`, `NUMBERS`, `PARTS`.
const TILE: usize = 32;
const CHUNK: usize = 8;
const NUMBERS: usize = 8;
const PARTS: usize = CHUNK * (3 * TILE + 1);

/// The kernels of a rule that have its image, where they serve the call.
fn kernels(spec: DeepSpec, dims: &Dims) -> Option<ByCluster> {
    let by_cluster = match spec.retention {
        Retention::Kl { .. } => OF_MEMORA,
        Retention::Lq { q: 4.0, map: Map::Mirror } => OF_MONETA,
        _ => return None,
    };
    let hidden = spec.structure.hidden(dims.key)?;
    // Every block has whole tiles of both layers.
    let whole = [dims.key, dims.value, hidden].iter().all(|width| width.is_multiple_of(TILE));
    (whole && spec.read == Read::After && !dims.anchored).then_some(by_cluster)
}

/// The kernel for a pass of a call that suits groups, 0 forward and 1 backward.
pub(super) fn grouped(
    device: &Cuda,
    spec: DeepSpec,
    dims: &Dims,
    places: &Places,
    pass: usize,
) -> Option<Grouped<DeepOptions>> {
    let by_cluster = kernels(spec, dims)?;
    let (cluster, kernels) = super::of_blocks(device, dims, places.width, TILE, &by_cluster);
    let block = Mapped(Places { width: places.width / cluster, ..*places });
    let start = if pass == 0 { kernels.forward } else { kernels.backward };
    let arrays = if pass == 0 { block.forward() } else { block.backward() };
    Some(Grouped { start, cluster, together: false, threads: THREADS, exchanged: block.exchanged(), arrays, record: 0 })
}

/// Sizes of a block's arrays, in the order of `mapped.cuh`.
struct Mapped(Places);

impl Mapped {
    /// Both layers, rows by columns.
    fn layers(&self) -> [[usize; 2]; 2] {
        [[self.0.key, self.0.width], [self.0.width, self.0.value]]
    }

    /// What blocks leave for each other: beside what the other kernels do, parts of outputs and numbers for both norms.
    fn exchanged(&self) -> usize {
        let (rows, value) = (self.0.rows(), self.0.value);
        // Of both layers a norm and a unit by token; units and norms before the group.
        // Then what a norm meets, by token; sums of columns; inner products.
        let own = [rows * value, rows * value, rows * value, rows, rows + 1, rows, rows + 1, 4, rows, value, 2];
        self.0.exchanged() + own.map(|count| count.next_multiple_of(4)).iter().sum::<usize>()
    }

    /// Of a forward, and the first of a backward.
    fn forward(&self) -> Vec<usize> {
        let (rows, Places { key, width, value, .. }) = (self.0.rows(), self.0);
        let layers = self.layers();
        // A chunk's tokens, and what warps leave of it.
        let staged = layers.map(|[height, wide]| 2 * height + 4 * wide + NUMBERS).into_iter().max().unwrap_or(0);
        let mut all = vec![CHUNK * staged + THREADS as usize / 32 * PARTS];
        // Numbers by token, of either layer, of gradients.
        all.extend([TOKEN_NUMBERS, NUMBERS, 1, NUMBERS, 1, TOKEN_GRADIENTS].map(|count| count * rows));
        // k, q, z0, h, hq, z1; weights; v, u.
        let [low, high] = layers.map(|[rows, columns]| (rows, columns));
        all.extend(Places::panels(&[key, key, width, width, width, value].map(|wide| (rows, wide))));
        all.extend(Places::panels(&[low, high, (rows, value), (rows, value), low, high]));
        // After states: outputs of both layers, logarithms of both, parts of the first one.
        all.extend(Places::panels(&[width, value, width, value].map(|wide| (rows, wide))));
        all.extend([rows * width; 3]);
        all
    }

    /// Of a backward.
    fn backward(&self) -> Vec<usize> {
        let (rows, Places { key, width, value, group, .. }) = (self.0.rows(), self.0);
        let layers = self.layers();
        let [low, high] = layers.map(|[rows, columns]| (rows, columns));
        let widest = width.max(value);
        // given, taken, dhq, dh, pre, back, dout, dq, dk, dz1, less; gradients of weights and of states.
        let wides =
            [widest, widest, width, width, width, width, value, key, key, value, value].map(|wide| (rows, wide));
        let mut all = self.forward();
        all.extend(Places::panels(&wides).chain(Places::panels(&[low, high, low, high])));
        // Sums of columns; states behind chunks; states before groups of an interval but its first and last.
        all.extend([width, value]);
        all.extend(layers.map(|layer| layer[0] * layer[1] * rows.div_ceil(CHUNK)));
        all.push((super::MOST_TOKENS / group).saturating_sub(2) * (key + value) * width);
        all
    }
}
