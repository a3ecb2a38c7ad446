//! Frozen groups of MLP memories whose weights are an image of the state: [MEMORA's](hecate_core::rules::Memora) and
//! [MONETA's](hecate_core::rules::Moneta).
//!
//! # What a group is
//!
//! Inner gradients of a group are products of its rows with the weights that it starts with, as where memories decay; they go by
//! the same code. The states between are sums of what the tokens write. But a read takes an image of such a sum, element by
//! element: `exp` of (55), or `|x|² x` of (54). No masked product makes that. So states go through registers, token by token: a
//! state moves, its image is read, and both norms and sums of columns are left as parts, since no write of the group waits for
//! them. Warps have tiles of 32 rows and 16 columns, and none waits for another before the group's end (`sweep.cuh`).
//!
//! Backward, states are computed from the last to the first: `X_{t−1} = (X_t − k z) / a`. One is kept every 8 tokens. Where `a`
//! would let errors grow over 2⁸ between two of those, a state is computed from the kept one before it.
//!
//! # Numbers
//!
//! States, their gradients, images and sums have 32 bits. Products are those of the other kernels, with factors of 10 bits of
//! fraction. Exponentials are relative to the largest of a column where a bound on what was written says that they could pass
//! `2^±30`. States of (54) count in a power of two, by token, over which none of their elements can be: fourth powers stay finite.
//!
//! # What it costs
//!
//! A token's step over an element is two operations for the write, and a power and three or four more for the read; backward
//! about three times that, forward included. At `(B,T,H,D) = (4,2048,16,64)` and a hidden layer four times as wide these are 4.3
//! billion elements: 1.2 ms of an H100's exponentials forward, and the same twice backward.
//!
//! # What goes token by token
//!
//! What the other kernels leave out, reads before the write, anchors, widths that 32 does not divide, and of (54) other norms than
//! `q = 4` and the literal map.

use super::{Places, TOKEN_GRADIENTS, TOKEN_NUMBERS};
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

/// `MAPPED_THREADS`.
const THREADS: u32 = 512;
/// `TILE_ROWS`, `TILE_COLUMNS`, `CHUNK`.
const TILE: [usize; 2] = [32, 16];
const CHUNK: usize = 8;

/// The kernels of a rule that have its image, where they serve the call.
fn kernels(spec: DeepSpec, dims: &Dims) -> Option<ByCluster> {
    let by_cluster = match spec.retention {
        Retention::Kl { .. } => OF_MEMORA,
        Retention::Lq { q: 4.0, map: Map::Mirror } => OF_MONETA,
        _ => return None,
    };
    let hidden = spec.structure.hidden(dims.key)?;
    // Every block has whole tiles of both layers.
    let whole = [dims.key, dims.value, hidden].iter().all(|width| width.is_multiple_of(TILE[0]));
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
    let (cluster, kernels) = super::of_blocks(device, dims, places.width, TILE[0], &by_cluster);
    let block = Mapped(Places { width: places.width / cluster, ..*places });
    let start = if pass == 0 { kernels.forward } else { kernels.backward };
    let arrays = if pass == 0 { block.forward() } else { block.backward() };
    Some(Grouped { start, cluster, threads: THREADS, exchanged: block.exchanged(), arrays })
}

/// Sizes of a block's arrays, in the order of `mapped.cuh`.
struct Mapped(Places);

impl Mapped {
    /// Both layers, rows by columns.
    fn layers(&self) -> [[usize; 2]; 2] {
        [[self.0.key, self.0.width], [self.0.width, self.0.value]]
    }

    /// Tiles of a layer, down and across.
    fn tiles(layer: [usize; 2]) -> [usize; 2] {
        std::array::from_fn(|axis| layer[axis] / TILE[axis])
    }

    /// What blocks leave for each other: beside what the other kernels do, parts of outputs and numbers for both norms.
    fn exchanged(&self) -> usize {
        let (rows, Places { width, value, .. }) = (self.0.rows(), self.0);
        let parts = [width / TILE[0] * rows * value; 3];
        let norms = self.layers().map(|layer| [Self::tiles(layer).iter().product::<usize>() * rows, rows + 1]);
        // Units and norms before the group, by token what a norm meets, sums of columns, inner products.
        let numbers = [4, rows, value, 2];
        let own = parts.into_iter().chain(norms.into_iter().flatten()).chain(numbers);
        self.0.exchanged() + own.map(|count| count.next_multiple_of(4)).sum::<usize>()
    }

    /// Of a forward, or the same places of a backward with what it puts between and behind.
    fn places(&self, between: &[usize], panels: &[usize], behind: &[usize]) -> Vec<usize> {
        let (rows, Places { key, width, value, .. }) = (self.0.rows(), self.0);
        let [low, high] = self.layers().map(|[rows, columns]| (rows, columns));
        // Numbers by token, of either layer, of gradients.
        let mut all = vec![TOKEN_NUMBERS * rows, 6 * (rows + 4), 6 * (rows + 4), TOKEN_GRADIENTS * rows];
        all.extend(between);
        // k, q, z0, h, hq, z1, then what a backward has there.
        let operands = [key, key, width, width, width, value].into_iter().chain(panels.iter().copied()).map(|wide| (rows, wide));
        all.extend(Places::panels(&operands.collect::<Vec<_>>()));
        // Weights, v, u, states, outputs of both layers, logarithms of both.
        let rest = [low, high, (rows, value), (rows, value), low, high];
        all.extend(Places::panels(&rest));
        all.extend(Places::panels(&[width, value, width, value].map(|wide| (rows, wide))));
        // Parts of the first layer.
        all.extend([key / TILE[0] * rows * width; 3]);
        all.extend(behind);
        all
    }

    /// Of a forward.
    fn forward(&self) -> Vec<usize> {
        self.places(&[], &[], &[])
    }

    /// Of a backward.
    fn backward(&self) -> Vec<usize> {
        let (rows, Places { key, width, value, group, .. }) = (self.0.rows(), self.0);
        let layers = self.layers();
        let [low, high] = layers.map(|[rows, columns]| (rows, columns));
        // A chunk's parts, by warp.
        let parts = THREADS as usize / 32 * (2 * CHUNK * TILE[0] + CHUNK * TILE[1] + CHUNK);
        let widest = width.max(value);
        // dhq, dh, pre, back, dout, dq, dk, dz1, less; gradients of weights and of states.
        let wides = [width, width, width, width, value, key, key, value, value].map(|wide| (rows, wide));
        let mut behind: Vec<_> = Places::panels(&wides).chain(Places::panels(&[low, high, low, high])).collect();
        // Sums of columns; states behind chunks; states before groups of an interval but its first and last.
        behind.extend([width, value]);
        behind.extend(layers.map(|layer| layer[0] * layer[1] * rows.div_ceil(CHUNK)));
        behind.push((super::MOST_TOKENS / group).saturating_sub(2) * (key + value) * width);
        self.places(&[parts], &[widest, widest], &behind)
    }
}
