//! The `hecate` command: learns text with neural memories, goes on with it, measures, and checks this machine.

mod bench;
mod check;
mod curve;
mod defaults;
mod device;
mod devices;
mod error;
mod eval;
mod generate;
mod progress;
mod runs;
mod sources;
mod stop;
mod table;
mod train;

use clap::{Parser, Subcommand};
use std::{error::Error, process::ExitCode};

/// Language models made of neural memories.
#[derive(Parser)]
#[command(name = "hecate", version, about, arg_required_else_help = true)]
struct Command {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Learn a text; without one, Hecate's own sources.
    #[command(allow_negative_numbers = true)]
    Train(Box<train::Arguments>),
    /// Continue a prompt with a trained model.
    #[command(allow_negative_numbers = true)]
    Generate(generate::Arguments),
    /// Measure how well a trained model predicts a text.
    #[command(allow_negative_numbers = true)]
    Eval(eval::Arguments),
    /// Compare every rule and primitive on this machine with 64-bit equations.
    Check(check::Arguments),
    /// Measure how fast rules are, or learn made-up tasks that tell memories apart.
    Bench(Box<bench::Arguments>),
    /// List what models can run on.
    Devices,
}

fn main() -> ExitCode {
    let outcome = match Command::parse().action {
        Action::Train(arguments) => train::run(*arguments),
        Action::Generate(arguments) => generate::run(arguments),
        Action::Eval(arguments) => eval::run(arguments),
        Action::Check(arguments) => check::run(arguments),
        Action::Bench(arguments) => bench::run(*arguments),
        Action::Devices => devices::run(),
    };
    outcome.unwrap_or_else(|error| {
        if !error.is_closed_pipe() {
            report(&error);
        }
        ExitCode::FAILURE
    })
}

/// Prints an error and what caused it, leaving out causes that its message tells already.
fn report(error: &error::Error) {
    let mut message = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !message.contains(&more) {
            message = format!("{message}: {more}");
        }
        cause = error.source();
    }
    eprintln!("error: {message}");
}
