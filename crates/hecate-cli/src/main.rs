//! The `hecate` command: learns text with neural memories, goes on with it, measures, and checks this machine.
//!
//! A subcommand is a file with its flags (a clap `Args`) and a `Job`: work that is generic over the backend. `device` picks
//! the backend by the name that was given and runs the job on it. Everything else is a library call:
//!
//! * `train` (`train/`): flags to a configuration, the training loop, the record and the picture of a run;
//! * `finetune` (`finetune/`): a released model or an adapter beside it learns, from texts or examples;
//! * `generate`, `eval` and `quantize`: a trained model, found by `runs`; `info` describes runs. What others released is in
//!   `released`, and `chat` converses with it;
//! * `serve` (feature `serve`): such a model for clients of `hecate-serve`;
//! * `spikes` (feature `spikes`): networks of `hecate-spiking`, which are no memories;
//! * `check` and `bench` (feature `check`): conformance, speed, and made-up tasks;
//! * `devices`: what there is on this machine; `kernels`: what `hecate-ptx` writes.
//!
//! Results go to standard output, progress and errors to standard error, by `terminal` where no failure may come back.

#![deny(clippy::print_stderr, clippy::print_stdout)]

#[cfg(feature = "check")]
mod bench;
mod chat;
#[cfg(feature = "check")]
mod check;
mod curve;
mod defaults;
mod device;
mod devices;
mod error;
mod eval;
mod features;
mod finetune;
mod flags;
mod generate;
mod info;
mod kernels;
mod log;
mod measure;
mod progress;
mod quantize;
mod released;
mod runs;
#[cfg(feature = "serve")]
mod serve;
mod settings;
mod sources;
#[cfg(feature = "spikes")]
mod spikes;
mod stop;
mod suggest;
mod table;
mod terminal;
mod train;
mod visible;
mod vulkan;
#[cfg(test)]
mod words;

use clap::{CommandFactory, Parser, Subcommand};
use clap_complete::Shell;
use console::Term;
use settings::Refused;
use std::{env, error::Error, io, process::ExitCode};

/// Most columns of a line of help.
const COLUMNS: u16 = 100;

/// Under the list of subcommands.
const STATUS: &str = "\
Exit status: 0 where all is well, 1 after an error, 2 for flags that cannot be read, 130 after
Ctrl-C, 143 after a termination (`kill`), 129 after a hang-up (a closed terminal).";

/// Language models made of neural memories.
#[derive(Parser)]
#[command(name = "hecate", version, about, arg_required_else_help = true, args_override_self = true, after_help = STATUS, term_width = columns())]
struct Command {
    #[command(subcommand)]
    action: Action,
}

/// What the command does.
#[derive(Subcommand)]
enum Action {
    /// Learn a text; without one, Hecate's own sources.
    #[command(allow_negative_numbers = true)]
    Train(Box<train::TrainArgs>),
    /// Continue a prompt with a trained model, or with one that others released.
    #[command(allow_negative_numbers = true)]
    Generate(generate::GenerateArgs),
    /// Converse with a model that others released.
    #[command(allow_negative_numbers = true)]
    Chat(chat::ChatArgs),
    /// Serve a trained model, or a released one, to OpenAI's clients.
    #[cfg(feature = "serve")]
    Serve(serve::ServeArgs),
    /// Teach a released model more, or an adapter beside it.
    #[command(allow_negative_numbers = true)]
    Finetune(Box<finetune::FinetuneArgs>),
    /// Measure how well a trained model, or a released one, predicts a text or examples.
    #[command(allow_negative_numbers = true)]
    Eval(eval::EvalArgs),
    /// Store a trained model's matrices in few bits a weight, to generate and evaluate with.
    Quantize(quantize::QuantizeArgs),
    /// Compare every rule and primitive on this machine with 64-bit equations.
    #[cfg(feature = "check")]
    Check(check::CheckArgs),
    /// Measure how fast rules are, or learn made-up tasks that tell memories apart.
    #[cfg(feature = "check")]
    Bench(Box<bench::BenchArgs>),
    /// Run a spiking network, or measure how fast they are.
    #[cfg(feature = "spikes")]
    Spikes(spikes::SpikesArgs),
    /// Say what a run is and how far it came, or what a released model is.
    Info(info::InfoArgs),
    /// List runs.
    Runs(info::RunsArgs),
    /// List what models can run on.
    Devices,
    /// Print kernels that are written as PTX, with no compiler.
    Kernels(kernels::KernelsArgs),
    /// Compile a kernel for the cache: what the command starts itself, several at once.
    #[cfg(feature = "cuda")]
    #[command(hide = true)]
    CompileKernel {
        /// Of which GPU, driver and file
        arguments: Vec<String>,
    },
    /// Print what a shell needs to complete this command: `source <(hecate completions bash)`.
    Completions {
        /// The shell
        shell: Shell,
    },
}

/// The exit status is as [`STATUS`] says.
fn main() -> ExitCode {
    #[cfg(unix)]
    stop::let_writes_fail();
    vulkan::ask_no_compositor();
    let action = match settings::parse() {
        Ok(command) => command.action,
        Err(Refused::Flags(answer)) => return tell(&suggest::explained(answer, &Command::command(), typed())),
        Err(Refused::File(error)) => return fail(&error),
    };
    // Kernels that a step waits for are compiled by this program, started once more for each of them.
    // The compiler makes one at a time in a program.
    // Where this program cannot be found, they are compiled one by one.
    #[cfg(feature = "cuda")]
    if let Ok(program) = env::current_exe() {
        hecate::cuda::compile_through(program, vec!["compile-kernel".to_owned()]);
    }
    let outcome = log::start().and_then(|()| run(action));
    outcome.unwrap_or_else(|error| fail(&error))
}

/// Prints help, the version, or what is wrong with the flags. Help that cannot be written is an error.
fn tell(answer: &clap::Error) -> ExitCode {
    // 0 for help, 2 for flags that cannot be read.
    let status = u8::try_from(answer.exit_code()).unwrap_or(2);
    match answer.print().and_then(|()| io::Write::flush(&mut io::stdout())) {
        Err(error) if !answer.use_stderr() => fail(&error.into()),
        _ => ExitCode::from(status),
    }
}

/// Says what went wrong, unless nobody is there to read it.
fn fail(error: &error::Error) -> ExitCode {
    if !error.is_closed_pipe() {
        report(error);
    }
    ExitCode::FAILURE
}

/// Words of the command line after the program's name; what is no Unicode is shown as far as it can be.
fn typed() -> impl Iterator<Item = String> {
    env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned())
}

/// Columns that the terminal has for help.
fn columns() -> usize {
    Term::stdout().size_checked().map_or(COLUMNS, |(_, columns)| columns.min(COLUMNS)).into()
}

/// Runs the subcommand that was named.
fn run(action: Action) -> error::Result<ExitCode> {
    match action {
        Action::Train(arguments) => train::run(*arguments),
        Action::Generate(arguments) => generate::run(arguments),
        Action::Chat(arguments) => chat::run(arguments),
        Action::Finetune(arguments) => finetune::run(*arguments),
        #[cfg(feature = "serve")]
        Action::Serve(arguments) => serve::run(arguments),
        Action::Eval(arguments) => eval::run(arguments),
        Action::Quantize(arguments) => quantize::run(arguments),
        #[cfg(feature = "check")]
        Action::Check(arguments) => check::run(arguments),
        #[cfg(feature = "check")]
        Action::Bench(arguments) => bench::run(*arguments),
        #[cfg(feature = "spikes")]
        Action::Spikes(arguments) => spikes::run(arguments),
        Action::Info(arguments) => info::run(arguments),
        Action::Runs(arguments) => info::list(arguments),
        Action::Devices => devices::run(),
        Action::Kernels(kernels) => kernels.run(),
        #[cfg(feature = "cuda")]
        Action::CompileKernel { arguments } => {
            hecate::cuda::compile_kernel(&arguments)?;
            Ok(ExitCode::SUCCESS)
        }
        Action::Completions { shell } => Ok(complete(shell)?),
    }
}

/// Writes the script into memory first: a closed pipe is then an error and no panic.
fn complete(shell: Shell) -> io::Result<ExitCode> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Command::command(), "hecate", &mut script);
    let mut out = io::stdout();
    io::Write::write_all(&mut out, &script)?;
    io::Write::flush(&mut out)?;
    Ok(ExitCode::SUCCESS)
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
    // Paths and prompts in it may hold anything.
    progress::say(&format!("error: {message}"));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Flags of all subcommands with words that they may not know: a command or an error, which says something.
    #[test]
    fn any_words_are_a_command_or_refused() {
        // Digits are what is changed most: numbers are where flags have limits.
        const LINES: [&str; 8] = [
            "train --text a --tokens 9 --batch 9 --rate 0.1 --device cpu --seed 9 --dropout 0.1 --measure 9",
            "train --resume a --steps 9 --keep 9 --periods 1,9 --mixer cms --algorithm chunk:9",
            "finetune --model a --data a --out a --lora 9 --lora-alpha 9 --lora-targets a,b --steps 9 --lr 0.1",
            "generate --prompt a --tokens 9 --temperature 0.9 --top-k 9 --top-p 0.9 --seed 9",
            "chat --model a --system a --tell a=9 --tokens 9 --min-p 0.9 --repetition-penalty 0.9 --presence-penalty 0.9 --logit-bias 9=-9",
            "eval --text a --segment 9 --measure all",
            "bench speed --rules all --shapes 1x9x1x9 --seconds 0.9 --dtype f16",
            "completions bash",
        ];
        let (mut taken, mut refused) = (0, 0);
        words::each(&LINES, |line| match Command::try_parse_from(std::iter::once("hecate").chain(line.split(' '))) {
            // Nothing is run.
            Ok(_) => taken += 1,
            // Help and the version are such answers too.
            Err(error) => {
                assert!(error.to_string().len() > 10, "{line}");
                refused += 1;
            }
        });
        assert!(taken > 1000 && refused > 1000, "{taken} {refused}");
    }
}
