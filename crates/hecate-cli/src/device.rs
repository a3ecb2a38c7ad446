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
];

/// Where to compute.
#[derive(Args, Clone, Debug)]
pub(crate) struct Choice {
    /// Where to compute; `cuda:1` is the second GPU
    #[arg(long, default_value = DEVICES[0], value_parser = parse)]
    device: Named,
    /// Threads on the CPU; 0 for one a processor. Results do not depend on it
    #[arg(long, default_value_t = 0, value_name = "N")]
    threads: usize,
}

/// A device's name, and its number behind a colon.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Named {
    name: String,
    number: usize,
}

fn parse(text: &str) -> std::result::Result<Named, String> {
    let (name, number) = match text.split_once(':') {
        Some((name, number)) if name != "cpu" => {
            (name, number.parse().map_err(|_| format!("`{number}` is no device number; `{name}:0` is the first"))?)
        }
        _ => (text, 0),
    };
    if DEVICES.contains(&name) {
        return Ok(Named { name: name.to_owned(), number });
    }
    Err(format!("no `{name}` in this build; it has {} (features of this package)", DEVICES.join(", ")))
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
        "cuda" => job.run(&hecate_cuda::Cuda::new(choice.device.number)?),
        other => Err(Error::flag("--device", format!("no `{other}` in this build; it has {}", DEVICES.join(", ")))),
    }
}

#[cfg(feature = "cpu")]
fn cpu(threads: usize) -> hecate_core::Result<hecate_cpu::Cpu> {
    if threads == 0 { Ok(hecate_cpu::Cpu::new()) } else { hecate_cpu::Cpu::with_threads(threads) }
}
