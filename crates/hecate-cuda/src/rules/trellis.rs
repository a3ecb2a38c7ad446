//! Slots for keys and for values, trained to give the same code: equations (70)–(79).

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
    DType, Dims,
    families::Own,
    rules::{SLOT_EPSILON, Trellis},
};

pub(crate) const SOURCE: KernelSource = kernel_source!("trellis", "trellis.cu");
pub(crate) const PIECES: KernelSource = kernel_source!("trellis_pieces", "trellis_pieces.cu");

step_kernels! { KERNELS: SOURCE, Cell { "trellis_forward" Forward, "trellis_backward" Backward } }

step_kernels! { BY_PIECES: PIECES, Cell {
    "trellis_pieces_forward" PiecesForward, "trellis_pieces_backward" PiecesBackward
} }

/// `TrellisPieces::TOKENS`.
const TOKENS: usize = 16;

arguments! {
    /// Twin of `trellis.cu`'s `Trellis` and of `trellis_pieces.cu`'s `TrellisPieces`.
    pub(crate) struct Cell {
        /// As numbered in `trellis.cu`.
        kind: u32,
        /// `m`.
        slots: u32,
        /// `K` and `V`.
        key: u32,
        value: u32,
        /// What is added to a mean square before its root.
        epsilon: f32,
    }
}

impl Recurrent<Own> for Trellis {
    type Cell = Cell;
    const KERNELS: StepKernels<Cell> = KERNELS;

    /// `m` slots for keys and as many for values.
    fn cell(self, dims: &Dims) -> Cell {
        Cell {
            kind: self.phi as u32,
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

    /// Frozen groups by pieces.
    fn grouped(self, device: &Cuda, dims: &Dims, _: DType, pass: usize) -> Option<Grouped<Cell>> {
        // Rows of slots of a piece, and both memories.
        let slots = self.slots as usize;
        let (row, state) = (TOKENS * slots, slots * (dims.key + dims.value));
        // Rows of φ at once: half a warp has one where that is lanes enough.
        let places = WARPS * if slots <= 16 { 2 } else { 1 };
        // Decay; what is written, answered; nine rows a place; what is read; states after tokens.
        let mut room = vec![2 * TOKENS, 2 * row, 3 * row, 9 * places * slots, row, panel(TOKENS, state)];
        // Gradients of predictions, codes; ⟨dS, S⟩ by warp, of θ.
        room.extend([3 * row, 2 * row, TOKENS * WARPS, 2 * TOKENS].into_iter().filter(|_| pass == 1));
        let start = if pass == 0 { BY_PIECES.forward } else { BY_PIECES.backward };
        // One block a memory, and the gradient of the state beside the rest.
        let (cluster, threads, far, shared, near_adjoint) = (1, THREADS, 0, 0, true);
        let (tokens, gates, point) = (TOKENS, 2 + slots, state);
        Pieces { start, cluster, threads, tokens, gates, state, point, far, shared, near_adjoint, room }.grouped(
            device,
            self.frozen,
            dims,
            pass,
        )
    }
}
