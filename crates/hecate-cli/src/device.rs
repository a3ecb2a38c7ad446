//! From a device's name to a backend.

use crate::error::{Error, Result};
use clap::Args;
use hecate_core::Backend;

/// Devices of this build.
pub(crate) const DEVICES: &[&str] = &[
    #[cfg(feature = "cpu")]
    "cpu",
    #[cfg(feature = "cuda")]
    "cuda",
    #[cfg(feature = "wgpu")]
    "wgpu",
];

/// Where to compute.
#[derive(Args, Clone, Debug)]
pub(crate) struct Choice {
    /// Where to compute; `cuda:1` is the second GPU, `wgpu:1` the second adapter, `wgpu:radeon` one by its name
    #[arg(long, default_value = DEVICES[0], value_parser = parse)]
    device: Named,
    /// Threads on the CPU; 0 for one a processor. Results do not depend on it
    #[arg(long, default_value_t = 0, value_name = "N")]
    threads: usize,
}

/// A device's name, and which of them behind a colon.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Named {
    name: String,
    which: Option<Which>,
}

/// One of several devices.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Which {
    Number(usize),
    /// A part of its name.
    Part(String),
}

fn parse(text: &str) -> std::result::Result<Named, String> {
    let (name, which) = match text.split_once(':') {
        Some((name, which)) if name != "cpu" => (name, Some(parse_which(name, which)?)),
        _ => (text, None),
    };
    if DEVICES.contains(&name) {
        return Ok(Named { name: name.to_owned(), which });
    }
    Err(format!("no `{name}` in this build; it has {} (features of this package)", DEVICES.join(", ")))
}

fn parse_which(name: &str, which: &str) -> std::result::Result<Which, String> {
    match which.parse() {
        Ok(number) => Ok(Which::Number(number)),
        Err(_) if name == "wgpu" && !which.is_empty() => Ok(Which::Part(which.to_owned())),
        Err(_) => Err(format!("`{which}` is no device number; `{name}:0` is the first")),
    }
}

/// Work that any backend can do.
pub(crate) trait Job {
    type Output;
    fn run<B: Backend>(self, device: &B) -> Result<Self::Output>;
}

/// Does the job on the chosen device.
pub(crate) fn with_device<J: Job>(choice: &Choice, job: J) -> Result<J::Output> {
    match choice.device.name.as_str() {
        #[cfg(feature = "cpu")]
        "cpu" => job.run(&cpu(choice.threads)?),
        #[cfg(feature = "cuda")]
        "cuda" => job.run(&cuda(choice.device.which.as_ref())?),
        #[cfg(feature = "wgpu")]
        "wgpu" => job.run(&wgpu(choice.device.which.as_ref())?),
        other => Err(Error::flag("--device", format!("no `{other}` in this build; it has {}", DEVICES.join(", ")))),
    }
}

#[cfg(feature = "cpu")]
fn cpu(threads: usize) -> hecate_core::Result<hecate_cpu::Cpu> {
    if threads == 0 { Ok(hecate_cpu::Cpu::new()) } else { hecate_cpu::Cpu::with_threads(threads) }
}

#[cfg(feature = "cuda")]
fn cuda(which: Option<&Which>) -> hecate_core::Result<hecate_cuda::Cuda> {
    // Names are not taken for these.
    let number = if let Some(Which::Number(number)) = which { *number } else { 0 };
    hecate_cuda::Cuda::new(number)
}

#[cfg(feature = "wgpu")]
fn wgpu(which: Option<&Which>) -> hecate_core::Result<hecate_wgpu::Wgpu> {
    use hecate_wgpu::{Selection, Wgpu};
    Wgpu::new(&match which {
        None => Selection::Default,
        Some(Which::Number(number)) => Selection::Index(*number),
        Some(Which::Part(name)) => Selection::Name(name.clone()),
    })
}
