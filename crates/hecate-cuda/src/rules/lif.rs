//! Leaky integrate-and-fire neurons: equations (100)–(107).

use crate::{
    arguments::arguments,
    recurrent::{Recurrent, StepKernels, WorkspaceSize, step_kernels},
    source::{KernelSource, kernel_source},
};
use hecate_core::{
    Dims,
    families::Own,
    rules::{Lif, Reset},
};

/// Token by token, for any number of rows of neurons.
pub(crate) const SOURCE: KernelSource = kernel_source!("lif", "lif.cu");

step_kernels! { KERNELS: SOURCE, Cell { "lif_forward" Forward, "lif_backward" Backward } }

arguments! {
    /// Twin of `lif.cuh`'s `Neuron`.
    pub(crate) struct Neuron {
        /// As numbered in `lif.cuh`.
        surrogate: u32,
        /// 1 where a spike takes `taken` away, 0 where it leaves zero.
        subtracts: u32,
        /// 1 where no gradient goes through the reset.
        detached: u32,
        /// `α`.
        slope: f32,
        /// `ϑ`.
        threshold: f32,
        /// `δ`.
        taken: f32,
    }
}

arguments! {
    /// Twin of `lif.cu`'s `Lif`.
    pub(crate) struct Cell {
        neuron: Neuron,
        /// Rows `K` of neurons and their width `V`.
        key: u32,
        value: u32,
    }
}

impl Recurrent<Own> for Lif {
    type Cell = Cell;
    const KERNELS: StepKernels<Cell> = KERNELS;

    fn cell(self, dims: &Dims) -> Cell {
        let neuron = Neuron {
            surrogate: self.surrogate as u32,
            subtracts: (self.reset == Reset::Subtract).into(),
            detached: self.detach_reset.into(),
            slope: self.slope,
            threshold: self.threshold,
            taken: self.taken(),
        };
        Cell { neuron, key: dims.key as u32, value: dims.value as u32 }
    }

    /// No record; two sums a row.
    fn workspace(self, dims: &Dims) -> WorkspaceSize {
        WorkspaceSize { record: 0, scratch: 2 * dims.key, in_place: true, ahead: 0 }
    }
}
