//! One token of Atlas: equations (80)–(87).

use crate::{
    launch::{Kernel, WgslSource},
    recurrent::{self, Cell, Recurrent, WorkspaceSize},
};
use hecate_core::{
    Dims, Read,
    families::Own,
    rules::{Atlas, NEWTON_SCHULZ, NEWTON_SCHULZ_EPSILON},
};

/// The kernels of this rule.
pub(crate) const KERNELS: &[Kernel<'static>] = recurrent::kernels!(<Atlas as Recurrent<Own>>::SOURCES);

impl Recurrent<Own> for Atlas {
    const SOURCES: [&'static WgslSource; 2] = recurrent::sources! {
        "atlas",
        [include_str!("../product.wgsl"), include_str!("newton_schulz.wgsl"), include_str!("atlas.wgsl")],
        [include_str!("atlas_forward.wgsl")],
        [include_str!("atlas_backward.wgsl")],
    };

    fn cell(self, _: &Dims) -> Cell {
        // Words of `atlas.wgsl`'s `Cell`, in its order.
        let after = (self.read == Read::After).into();
        let [alpha, beta, kappa] = NEWTON_SCHULZ.map(f32::to_bits);
        let epsilon = (NEWTON_SCHULZ_EPSILON * NEWTON_SCHULZ_EPSILON).to_bits();
        recurrent::cell(&[self.window, after, self.newton_schulz, alpha, beta, kappa, epsilon])
    }

    /// What `newton_schulz.wgsl` cuts up: every `X`, `A`, `B`, then two matrices of the size of `S` and two of that of `A`.
    fn workspace(self, dims: &Dims) -> WorkspaceSize {
        let (steps, errors) = (self.newton_schulz as usize, self.window as usize * dims.value);
        let (all, small) = (dims.key * dims.value, dims.key.min(dims.value).pow(2));
        // Without Newton-Schulz no matrix is needed.
        let matrices = if steps > 0 { (steps + 3) * all + (2 * steps + 2) * small } else { 0 };
        // Parts of the gradients of three gates, and five scalars.
        WorkspaceSize { record: errors, scratch: errors + 3 * dims.key + 5, matrices, ahead: 0 }
    }

    /// A backward has all products of a forward again, and its own.
    fn rounds(self, dims: &Dims, threads: usize) -> usize {
        let (p, n) = (dims.key.min(dims.value), dims.key.max(dims.value));
        // Rounds of one product: tiles times runs of eight terms.
        let product = |columns: usize, terms: usize| p.div_ceil(threads / 4) * columns.div_ceil(64) * terms.div_ceil(8);
        self.newton_schulz as usize * (2 * product(p, n) + 3 * product(p, p) + 3 * product(n, p))
    }

    /// `product.wgsl`'s tiles: eight terms of 64 columns and as many rows.
    const SHARED: usize = 4 * 8 * (64 + 64);
}
