//! Spiking networks: the same spikes on every device, bit for bit.
//!
//! A [`Network`] has areas of neurons, and synapses between them. It runs in *bursts*. In each, what fired one burst ago
//! reaches its targets, together with a [`Stimulus`] from outside, and neurons that reach their threshold fire. A device
//! ([`Spiking`]) holds the [`State`] and runs bursts: [`Cpu`], or several devices as one ([`Shards`]). With the features `cuda`
//! and `wgpu`, device values of these backends run networks too, and give the same bits.
//!
//! What reaches a neuron is summed in [fixed point](FRACTION), and every rounding is of one kind, so a network fires the
//! same on one thread, on many, and on several devices.
//!
//! # Example
//! ```
//! use hecate_spiking::{Area, Builder, Cpu, Kind, Neuron, Spiking, State, Stimulus, Synapse};
//!
//! let mut builder = Builder::default();
//! builder.area(Area::uniform(3))?;
//! let (a, b) = (builder.neuron(Neuron::new(3, 10.0))?, builder.neuron(Neuron::new(3, 20.0))?);
//! builder.synapse(Synapse { source: a, target: b, weight: 5, potential: 4, kind: Kind::Excitatory })?;
//! let network = builder.build()?;
//!
//! let device = Cpu::new()?;
//! let mut net = device.load(&network, &State::start(&network)?)?;
//! // The first neuron is given what it needs to fire; one burst later the second one has 5 · 4 of it.
//! device.burst(&mut net, Stimulus { staged: &[(a, 12.0)], ..Stimulus::default() })?;
//! assert_eq!(device.fired(&net)?[0].neuron, a);
//! device.burst(&mut net, Stimulus::default())?;
//! assert_eq!(device.fired(&net)?[0], hecate_spiking::Spike { neuron: b, potential: 20.0 });
//! # Ok::<(), hecate_spiking::Error>(())
//! ```
//!
//! # A burst
//! 1. *Injection.* Staged potentials reach their neurons. The power neuron, which is the first of area [`POWER`], gets the
//!    power amount; with fatigue, so do neurons of area [`FATIGUE`]. Potentials of neurons that do not accumulate become
//!    zero. Each synapse of each neuron that fired one burst ago adds `± weight · potential`; in areas that are not
//!    uniform, divided by the number of its neuron's synapses.
//! 2. *Dynamics*, of each neuron that something reached, even if it came to zero. While it is refractory, the input is lost.
//!    Else its potential grows by it. If the potential is from the threshold to the limit, and neither its limit of firing in
//!    a row nor chance stops it, the neuron fires, and its potential becomes zero. Else the potential leaks.
//! 3. *Learning.* What fired is archived in the [`Ledger`], and synapses between areas with a [`Mapping`] change.
//!
//! Input errors are typed and name the index; a network is as before the call that returned one.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod builder;
mod choice;
mod cpu;
mod error;
mod file;
mod fixed;
#[cfg(any(feature = "cuda", feature = "wgpu"))]
mod gpu;
mod ledger;
mod network;
mod plasticity;
mod shards;
mod spiking;
mod state;

pub use builder::Builder;
pub use choice::{CUDA_SYNAPSES, DeviceKind, WGPU_SYNAPSES};
pub use cpu::{Cpu, Net};
pub use error::{Error, Result};
pub use file::{Experiment, FORMAT};
pub use fixed::{FRACTION, STAGED, SYNAPSES};
#[cfg(any(feature = "cuda", feature = "wgpu"))]
pub use gpu::DeviceNet;
pub use ledger::{History, Ledger};
pub use network::{Area, FATIGUE, Kind, MEMORY, Network, Neuron, POWER, Synapse};
pub use plasticity::{Form, Mapping};
pub use shards::{ShardedNet, Shards};
pub use spiking::{Spike, Spiking, Stimulus};
pub use state::State;

/// The README's program, which is compiled as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
