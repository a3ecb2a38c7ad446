//! Which kind of device runs a network soonest: a pure function of sizes.
//!
//! In a burst the CPU looks at what fires and at what these reach, some 10 ns a synapse. A GPU looks at every neuron, and a burst costs it
//! launches, and whoever reads what fired waits for a copy: some 50 µs of CUDA, some milliseconds of WebGPU. With a hundredth of the
//! neurons firing, the two meet where a network has so many synapses as the constants say.

use crate::Network;

/// Kinds of devices, in the order in which large networks prefer them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DeviceKind {
    /// An NVIDIA GPU.
    Cuda,
    /// A GPU that wgpu reaches.
    Wgpu,
    /// The processor.
    Cpu,
}

/// From so many synapses on a network runs sooner on an NVIDIA GPU than on a few cores.
pub const CUDA_SYNAPSES: usize = 1 << 20;
/// From so many synapses on it does on a GPU of WebGPU.
pub const WGPU_SYNAPSES: usize = 1 << 24;

impl DeviceKind {
    /// The kind that runs bursts of a network soonest, among those that are there.
    pub fn best(network: &Network, there: &[Self]) -> Self {
        Self::best_of(network.synapse_count(), there)
    }

    /// The same of a network of so many synapses.
    pub fn best_of(synapses: usize, there: &[Self]) -> Self {
        // The larger gain comes first.
        let gains = [(Self::Cuda, CUDA_SYNAPSES), (Self::Wgpu, WGPU_SYNAPSES)];
        let best = gains.into_iter().find(|(kind, least)| synapses >= *least && there.contains(kind));
        best.map_or(Self::Cpu, |(kind, _)| kind)
    }
}

#[cfg(test)]
mod tests {
    use super::{DeviceKind::*, *};

    /// Small networks stay on the processor, large ones go to the best that is there, and nothing else counts.
    #[test]
    fn sizes_choose() {
        let all = [Cpu, Cuda, Wgpu];
        let cases: [(usize, &[DeviceKind], DeviceKind); 10] = [
            (0, &all, Cpu),
            (500_000, &all, Cpu),
            (CUDA_SYNAPSES - 1, &all, Cpu),
            (CUDA_SYNAPSES, &all, Cuda),
            (10_000_000, &all, Cuda),
            (CUDA_SYNAPSES, &[Cpu, Wgpu], Cpu),
            (WGPU_SYNAPSES - 1, &[Wgpu, Cpu], Cpu),
            (WGPU_SYNAPSES, &[Wgpu, Cpu], Wgpu),
            (WGPU_SYNAPSES, &all, Cuda),
            (1 << 30, &[], Cpu),
        ];
        for (synapses, there, expected) in cases {
            assert_eq!(DeviceKind::best_of(synapses, there), expected, "{synapses} synapses, {there:?}");
        }
    }
}
