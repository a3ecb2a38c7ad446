//! One token of Atlas: equations (80)–(87).

use crate::{
    launch::{Kernel, WgslSource},
    parameters::{Parameters, parameters},
    recurrent::{self, CellWords, Recurrent, WorkspaceSize, cell_words},
};
use hecate_core::{
    Dims, Read,
    families::Own,
    rules::{Atlas, NEWTON_SCHULZ, NEWTON_SCHULZ_EPSILON},
};

parameters! {
    /// The rule as its kernels have it.
    struct Cell {
        /// Tokens of the window.
        window: u32,
        /// 1 where a token reads after its own write.
        after: u32,
        /// Of Newton-Schulz; 0: none.
        steps: u32,
        /// `(α, β, κ)` and `ε²` of Newton-Schulz.
        alpha: f32,
        beta: f32,
        kappa: f32,
        epsilon: f32,
    }
}

/// The kernels of this rule.
pub(crate) const KERNELS: &[Kernel<'static>] = recurrent::kernels!(<Atlas as Recurrent<Own>>::SOURCES);

impl Recurrent<Own> for Atlas {
    const SOURCES: [&'static WgslSource; 2] = recurrent::sources! {
        "atlas",
        [include_str!("../product.wgsl"), include_str!("newton_schulz.wgsl"), Cell::WGSL, include_str!("atlas.wgsl")],
        [include_str!("atlas_forward.wgsl")],
        [include_str!("atlas_backward.wgsl")],
    };

    fn cell(self, _: &Dims) -> CellWords {
        let after = (self.read == Read::After).into();
        let [alpha, beta, kappa] = NEWTON_SCHULZ;
        let epsilon = NEWTON_SCHULZ_EPSILON * NEWTON_SCHULZ_EPSILON;
        cell_words(&Cell { window: self.window, after, steps: self.newton_schulz, alpha, beta, kappa, epsilon })
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
