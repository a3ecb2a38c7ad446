//! Slots for keys and for values, taught to give the same code: equations (70)–(79).

use crate::{
    launch::{Source, source},
    recurrent::{Recurrent, Room, cells},
};
use hecate_core::{
    Dims,
    rules::{Phi, SLOT_EPSILON, Trellis},
};

pub(crate) const SOURCE: Source = source!("trellis", "trellis.cu");

cells! { SOURCE { Trellis: kernels "trellis_forward" "trellis_backward" } }

/// Twin of `trellis.cu`'s `Trellis`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Cell {
    phi: u32,
    slots: u32,
    key: u32,
    value: u32,
    epsilon: f32,
}

impl Recurrent for Trellis {
    type Cell = Cell;

    fn cell(self, dims: &Dims) -> Cell {
        let phi = match self.phi {
            Phi::L2Silu => 0,
            Phi::LnSilu => 1,
            Phi::Identity => 2,
        };
        Cell { phi, slots: self.slots, key: dims.key as u32, value: dims.value as u32, epsilon: SLOT_EPSILON }
    }

    fn room(self, _: &Dims) -> Room {
        let slots = self.slots as usize;
        // Three places of three rows, nine rows of a token, room of six rows for either memory, four sums.
        Room { record: 3 * slots, scratch: (9 + 9 + 12) * slots + 4, in_place: true }
    }

    fn frozen(self) -> Option<u32> {
        self.frozen
    }
}
