//! Slots for keys and for values, taught to give the same code: equations (70)–(79).

use crate::{
    launch::{Kernel, Source},
    recurrent::{self, Cell, NO_PRODUCTS, Recurrent, Room, SILU},
};
use hecate_core::{
    Dims,
    rules::{Phi, SLOT_EPSILON, Trellis},
};

recurrent::cells! { Trellis }

/// The kernels of this rule.
pub(crate) const KERNELS: &[Kernel<'static>] = recurrent::kernels!(Trellis);

impl Recurrent for Trellis {
    const SOURCES: [&'static Source; 2] = recurrent::sources! {
        "trellis",
        [NO_PRODUCTS, SILU, include_str!("phi.wgsl"), include_str!("trellis.wgsl")],
        [include_str!("trellis_forward.wgsl")],
        [include_str!("trellis_backward.wgsl")],
    };

    fn cell(self, _: &Dims) -> Cell {
        let phi = match self.phi {
            Phi::L2Silu => 0,
            Phi::LnSilu => 1,
            Phi::Identity => 2,
        };
        recurrent::cell(&[phi, self.slots, SLOT_EPSILON.to_bits()])
    }

    fn room(self, _: &Dims) -> Room {
        let slots = self.slots as usize;
        // Three places of three rows, nine rows of a token, ten of a code; numbers.
        Room { record: 3 * slots, scratch: 28 * slots + 22, matrices: 0 }
    }

    fn frozen(self) -> Option<u32> {
        self.frozen
    }
}
