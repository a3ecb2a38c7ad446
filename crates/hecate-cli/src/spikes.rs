//! `hecate spikes`: spiking networks, which share neither tensors nor kernels with memories.

mod bench;
mod raster;
mod run;

use crate::error::Result;
use clap::{Args, Subcommand, builder::PossibleValuesParser};
use hecate_spiking::Cpu;
use std::process::ExitCode;

/// Devices that run networks.
const DEVICES: [&str; 2] = ["best", "cpu"];

/// What `hecate spikes` does.
#[derive(Args, Debug)]
pub(crate) struct SpikesArgs {
    #[command(subcommand)]
    action: Action,
}

/// Its subcommands.
#[derive(Subcommand, Debug)]
enum Action {
    /// Run a network's file: spikes of each area, and a picture of them.
    Run(run::RunArgs),
    /// Measure how long a burst takes, and how that grows with the network.
    Bench(bench::BenchArgs),
}

/// Runs the subcommand that was named.
pub(crate) fn run(arguments: SpikesArgs) -> Result<ExitCode> {
    match arguments.action {
        Action::Run(arguments) => run::run(arguments),
        Action::Bench(arguments) => bench::run(&arguments),
    }
}

/// Where networks are run.
#[derive(Args, Debug)]
#[command(next_help_heading = "Device")]
struct Choice {
    /// Where to compute; the CPU is the only device that runs networks
    #[arg(long, default_value = "cpu", value_name = "DEVICE", value_parser = PossibleValuesParser::new(DEVICES))]
    device: String,
    /// Threads on the CPU; 0 for one a processor
    ///
    /// Results do not depend on it.
    #[arg(long, default_value_t = 0, value_name = "N")]
    threads: usize,
}

impl Choice {
    /// The device. Both names mean the CPU.
    fn open(&self) -> Result<Cpu> {
        Ok(if self.threads == 0 { Cpu::new() } else { Cpu::with_threads(self.threads) }?)
    }
}
