//! Models on WebGPU, on the adapter that `HECATE_WGPU_ADAPTER` names, else on the best one: what of the CPU's tests of models runs on a device.

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
mod quantized;
mod remembering;
mod sessions;
mod speculating;
mod steps;

/// The tiny model and text of the CPU's tests of training.
mod training {
    pub(crate) mod fixtures;
}

use hecate_core::Result;
use hecate_wgpu::{Selection, Wgpu};

/// What all modules here run on.
pub(crate) type Column = Wgpu;

/// Opens the device under test.
fn open() -> Result<Column> {
    Ok(Wgpu::new(&Selection::Default)?.with_poisoned_memory())
}
