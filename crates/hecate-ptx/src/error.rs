//! What can be wrong with a kernel or a specification.

use crate::writer::Target;
use std::fmt;

/// Why a kernel was not written. Each message names the thing, what was found, what was expected and a way out.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// A size of a specification for which there is no kernel.
    Size {
        /// The specification, such as `GemmTiled`.
        specification: &'static str,
        /// The size, such as `tile`.
        size: &'static str,
        /// What it is.
        found: String,
        /// What it may be.
        expected: String,
    },
    /// A kernel's arrays in shared memory are larger than a block may have without asking the driver.
    SharedMemory {
        /// Name of the kernel.
        kernel: String,
        /// Bytes of all its arrays, with what their alignment costs.
        bytes: usize,
    },
    /// A block of a shape that no GPU launches, or that the kernel's operations do not work with.
    Block {
        /// Name of the kernel.
        kernel: String,
        /// Threads along x, y and z.
        block: [u32; 3],
        /// What a block may be.
        expected: &'static str,
    },
    /// A name that PTX does not take, or that the kernel has already.
    Name {
        /// Name of the kernel.
        kernel: String,
        /// The name.
        name: String,
        /// What it should be.
        expected: &'static str,
    },
    /// A type that has no such operation, for example the smaller of two complex numbers.
    Undefined {
        /// The operation, such as `max`.
        operation: &'static str,
        /// The type, such as `c64`.
        scalar: &'static str,
    },
    /// A line that names no kernel, or with other sizes than it has.
    Unknown {
        /// The line.
        found: String,
        /// What it may be.
        expected: String,
    },
    /// A kernel that needs a newer GPU or driver than there is.
    Target {
        /// Name of the kernel.
        kernel: String,
        /// What its operations need.
        needs: Target,
        /// What there is.
        has: Target,
    },
}

/// Most bytes of shared memory that a kernel may declare: 48 KiB on every GPU.
pub const SHARED_LIMIT: usize = 48 << 10;

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Size { specification, size, found, expected } => {
                write!(f, "{specification}: `{size}` is {found}; give it {expected}")
            }
            Self::SharedMemory { kernel, bytes } => write!(
                f,
                "kernel `{kernel}` declares {bytes} bytes of shared memory, and a block has {SHARED_LIMIT}: \
                 take smaller tiles"
            ),
            Self::Block { kernel, block: [x, y, z], expected } => {
                write!(f, "kernel `{kernel}` has blocks of {x}×{y}×{z} threads; they should be {expected}")
            }
            Self::Name { kernel, name, expected } => {
                write!(f, "kernel `{kernel}`: the name `{name}` should be {expected}")
            }
            Self::Undefined { operation, scalar } => {
                write!(f, "there is no `{operation}` of {scalar}: `Operation::is_defined` says which types have it")
            }
            Self::Unknown { found, expected } => write!(f, "`{found}` is no kernel; give it as {expected}"),
            Self::Target { kernel, needs, has } => write!(
                f,
                "kernel `{kernel}` needs {needs}, and there is {has}: take a kernel without tensor cores, \
                 or a newer GPU or driver"
            ),
        }
    }
}

impl std::error::Error for Error {}
