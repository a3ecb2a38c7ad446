//! Frozen groups with all factors in shared memory as halves.
//!
//! # Blocks
//!
//! A sequence and head has the fewest blocks with whose hidden columns all fits, and more while multiprocessors are free. They
//! are a cluster, or where a GPU may have no room for so many clusters at once, neighbours in a grid that runs as a whole. A
//! block has sixteen warps, each with tiles of its own of every product. What follows a product is done where its sums are, in
//! registers. Sums over blocks go through global memory, as in the other kernels.
//!
//! # Numbers
//!
//! Factors are IEEE halves, of 11 bits, and every tile of sixteen rows and columns counts in a unit of its own: the power of two by
//! which its largest element lies between 2¹⁴ and 2¹⁵. No finite number overflows. An element keeps all its bits down to 2⁻²⁸ of the
//! largest of its tile, which is what factors of 10 bits of fraction keep in the other kernels; tiles whose largest is below
//! 2⁻⁴⁶ have less room. Infinities and NaN stay. Products of sixteen terms are made in halves, multiplied by both units, and
//! added up in 32 bits. Arguments of bfloat16 are exact.
//!
//! Factors of bfloat16 were too coarse for gradients of gates: these are sums over all elements of a state, to which errors of
//! arguments may add little by chance.
//!
//! # Memory
//!
//! Weights and momentum of 32 bits are read and written once a group, where the last state goes. Where every group's state is
//! kept, by both passes with as many blocks, it is kept as halves, in planes as they lie in shared memory. The copy engine writes
//! and reads these while threads do other things (`kept_planes.cuh`). A backward reads nothing finer. Groups of up to 32 tokens
//! share an interval, of which the first state is kept with 32 bits: the others are made of it again.
//!
//! A backward has places for the states of both layers, or for one at a time where a plane has more than [`ROOMY`] elements. When
//! no one reads a layer's state any more, its gradients take the places. Those have 32 bits, in the block's workspace where shared
//! memory has no room, until the first group is done. They lie in the order of the threads that have them: the first cache is small
//! beside so much shared memory, so lines of it are to be used whole. So do rows, as halves, that only who wrote them reads again.
//!
//! # What it costs
//!
//! Code counts as much as products: a group's must fit the cache of instructions, or its fetching takes most of the time. So all
//! tiles of a backward are alike, and both layers go by the same code.

use super::{LEAST_TOKENS, Places};
use crate::{
    Cuda,
    recurrent::{Grouped, StepKernels, near_limit, step_kernels},
    source::{KernelSource, kernel_source},
};
use hecate_core::{
    Dims,
    families::{DeepOptions, DeepSpec},
};

pub(crate) const FORWARD: KernelSource = kernel_source!("resident", "resident.cu");
pub(crate) const BACKWARD: KernelSource = kernel_source!("resident_backward", "resident_backward.cu");

step_kernels! { ONE, TOGETHER: FORWARD, BACKWARD, DeepOptions {
    "resident_1" Forward1, "resident_backward_1" Backward1
} }
step_kernels! { TWO: FORWARD, BACKWARD, DeepOptions {
    "resident_2" Forward2, "resident_backward_2" Backward2
} }
step_kernels! { FOUR: FORWARD, BACKWARD, DeepOptions {
    "resident_4" Forward4, "resident_backward_4" Backward4
} }
step_kernels! { EIGHT: FORWARD, BACKWARD, DeepOptions {
    "resident_8" Forward8, "resident_backward_8" Backward8
} }

/// Kernels by the blocks of a cluster.
const BY_CLUSTER: [(usize, StepKernels<DeepOptions>); 4] = [(1, ONE), (2, TWO), (4, FOUR), (8, EIGHT)];
/// Parts of a GPU at most that clusters lie in, each with its own multiprocessors.
const PARTS: usize = 8;
/// `RESIDENT_THREADS`.
const THREADS: u32 = 512;
/// Widths are multiples of the widest tile.
const TILE: usize = 32;
/// Elements of a plane of weights, at most, where each layer has places of its own.
const ROOMY: usize = 8192;
/// Hidden columns of a block, at least where memories need no more blocks: narrower ones leave warps idle.
const NARROWEST: usize = 64;

/// The kernel for a pass of a call that suits groups, 0 forward and 1 backward, where its factors fit.
pub(super) fn grouped(
    device: &Cuda,
    spec: DeepSpec,
    dims: &Dims,
    places: &Places,
    pass: usize,
) -> Option<Grouped<DeepOptions>> {
    let hidden = spec.structure.hidden(dims.key)?;
    let whole = [dims.key, dims.value].iter().all(|&width| width.is_multiple_of(TILE));
    // Clusters, and so much shared memory, are of GPUs that code is compiled for.
    let clusters = device.properties().capability.0 >= 9 && device.compiles();
    if !whole || !clusters || places.group < LEAST_TOKENS {
        return None;
    }
    let block = |count: usize, pass: usize| {
        let block = Resident { places: Places { width: hidden / count, ..*places }, anchored: dims.anchored };
        if pass == 0 { block.forward() } else { block.backward() }
    };
    let limit = near_limit(device);
    let fits = |count: usize, pass: usize| hidden.is_multiple_of(TILE * count) && block(count, pass).fits(limit);
    let multiprocessors = device.properties().multiprocessors as usize;
    let memories = dims.sequences.count() * dims.heads;
    // The fewest blocks that have room, then more that are free.
    let choose = |pass: usize| {
        let fewest = BY_CLUSTER.iter().position(|&(count, _)| fits(count, pass))?;
        let free = |&&(count, _): &&(usize, _)| {
            fits(count, pass) && hidden / count >= NARROWEST && memories * count <= multiprocessors
        };
        Some(*BY_CLUSTER[fewest..].iter().rfind(free).unwrap_or(&BY_CLUSTER[fewest]))
    };
    let (cluster, kernels) = choose(pass)?;
    // Planes are of a block's columns, and nothing finer is needed where every group's state is kept.
    let alone = super::MOST_TOKENS / places.group == 1;
    let halves = alone && choose(1 - pass).is_some_and(|(count, _)| count == cluster);
    let state = (dims.key + dims.value) * hidden * if places.momentum { 2 } else { 1 };
    let record = if halves { plane(state, 1) } else { 0 };
    let together = is_crowded(multiprocessors, memories, cluster);
    let kernels = if together { TOGETHER } else { kernels };
    let start = if pass == 0 { kernels.forward } else { kernels.backward };
    let Arrays { near, anywhere } = block(cluster, pass);
    let (exchanged, arrays) = (places.exchanged(), [near, anywhere].concat());
    Some(Grouped { start, cluster, together, threads: THREADS, exchanged, arrays, record })
}

/// Whether clusters of so many blocks may run fewer memories at once than their blocks alone would.
fn is_crowded(multiprocessors: usize, memories: usize, cluster: usize) -> bool {
    // A cluster lies in one part of the GPU, which consists of pairs. What a part has too few of for another cluster stays idle.
    let idle = if cluster > 2 { PARTS * (cluster - 2) } else { 0 };
    let sure = multiprocessors.saturating_sub(idle) / cluster;
    memories > sure && multiprocessors / cluster > sure
}

/// Arrays that must lie in shared memory, then the others. Elements have 32 bits.
struct Arrays {
    near: Vec<usize>,
    anywhere: Vec<usize>,
}

impl Arrays {
    /// Whether shared memory of `limit` elements has room for what must be there.
    fn fits(&self, limit: usize) -> bool {
        self.near.iter().map(|count| count.next_multiple_of(4)).sum::<usize>() <= limit
    }
}

/// Halves, and a unit for sixteen times sixteen.
fn plane(height: usize, wide: usize) -> usize {
    height * wide / 2 + height * wide / 256
}

/// Sizes of a block's arrays, in the order of `resident.cuh` and `resident_reverse.cuh`.
struct Resident {
    places: Places,
    anchored: bool,
}

impl Resident {
    /// Of a forward.
    fn forward(&self) -> Arrays {
        let (rows, Places { key, value, width, momentum, .. }) = (self.places.rows(), self.places);
        let mut near = vec![super::TOKEN_NUMBERS * rows];
        let tight = width * key.max(value) > ROOMY;
        for (height, wide) in [(key, width), (width, value)] {
            // Weights, momentum, the anchor; keys and queries.
            near.extend([true, momentum, self.anchored].map(|has| if has { plane(height, wide) } else { 0 }));
            near.extend(vec![plane(rows, height); if tight { 1 } else { 2 }]);
        }
        near.push(if tight { plane(rows, key.max(width)) } else { 0 });
        // z0, z1, masked products.
        near.extend([width, value, rows].map(|wide| plane(rows, wide)));
        // c, pre, v, u.
        let mut anywhere = Vec::from_iter(Places::panels(&[rows, value, value].map(|wide| (rows, wide))));
        anywhere.insert(1, plane(rows, width));
        anywhere.extend(self.places.of_norm());
        Arrays { near, anywhere }
    }

    /// Of a backward.
    fn backward(&self) -> Arrays {
        let (rows, Places { key, value, width, group, momentum, .. }) = (self.places.rows(), self.places);
        let (most, widest) = (width * key.max(value), width.max(key).max(value));
        // Numbers by token, and their gradients.
        let mut near = vec![super::TOKEN_NUMBERS * rows, super::TOKEN_GRADIENTS * rows];
        // Weights, momentum, the anchor of either layer; weights and momentum of the second where there is room.
        let own = most <= ROOMY;
        near.extend(
            [true, momentum, self.anchored, own, own && momentum].map(|has| if has { plane(most, 1) } else { 0 }),
        );
        // Keys of both layers, z0, z1, masked products and their gradients; queries of both layers, dpreq.
        let wides = [key, width, width, value, rows, rows, key.max(value), width, width];
        near.extend(wides.map(|wide| plane(rows, wide)));
        // Sums of rows by tiles; c, dc.
        let mut anywhere = vec![5 * rows * (widest / 16)];
        anywhere.extend(Places::panels(&[(rows, rows); 2]));
        // pre, back, preq; v, u, less; dz1, dk.
        anywhere.extend([plane(rows, width); 3]);
        anywhere.extend(Places::panels(&[(rows, value); 3]).chain([rows * value, rows * key]));
        // Gradients of weights and momentum, layer by layer.
        for height in [key, value] {
            anywhere.extend([true, momentum].map(|has| if has { height * width } else { 0 }));
        }
        // States before groups after the first of an interval.
        let state = (key + value) * width * if momentum { 2 } else { 1 };
        anywhere.push((super::MOST_TOKENS / group).saturating_sub(1) * state);
        anywhere.extend(self.places.of_norm());
        Arrays { near, anywhere }
    }
}

#[cfg(test)]
mod tests {
    use super::is_crowded;

    /// 132 multiprocessors, of which clusters of four leave up to sixteen idle, clusters of eight 48, and pairs none.
    #[test]
    fn clusters_that_may_not_all_fit() {
        for (cluster, fit, rest) in [(4, 29, 33), (8, 10, 16)] {
            assert!(!is_crowded(132, fit, cluster), "{fit} clusters of {cluster}");
            assert!(is_crowded(132, fit + 1, cluster) && is_crowded(132, 2 * rest, cluster), "clusters of {cluster}");
        }
        // Pairs are whole, and what is no cluster waits for nobody.
        for cluster in [1, 2] {
            assert!(!is_crowded(132, 1000, cluster), "clusters of {cluster}");
        }
        // Less than one cluster in every part may be sure of its place.
        assert!(is_crowded(16, 1, 8));
    }
}
