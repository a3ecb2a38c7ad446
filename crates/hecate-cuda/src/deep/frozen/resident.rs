//! Frozen groups with all factors in shared memory as halves.
//!
//! # Blocks
//!
//! A sequence and head has the fewest blocks with whose hidden columns all fits, and more while multiprocessors are free. A
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
//! Weights and momentum of 32 bits are read and written once a group, where states are kept or where the last one goes. A
//! backward has room for the weights of one layer, and puts each there when it is used, with gradients of the state beside it.
//! Those have 32 bits, in the block's workspace where shared memory has no room, until the first group is done. They lie in the
//! order of the threads that have them: the first cache is small beside so much shared memory, so lines of it are to be used whole.
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

step_kernels! { ONE: FORWARD, BACKWARD, DeepOptions {
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
/// `RESIDENT_THREADS`.
const THREADS: u32 = 512;
/// Widths are multiples of the widest tile.
const TILE: usize = 32;
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
    let block = |count: usize| {
        let block = Resident { places: Places { width: hidden / count, ..*places }, anchored: dims.anchored };
        if pass == 0 { block.forward() } else { block.backward() }
    };
    let fits = |count: usize| hidden.is_multiple_of(TILE * count) && block(count).fits(near_limit(device));
    let multiprocessors = device.properties().multiprocessors as usize;
    let memories = dims.sequences.count() * dims.heads;
    // The fewest blocks that have room, then more that are free.
    let fewest = BY_CLUSTER.iter().position(|&(count, _)| fits(count))?;
    let free =
        |&&(count, _): &&(usize, _)| fits(count) && hidden / count >= NARROWEST && memories * count <= multiprocessors;
    let (cluster, kernels) = *BY_CLUSTER[fewest..].iter().rfind(free).unwrap_or(&BY_CLUSTER[fewest]);
    let start = if pass == 0 { kernels.forward } else { kernels.backward };
    let Arrays { near, anywhere } = block(cluster);
    Some(Grouped { start, cluster, threads: THREADS, exchanged: places.exchanged(), arrays: [near, anywhere].concat() })
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
        for (height, wide) in [(key, width), (width, value)] {
            // Weights, momentum, the anchor; keys and queries.
            let layer = [true, momentum, self.anchored].map(|has| if has { plane(height, wide) } else { 0 });
            near.extend(layer.into_iter().chain([plane(rows, height); 2]));
        }
        // z0, z1, masked products.
        near.extend([width, value, rows].map(|wide| plane(rows, wide)));
        // c, pre, v, u.
        let mut anywhere = Vec::from_iter(Places::panels(&[rows, value, value].map(|wide| (rows, wide))));
        anywhere.insert(1, rows * width);
        Arrays { near, anywhere }
    }

    /// Of a backward.
    fn backward(&self) -> Arrays {
        let (rows, Places { key, value, width, group, momentum }) = (self.places.rows(), self.places);
        let (most, widest) = (width * key.max(value), width.max(key).max(value));
        // Numbers by token, and their gradients.
        let mut near = vec![super::TOKEN_NUMBERS * rows, super::TOKEN_GRADIENTS * rows];
        // Weights, momentum, the anchor; gradients of weights and momentum.
        near.extend([true, momentum, self.anchored, true, momentum].map(|has| if has { plane(most, 1) } else { 0 }));
        // Keys of both layers, z0, z1, masked products and their gradients; queries of both layers, dpreq.
        let wides = [key, width, width, value, rows, rows, key.max(value), width, width];
        near.extend(wides.map(|wide| plane(rows, wide)));
        // Sums of rows by tiles; c, dc, e.
        let mut anywhere = vec![5 * rows * (widest / 16)];
        anywhere.extend(Places::panels(&[(rows, rows); 3]));
        // pre, back, preq; v, u, less; dz1, dk.
        anywhere.extend([rows * width; 3]);
        anywhere.extend(Places::panels(&[(rows, value); 3]).chain([rows * value, rows * key]));
        // Gradients of weights and momentum, layer by layer.
        for height in [key, value] {
            anywhere.extend([true, momentum].map(|has| if has { height * width } else { 0 }));
        }
        // States before groups after the first of an interval.
        let state = (key + value) * width * if momentum { 2 } else { 1 };
        anywhere.push((super::MOST_TOKENS / group).saturating_sub(1) * state);
        Arrays { near, anywhere }
    }
}
