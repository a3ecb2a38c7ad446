//! Models on CUDA, on the first GPU: what of the CPU's tests of models runs on a device.

mod captured;
#[path = "gpu.rs"]
mod column;
mod compositions;
mod configs;
mod decoding;
mod devices;
mod fp8;
mod layers;
mod levels;
mod own;
mod prepared;
mod quantized;
mod remembering;
mod sessions;
mod speculating;
mod steps;
mod stopping;

/// The tiny model and text of the CPU's tests of training.
mod training {
    pub(crate) mod fixtures;
}

use hecate_core::Result;
use hecate_cuda::Cuda;

/// What all modules here run on.
pub(crate) type Column = Cuda;

/// Opens the device under test.
///
/// Kernels are gathered where somebody prepares them: this program compiles none of them, so each is compiled when it is
/// first started.
fn open() -> Result<Column> {
    hecate_cuda::compile_through("no program".into(), Vec::new());
    Cuda::new(0)?.with_poisoned_memory()
}
