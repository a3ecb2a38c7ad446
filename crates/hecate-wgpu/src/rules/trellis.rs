//! Slots for keys and for values, trained to give the same code: equations (70)–(79).

use crate::{
    launch::{Kernel, WgslSource},
    parameters::{Parameters, parameters},
    recurrent::{self, CellWords, NO_PRODUCTS, Recurrent, SILU, WorkspaceSize, cell_words},
};
use hecate_core::{
    Dims,
    families::Own,
    rules::{SLOT_EPSILON, Trellis},
};

parameters! {
    /// The rule as its kernels have it.
    struct Cell {
        /// As numbered in `phi.wgsl`.
        phi: u32,
        /// `m`.
        slots: u32,
        /// What is added to a mean square before its root.
        epsilon: f32,
    }
}

/// The kernels of this rule.
pub(crate) const KERNELS: &[Kernel<'static>] = recurrent::kernels!(<Trellis as Recurrent<Own>>::SOURCES);

impl Recurrent<Own> for Trellis {
    const SOURCES: [&'static WgslSource; 2] = recurrent::sources! {
        "trellis",
        [NO_PRODUCTS, SILU, include_str!("phi.wgsl"), Cell::WGSL, include_str!("trellis.wgsl")],
        [include_str!("trellis_forward.wgsl")],
        [include_str!("trellis_backward.wgsl")],
    };

    fn cell(self, _: &Dims) -> CellWords {
        cell_words(&Cell { phi: self.phi as u32, slots: self.slots, epsilon: SLOT_EPSILON })
    }

    /// In elements, as `trellis.wgsl` cuts them up.
    fn workspace(self, _: &Dims) -> WorkspaceSize {
        let slots = self.slots as usize;
        // Three places of three rows, nine rows of a token, ten of a code; 22 scalars.
        WorkspaceSize { record: 3 * slots, scratch: 28 * slots + 22, matrices: 0, ahead: 0 }
    }
}
