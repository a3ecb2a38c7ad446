//! Leaky integrate-and-fire neurons: equations (100)–(107).

use crate::{
    launch::{Kernel, WgslSource},
    parameters::{Parameters, parameters},
    recurrent::{self, CellWords, NO_PRODUCTS, Recurrent, WorkspaceSize, cell_words},
};
use hecate_core::{
    Dims,
    families::Own,
    rules::{Lif, Reset},
};

parameters! {
    /// The rule as its kernels have it.
    struct Cell {
        /// As numbered in `lif.wgsl`.
        surrogate: u32,
        /// 1 where a spike takes `taken` away, 0 where it leaves zero.
        subtracts: u32,
        /// 1 where no gradient goes through the reset.
        detached: u32,
        /// `α`.
        slope: f32,
        /// `ϑ`.
        threshold: f32,
        /// `δ`.
        taken: f32,
    }
}

/// The kernels of this rule.
pub(crate) const KERNELS: &[Kernel<'static>] = recurrent::kernels!(<Lif as Recurrent<Own>>::SOURCES);

impl Recurrent<Own> for Lif {
    const SOURCES: [&'static WgslSource; 2] = recurrent::sources! {
        "lif",
        [NO_PRODUCTS, Cell::WGSL, include_str!("lif.wgsl")],
        [include_str!("lif_forward.wgsl")],
        [include_str!("lif_backward.wgsl")],
    };

    fn cell(self, _: &Dims) -> CellWords {
        cell_words(&Cell {
            surrogate: self.surrogate as u32,
            subtracts: (self.reset == Reset::Subtract).into(),
            detached: self.detach_reset.into(),
            slope: self.slope,
            threshold: self.threshold,
            taken: self.taken(),
        })
    }

    /// In elements, as `lif.wgsl` cuts them up.
    fn workspace(self, dims: &Dims) -> WorkspaceSize {
        // Two sums a row, and two scalars.
        WorkspaceSize { record: 0, scratch: 2 * dims.key + 2, matrices: 0, ahead: 0 }
    }
}
