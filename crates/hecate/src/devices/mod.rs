//! What this machine has to compute on, and why what it has not is not there.

#[cfg(feature = "cpu")]
mod cpu;
#[cfg(feature = "cuda")]
mod cuda;
mod info;
#[cfg(feature = "wgpu")]
mod wgpu;

pub(crate) use info::not_built_in;
pub use info::{Absent, BackendKind, DeviceInfo, DeviceName, Devices, OLDEST_CAPABILITY, OLDEST_DRIVER, Properties};

/// Looks for devices of every backend.
///
/// No device is opened: GPUs stay asleep, and no memory is taken on them.
///
/// ```
/// let devices = hecate::devices();
/// for device in &devices.found {
///     println!("{}: {}, {:?}", device.id, device.name, device.properties);
/// }
/// for absent in &devices.absent {
///     println!("no {}: {}", absent.backend, absent.why);
/// }
/// assert!(!devices.found.is_empty() || !devices.absent.is_empty());
/// ```
pub fn devices() -> Devices {
    devices_of(&BackendKind::ALL)
}

/// As [`devices`], of these backends alone.
pub fn devices_of(backends: &[BackendKind]) -> Devices {
    let mut devices = Devices::default();
    for &backend in backends {
        look(backend, &mut devices);
    }
    devices
}

/// Asks one backend, or says that this build does not have it.
fn look(backend: BackendKind, devices: &mut Devices) {
    match backend {
        #[cfg(feature = "cpu")]
        BackendKind::Cpu => cpu::look(devices),
        #[cfg(feature = "cuda")]
        BackendKind::Cuda => cuda::look(devices),
        #[cfg(feature = "wgpu")]
        BackendKind::Wgpu => wgpu::look(devices),
        #[allow(unreachable_patterns, reason = "with all backends built in nothing is left")]
        missing => devices.absent.push(Absent { backend: missing, why: not_built_in(missing) }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// On the machine of the test, whatever it has: each backend is found or absent with a reason.
    #[test]
    fn nothing_is_passed_over_in_silence() {
        let devices = devices();
        for backend in BackendKind::ALL {
            let told = devices.of(backend).count() > 0 || devices.why_absent(backend).is_some();
            assert!(told, "{backend} is neither there nor absent: {devices:?}");
            if !backend.is_built_in() {
                let why = devices.why_absent(backend).unwrap_or_default();
                assert!(why.contains(&format!("feature `{backend}`")), "{why}");
            }
        }
    }

    /// A device's number is its place in the list of its backend, because `Cuda::new` and `Selection::Index` take it.
    #[test]
    fn numbers_are_places() {
        let devices = devices();
        for backend in BackendKind::ALL {
            let numbers: Vec<_> = devices.of(backend).map(|device| device.id.number).collect();
            assert_eq!(numbers, (0..numbers.len()).collect::<Vec<_>>(), "{backend}");
            assert!(devices.of(backend).filter(|device| device.is_default).count() <= 1, "{backend}");
        }
    }

    /// What is printed is what `--device` takes.
    #[test]
    fn identities_print_as_they_are_named() {
        let print = |backend, number| DeviceName { backend, number }.to_string();
        assert_eq!(print(BackendKind::Cpu, 0), "cpu");
        assert_eq!(print(BackendKind::Cuda, 0), "cuda:0");
        assert_eq!(print(BackendKind::Wgpu, 1), "wgpu:1");
    }
}
