//! Slots of unit norm: equations (60)–(69).

use crate::{
    launch::{Kernel, Source},
    recurrent::{self, Cell, NO_PRODUCTS, Recurrent, Room},
};
use hecate_core::{
    Dims, Read,
    rules::{Lattice, RETENTION_FLOOR, Variant},
};

recurrent::cells! { Lattice }

/// The kernels of this rule.
pub(crate) const KERNELS: &[Kernel<'static>] = recurrent::kernels!(Lattice);

/// How far the norm of an initial slot may be from 1: more than rounding to 16 bits costs.
const NORM_TOLERANCE: f32 = 0.01;

impl Recurrent for Lattice {
    const SOURCES: [&'static Source; 2] = recurrent::sources! {
        "lattice",
        [NO_PRODUCTS, include_str!("lattice.wgsl")],
        [include_str!("lattice_forward.wgsl")],
        [include_str!("lattice_backward.wgsl")],
    };

    fn cell(self, _: &Dims) -> Cell {
        let variant = match self.variant {
            Variant::Decode => 0,
            Variant::Similarity => 1,
            Variant::Encode => 2,
        };
        let after = (self.read == Read::After).into();
        recurrent::cell(&[variant, after, RETENTION_FLOOR.to_bits(), NORM_TOLERANCE.to_bits()])
    }

    fn room(self, dims: &Dims) -> Room {
        let record = 3 * dims.key + dims.value;
        Room { record, scratch: record + dims.key + 2, matrices: 0 }
    }

    fn frozen(self) -> Option<u32> {
        self.frozen
    }
}
