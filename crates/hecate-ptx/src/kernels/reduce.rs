//! Reductions: one value of the values that threads have.

use crate::{
    types::Reg,
    writer::{Comparison, Converged, Pointer, Scope, Shared},
};

/// An operation on two values that gives one, such as their sum.
type Combine = fn(&mut Scope<'_, Converged>, Reg<f32>, Reg<f32>) -> Reg<f32>;

/// Puts into `value` of every lane what `combine` makes of all lanes' values.
///
/// Each step combines pairs whose numbers differ by one bit, so all lanes get the same bits.
pub(super) fn warp(k: &mut Scope<'_, Converged>, value: Reg<f32>, combine: Combine) {
    for mask in [16, 8, 4, 2, 1] {
        let other = k.shuffle_xor(value, mask);
        let both = combine(k, value, other);
        k.assign(value, both);
    }
}

/// Warps of a block whose threads sum together.
const WARPS: u32 = 8;

/// Threads of such a block.
pub(super) const THREADS: u32 = 32 * WARPS;

/// Sums of a block: an element of shared memory for each of its warps.
#[derive(Clone, Copy)]
pub(super) struct BlockSum {
    parts: Pointer<f32, Shared>,
    lane: Reg<u32>,
    warp: Reg<u32>,
}

impl BlockSum {
    /// Takes shared memory for a kernel's sums.
    pub(super) fn new(k: &mut Scope<'_, Converged>) -> Self {
        Self { parts: k.shared("smem_parts", WARPS as usize), lane: k.lane(), warp: k.warp() }
    }

    /// Puts the sum over the block into `value` of every thread. All threads add the warps' sums in the same order.
    pub(super) fn sum(self, k: &mut Scope<'_, Converged>, value: Reg<f32>) {
        warp(k, value, |k, a, b| k.add(a, b));
        let is_first = k.compare(Comparison::Equal, self.lane, 0u32);
        let part = k.at_shared(self.parts, self.warp);
        k.guarded(is_first, |k| k.store(part, value));
        k.barrier();
        let halves = [0, 4].map(|first| k.load_vector::<4, _, _>(self.parts.plus(first)));
        k.assign(value, 0f32);
        halves.as_flattened().iter().for_each(|part| k.add_to(value, *part));
        // The next sum writes where this one was read.
        k.barrier();
    }
}
