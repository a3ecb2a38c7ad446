//! `hecate bench`: how fast rules are, made-up tasks that need no data and tell memories apart, and a text that all learn.

mod identities;
mod jobs;
mod mad;
mod needle;
mod published;
mod recall;
mod settings;
mod speed;
mod spread_recall;
mod state_tracking;
mod summary;
mod sweep;
mod text;

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
    /// Closed-form identities, then multi-query associative recall: with more and more pairs, or as it is published.
    #[command(allow_negative_numbers = true)]
    Recall(recall::RecallArgs),
    /// State that tokens change: parity or a symmetric group, at several times the learned length.
    #[command(allow_negative_numbers = true)]
    StateTracking(state_tracking::StateTrackingArgs),
    /// One key-value pair in noise, at many times the learned length.
    #[command(allow_negative_numbers = true)]
    Needle(needle::NeedleArgs),
    /// MAD's six tasks: compression, fuzzy recall, recall, memorisation, noisy recall, copying.
    #[command(allow_negative_numbers = true)]
    Mad(mad::MadArgs),
    /// A text, learned by every rule and composition: what is predicted with fresh memories, and by position in one pass.
    #[command(allow_negative_numbers = true)]
    Text(Box<text::TextArgs>),
    /// Times of rules on this machine: forward, forward and backward, decoding; beside the machine's peak.
    #[command(allow_negative_numbers = true)]
    Speed(speed::SpeedArgs),
}

/// Runs the benchmark that was named.
pub(crate) fn run(arguments: BenchArgs) -> Result<ExitCode> {
    match arguments.benchmark {
        Benchmark::Recall(arguments) => recall::run(arguments),
        Benchmark::StateTracking(arguments) => state_tracking::run(arguments),
        Benchmark::Needle(arguments) => needle::run(arguments),
        Benchmark::Mad(arguments) => mad::run(arguments),
        Benchmark::Text(arguments) => text::run(*arguments),
        Benchmark::Speed(arguments) => speed::run(arguments),
    }
}
