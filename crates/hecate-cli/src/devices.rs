//! `hecate devices`.

use crate::{error::Result, table::Table};
use std::{process::ExitCode, thread};

pub(crate) fn run() -> Result<ExitCode> {
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let mut table = Table::new(&["device", "threads", "vector instructions"]);
    if cfg!(feature = "cpu") {
        table.row(["cpu".into(), threads.to_string(), vector_instructions().into()])?;
    }
    #[cfg(feature = "cuda")]
    gpus()?;
    #[cfg(feature = "wgpu")]
    adapters()?;
    Ok(ExitCode::SUCCESS)
}

/// Every GPU, or why there is none.
#[cfg(feature = "cuda")]
fn gpus() -> Result<()> {
    use hecate_cuda::Cuda;
    use std::io::Write;
    let mut out = std::io::stdout().lock();
    let count = match Cuda::count() {
        Ok(count) => count,
        Err(error) => return Ok(writeln!(out, "\ncuda: {error}")?),
    };
    for number in 0..count {
        let device = match Cuda::new(number) {
            Ok(device) => device,
            Err(error) => {
                writeln!(out, "\ncuda:{number}: {error}")?;
                continue;
            }
        };
        let properties = device.properties();
        let (major, minor) = properties.capability;
        writeln!(out, "\ncuda:{number}: {}", properties.name)?;
        writeln!(out, "  compute capability {major}.{minor}, {} multiprocessors", properties.multiprocessors)?;
        writeln!(out, "  memory: {:.1} GiB", properties.memory as f64 / f64::from(1 << 30))?;
        writeln!(out, "  copies: {:.0} GB/s, bytes read and bytes written", device.copy_rate()? / 1e9)?;
        writeln!(out, "  kernels: {}", device.kernels())?;
        writeln!(out, "  matrix products: {}", device.products())?;
    }
    Ok(())
}

/// Every adapter, or why there is none.
#[cfg(feature = "wgpu")]
fn adapters() -> Result<()> {
    use hecate_wgpu::{Selection, Wgpu};
    use std::io::Write;
    let mut out = std::io::stdout().lock();
    let adapters = Wgpu::adapters();
    if let (true, Err(error)) = (adapters.is_empty(), Wgpu::new(&Selection::Default)) {
        writeln!(out, "\nwgpu: {error}")?;
    }
    for (number, adapter) in adapters.iter().enumerate() {
        writeln!(out, "\nwgpu:{number}: {}", adapter.name)?;
        writeln!(out, "  {} over {}, driver: {}", adapter.kind, adapter.interface, adapter.driver)?;
        writeln!(out, "  largest array: {:.1} GiB", adapter.largest_array as f64 / f64::from(1 << 30))?;
        writeln!(
            out,
            "  a workgroup: {} invocations, {} KiB; a kernel: {} arrays",
            adapter.workgroup_invocations,
            adapter.workgroup_storage >> 10,
            adapter.storage_buffers
        )?;
        let optional = [(adapter.f16, "16-bit floats"), (adapter.subgroups, "subgroups")];
        let there: Vec<&str> = optional.into_iter().filter_map(|(there, what)| there.then_some(what)).collect();
        let there = if there.is_empty() { "none".to_owned() } else { there.join(", ") };
        writeln!(out, "  optional features that kernels use: {there}")?;
    }
    Ok(())
}

/// The widest that the CPU backend finds here.
#[cfg(target_arch = "x86_64")]
fn vector_instructions() -> &'static str {
    if is_x86_feature_detected!("avx512f") {
        "AVX-512"
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
