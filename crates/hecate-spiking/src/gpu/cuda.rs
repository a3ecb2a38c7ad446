//! NVIDIA GPUs, on the CUDA backend's device and its kernels of one's own.
#![allow(unsafe_code)]

use super::{Arrays, Decided, Delivered, Engine, spiking};
use crate::Result;
use hecate_core::Tensor;
use hecate_cuda::{Argument, Cuda, OwnGrid, OwnSource};

/// Both kernels.
static SOURCE: OwnSource = OwnSource::new("spiking_burst", include_str!("burst.cu"));

/// Threads of a block that delivers, and of one that decides.
const THREADS: u32 = 256;
/// Most blocks that deliver: enough for all multiprocessors, whose warps go on to the next neuron that fired.
const BLOCKS: usize = 2048;

/// Blocks of `THREADS` threads, at least one.
fn grid(threads: usize, most: usize) -> OwnGrid {
    let blocks = threads.div_ceil(THREADS as usize).clamp(1, most) as u32;
    OwnGrid { blocks: [blocks, 1, 1], threads: [THREADS, 1, 1], shared: 0 }
}

impl Engine for Cuda {
    fn deliver(&self, net: &Arrays<Self>, of: &Delivered<'_, Self>) -> Result<()> {
        use Argument::{Read, U32, Write};
        let kernel = self.load_source(&SOURCE, "spiking_deliver")?;
        let rows = &net.rows;
        let arguments = [
            // Where rows begin, `[N+1]`.
            Read(&rows.starts),
            // Synapses, `[S,2]`.
            Read(&rows.entries),
            // How each neuron delivers, `[N]`.
            Read(&rows.sources),
            // Index and potential of what fired, `[F,2]`.
            Read(of.fired),
            // How many of them, and the counter that begins anew.
            Write(of.counts),
            // What comes from outside, `[I,3]`.
            Read(of.staged),
            // What reaches each neuron of the part, and which ones.
            Write(&net.sums),
            Write(&net.candidates),
            U32(of.parity),
            U32(of.staged_count as u32),
            U32(of.first.into()),
        ];
        // SAFETY: the kernel's own arguments; targets lie in the part and indices in the network, whose arrays these are.
        Ok(unsafe { kernel.launch(grid(of.threads(), BLOCKS), &arguments) }?)
    }

    fn decide(&self, net: &Arrays<Self>, of: &Decided) -> Result<()> {
        use Argument::{Read, U32, Write};
        let kernel = self.load_source(&SOURCE, "spiking_decide")?;
        let fired: &Tensor<Self> = &net.fired[of.parity as usize];
        let arguments = [
            // What reached each neuron, and which ones: zero afterwards.
            Write(&net.sums),
            Write(&net.candidates),
            // States, `[P]` each.
            Write(&net.potentials),
            Write(&net.states),
            // The sort of each neuron, and what bursts read of a sort.
            Read(&net.sorts),
            Read(&net.table),
            // The list that takes what fires.
            Write(fired),
            Write(&net.counts),
            U32(of.parity),
            U32(of.count as u32),
            // Neurons from here on have no state.
            U32(of.neurons as u32),
            U32(of.start as u32),
            U32(of.burst),
            U32(of.forgets.into()),
        ];
        // SAFETY: the kernel's own arguments; arrays have as many elements as the part has neurons.
        Ok(unsafe { kernel.launch(grid(of.count, usize::MAX), &arguments) }?)
    }
}

spiking!(Cuda, "cuda");
