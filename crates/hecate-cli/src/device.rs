//! From a device's name to a backend.

use crate::error::{Error, Result};
use clap::{Args, builder::PossibleValuesParser};
use hecate_core::Backend;

/// Devices of this build.
pub(crate) const DEVICES: &[&str] = &[
    #[cfg(feature = "cpu")]
    "cpu",
];

/// Where to compute.
#[derive(Args, Clone, Debug)]
pub(crate) struct Choice {
    /// Where to compute
    #[arg(long, default_value = DEVICES[0], value_parser = PossibleValuesParser::new(DEVICES))]
    device: String,
    /// Threads on the CPU; 0 for one a processor. Results do not depend on it
    #[arg(long, default_value_t = 0, value_name = "N")]
    threads: usize,
}

/// Work that any backend can do.
pub(crate) trait Job {
    type Output;
    fn run<B: Backend>(self, device: &B) -> Result<Self::Output>;
}

/// Does the job on the chosen device.
pub(crate) fn with_device<J: Job>(choice: &Choice, job: J) -> Result<J::Output> {
    match choice.device.as_str() {
        #[cfg(feature = "cpu")]
        "cpu" => job.run(&cpu(choice.threads)?),
        other => Err(Error::flag("--device", format!("no `{other}` in this build; it has {}", DEVICES.join(", ")))),
    }
}

#[cfg(feature = "cpu")]
fn cpu(threads: usize) -> hecate_core::Result<hecate_cpu::Cpu> {
    if threads == 0 { Ok(hecate_cpu::Cpu::new()) } else { hecate_cpu::Cpu::with_threads(threads) }
}
