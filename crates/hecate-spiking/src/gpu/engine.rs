//! What a GPU starts for a burst, and the arrays it starts it on.

use super::rows::{Rows, Segment};
use crate::Result;
use hecate_core::{Device, Tensor};
use std::ops::Range;

/// What a GPU starts; arrays are of 32-bit words.
pub(crate) trait Engine: Device {
    /// Kernels that were looked up, and in what blocks they run.
    type Kernels: Send + Sync;

    /// Kernels of bursts, and those of learning where somebody learns.
    fn kernels(&self, learns: bool) -> Result<Self::Kernels>;

    /// Lets kernels run in blocks of so many threads, where they can.
    fn set_block(kernels: &mut Self::Kernels, threads: u32) -> Result<()>;

    /// Most bytes of an array.
    fn most_bytes(&self) -> u64;

    /// Adds what `fired` and `staged` deliver to the sums of their targets.
    fn deliver(&self, kernels: &Self::Kernels, net: &Arrays<Self>, of: &Delivered<'_, Self>) -> Result<()>;

    /// Neurons that something reached fire, or leak.
    fn decide(&self, kernels: &Self::Kernels, net: &Arrays<Self>, of: &Decided) -> Result<()>;

    /// Every neuron's last bursts are one burst older.
    fn age(&self, kernels: &Self::Kernels, recent: &Recent<Self>, fired: &List<'_, Self>) -> Result<()>;

    /// What fired in this burst is noted.
    fn note(&self, kernels: &Self::Kernels, recent: &Recent<Self>, fired: &List<'_, Self>) -> Result<()>;

    /// Weights of one mapping change.
    fn learn(&self, kernels: &Self::Kernels, recent: &Recent<Self>, of: &Learned<'_, Self>) -> Result<()>;
}

/// Arrays of a part of a network, on its device.
pub(crate) struct Arrays<D: Device> {
    pub(crate) rows: Rows<D>,
    /// What reached each neuron in this burst: low and high word; zero between bursts.
    pub(crate) sums: Tensor<D>,
    /// Bits of the neurons that something reached; zero between bursts.
    pub(crate) candidates: Tensor<D>,
    /// Bits of potentials; memory neurons have none.
    pub(crate) potentials: Tensor<D>,
    /// Refractory bursts in the low half, times fired in a row in the high one.
    pub(crate) states: Tensor<D>,
    /// Which row of `table` each neuron has.
    pub(crate) sorts: Tensor<D>,
    /// What decides whether a neuron fires: 8 words a sort.
    pub(crate) table: Tensor<D>,
    /// What fired in the last burst and in this one, by parity of the burst: index and bits of the potential, in any order.
    pub(crate) fired: [Tensor<D>; 2],
    /// How many these are.
    pub(crate) counts: Tensor<D>,
}

impl<D: Device> Arrays<D> {
    /// Words of all of them.
    pub(crate) fn words(&self) -> usize {
        let Self { rows, sums, candidates, potentials, states, sorts, table, fired: [a, b], counts } = self;
        let all = [sums, candidates, potentials, states, sorts, table, a, b, counts];
        rows.words() + all.iter().map(|array| array.shape().count()).sum::<usize>()
    }
}

/// Neurons that fired.
pub(crate) struct List<'a, D: Device> {
    /// Index and bits of the potential of each.
    pub(crate) fired: &'a Tensor<D>,
    pub(crate) counts: &'a Tensor<D>,
    /// Which of `counts` is that of `fired`.
    pub(crate) parity: u32,
    /// How many there may be at most.
    pub(crate) most: usize,
}

impl<D: Device> Clone for List<'_, D> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<D: Device> Copy for List<'_, D> {}

/// What is delivered by one kernel.
pub(crate) struct Delivered<'a, D: Device> {
    pub(crate) list: List<'a, D>,
    /// The synapses that are looked at.
    pub(crate) segment: &'a Segment<D>,
    /// Index in the part, low and high word of an amount.
    pub(crate) staged: &'a Tensor<D>,
    pub(crate) staged_count: usize,
    /// Whether the burst begins with it.
    pub(crate) first: bool,
}

impl<D: Device> Delivered<'_, D> {
    /// Threads that have something to do: 32 for each neuron that may have fired, and one for each staged amount.
    pub(crate) fn threads(&self) -> usize {
        self.list.most.saturating_mul(32).max(self.staged_count)
    }
}

/// What is decided.
pub(crate) struct Decided {
    /// Which list and count take what fires.
    pub(crate) parity: u32,
    /// Neurons of the part, memory neurons among them.
    pub(crate) count: usize,
    /// Neurons of the part that have a state.
    pub(crate) neurons: usize,
    /// Index of the first.
    pub(crate) start: usize,
    /// The number of the burst, modulo 2³².
    pub(crate) burst: u32,
    /// Whether potentials of some do not outlast a burst.
    pub(crate) forgets: bool,
}

/// In which of the last bursts each neuron of the network fired.
pub(crate) struct Recent<D: Device> {
    /// Bit `i` of word `k` of `[planes, N]`: `32 k + i` bursts ago.
    pub(crate) bits: Tensor<D>,
    /// Neurons of the network.
    pub(crate) count: usize,
    /// Words a neuron.
    pub(crate) planes: usize,
}

/// Synapses of one mapping that learn.
pub(crate) struct Learned<'a, D: Device> {
    pub(crate) rows: &'a Rows<D>,
    /// Those of them that one kernel looks at.
    pub(crate) segment: &'a Segment<D>,
    /// Which area each neuron of the network has.
    pub(crate) places: &'a Tensor<D>,
    /// Indices of the sources.
    pub(crate) members: &'a Tensor<D>,
    pub(crate) member_count: usize,
    /// Changes by pairs of spikes, 37 words.
    pub(crate) table: &'a Tensor<D>,
    /// The part's neurons.
    pub(crate) part: &'a Range<usize>,
    /// Which area targets have.
    pub(crate) area: u32,
    /// Bursts that are looked at.
    pub(crate) window: u32,
    /// What windows as a whole add and take away; none where pairs of spikes decide.
    pub(crate) steps: Option<[u32; 2]>,
}
