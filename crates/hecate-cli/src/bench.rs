//! `hecate bench`: how fast rules are, and made-up tasks that need no data and tell memories apart.

mod contest;
mod identities;
mod recall;
mod settings;
mod speed;
mod state_tracking;
mod summary;

use crate::error::Result;
use clap::{Args, Subcommand};
use std::process::ExitCode;

#[derive(Args, Debug)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand, Debug)]
enum Task {
    /// Closed-form identities, then multi-query associative recall with more and more pairs.
    #[command(allow_negative_numbers = true)]
    Recall(recall::Arguments),
    /// Parity of sequences several times as long as those that were learned.
    #[command(allow_negative_numbers = true)]
    StateTracking(state_tracking::Arguments),
    /// Times of rules on this machine: forward, forward and backward, decoding; beside the machine's peak.
    #[command(allow_negative_numbers = true)]
    Speed(speed::Arguments),
}

pub(crate) fn run(arguments: Arguments) -> Result<ExitCode> {
    match arguments.task {
        Task::Recall(arguments) => recall::run(arguments),
        Task::StateTracking(arguments) => state_tracking::run(arguments),
        Task::Speed(arguments) => speed::run(arguments),
    }
}
