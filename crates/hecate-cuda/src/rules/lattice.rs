//! Slots of unit norm: equations (60)–(69).

use crate::{
    recurrent::{Recurrent, StepKernels, WorkspaceSize, step_kernels},
    source::{KernelSource, kernel_source},
};
use hecate_core::{
    Dims, Read,
    families::Own,
    rules::{Lattice, RETENTION_FLOOR, SLOT_NORM_TOLERANCE},
};

pub(crate) const SOURCE: KernelSource = kernel_source!("lattice", "lattice.cu");

step_kernels! { KERNELS: SOURCE, Cell { "lattice_forward" Forward, "lattice_backward" Backward } }

/// Twin of `lattice.cu`'s `Lattice`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Cell {
    /// As numbered in `lattice.cu`.
    variant: u32,
    /// 1 where a token reads after its own write.
    after: u32,
    /// Slots `K` and their width `V`.
    key: u32,
    value: u32,
    /// Least retention.
    floor: f32,
    /// How far the norm of an initial slot may be from 1.
    tolerance: f32,
}

impl Recurrent<Own> for Lattice {
    type Cell = Cell;
    const KERNELS: StepKernels<Cell> = KERNELS;

    /// Slots are rows: `K` of them, `V` wide.
    fn cell(self, dims: &Dims) -> Cell {
        let after = (self.read == Read::After).into();
        Cell {
            variant: self.variant as u32,
            after,
            key: dims.key as u32,
            value: dims.value as u32,
            floor: RETENTION_FLOOR,
            tolerance: SLOT_NORM_TOLERANCE,
        }
    }

    /// `h [V]`, `b`, `g`, `n` `[K]`; backward as much again.
    fn workspace(self, dims: &Dims) -> WorkspaceSize {
        // Three rows of slots and one of values: forward a record, backward scratch.
        let rows = 3 * dims.key + dims.value;
        WorkspaceSize { record: rows, scratch: rows, in_place: true, ahead: 0 }
    }
}
