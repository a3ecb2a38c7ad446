//! Slots of unit norm: equations (60)–(69).

use crate::{
    launch::{Kernel, WgslSource},
    recurrent::{self, Cell, NO_PRODUCTS, Recurrent, WorkspaceSize},
};
use hecate_core::{
    Dims, Read,
    families::Own,
    rules::{Lattice, RETENTION_FLOOR, SLOT_NORM_TOLERANCE},
};

/// The kernels of this rule.
pub(crate) const KERNELS: &[Kernel<'static>] = recurrent::kernels!(<Lattice as Recurrent<Own>>::SOURCES);

impl Recurrent<Own> for Lattice {
    const SOURCES: [&'static WgslSource; 2] = recurrent::sources! {
        "lattice",
        [NO_PRODUCTS, include_str!("lattice.wgsl")],
        [include_str!("lattice_forward.wgsl")],
        [include_str!("lattice_backward.wgsl")],
    };

    /// Words of `lattice.wgsl`'s `Cell`, in its order.
    fn cell(self, _: &Dims) -> Cell {
        let after = (self.read == Read::After).into();
        recurrent::cell(&[self.variant as u32, after, RETENTION_FLOOR.to_bits(), SLOT_NORM_TOLERANCE.to_bits()])
    }

    /// In elements, as `lattice.wgsl` cuts them up.
    fn workspace(self, dims: &Dims) -> WorkspaceSize {
        // h [V], b, g and n [K]; then rows of the backward and two scalars.
        let record = 3 * dims.key + dims.value;
        WorkspaceSize { record, scratch: record + dims.key + 2, matrices: 0, ahead: 0 }
    }
}
