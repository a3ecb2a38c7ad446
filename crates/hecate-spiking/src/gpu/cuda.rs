//! NVIDIA GPUs, on the CUDA backend's device and its kernels of one's own.
#![allow(unsafe_code)]

use super::{
    engine::{Arrays, Decided, Delivered, Engine, Learned, List, Recent},
    spiking,
};
use crate::{Result, builder};
use hecate_core::Tensor;
use hecate_cuda::{Argument, Cuda, OwnGrid, OwnKernel, OwnSource};

/// Kernels of a burst.
pub(super) static BURST: OwnSource =
    OwnSource::with_ptx("spiking_burst", include_str!("burst.cu"), include_bytes!("burst.ptx.br"));
/// Kernels of learning.
pub(super) static LEARN: OwnSource =
    OwnSource::with_ptx("spiking_learn", include_str!("learn.cu"), include_bytes!("learn.ptx.br"));
/// Names of both.
pub(super) const BURSTS: [&str; 2] = ["spiking_deliver", "spiking_decide"];
/// In the order of [`Kernels::learning`].
pub(super) const LEARNS: [&str; 4] = ["spiking_age", "spiking_note", "spiking_learn_windows", "spiking_learn_pairs"];

/// Threads of a block unless said otherwise: `hecate spikes bench --block` times other numbers.
const THREADS: u32 = 256;
/// Most threads that deliver or learn: enough for all multiprocessors. Their warps go on to the next neuron.
const MOST: usize = 1 << 19;

/// Kernels of networks, and in what blocks they run.
#[derive(Debug)]
pub(crate) struct Kernels {
    deliver: OwnKernel,
    decide: OwnKernel,
    /// Those of learning: age, note, by windows, by pairs. None where nobody learns.
    learning: Option<[OwnKernel; 4]>,
    /// Threads of a block.
    threads: u32,
}

impl Kernels {
    /// Blocks for so many threads, at least one, and for at most `most`.
    fn grid(&self, threads: usize, most: usize) -> OwnGrid {
        // Kernels count their threads themselves: any size of blocks will do.
        let of_block = self.threads as usize;
        let blocks = threads.min(most).div_ceil(of_block).max(1) as u32;
        OwnGrid { blocks: [blocks, 1, 1], threads: [self.threads, 1, 1], shared: 0 }
    }

    /// Starts a kernel of learning.
    fn learn(&self, which: usize, grid: OwnGrid, arguments: &[Argument<'_>]) -> Result<()> {
        let Some(kernels) = &self.learning else { return Ok(()) };
        // SAFETY: the callers' arguments are those of the kernel; indices lie in the network, whose arrays these are.
        Ok(unsafe { kernels[which].launch(grid, arguments) }?)
    }
}

impl Engine for Cuda {
    type Kernels = Kernels;

    fn kernels(&self, learns: bool) -> Result<Kernels> {
        // Files are compiled once a device, or found in the cache.
        let learn = |name| self.load_source(&LEARN, name);
        let learning = if learns {
            let [age, note, windows, pairs] = LEARNS.map(learn);
            Some([age?, note?, windows?, pairs?])
        } else {
            None
        };
        let [deliver, decide] = BURSTS.map(|name| self.load_source(&BURST, name));
        Ok(Kernels { deliver: deliver?, decide: decide?, learning, threads: THREADS })
    }

    fn set_block(kernels: &mut Kernels, threads: u32) -> Result<()> {
        if !(64..=1024).contains(&threads) || !threads.is_multiple_of(32) {
            return Err(builder::value("network", 0, "block", threads, "64 to 1024 by steps of 32"));
        }
        kernels.threads = threads;
        Ok(())
    }

    /// Memory alone limits arrays; indices of two words a neuron fit 32 bits.
    fn most_bytes(&self) -> u64 {
        u64::MAX
    }

    fn deliver(&self, kernels: &Kernels, net: &Arrays<Self>, of: &Delivered<'_, Self>) -> Result<()> {
        use Argument::{Read, U32, Write};
        let (rows, List { fired, counts, parity, .. }) = (&net.rows, of.list);
        let arguments = [
            // Where rows begin, `[N+1]`.
            Read(&rows.starts),
            // Synapses, `[S,2]`.
            Read(&of.segment.entries),
            // How each neuron delivers, `[N]`.
            Read(&rows.sources),
            // Index and potential of what fired, `[F,2]`.
            Read(fired),
            // How many of them, and the counter that begins anew.
            Write(counts),
            // What comes from outside, `[I,3]`.
            Read(of.staged),
            // What reaches each neuron of the part, and which ones.
            Write(&net.sums),
            Write(&net.candidates),
            U32(parity),
            U32(of.staged_count as u32),
            U32(of.first.into()),
            // Which of all synapses `S` are.
            U32(of.segment.places.start),
            U32(of.segment.places.end),
        ];
        // SAFETY: the kernel's own arguments; targets lie in the part and indices in the network, whose arrays these are.
        Ok(unsafe { kernels.deliver.launch(kernels.grid(of.threads(), MOST), &arguments) }?)
    }

    fn decide(&self, kernels: &Kernels, net: &Arrays<Self>, of: &Decided) -> Result<()> {
        use Argument::{Read, U32, Write};
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
        Ok(unsafe { kernels.decide.launch(kernels.grid(of.count, usize::MAX), &arguments) }?)
    }

    fn age(&self, kernels: &Kernels, recent: &Recent<Self>, _: &List<'_, Self>) -> Result<()> {
        use Argument::{U32, Write};
        let grid = kernels.grid(recent.count, usize::MAX);
        kernels.learn(0, grid, &[Write(&recent.bits), U32(recent.count as u32), U32(recent.planes as u32)])
    }

    fn note(&self, kernels: &Kernels, recent: &Recent<Self>, list: &List<'_, Self>) -> Result<()> {
        use Argument::{Read, U32, Write};
        let grid = kernels.grid(list.most, MOST);
        kernels.learn(1, grid, &[Write(&recent.bits), Read(list.fired), Read(list.counts), U32(list.parity)])
    }

    fn learn(&self, kernels: &Kernels, recent: &Recent<Self>, of: &Learned<'_, Self>) -> Result<()> {
        use Argument::{Read, U32, Write};
        let grid = kernels.grid(of.member_count.saturating_mul(32), MOST);
        // The first and the last synapse that this kernel looks at.
        let places = &of.segment.places;
        let shared = [
            // Where rows begin, `[N+1]`, and synapses, `[S,2]`, whose weights change.
            Read(&of.rows.starts),
            Write(&of.segment.entries),
            // Who fired, `[K,N]`.
            Read(&recent.bits),
            // Areas, `[N]`, and sources, `[M]`.
            Read(of.places),
            Read(of.members),
        ];
        let sizes = [
            U32(of.member_count as u32),
            U32(recent.count as u32),
            // Which of all synapses `S` are.
            U32(places.start),
            U32(places.end),
            U32(of.part.start as u32),
            U32(of.area),
            U32(of.window),
        ];
        match of.steps {
            Some([rise, fall]) => kernels.learn(2, grid, &[&shared[..], &sizes, &[U32(rise), U32(fall)]].concat()),
            None => {
                let planes = [U32(recent.planes as u32)];
                kernels.learn(3, grid, &[&shared[..], &[Read(of.table)], &sizes, &planes].concat())
            }
        }
    }
}

spiking!(Cuda, "cuda");
