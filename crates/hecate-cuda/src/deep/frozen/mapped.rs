//! Frozen groups of memories whose weights are an image of the state: [MEMORA's](hecate_core::rules::Memora) and
//! [MONETA's](hecate_core::rules::Moneta).
//!
//! # What a group is
//!
//! Inner gradients of a group are products of its rows with the weights that it starts with, as where memories decay. They go
//! by the same code. The states between are sums of what the tokens write. But a read takes an image of such a sum, element by
//! element: `exp` of (55), or `|x|^(q−2) x` of (54). No masked product makes that. So states go through registers, token by token:
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
//! `2^±30`. States of (54) count in a power of two, by token, over which none of their elements can be: their powers stay finite.
//! Of `q = 4` with the mirror powers are products. Other norms, and the literal map, have files of their own: a power is a logarithm
//! and an exponential.
//!
//! # Anchors, and reads before the write
//!
//! With an anchor `B` a token moves a state by `(1 − a) B` too. The anchor and its gradient lie in registers beside the state and
//! its, so these memories have files of their own. Where tokens read before they write, none sees the last state of a group, whose
//! columns are added up all the same; and the first token of a call sees the call's state, which need not be made of distributions.
//!
//! # What it costs
//!
//! A token's step over an element is two operations for the write, and a power and three or four more for the read. Backward it
//! is about three times that, forward included. At `(B,T,H,D) = (4,2048,16,64)` and a hidden layer four times as wide these are 4.3
//! billion elements: 1.2 ms of an H100's exponentials forward, and the same twice backward.
//!
//! # What goes token by token
//!
//! What the other kernels leave out, and widths that 32 does not divide. Of (54), norms of more than `q = 6`, and those between 2
//! and 2¼.

use super::{ByBlocks, Places, THREADS, TOKEN_GRADIENTS, TOKEN_NUMBERS};
use crate::{
    Cuda,
    recurrent::{Grouped, step_kernels},
    source::{KernelSource, kernel_source},
};
use hecate_core::{
    Dims,
    families::{DeepOptions, DeepSpec},
    rules::{Map, Retention},
};

pub(crate) const MEMORA: KernelSource = kernel_source!("memora_groups", "mapped/memora_groups.cu");
pub(crate) const MONETA: KernelSource = kernel_source!("moneta_groups", "mapped/moneta_groups.cu");
pub(crate) const MONETA_POWERS: KernelSource = kernel_source!("moneta_groups_powers", "mapped/moneta_groups_powers.cu");
pub(crate) const MEMORA_ANCHORED: KernelSource =
    kernel_source!("memora_groups_anchored", "mapped/memora_groups_anchored.cu");
pub(crate) const MONETA_ANCHORED: KernelSource =
    kernel_source!("moneta_groups_anchored", "mapped/moneta_groups_anchored.cu");
pub(crate) const MONETA_POWERS_ANCHORED: KernelSource =
    kernel_source!("moneta_groups_powers_anchored", "mapped/moneta_groups_powers_anchored.cu");

/// A file's kernels, each in a module of its own. Those of one block come first.
macro_rules! by_blocks {
    ($name:ident: $source:ident, [1 $one:literal $one_backward:literal], $([$blocks:literal $forward:literal $backward:literal]),*) => {
        const $name: ByBlocks = {
            step_kernels! { ONE, TOGETHER: $source, $source, DeepOptions { $one Forward, $one_backward Backward } }
            let more = [$({
                step_kernels! { KERNELS: $source, DeepOptions { $forward Forward, $backward Backward } }
                ($blocks, KERNELS)
            }),*];
            let [two, four, eight] = more;
            ByBlocks { clusters: [(1, ONE), two, four, eight], together: TOGETHER }
        };
    };
}
by_blocks! { OF_MEMORA: MEMORA,
    [1 "memora_groups_1" "memora_groups_backward_1"], [2 "memora_groups_2" "memora_groups_backward_2"],
    [4 "memora_groups_4" "memora_groups_backward_4"], [8 "memora_groups_8" "memora_groups_backward_8"]
}
by_blocks! { OF_MONETA: MONETA,
    [1 "moneta_groups_1" "moneta_groups_backward_1"], [2 "moneta_groups_2" "moneta_groups_backward_2"],
    [4 "moneta_groups_4" "moneta_groups_backward_4"], [8 "moneta_groups_8" "moneta_groups_backward_8"]
}
by_blocks! { OF_POWERS: MONETA_POWERS,
    [1 "moneta_groups_powers_1" "moneta_groups_powers_backward_1"],
    [2 "moneta_groups_powers_2" "moneta_groups_powers_backward_2"],
    [4 "moneta_groups_powers_4" "moneta_groups_powers_backward_4"],
    [8 "moneta_groups_powers_8" "moneta_groups_powers_backward_8"]
}
by_blocks! { OF_MEMORA_ANCHORED: MEMORA_ANCHORED,
    [1 "memora_groups_anchored_1" "memora_groups_anchored_backward_1"],
    [2 "memora_groups_anchored_2" "memora_groups_anchored_backward_2"],
    [4 "memora_groups_anchored_4" "memora_groups_anchored_backward_4"],
    [8 "memora_groups_anchored_8" "memora_groups_anchored_backward_8"]
}
by_blocks! { OF_MONETA_ANCHORED: MONETA_ANCHORED,
    [1 "moneta_groups_anchored_1" "moneta_groups_anchored_backward_1"],
    [2 "moneta_groups_anchored_2" "moneta_groups_anchored_backward_2"],
    [4 "moneta_groups_anchored_4" "moneta_groups_anchored_backward_4"],
    [8 "moneta_groups_anchored_8" "moneta_groups_anchored_backward_8"]
}
by_blocks! { OF_POWERS_ANCHORED: MONETA_POWERS_ANCHORED,
    [1 "moneta_groups_powers_anchored_1" "moneta_groups_powers_anchored_backward_1"],
    [2 "moneta_groups_powers_anchored_2" "moneta_groups_powers_anchored_backward_2"],
    [4 "moneta_groups_powers_anchored_4" "moneta_groups_powers_anchored_backward_4"],
    [8 "moneta_groups_powers_anchored_8" "moneta_groups_powers_anchored_backward_8"]
}

/// Norms whose powers have kernels beside `q = 4`. Under 2¼ a power of next to nothing is something, which zero has too
/// (`TINY` of `sweep.cuh`); over 6 blocks whose states lie 2¹⁹ apart, or 2²¹ under their bounds, leave 32 bits.
fn has_powers(q: f32) -> bool {
    q == 2.0 || (2.25..=6.0).contains(&q)
}

/// `TILE`, `CHUNK`, `NUMBERS`, `PARTS`.
const TILE: usize = 32;
const CHUNK: usize = 8;
const NUMBERS: usize = 8;
const PARTS: usize = CHUNK * (3 * TILE + 1);

/// The kernels of a rule that have its image, where they serve the call.
fn kernels(spec: DeepSpec, dims: &Dims) -> Option<ByBlocks> {
    let by_blocks = match (spec.retention, dims.anchored) {
        (Retention::Kl { .. }, false) => OF_MEMORA,
        (Retention::Kl { .. }, true) => OF_MEMORA_ANCHORED,
        (Retention::Lq { q: 4.0, map: Map::Mirror }, false) => OF_MONETA,
        (Retention::Lq { q: 4.0, map: Map::Mirror }, true) => OF_MONETA_ANCHORED,
        (Retention::Lq { q, .. }, false) if has_powers(q) => OF_POWERS,
        (Retention::Lq { q, .. }, true) if has_powers(q) => OF_POWERS_ANCHORED,
        _ => return None,
    };
    // Every block has whole tiles of both layers.
    let whole = [dims.key, dims.value, super::inner_width(spec, dims)].iter().all(|width| width.is_multiple_of(TILE));
    whole.then_some(by_blocks)
}

/// The kernel for a pass of a call that suits groups, 0 forward and 1 backward.
pub(super) fn grouped(
    device: &Cuda,
    spec: DeepSpec,
    dims: &Dims,
    places: &Places,
    pass: usize,
) -> Option<Grouped<DeepOptions>> {
    let by_blocks = kernels(spec, dims)?;
    let (cluster, kernels, together) = super::of_blocks(device, dims, places, TILE, &by_blocks);
    let block = Mapped(Places { width: places.width / cluster, ..*places });
    let start = if pass == 0 { kernels.forward } else { kernels.backward };
    let arrays = if pass == 0 { block.forward() } else { block.backward() };
    Some(Grouped { start, cluster, together, threads: THREADS, exchanged: block.exchanged(), arrays, record: 0 })
}

/// Sizes of a block's arrays, in the order of `mapped.cuh`.
struct Mapped(Places);

impl Mapped {
    /// Both layers, rows by columns; nothing for what a matrix does not have.
    fn layers(&self) -> [[usize; 2]; 2] {
        let low = if self.0.deep { [self.0.key, self.0.width] } else { [0; 2] };
        [low, [self.0.width, self.0.value]]
    }

    /// What blocks leave for each other: beside what the other kernels do, parts of outputs and numbers for both norms.
    fn exchanged(&self) -> usize {
        let (rows, value) = (self.0.rows(), self.0.value);
        // Of both layers a norm and a unit by token; units and norms before the group.
        // Then what a norm meets, by token; sums of columns; inner products.
        let looks = (rows + 1) * value;
        let own = [looks, looks, looks, rows, rows + 1, rows, rows + 1, 4, rows, value, 2];
        self.0.exchanged() + own.map(|count| count.next_multiple_of(4)).iter().sum::<usize>()
    }

    /// Of a forward, and the first of a backward.
    fn forward(&self) -> Vec<usize> {
        let (rows, Places { key, value, .. }) = (self.0.rows(), self.0);
        let (layers, inner) = (self.layers(), self.0.inner());
        // A row more, of a last state that no token reads.
        let looks = if self.0.deep { (rows + 1, inner.1) } else { inner };
        // A chunk's tokens, and what warps leave of it.
        let staged = layers.map(|[height, wide]| 2 * height + 4 * wide + NUMBERS).into_iter().max().unwrap_or(0);
        let mut all = vec![CHUNK * staged + THREADS as usize / 32 * PARTS];
        // Numbers by token, of either layer, of gradients.
        all.extend([TOKEN_NUMBERS, NUMBERS, 1, NUMBERS, 1, TOKEN_GRADIENTS].map(|count| count * rows));
        // k, q, z0, h, hq, z1; weights; v, u.
        let [low, high] = layers.map(|[rows, columns]| (rows, columns));
        all.extend(Places::panels(&[(rows, key), (rows, key), inner, inner, inner, (rows, value)]));
        all.extend(Places::panels(&[low, high, (rows, value), (rows, value), low, high]));
        // After states: outputs of both layers, logarithms of both, parts of the first one.
        all.extend(Places::panels(&[inner, (rows, value), looks, (rows + 1, value)]));
        all.extend([looks.0 * looks.1; 3]);
        all.extend(self.0.of_norm());
        all
    }

    /// Of a backward.
    fn backward(&self) -> Vec<usize> {
        let (rows, Places { key, width, value, group, .. }) = (self.0.rows(), self.0);
        let layers = self.layers();
        let [low, high] = layers.map(|[rows, columns]| (rows, columns));
        let widest = width.max(value);
        // given, taken, dhq, dh, pre, back, dout, dq, dk, dz1, less; gradients of weights and of states.
        let rows_of = |widths: &[usize]| Vec::from_iter(widths.iter().map(|&wide| (rows, wide)));
        let panels =
            [rows_of(&[widest; 2]), vec![self.0.inner(); 4], rows_of(&[value, key, key, value, value])].concat();
        let mut all = self.forward();
        all.extend(Places::panels(&panels).chain(Places::panels(&[low, high, low, high])));
        // Sums of columns; states behind chunks; states before groups of an interval but its first and last.
        all.extend([width, value]);
        all.extend(layers.map(|layer| layer[0] * layer[1] * rows.div_ceil(CHUNK)));
        let state: usize = layers.map(|[height, wide]| height * wide).iter().sum();
        all.push((super::MOST_TOKENS / group).saturating_sub(2) * state);
        all
    }
}
