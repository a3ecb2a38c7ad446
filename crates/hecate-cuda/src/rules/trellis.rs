//! Slots for keys and for values, taught to give the same code: equations (70)–(79).

use crate::{
    recurrent::{Recurrent, StepKernels, WorkspaceSize, step_kernels},
    source::{KernelSource, kernel_source},
};
use hecate_core::{
    Dims,
    families::Own,
    rules::{SLOT_EPSILON, Trellis},
};

pub(crate) const SOURCE: KernelSource = kernel_source!("trellis", "trellis.cu");

step_kernels! { KERNELS: SOURCE, Cell { "trellis_forward" Forward, "trellis_backward" Backward } }

/// Twin of `trellis.cu`'s `Trellis`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Cell {
    /// As numbered in `trellis.cu`.
    phi: u32,
    /// `m`.
    slots: u32,
    /// `K` and `V`.
    key: u32,
    value: u32,
    /// What is added to a mean square before its root.
    epsilon: f32,
}

impl Recurrent<Own> for Trellis {
    type Cell = Cell;
    const KERNELS: StepKernels<Cell> = KERNELS;

    /// `m` slots for keys and as many for values.
    fn cell(self, dims: &Dims) -> Cell {
        Cell {
            phi: self.phi as u32,
            slots: self.slots,
            key: dims.key as u32,
            value: dims.value as u32,
            epsilon: SLOT_EPSILON,
        }
    }

    /// Rows of `m` elements, whatever `K` and `V` are.
    fn workspace(self, _: &Dims) -> WorkspaceSize {
        let slots = self.slots as usize;
        // Three places of three rows, nine rows of a token, room of six rows for either memory, four sums.
        WorkspaceSize { record: 3 * slots, scratch: (9 + 9 + 12) * slots + 4, in_place: true, ahead: 0 }
    }
}
