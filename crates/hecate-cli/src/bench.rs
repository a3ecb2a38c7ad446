//! `hecate bench`: how fast rules are, and made-up tasks that need no data and tell memories apart.

mod identities;
mod recall;
mod settings;
mod speed;
mod state_tracking;
mod summary;
mod sweep;

use crate::error::Result;
use clap::{Args, Subcommand};
use std::process::ExitCode;

/// Flags of `hecate bench`.
#[derive(Args, Debug)]
pub(crate) struct BenchArgs {
    #[command(subcommand)]
    benchmark: Benchmark,
}

/// What is measured.
// Comments of variants are what `--help` prints.
#[derive(Subcommand, Debug)]
enum Benchmark {
    /// Closed-form identities, then multi-query associative recall with more and more pairs.
    #[command(allow_negative_numbers = true)]
    Recall(recall::RecallArgs),
    /// Parity of sequences several times as long as those that were learned.
    #[command(allow_negative_numbers = true)]
    StateTracking(state_tracking::StateTrackingArgs),
    /// Times of rules on this machine: forward, forward and backward, decoding; beside the machine's peak.
    #[command(allow_negative_numbers = true)]
    Speed(speed::SpeedArgs),
}

/// Runs the benchmark that was named.
pub(crate) fn run(arguments: BenchArgs) -> Result<ExitCode> {
    match arguments.benchmark {
        Benchmark::Recall(arguments) => recall::run(arguments),
        Benchmark::StateTracking(arguments) => state_tracking::run(arguments),
        Benchmark::Speed(arguments) => speed::run(arguments),
    }
}
