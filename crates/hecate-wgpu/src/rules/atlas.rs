//! One token of Atlas: equations (80)–(87).

use crate::{
    launch::{Kernel, Source},
    recurrent::{self, Cell, Recurrent, Room},
};
use hecate_core::{
    Dims, Read,
    rules::{Atlas, NEWTON_SCHULZ, NEWTON_SCHULZ_EPSILON},
};

recurrent::cells! { Atlas }

/// The kernels of this rule.
pub(crate) const KERNELS: &[Kernel<'static>] = recurrent::kernels!(Atlas);

impl Recurrent for Atlas {
    const SOURCES: [&'static Source; 2] = recurrent::sources! {
        "atlas",
        [include_str!("../product.wgsl"), include_str!("newton_schulz.wgsl"), include_str!("atlas.wgsl")],
        [include_str!("atlas_forward.wgsl")],
        [include_str!("atlas_backward.wgsl")],
    };

    fn cell(self, _: &Dims) -> Cell {
        let after = (self.read == Read::After).into();
        let [alpha, beta, kappa] = NEWTON_SCHULZ.map(f32::to_bits);
        let epsilon = (NEWTON_SCHULZ_EPSILON * NEWTON_SCHULZ_EPSILON).to_bits();
        recurrent::cell(&[self.window, after, self.newton_schulz, alpha, beta, kappa, epsilon])
    }

    /// What `newton_schulz.wgsl` cuts up: every `X`, `A`, `B`, then two matrices of the size of `S` and two of that of `A`.
    fn room(self, dims: &Dims) -> Room {
        let (steps, errors) = (self.newton_schulz as usize, self.window as usize * dims.value);
        let (all, small) = (dims.key * dims.value, dims.key.min(dims.value).pow(2));
        let matrices = if steps > 0 { (steps + 3) * all + (2 * steps + 2) * small } else { 0 };
        // Parts of the gradients of three gates, and five numbers.
        Room { record: errors, scratch: errors + 3 * dims.key + 5, matrices }
    }

    fn frozen(self) -> Option<u32> {
        self.frozen
    }

    /// A backward has all products of a forward again, and its own.
    fn rounds(self, dims: &Dims, threads: usize) -> usize {
        let (p, n) = (dims.key.min(dims.value), dims.key.max(dims.value));
        let product = |columns: usize, terms: usize| p.div_ceil(threads / 4) * columns.div_ceil(64) * terms.div_ceil(8);
        self.newton_schulz as usize * (2 * product(p, n) + 3 * product(p, p) + 3 * product(n, p))
    }

    /// `product.wgsl`'s tiles: eight terms of 64 columns and as many rows.
    const SHARED: usize = 4 * 8 * (64 + 64);
}
