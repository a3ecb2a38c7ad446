//! What can go wrong.

use crate::{Bytes, DType, DeviceId, Shape};

/// Shorthand for results of this library.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What a user of the library can get wrong, or a device can fail at.
///
/// No driver type appears in it: a backend puts its own error behind `source`.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An array has another shape than its neighbours imply.
    #[error("{what}: `{slot}` has shape {found}, expected {expected}")]
    Shape {
        /// Operation or rule.
        what: &'static str,
        /// Argument.
        slot: &'static str,
        /// What fits the other arguments.
        expected: Shape,
        /// What was given.
        found: Shape,
    },
    /// An array has another number of axes than the operation takes.
    #[error("{what}: `{slot}` has shape {found}, expected {expected} axes")]
    Rank {
        /// Operation or rule.
        what: &'static str,
        /// Argument.
        slot: &'static str,
        /// Number of axes wanted, in words where several are possible.
        expected: &'static str,
        /// What was given.
        found: Shape,
    },
    /// An axis has length zero (or a sequence no token) where at least one is needed.
    #[error("{what}: `{slot}` has shape {found}; every axis must be at least 1")]
    Empty {
        /// Operation or rule.
        what: &'static str,
        /// Argument.
        slot: &'static str,
        /// What was given.
        found: Shape,
    },
    /// An array has an element type that the operation does not take.
    #[error("{what}: `{slot}` holds {found}, expected {expected}; convert it with `cast`")]
    DType {
        /// Operation or rule.
        what: &'static str,
        /// Argument.
        slot: &'static str,
        /// Element types accepted.
        expected: &'static str,
        /// What was given.
        found: DType,
    },
    /// An array lies on another device value than the call runs on: another chip, or another stream or pool of the same.
    #[error("{what}: `{slot}` lies on {found}, expected {expected}; move it with `tensor.to(&device)`")]
    OtherDevice {
        /// Operation or rule.
        what: &'static str,
        /// Argument.
        slot: &'static str,
        /// Where the call runs.
        expected: DeviceId,
        /// Where the array lies.
        found: DeviceId,
    },
    /// A device with this number is not there.
    #[error(
        "{backend}: device number {ordinal} was asked for, there are {count}, counted from 0; ask for a lower number"
    )]
    NoSuchDevice {
        /// Backend.
        backend: &'static str,
        /// What was asked for.
        ordinal: usize,
        /// Number of devices there are.
        count: usize,
    },
    /// A buffer does not hold what a tensor of it is to have.
    #[error("{backend}: a buffer of {found} was given for {count} elements of {dtype}; let the device make it")]
    Buffer {
        /// Backend.
        backend: &'static str,
        /// Elements that it is to hold.
        count: usize,
        /// Their type.
        dtype: DType,
        /// What it holds.
        found: String,
    },
    /// The number of host values does not fill the shape.
    #[error("{what}: {found} values given for shape {shape}, which holds {}", shape.count())]
    Length {
        /// Operation.
        what: &'static str,
        /// Shape to be filled.
        shape: Shape,
        /// Number of values given.
        found: usize,
    },
    /// A value lies outside what the operation is defined for.
    #[error("{what}: `{slot}` is {found} at flat index {index}, expected {expected}")]
    Value {
        /// Operation or rule.
        what: &'static str,
        /// Argument.
        slot: &'static str,
        /// Flat row-major index of the first offending element.
        index: usize,
        /// The value.
        found: f64,
        /// Accepted range.
        expected: &'static str,
    },
    /// An option of a rule or operation has a value it cannot have.
    #[error("{what}: option `{option}` is {found}, expected {expected}")]
    Config {
        /// Operation or rule.
        what: &'static str,
        /// Name of the option.
        option: &'static str,
        /// What was given.
        found: String,
        /// What is accepted.
        expected: &'static str,
    },
    /// A backend cannot do this; nothing else is tried in its place.
    #[error("{backend} does not support {what}: {why}")]
    Unsupported {
        /// Backend.
        backend: &'static str,
        /// Operation or rule.
        what: &'static str,
        /// Reason, with the way out.
        why: String,
    },
    /// There is no such device on this machine.
    #[error("no {backend} device: {why}")]
    NoDevice {
        /// Backend.
        backend: &'static str,
        /// What is missing, and the way out.
        why: String,
    },
    /// An array, or all arrays that a call needs, are larger than the memory that is left.
    #[error("{what}: {bytes} of memory are needed, {}; give smaller sizes: fewer sequences or tokens, narrower heads",
        .free.map_or_else(|| "and there is less".to_owned(), |free| format!("{free} are free")))]
    OutOfMemory {
        /// Operation or rule.
        what: &'static str,
        /// What was asked for.
        bytes: Bytes,
        /// What there is, where the system says so.
        free: Option<Bytes>,
    },
    /// A device failed.
    #[error("{backend}: {context}: {source}")]
    Device {
        /// Backend.
        backend: &'static str,
        /// What was being done.
        context: String,
        /// The driver's own error.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// What another crate can fail at, in its own words: a model's file that is damaged, or a file that cannot be read.
    #[error(transparent)]
    Other(Box<dyn std::error::Error + Send + Sync>),
}

impl Error {
    /// An [`Error::Other`]: an error of a program's own, or a sentence.
    pub fn other(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self::Other(error.into())
    }
}

/// For programs that read and write files beside their arrays.
impl From<std::io::Error> for Error {
    fn from(error: std::io::Error) -> Self {
        Self::other(error)
    }
}
