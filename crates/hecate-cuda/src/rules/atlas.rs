//! One token of Atlas: equations (80)–(87).

use crate::{
    recurrent::{Recurrent, StepKernels, WorkspaceSize, step_kernels},
    source::{KernelSource, kernel_source},
};
use hecate_core::{
    Dims, Read,
    families::Own,
    rules::{Atlas, NEWTON_SCHULZ, NEWTON_SCHULZ_EPSILON},
};

pub(crate) const SOURCE: KernelSource = kernel_source!("atlas", "atlas.cu");

step_kernels! { KERNELS: SOURCE, Cell { "atlas_forward" Forward, "atlas_backward" Backward } }

/// Twin of `atlas.cu`'s `Atlas`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Cell {
    /// Tokens of the window.
    window: u32,
    /// 1 where a token reads after its own write.
    after: u32,
    /// `K` and `V`.
    key: u32,
    value: u32,
    /// `(α, β, κ)` and `ε²` of Newton-Schulz.
    coefficients: [f32; 3],
    epsilon: f32,
    /// Of Newton-Schulz; 0: none.
    steps: u32,
}

impl Recurrent<Own> for Atlas {
    type Cell = Cell;
    const KERNELS: StepKernels<Cell> = KERNELS;
    // What the kernels are compiled for: fewer threads have more registers each.
    const THREADS: usize = 256;

    /// Sizes and options, `ε` squared.
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
    fn workspace(self, dims: &Dims) -> WorkspaceSize {
        let (steps, errors) = (self.newton_schulz as usize, self.window as usize * dims.value);
        let (all, small) = (dims.key * dims.value, dims.key.min(dims.value).pow(2));
        let newton_schulz = if steps > 0 { (steps + 3) * all + (2 * steps + 2) * small } else { 0 };
        WorkspaceSize { record: errors, scratch: errors + newton_schulz, in_place: true, ahead: 0 }
    }
}
