//! The processor: always there.

use super::{BackendKind, DeviceInfo, DeviceName, Devices, Properties};
use std::thread;

/// Adds the processor with the number of threads that the system gives this program.
pub(super) fn look(devices: &mut Devices) {
    let threads = thread::available_parallelism().map_or(1, usize::from);
    devices.found.push(DeviceInfo {
        // One device, whatever the number of sockets: its threads take work from one pool.
        id: DeviceName { backend: BackendKind::Cpu, number: 0 },
        name: std::env::consts::ARCH.to_owned(),
        is_default: true,
        properties: Properties::Cpu { threads, vectors: vector_instructions() },
    });
}

/// The widest that the CPU backend finds here.
#[cfg(target_arch = "x86_64")]
fn vector_instructions() -> &'static str {
    if is_x86_feature_detected!("avx512f") {
        "AVX-512"
    // AVX2 without fused multiply-adds is not used.
    } else if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
        "AVX2 and FMA"
    } else {
        "none used (AVX2 and FMA are not there)"
    }
}

/// The widest that the CPU backend finds here.
#[cfg(not(target_arch = "x86_64"))]
fn vector_instructions() -> &'static str {
    if cfg!(target_arch = "aarch64") { "NEON" } else { "none used" }
}
