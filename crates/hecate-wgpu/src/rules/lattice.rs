//! Slots of unit norm: equations (60)–(69).

use crate::{
    launch::{Kernel, WgslSource},
    parameters::{Parameters, parameters},
    recurrent::{self, CellWords, NO_PRODUCTS, Recurrent, WorkspaceSize, cell_words},
};
use hecate_core::{
    Dims, Read,
    families::Own,
    rules::{Lattice, RETENTION_FLOOR, SLOT_NORM_TOLERANCE},
};

parameters! {
    /// The rule as its kernels have it.
    struct Cell {
        /// As numbered in `lattice.wgsl`.
        variant: u32,
        /// 1 where a token reads after its own write.
        after: u32,
        /// Least retention.
        lowest: f32,
        /// How far the norm of an initial slot may be from 1.
        tolerance: f32,
    }
}

/// The kernels of this rule.
pub(crate) const KERNELS: &[Kernel<'static>] = recurrent::kernels!(<Lattice as Recurrent<Own>>::SOURCES);

impl Recurrent<Own> for Lattice {
    const SOURCES: [&'static WgslSource; 2] = recurrent::sources! {
        "lattice",
        [NO_PRODUCTS, Cell::WGSL, include_str!("lattice.wgsl")],
        [include_str!("lattice_forward.wgsl")],
        [include_str!("lattice_backward.wgsl")],
    };

    fn cell(self, _: &Dims) -> CellWords {
        let after = (self.read == Read::After).into();
        let (lowest, tolerance) = (RETENTION_FLOOR, SLOT_NORM_TOLERANCE);
        cell_words(&Cell { variant: self.variant as u32, after, lowest, tolerance })
    }

    /// In elements, as `lattice.wgsl` cuts them up.
    fn workspace(self, dims: &Dims) -> WorkspaceSize {
        // h [V], b, g and n [K]; then rows of the backward and two scalars.
        let record = 3 * dims.key + dims.value;
        WorkspaceSize { record, scratch: record + dims.key + 2, matrices: 0, ahead: 0 }
    }
}
