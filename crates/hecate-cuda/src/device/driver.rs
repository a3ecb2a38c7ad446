//! Opening the driver, and what is asked of it before a device value is made.
#![allow(unsafe_code)]

use crate::{
    compile::version,
    error::{failed, no_device, unsupported},
    nvrtc::Nvrtc,
};
use cudarc::driver::{CudaContext, CudaStream, DriverError, result, sys};
use hecate_core::{Result, caught};
use std::{
    sync::{Arc, Once},
    thread,
};

/// What the driver is called.
const LIBRARY: &str = if cfg!(windows) { "nvcuda.dll" } else { "libcuda.so.1" };

/// The oldest driver that speaks what the kernels are written in (CUDA 12.0).
pub(super) const OLDEST_DRIVER: u32 = 12_000;

/// Number of GPUs that the driver lists; none is an error.
pub(super) fn count() -> Result<usize> {
    // SAFETY: looks for a library by name and opens it; libcuda's initialisers are the vendor's.
    if !unsafe { sys::is_culib_present() } {
        return Err(no_device(absent()));
    }
    read_libraries();
    guarded(|| {
        let count = CudaContext::device_count();
        let count = count.map_err(|error| {
            no_device(format!("the driver does not start ({error}); update it, or use another device"))
        })?;
        match usize::try_from(count) {
            Ok(count) if count > 0 => Ok(count),
            _ => Err(no_device(
                "the driver is there and lists no GPU; compare `nvidia-smi` and CUDA_VISIBLE_DEVICES, or use another device",
            )),
        }
    })
}

/// Why no library of the driver was opened: there is none, or the system says what is wrong with it.
fn absent() -> String {
    // SAFETY: as the binding did, to hear what the system says.
    match unsafe { libloading::Library::new(LIBRARY) } {
        // The name comes first where it is this file that is missing, and not one that it needs.
        Err(error)
            if !said(&error).starts_with(&format!("{LIBRARY}: cannot open shared object file: No such file")) =>
        {
            format!(
                "{LIBRARY} cannot be opened ({}); install the NVIDIA driver again, or use another device",
                said(&error)
            )
        }
        _ => format!("{LIBRARY} was not found; install the NVIDIA driver, or use another device"),
    }
}

/// The system's own words, without the binding's in front.
fn said(error: &libloading::Error) -> String {
    use std::error::Error;
    error.source().map_or_else(|| error.to_string(), ToString::to_string)
}

/// Opens the compiler while the driver starts; whoever needs it waits for it then. cuBLAS is left alone: opening its hundreds
/// of megabytes holds the driver up, and not everybody needs it.
fn read_libraries() {
    static READ: Once = Once::new();
    let open = || drop(Nvrtc::find());
    // Without a thread it is opened when it is needed.
    READ.call_once(|| drop(thread::Builder::new().name("compiler".into()).spawn(open)));
}

/// A driver that lacks a function makes the binding panic; that is an error like any other.
pub(crate) fn guarded<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    // What the binding found before it panicked is all it keeps.
    caught(work).unwrap_or_else(|said| {
        let why = format!("it lacks functions that were asked for ({said}): update the driver");
        Err(unsupported("this driver", why))
    })
}

/// The driver's version as `1000 major + 10 minor`.
pub(super) fn version_of_driver() -> Result<u32> {
    let mut driver = 0;
    // SAFETY: writes one integer.
    let asked = unsafe { sys::cuDriverGetVersion(&mut driver) }.result();
    asked.map_err(|error| failed("asking the driver for its version", error))?;
    Ok(driver.unsigned_abs())
}

/// As [`version_of_driver`]; an old one is an error.
pub(super) fn driver_version() -> Result<u32> {
    let driver = version_of_driver()?;
    if driver < OLDEST_DRIVER {
        let why = format!("the driver speaks CUDA {}, and 12.0 is needed; update it", version(driver));
        return Err(no_device(why + ", or use another device"));
    }
    Ok(driver)
}

/// Freed blocks stay with the pool; by default it gives them back at every synchronisation.
pub(super) fn keep_freed_memory(context: &Arc<CudaContext>) -> Result<(), DriverError> {
    if !context.has_async_alloc() {
        return Ok(());
    }
    let (mut pool, mut threshold) = (std::ptr::null_mut(), u64::MAX);
    let attribute = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
    // SAFETY: the pool belongs to the device, which is open; the attribute is one u64.
    unsafe {
        sys::cuDeviceGetDefaultMemPool(&mut pool, context.cu_device()).result()?;
        sys::cuMemPoolSetAttribute(pool, attribute, (&raw mut threshold).cast()).result()
    }
}

/// A stream whose blocks come before those of others.
pub(super) fn urgent_stream(context: &Arc<CudaContext>) -> Result<Arc<CudaStream>, DriverError> {
    context.bind_to_thread()?;
    // The second is the most urgent.
    let (_, first) = result::stream::get_priority_range()?;
    context.new_stream_with_priority(first)
}
