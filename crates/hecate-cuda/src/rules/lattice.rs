//! Slots of unit norm: equations (60)–(69).

use crate::{
    launch::{Source, source},
    recurrent::{Recurrent, Room, cells},
};
use hecate_core::{
    Dims, Read,
    rules::{Lattice, RETENTION_FLOOR, Variant},
};

pub(crate) const SOURCE: Source = source!("lattice", "lattice.cu");

cells! { SOURCE { Lattice: kernels "lattice_forward" "lattice_backward" } }

/// How far the norm of an initial slot may be from 1: more than rounding to 16 bits costs.
const NORM_TOLERANCE: f32 = 0.01;

/// Twin of `lattice.cu`'s `Lattice`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Cell {
    variant: u32,
    after: u32,
    key: u32,
    value: u32,
    floor: f32,
    tolerance: f32,
}

impl Recurrent for Lattice {
    type Cell = Cell;

    fn cell(self, dims: &Dims) -> Cell {
        let variant = match self.variant {
            Variant::Decode => 0,
            Variant::Similarity => 1,
            Variant::Encode => 2,
        };
        let after = (self.read == Read::After).into();
        Cell {
            variant,
            after,
            key: dims.key as u32,
            value: dims.value as u32,
            floor: RETENTION_FLOOR,
            tolerance: NORM_TOLERANCE,
        }
    }

    fn room(self, dims: &Dims) -> Room {
        let rows = 3 * dims.key + dims.value;
        Room { record: rows, scratch: rows, in_place: true }
    }

    fn frozen(self) -> Option<u32> {
        self.frozen
    }
}
