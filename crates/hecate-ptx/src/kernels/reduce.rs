//! Reductions: one value of the values that threads have.

use crate::{
    types::Reg,
    writer::{Converged, Scope},
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
