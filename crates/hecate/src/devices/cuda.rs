//! NVIDIA's GPUs, as the driver lists them.

use super::{Absent, BackendKind, DeviceInfo, DeviceName, Devices, OLDEST_CAPABILITY, OLDEST_DRIVER, Properties};
use hecate_cuda::Cuda;

// The choice is a pure function that is there without the backend; what it counts on is what the backend counts on.
const _: () = assert!(OLDEST_DRIVER == Cuda::OLDEST_DRIVER);
const _: () = assert!(OLDEST_CAPABILITY.0 == Cuda::EMBEDDED_CAPABILITY.0);
const _: () = assert!(OLDEST_CAPABILITY.1 == Cuda::EMBEDDED_CAPABILITY.1);

/// Adds every GPU that the driver lists, or why there is none. GPUs that kernels are not made for are in the list too:
/// the choice passes them over with a reason.
pub(super) fn look(devices: &mut Devices) {
    let gpus = match Cuda::list() {
        Ok(gpus) => gpus,
        Err(error) => {
            devices.absent.push(Absent { backend: BackendKind::Cuda, why: error.to_string() });
            return;
        }
    };
    for (number, gpu) in gpus.into_iter().enumerate() {
        let hecate_cuda::Properties { name, capability, multiprocessors, memory, driver, .. } = gpu;
        devices.found.push(DeviceInfo {
            id: DeviceName { backend: BackendKind::Cuda, number },
            name,
            // `CUDA_VISIBLE_DEVICES` decides which GPU that is.
            is_default: number == 0,
            properties: Properties::Cuda { capability, multiprocessors, memory, driver },
        });
    }
}
