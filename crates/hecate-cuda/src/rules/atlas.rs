//! One token of Atlas: equations (80)–(87).

use crate::{
    launch::{Source, source},
    recurrent::{Recurrent, Room, cells},
};
use hecate_core::{
    Dims, Read,
    rules::{Atlas, NEWTON_SCHULZ, NEWTON_SCHULZ_EPSILON},
};

pub(crate) const SOURCE: Source = source!("atlas", "atlas.cu");

cells! { SOURCE { Atlas: kernels "atlas_forward" "atlas_backward" } }

/// Twin of `atlas.cu`'s `Atlas`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Cell {
    window: u32,
    after: u32,
    key: u32,
    value: u32,
    coefficients: [f32; 3],
    epsilon: f32,
    steps: u32,
}

impl Recurrent for Atlas {
    type Cell = Cell;
    const THREADS: usize = 256;

    fn cell(self, dims: &Dims) -> Cell {
        Cell {
            window: self.window,
            after: (self.read == Read::After).into(),
            key: dims.key as u32,
            value: dims.value as u32,
            coefficients: NEWTON_SCHULZ,
            epsilon: NEWTON_SCHULZ_EPSILON * NEWTON_SCHULZ_EPSILON,
            steps: self.newton_schulz,
        }
    }

    /// What `newton_schulz.cuh` cuts up: every `X`, `A`, `B`, then two matrices of the size of `S` and two of that of `A`.
    fn room(self, dims: &Dims) -> Room {
        let (steps, errors) = (self.newton_schulz as usize, self.window as usize * dims.value);
        let (all, small) = (dims.key * dims.value, dims.key.min(dims.value).pow(2));
        let newton_schulz = if steps > 0 { (steps + 3) * all + (2 * steps + 2) * small } else { 0 };
        Room { record: errors, scratch: errors + newton_schulz, in_place: true }
    }

    fn frozen(self) -> Option<u32> {
        self.frozen
    }
}
