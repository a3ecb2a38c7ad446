//! Slots of unit norm: equations (60)–(69).

use crate::{
    Cuda,
    arguments::arguments,
    recurrent::{
        Grouped, Recurrent, StepKernels, WorkspaceSize,
        pieces::{Pieces, THREADS, WARPS, panel},
        step_kernels,
    },
    source::{KernelSource, kernel_source},
};
use hecate_core::{
    DType, Dims, Read,
    families::Own,
    rules::{Lattice, RETENTION_FLOOR, SLOT_NORM_TOLERANCE},
};

/// Token by token, for any number of slots of any width.
pub(crate) const SOURCE: KernelSource = kernel_source!("lattice", "lattice.cu");
/// Some tokens at once, for frozen groups and slots of 32 or 64 elements.
pub(crate) const PIECES: KernelSource = kernel_source!("lattice_pieces", "lattice_pieces.cu");

step_kernels! { KERNELS: SOURCE, Cell { "lattice_forward" Forward, "lattice_backward" Backward } }

step_kernels! { OF_32: PIECES, Cell {
    "lattice_pieces_forward_32" Forward32, "lattice_pieces_backward_32" Backward32
} }
step_kernels! { OF_64: PIECES, Cell {
    "lattice_pieces_forward_64" Forward64, "lattice_pieces_backward_64" Backward64
} }
step_kernels! { ANCHORED_32: PIECES, Cell {
    "lattice_pieces_forward_anchored_32" ForwardAnchored32, "lattice_pieces_backward_anchored_32" BackwardAnchored32
} }
step_kernels! { ANCHORED_64: PIECES, Cell {
    "lattice_pieces_forward_anchored_64" ForwardAnchored64, "lattice_pieces_backward_anchored_64" BackwardAnchored64
} }

/// Tokens of a piece, forward and backward: `LatticePieces::TOKENS`.
const TOKENS: [usize; 2] = [16, 8];

arguments! {
    /// Twin of `lattice.cu`'s `Lattice` and of `lattice_pieces.cu`'s `LatticePieces`.
    pub(crate) struct Cell {
        /// As numbered in `lattice.cu`.
        variant: u32,
        /// 1 where a token reads after its own write.
        after: u32,
        /// Slots `K` and their width `V`.
        key: u32,
        value: u32,
        /// Least retention.
        /// At 0 a slot that nothing is written to would have no direction.
        floor: f32,
        /// How far the norm of an initial slot may be from 1.
        /// It is more than rounding to 16 bits costs.
        tolerance: f32,
    }
}

impl Recurrent<Own> for Lattice {
    type Cell = Cell;
    const KERNELS: StepKernels<Cell> = KERNELS;

    /// Slots are rows: `K` of them, `V` wide.
    /// Core has checked the variant and sizes; `floor` and `tolerance` are those of every backend.
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

    /// Frozen groups by pieces.
    fn grouped(self, device: &Cuda, dims: &Dims, _: DType, pass: usize) -> Option<Grouped<Cell>> {
        // Slots of other widths go token by token.
        let kernels = match (dims.value, dims.anchored) {
            (32, false) => OF_32,
            (64, false) => OF_64,
            (32, true) => ANCHORED_32,
            (64, true) => ANCHORED_64,
            _ => return None,
        };
        // A backward has room for fewer tokens, since it keeps the slots after each.
        let (tokens, state) = (TOKENS[pass], dims.key * dims.value);
        // Rows of a piece, by slot and by element.
        let [keys, values] = [dims.key, dims.value].map(|width| panel(tokens, width));
        // Decay; h; b, θ g; sums by warp.
        let mut room = vec![tokens, values, keys, keys, panel(WARPS * tokens, dims.value)];
        // 1/n, U·dX, db; dh; parts of the gradient of `log a`; slots after tokens.
        let retained = panel(tokens, dims.key / 4);
        room.extend([keys, keys, keys, values, retained, panel(tokens, state)].into_iter().filter(|_| pass == 1));
        let start = if pass == 0 { kernels.forward } else { kernels.backward };
        // One block a memory, and the gradient of the state beside the rest.
        let (cluster, threads, far, shared, near_adjoint) = (1, THREADS, 0, 0, true);
        let (gates, point) = (2, state);
        Pieces { start, cluster, threads, tokens, gates, state, point, far, shared, near_adjoint, room }.grouped(
            device,
            self.frozen,
            dims,
            pass,
        )
    }
}
