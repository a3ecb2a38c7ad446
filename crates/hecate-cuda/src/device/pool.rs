//! What the GPU's pool of memory counts.
#![allow(unsafe_code)]

use super::Cuda;
use crate::error::failed;
use cudarc::driver::sys;
use hecate_core::Result;

/// The most bytes that a pool's memory in use ever had.
const PEAK: sys::CUmemPool_attribute = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_USED_MEM_HIGH;

impl Cuda {
    /// Bytes that arrays of this program take on the GPU; [`hecate_core::Device::peak_bytes`] counts anew from here on. None
    /// where the GPU keeps no pool.
    ///
    /// # Errors
    /// The driver's own.
    pub fn restart_peak(&self) -> Result<Option<usize>> {
        let Some(pool) = self.pool()? else { return Ok(None) };
        // The peak can be set to zero, and then is what is in use.
        let mut none = 0u64;
        // SAFETY: the pool is the device's, which is open; the attribute is one u64, and can be set to 0.
        unsafe { sys::cuMemPoolSetAttribute(pool, PEAK, (&raw mut none).cast()) }
            .result()
            .map_err(|error| failed("setting the pool's peak back", error))?;
        pool_bytes(pool, sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_USED_MEM_CURRENT).map(Some)
    }

    /// The most bytes that were in use since [`Cuda::restart_peak`].
    pub(crate) fn pool_peak(&self) -> Result<Option<usize>> {
        self.pool()?.map(|pool| pool_bytes(pool, PEAK)).transpose()
    }

    /// Bytes that the pool keeps for the next arrays; the driver counts them as used.
    pub(crate) fn pool_spare(&self) -> Result<usize> {
        use sys::CUmemPool_attribute::{CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, CU_MEMPOOL_ATTR_USED_MEM_CURRENT};
        let Some(pool) = self.pool()? else { return Ok(0) };
        let kept = pool_bytes(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT)?;
        Ok(kept.saturating_sub(pool_bytes(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT)?))
    }

    /// The GPU's default pool; none where it has no pools.
    fn pool(&self) -> Result<Option<sys::CUmemoryPool>> {
        if !self.context().has_async_alloc() {
            return Ok(None);
        }
        let mut pool = std::ptr::null_mut();
        // SAFETY: the device is open; writes one handle.
        unsafe { sys::cuDeviceGetDefaultMemPool(&mut pool, self.context().cu_device()) }
            .result()
            .map_err(|error| failed("asking for the GPU's pool", error))?;
        Ok(Some(pool))
    }
}

/// One of the pool's counts.
fn pool_bytes(pool: sys::CUmemoryPool, which: sys::CUmemPool_attribute) -> Result<usize> {
    let mut bytes = 0u64;
    // SAFETY: the pool is the device's, which is open; the attribute is one u64.
    unsafe { sys::cuMemPoolGetAttribute(pool, which, (&raw mut bytes).cast()) }
        .result()
        .map_err(|error| failed("asking the pool for its bytes", error))?;
    Ok(bytes as usize)
}
