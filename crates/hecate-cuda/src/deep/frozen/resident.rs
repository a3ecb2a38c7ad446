//! Frozen groups forward with all factors in shared memory as bfloat16.
//!
//! # Blocks
//!
//! A sequence and head has the fewest blocks with whose hidden columns all fits, and more while multiprocessors are free. A
//! block has sixteen warps, each with tiles of its own of every product. What follows a product is done where its sums are, in
//! registers. Sums over blocks go through global memory, as in the other kernels.
//!
//! # Numbers
//!
//! Factors are rounded to bfloat16, and those whose rounding would show keep what it left in a second one: weights, what the
//! second layer is written with, masked products, and keys times their shares. Arguments are exact. Results are further from
//! the truth than with the other kernels: by a third more than what rounding of arguments costs, where those add nothing.
//!
//! That is too much for gradients of gates. They are sums over all elements of a state, to which errors of arguments may add
//! little by chance. So the backward has factors with more bits: see the module above.
//!
//! # Memory
//!
//! Weights and momentum of 32 bits are read and written once a group, where states are kept or where the last one goes.
//!
//! Anchors would have to be factors too: with them, calls go by the other kernels, which have no end of room.
//!
//! # What it costs
//!
//! At the sizes that the module above names, a group takes 42 µs on an H100. A third of that is the states of 32 bits on their
//! way, and the products on tensor cores are about a tenth. Code counts as much: a group's must fit the cache of instructions.

use super::{LEAST_TOKENS, Places};
use crate::{
    Cuda,
    launch::kernels,
    recurrent::{Grouped, RecurrentCall, Start, near_limit},
    source::{KernelSource, kernel_source},
};
use hecate_core::{
    Dims,
    families::{DeepOptions, DeepSpec},
};

pub(crate) const SOURCE: KernelSource = kernel_source!("resident", "resident.cu");

kernels! { SOURCE {
    "resident_1" One { call: RecurrentCall, cell: DeepOptions }
    "resident_2" Two { call: RecurrentCall, cell: DeepOptions }
    "resident_4" Four { call: RecurrentCall, cell: DeepOptions }
    "resident_8" Eight { call: RecurrentCall, cell: DeepOptions }
} }

/// Kernels by the blocks of a cluster.
const BY_CLUSTER: [(usize, Start<DeepOptions>); 4] = [
    (1, |device, grid, call, cell| device.launch(grid, &One { call, cell })),
    (2, |device, grid, call, cell| device.launch(grid, &Two { call, cell })),
    (4, |device, grid, call, cell| device.launch(grid, &Four { call, cell })),
    (8, |device, grid, call, cell| device.launch(grid, &Eight { call, cell })),
];
/// `RESIDENT_THREADS`.
const THREADS: u32 = 512;
/// Widths are multiples of the widest tile.
const TILE: usize = 32;
/// Hidden columns of a block, at least where memories need no more blocks: narrower ones leave warps idle.
const NARROWEST: usize = 64;

/// The kernel for a call that suits groups, where its factors fit.
pub(super) fn grouped(device: &Cuda, spec: DeepSpec, dims: &Dims, places: &Places) -> Option<Grouped<DeepOptions>> {
    let hidden = spec.structure.hidden(dims.key)?;
    let whole = [dims.key, dims.value].iter().all(|&width| width.is_multiple_of(TILE));
    // Clusters, and so much shared memory, are of GPUs that code is compiled for.
    let clusters = device.properties().capability.0 >= 9 && device.compiles();
    if dims.anchored || !whole || !clusters || places.group < LEAST_TOKENS {
        return None;
    }
    let of = |count: usize| Resident(Places { width: hidden / count, ..*places });
    let fits = |count: usize| hidden.is_multiple_of(TILE * count) && of(count).fits(near_limit(device));
    let multiprocessors = device.properties().multiprocessors as usize;
    let memories = dims.sequences.count() * dims.heads;
    // The fewest blocks that have room, then more that are free.
    let fewest = BY_CLUSTER.iter().position(|&(count, _)| fits(count))?;
    let free =
        |&&(count, _): &&(usize, _)| fits(count) && hidden / count >= NARROWEST && memories * count <= multiprocessors;
    let (cluster, start) = *BY_CLUSTER[fewest..].iter().rfind(free).unwrap_or(&BY_CLUSTER[fewest]);
    let block = of(cluster);
    let arrays = [block.near(), block.anywhere()].concat();
    Some(Grouped { start, cluster, threads: THREADS, exchanged: block.0.exchanged(), arrays })
}

/// Sizes of a block's arrays, in the order of `resident.cuh`. Elements have 32 bits.
struct Resident(Places);

impl Resident {
    /// Whether a block has what it must in shared memory of `limit` elements.
    fn fits(&self, limit: usize) -> bool {
        self.near().iter().map(|count| count.next_multiple_of(4)).sum::<usize>() <= limit
    }

    /// Arrays that must lie in shared memory.
    fn near(&self) -> Vec<usize> {
        let (rows, Places { key, value, width, momentum, .. }) = (self.0.rows(), self.0);
        let plane = |height: usize, wide: usize| height * wide / 2;
        // Numbers by token.
        let mut arrays = vec![super::TOKEN_NUMBERS * rows];
        for (height, wide) in [(key, width), (width, value)] {
            // Weights and what rounding left of them, momentum, keys, queries.
            let pushed = if momentum { plane(height, wide) } else { 0 };
            arrays.extend([2 * plane(height, wide), pushed, plane(rows, height), plane(rows, height)]);
        }
        // z0; z1 and masked products, each with its rest.
        arrays.extend([plane(rows, width), 2 * plane(rows, value), 2 * plane(rows, rows)]);
        arrays
    }

    /// Those that may lie in the workspace: c, pre, v, u.
    fn anywhere(&self) -> Vec<usize> {
        let (rows, Places { value, width, .. }) = (self.0.rows(), self.0);
        Places::panels(&[(rows, rows), (rows, width), (rows, value), (rows, value)]).collect()
    }
}
