//! Slots for keys and for values, taught to give the same code: equations (70)–(79).

use crate::{
    launch::{Kernel, WgslSource},
    recurrent::{self, Cell, NO_PRODUCTS, Recurrent, SILU, WorkspaceSize},
};
use hecate_core::{
    Dims,
    families::Own,
    rules::{SLOT_EPSILON, Trellis},
};

/// The kernels of this rule.
pub(crate) const KERNELS: &[Kernel<'static>] = recurrent::kernels!(<Trellis as Recurrent<Own>>::SOURCES);

impl Recurrent<Own> for Trellis {
    const SOURCES: [&'static WgslSource; 2] = recurrent::sources! {
        "trellis",
        [NO_PRODUCTS, SILU, include_str!("phi.wgsl"), include_str!("trellis.wgsl")],
        [include_str!("trellis_forward.wgsl")],
        [include_str!("trellis_backward.wgsl")],
    };

    /// Words of `trellis.wgsl`'s `Cell`, in its order.
    fn cell(self, _: &Dims) -> Cell {
        recurrent::cell(&[self.phi as u32, self.slots, SLOT_EPSILON.to_bits()])
    }

    /// In elements, as `trellis.wgsl` cuts them up.
    fn workspace(self, _: &Dims) -> WorkspaceSize {
        let slots = self.slots as usize;
        // Three places of three rows, nine rows of a token, ten of a code; 22 scalars.
        WorkspaceSize { record: 3 * slots, scratch: 28 * slots + 22, matrices: 0, ahead: 0 }
    }
}
