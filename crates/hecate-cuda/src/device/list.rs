//! What GPUs there are, asked of the driver without opening any.

use super::{Cuda, Properties, driver};
use crate::{error::failed, ptx};
use cudarc::driver::result;
use hecate_core::Result;

impl Cuda {
    /// The oldest driver that works, as `1000 major + 10 minor`.
    pub const OLDEST_DRIVER: u32 = driver::OLDEST_DRIVER;

    /// The least compute capability, major and minor, whose kernels are in this crate and need no compiler.
    pub const EMBEDDED_CAPABILITY: (u32, u32) = ptx::CAPABILITY;

    /// What the driver lists, by the numbers that [`Cuda::new`] takes. No GPU is opened, and none is refused: an old driver
    /// or a GPU that kernels are not made for is in the list as it is.
    ///
    /// # Errors
    /// As [`Cuda::count`]; [`hecate_core::Error::Device`] where the driver does not answer.
    pub fn list() -> Result<Vec<Properties>> {
        let count = driver::count()?;
        driver::guarded(|| {
            let version = driver::version_of_driver()?;
            let ask = |number: usize| {
                let asking = |error| failed(format!("asking what GPU {number} is"), error);
                let gpu = result::device::get(number as i32).map_err(asking)?;
                Properties::read(gpu, version).map_err(asking)
            };
            (0..count).map(ask).collect()
        })
    }
}
