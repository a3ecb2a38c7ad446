//! What can go wrong.

use hecate_core::DeviceId;
use std::path::PathBuf;

/// Shorthand for results of this library.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What a user of the library can get wrong, or a machine can fail at. Whatever was asked for, networks are as before it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A network has nothing that could fire.
    #[error("a network of 0 neurons was asked for; add at least one")]
    NoNeurons,
    /// Something names a neuron that is not there.
    #[error(
        "{what} {index}: there is no neuron {neuron}; neurons are 0 to {neurons} (exclusive), memory neurons 50000000 to \
         {memory} (exclusive)"
    )]
    MissingNeuron {
        /// What names it: `synapse source`, `staged potential` and others.
        what: &'static str,
        /// Which of them, counted from 0.
        index: usize,
        /// The id.
        neuron: u32,
        /// Number of neurons.
        neurons: usize,
        /// The first id after those of memory neurons.
        memory: usize,
    },
    /// Something names an area that is not there.
    #[error("{what} {index}: there is no area {area}; add it first")]
    MissingArea {
        /// What names it.
        what: &'static str,
        /// Which of them, counted from 0.
        index: usize,
        /// The area's id.
        area: u32,
    },
    /// An area is there twice.
    #[error("area {area} was added twice; give each area an id of its own")]
    SameArea {
        /// The area's id.
        area: u32,
    },
    /// A value lies outside of what is defined.
    #[error("{what} {index}: `{field}` is {found}, expected {expected}")]
    Value {
        /// What has it: `neuron`, `state of neuron` and others.
        what: &'static str,
        /// Which of them, counted from 0; a neuron's index.
        index: usize,
        /// Name of the value.
        field: &'static str,
        /// The value.
        found: String,
        /// What is accepted.
        expected: &'static str,
    },
    /// More of something than fixed point, ids or indices hold.
    #[error("{found} {what} were asked for, there can be {most}; give fewer")]
    TooMany {
        /// What there would be too many of.
        what: &'static str,
        /// How many there would be.
        found: u64,
        /// How many there can be.
        most: u64,
    },
    /// What reaches a neuron may not fit the sum.
    #[error("neuron {neuron}: {what} of {found} may overflow its sum; expected at most 2^44 in size")]
    Overflow {
        /// The neuron's id.
        neuron: u32,
        /// What would overflow it.
        what: &'static str,
        /// How much it is.
        found: f64,
    },
    /// A state has another number of elements than the network.
    #[error("state: `{field}` has {found} elements, expected {expected}; take a state of this network")]
    Length {
        /// Name of the array.
        field: &'static str,
        /// Elements given.
        found: usize,
        /// Elements of the network.
        expected: usize,
    },
    /// A state was given to another network than its own.
    #[error("a state of network {found:016x} was given to network {expected:016x}; give it to its own, or start anew")]
    OtherNetwork {
        /// Digest of the network that the state is of.
        found: u64,
        /// Digest of the network it was given to.
        expected: u64,
    },
    /// A loaded network was given to another device value than the one that loaded it.
    #[error("a network that {found} loaded was given to {expected}; load it there, from its state")]
    OtherDevice {
        /// The device that loaded it.
        found: DeviceId,
        /// The device that was asked.
        expected: DeviceId,
    },
    /// Neurons of a part do not lie in the network.
    #[error(
        "neurons {start} to {end} (exclusive) of {count} were asked for; give a part of the network that is not empty"
    )]
    Part {
        /// First index.
        start: usize,
        /// Index after the last.
        end: usize,
        /// Neurons of the network.
        count: usize,
    },
    /// A burst is not settled, or there is none to settle.
    #[error("a part {found}; a burst of a part is `fire`, then `hear`")]
    Order {
        /// What was asked for at the wrong time.
        found: &'static str,
    },
    /// A network's file is damaged.
    #[error("line {line}, column {column}: {reason}")]
    File {
        /// Line, counted from 1.
        line: usize,
        /// Column, counted from 1.
        column: usize,
        /// What is wrong, what was expected.
        reason: String,
    },
    /// A file cannot be read.
    #[error("{}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// A number of devices that no network can be split over.
    #[error("shards over {found} devices were asked for, expected at least 1")]
    NoDevice {
        /// Number of devices given.
        found: usize,
    },
    /// An array is larger than what a device binds at once. Synapses are split over several; other arrays are not.
    #[error(
        "{what} take {bytes} bytes in one array, this device binds at most {most}; split the network over several values of it, as \
         with `--device wgpu:0,wgpu:0`, or take another device"
    )]
    TooLarge {
        /// What the array holds.
        what: &'static str,
        /// Bytes of it.
        bytes: u64,
        /// Most bytes of an array on the device.
        most: u64,
    },
    /// The system starts no threads.
    #[error("starting {threads} threads: {source}; ask for fewer")]
    Threads {
        /// Threads asked for.
        threads: usize,
        /// The system's reason.
        source: rayon::ThreadPoolBuildError,
    },
    /// There is not enough memory, or a GPU failed.
    #[error(transparent)]
    Memory(#[from] hecate_core::Error),
}
