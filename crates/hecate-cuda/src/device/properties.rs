//! What a GPU is.
#![allow(unsafe_code)]

use cudarc::driver::{
    DriverError,
    result::device,
    sys::{CUdevice, CUdevice_attribute as Attribute},
};

/// What a GPU is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Properties {
    /// The driver's name for it.
    pub name: String,
    /// Compute capability, major and minor.
    pub capability: (u32, u32),
    /// Streaming multiprocessors.
    pub multiprocessors: u32,
    /// Bytes of shared memory that a block can ask for.
    pub shared_memory: usize,
    /// Bytes of memory.
    pub memory: usize,
    /// Version of CUDA that the driver speaks, as `1000 major + 10 minor`.
    pub driver: u32,
}

impl Properties {
    /// As the driver of this version tells them; the GPU need not be open.
    pub(super) fn read(gpu: CUdevice, driver: u32) -> Result<Self, DriverError> {
        // SAFETY: the handle is the driver's own, of a GPU that it lists.
        // The driver's integers are never negative here.
        let attribute = |which| unsafe { device::get_attribute(gpu, which) }.map(i32::unsigned_abs);
        let shared_memory = attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?;
        Ok(Self {
            name: device::get_name(gpu)?,
            capability: (
                attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
                attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
            ),
            multiprocessors: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
            shared_memory: shared_memory as usize,
            // SAFETY: as above.
            memory: unsafe { device::total_mem(gpu) }?,
            driver,
        })
    }
}
