//! One token of Atlas: equations (80)–(87).

use crate::{
    Cuda,
    arguments::arguments,
    recurrent::{
        Grouped, Recurrent, StepKernels, WorkspaceSize,
        pieces::{Pieces, panel},
        step_kernels,
    },
    source::{KernelSource, kernel_source},
};
use hecate_core::{
    DType, Dims, Read,
    families::Own,
    rules::{Atlas, NEWTON_SCHULZ, NEWTON_SCHULZ_EPSILON},
};

pub(crate) const SOURCE: KernelSource = kernel_source!("atlas", "atlas.cu");
pub(crate) const PIECES: KernelSource = kernel_source!("atlas_pieces", "atlas_pieces.cu");

step_kernels! { KERNELS: SOURCE, Cell { "atlas_forward" Forward, "atlas_backward" Backward } }

step_kernels! { ONE: PIECES, Cell { "atlas_pieces_forward_1" Forward1, "atlas_pieces_backward_1" Backward1 } }
step_kernels! { TWO: PIECES, Cell { "atlas_pieces_forward_2" Forward2, "atlas_pieces_backward_2" Backward2 } }

/// Widths for which there are kernels by pieces; the longest window and most steps of Newton-Schulz; threads of a block.
const SIDE: usize = 64;
const WINDOW: u32 = 4;
const STEPS: u32 = 5;
const THREADS: usize = 256;
/// `AtlasPieces::TOKENS` and `Halves::SIZE`.
const TOKENS: usize = 8;
const HALVES: usize = SIDE * 72;
/// `SQUARE_GROUPS`.
const GROUPS: usize = 2;

arguments! {
    /// Twin of `atlas.cu`'s `Atlas` and of `atlas_pieces.cuh`'s `AtlasPieces`.
    pub(crate) struct Cell {
        /// Tokens of the window.
        window: u32,
        /// 1 where a token reads after its own write.
        after: u32,
        /// `K` and `V`.
        key: u32,
        value: u32,
        /// `(α, β, κ)` and `ε²` of Newton-Schulz.
        alpha: f32,
        beta: f32,
        kappa: f32,
        epsilon: f32,
        /// Of Newton-Schulz; 0: none.
        steps: u32,
    }
}

impl Recurrent<Own> for Atlas {
    type Cell = Cell;
    const KERNELS: StepKernels<Cell> = KERNELS;
    // What the kernels are compiled for: fewer threads have more registers each.
    const THREADS: usize = 256;

    /// Sizes and options, `ε` squared.
    fn cell(self, dims: &Dims) -> Cell {
        let [alpha, beta, kappa] = NEWTON_SCHULZ;
        Cell {
            window: self.window,
            after: (self.read == Read::After).into(),
            key: dims.key as u32,
            value: dims.value as u32,
            alpha,
            beta,
            kappa,
            epsilon: NEWTON_SCHULZ_EPSILON * NEWTON_SCHULZ_EPSILON,
            steps: self.newton_schulz,
        }
    }

    /// What `newton_schulz.cuh` cuts up: every `X`, `A`, `B`, then two matrices of the size of `S` and two of that of `A`.
    fn workspace(self, dims: &Dims) -> WorkspaceSize {
        let (steps, errors) = (self.newton_schulz as usize, self.window as usize * dims.value);
        let (all, small) = (dims.key * dims.value, dims.key.min(dims.value).pow(2));
        let newton_schulz = if steps > 0 { (steps + 3) * all + (2 * steps + 2) * small } else { 0 };
        WorkspaceSize { record: errors, scratch: errors + newton_schulz, in_place: true, ahead: 0 }
    }

    /// Frozen groups with Newton-Schulz, by pieces; arguments beside whose rounding that of factors is small.
    fn grouped(self, device: &Cuda, dims: &Dims, dtype: DType, pass: usize) -> Option<Grouped<Cell>> {
        // Products of halves are there from capability 8.0 on.
        // Other widths and longer windows go token by token.
        let suits =
            dtype == DType::Bf16 && device.properties().capability.0 >= 8 && [dims.key, dims.value] == [SIDE; 2];
        if !suits || self.window > WINDOW || !(1..=STEPS).contains(&self.newton_schulz) {
            return None;
        }
        // Rows of the buffers, and of a piece's windows.
        let last = self.window as usize - 1;
        let (rows, square) = (panel(TOKENS + last, SIDE), SIDE * SIDE);
        let state = 2 * square + last * 2 * SIDE;
        // Keys, values and errors of windows; sums of what is read; factors: X of two steps or of all, A, B, D, P.
        // A backward wants X of all steps at once. Groups of warps have places of their own, from a multiple of 1 KiB on.
        let (factors, of_group) = if pass == 0 { (4, 3) } else { (STEPS as usize + 4, 4) };
        // Code that comes as PTX has no groups: there is room for either.
        let groups = if device.groups() { GROUPS * of_group * square + 256 } else { 0 };
        let factors = groups.max(factors * HALVES);
        let mut room = vec![rows, rows, rows, TOKENS * 4 * SIDE, factors];
        // Gradients of rows of windows, three kinds; sums for queries and gates.
        let sums = (3 + WINDOW as usize) * THREADS / 32;
        room.extend([rows, rows, rows, TOKENS * 2 * SIDE, TOKENS * sums].into_iter().filter(|_| pass == 1));
        // Two blocks share a memory where both have a multiprocessor, in code that is compiled for this GPU.
        let properties = device.properties();
        // As many blocks as memories, twice.
        let blocks = 2 * dims.sequences.count() * dims.heads;
        let pair = properties.capability.0 >= 9 && device.compiles() && blocks <= properties.multiprocessors as usize;
        let (cluster, kernels) = if pair { (2, TWO) } else { (1, ONE) };
        let start = if pass == 0 { kernels.forward } else { kernels.backward };
        // The gradient of the state, two matrices a token, X of all steps of every group; what blocks exchange.
        let (far, shared) = (state + (2 * TOKENS + GROUPS * STEPS as usize) * square, 4 * TOKENS * square);
        let (threads, tokens, gates, near_adjoint) = (THREADS, TOKENS, 3 + self.window as usize, false);
        Pieces { start, cluster, threads, tokens, gates, state, point: square, far, shared, near_adjoint, room }
            .grouped(device, self.frozen, dims, pass)
    }
}
