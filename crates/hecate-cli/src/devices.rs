//! `hecate devices`: what this build finds on this machine, and why it does not find what is missing.
//!
//! Nothing here fails for a device that cannot be used: the reason is printed in its place.

use crate::{error::Result, table::Table};
use hecate::{Choose, DeviceInfo, Properties, devices, select};
use std::{
    io::{Write, stdout},
    process::ExitCode,
};

/// Prints a paragraph a device; a device that fails is a line, not an error.
pub(crate) fn run() -> Result<ExitCode> {
    // Every backend that this build has.
    let found = devices();
    // CPUs come as rows of one table, GPUs as paragraphs.
    let mut table = Table::new(&["device", "threads", "vector instructions"]);
    for device in &found.found {
        match &device.properties {
            Properties::Cpu { threads, vectors } => {
                table.row([device.id.to_string(), threads.to_string(), (*vectors).into()])?;
            }
            other => describe(device, other)?,
        }
    }
    let mut out = stdout().lock();
    // A backend that was not built, has no driver, or has no device.
    for absent in &found.absent {
        writeln!(out, "\n{}: {}", absent.backend, absent.why)?;
    }
    // What `--device best` would take.
    if let Ok(best) = select(&found, &Choose::Best) {
        writeln!(out, "\nbest: {} ({})", best.id, best.name)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// What a GPU is like, from its driver; more where it can be opened.
///
/// # Errors
/// What an open device reports, and a closed pipe.
fn describe(device: &DeviceInfo, properties: &Properties) -> Result<()> {
    let mut out = stdout().lock();
    writeln!(out, "\n{}: {}", device.id, device.name)?;
    match properties {
        Properties::Cuda { capability: (major, minor), multiprocessors, memory, .. } => {
            writeln!(out, "  compute capability {major}.{minor}, {multiprocessors} multiprocessors")?;
            writeln!(out, "  memory: {:.1} GiB", gibibytes(*memory as u64))?;
            #[cfg(feature = "cuda")]
            opened(&mut out, device.id.number)?;
        }
        Properties::Wgpu { kind, interface, driver, largest_array, too_small, .. } => {
            writeln!(out, "  {kind} over {interface}, driver: {driver}")?;
            writeln!(out, "  largest array: {:.1} GiB", gibibytes(*largest_array))?;
            // An adapter under the least limits that kernels need.
            if let Some(why) = too_small {
                writeln!(out, "  cannot be used: {why}")?;
            }
            #[cfg(feature = "wgpu")]
            limits(&mut out, device.id.number)?;
        }
        _ => {}
    }
    Ok(())
}

/// Bytes in units of 2³⁰.
// As drivers count memory.
fn gibibytes(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 30)
}

/// What only an open GPU tells, or why it cannot be opened.
#[cfg(feature = "cuda")]
fn opened(out: &mut impl Write, number: usize) -> Result<()> {
    let gpu = match hecate::cuda::Cuda::new(number) {
        Ok(gpu) => gpu,
        Err(error) => return Ok(writeln!(out, "  cannot be used: {error}")?),
    };
    writeln!(out, "  copies: {:.0} GB/s, bytes read and bytes written", gpu.copy_rate()? / 1e9)?;
    writeln!(out, "  kernels: {}", gpu.kernels())?;
    Ok(writeln!(out, "  matrix products: {}", gpu.products())?)
}

/// What kernels can count on.
#[cfg(feature = "wgpu")]
fn limits(out: &mut impl Write, number: usize) -> Result<()> {
    // Numbered as `hecate devices` numbers them.
    let adapters = hecate::wgpu::Wgpu::adapters();
    let Some(adapter) = adapters.get(number) else { return Ok(()) };
    let (invocations, kibibytes) = (adapter.workgroup_invocations, adapter.workgroup_storage >> 10);
    let arrays = adapter.storage_buffers;
    writeln!(out, "  a workgroup: {invocations} invocations, {kibibytes} KiB; a kernel: {arrays} arrays")?;
    let optional = [
        (adapter.f16, "16-bit floats"),
        (adapter.subgroups, "subgroups"),
        (adapter.cooperative_matrices.is_some(), "cooperative matrices (HECATE_WGPU_COOPERATIVE=on)"),
    ];
    let there: Vec<&str> = optional.into_iter().filter_map(|(there, what)| there.then_some(what)).collect();
    // A list that is empty must not look like a list that was forgotten.
    let there = if there.is_empty() { "none".to_owned() } else { there.join(", ") };
    Ok(writeln!(out, "  optional features that kernels use: {there}")?)
}
