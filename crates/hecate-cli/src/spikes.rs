//! `hecate spikes`: spiking networks, which share neither tensors nor kernels with memories.

mod bench;
mod device;
mod raster;
mod run;

use crate::error::Result;
use clap::{Args, Subcommand};
use std::process::ExitCode;

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
