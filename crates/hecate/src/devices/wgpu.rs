//! WebGPU's adapters, as its drivers list them.

use super::{Absent, BackendKind, DeviceInfo, DeviceName, Devices, Properties};
use hecate_wgpu::Wgpu;

/// Adds every adapter. Where none is the default one, because there is none or `HECATE_WGPU_ADAPTER` names another, the
/// backend is absent as well.
pub(super) fn look(devices: &mut Devices) {
    let adapters = Wgpu::adapters();
    let default = match Wgpu::default_of(&adapters) {
        Ok(number) => Some(number),
        Err(error) => {
            devices.absent.push(Absent { backend: BackendKind::Wgpu, why: error.to_string() });
            None
        }
    };
    for (number, adapter) in adapters.into_iter().enumerate() {
        let hecate_wgpu::Adapter { name, interface, kind, driver, largest_array, too_small, .. } = adapter;
        devices.found.push(DeviceInfo {
            id: DeviceName { backend: BackendKind::Wgpu, number },
            name,
            // Too small ones are listed as well: the choice passes them over with a reason.
            is_default: default == Some(number),
            properties: Properties::Wgpu { kind, interface, driver, largest_array, too_small },
        });
    }
}
