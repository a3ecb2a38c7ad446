//! `hecate serve`: a trained model, or a released one, for OpenAI's clients.

use crate::{
    chat::ends,
    device::{Choice, with_device},
    error::{Error, Result},
    generate::stored,
    progress, released,
    runs::{RunArgs, check_folder},
    stop::{Stop, status},
};
use clap::{Args, builder::PossibleValuesParser};
use hecate::{Backend, Job, models::Precision};
use hecate_serve::{Limits, Plain, Served, Settings, Template, Unknown, key_from_environment};
use std::{
    io::{Write, stdout},
    net::{IpAddr, Ipv4Addr, TcpListener},
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
};

/// Flags of `hecate serve`.
#[derive(Args, Debug)]
pub(crate) struct ServeArgs {
    #[command(flatten)]
    run: RunArgs,
    /// Folder of a model that others released, as Hugging Face has it, instead of a run
    #[arg(long, value_name = "DIR", conflicts_with_all = ["run", "best"])]
    model: Option<PathBuf>,
    /// Port to listen on; 0 for one that is free
    #[arg(long, default_value_t = 8080, value_name = "N")]
    port: u16,
    /// Address to listen on; others than this machine reach 0.0.0.0
    ///
    /// Set the environment variable `HECATE_API_KEY` to have clients bring that key.
    #[arg(long, default_value_t = IpAddr::V4(Ipv4Addr::LOCALHOST), value_name = "ADDRESS")]
    host: IpAddr,
    /// Folder where sessions are saved when the server stops, and before when there is no room in memory
    #[arg(long, value_name = "DIR")]
    sessions: Option<PathBuf>,
    /// Texts that are written at once
    #[arg(long, default_value_t = Limits::default().texts, value_name = "N", value_parser = count)]
    texts: usize,
    /// Texts that may wait for that; requests beyond are refused
    #[arg(long, default_value_t = Limits::default().waiting, value_name = "N", value_parser = count)]
    waiting: usize,
    /// Most tokens of a request's prompts
    #[arg(long, default_value_t = Limits::default().prompt, value_name = "N", value_parser = count)]
    most_read: usize,
    /// Most tokens that are written for a text
    #[arg(long, default_value_t = Limits::default().tokens, value_name = "N", value_parser = count)]
    most_written: usize,
    /// Sessions in memory; with `--sessions` more go to the disk
    #[arg(long, default_value_t = Limits::default().sessions, value_name = "N", value_parser = count)]
    sessions_in_memory: usize,
    /// Tokens from a state that is kept of a long prompt to the next, in steps of 512; prompts with the same beginning go on from there
    #[arg(long, default_value_t = Limits::default().prefix_every, value_name = "N", value_parser = count)]
    prefix_every: usize,
    /// Memory for such states, MiB; 0 keeps none
    #[arg(long, default_value_t = Limits::default().prefix_bytes >> 20, value_name = "MIB", value_parser = mebibytes)]
    prefix_memory: usize,
    /// How the model's matrices are stored; bf16 takes half the memory and half the time of reading them
    #[arg(long, default_value = "f32", value_parser = PossibleValuesParser::new(Precision::STORED))]
    precision: String,
    #[command(flatten)]
    device: Choice,
}

/// The most of anything: more than any machine has room for, and few enough to be added up.
const MOST: usize = 1 << 24;

/// A number of things, from 1.
fn count(text: &str) -> Result<usize, String> {
    let count = text.parse().ok().filter(|count| (1..=MOST).contains(count));
    count.ok_or_else(|| format!("expected a whole number from 1 to {MOST}"))
}

/// Memory in MiB, or none.
fn mebibytes(text: &str) -> Result<usize, String> {
    if text == "0" { Ok(0) } else { count(text) }
}

/// Serves until it is asked to stop.
pub(crate) fn run(arguments: ServeArgs) -> Result<ExitCode> {
    let choice = arguments.device.clone();
    with_device(&choice, arguments)
}

impl Job for ServeArgs {
    type Output = Result<ExitCode>;

    fn run<B: Backend>(self, device: &B) -> Result<ExitCode> {
        // What is wrong with the flags is found before a model is loaded.
        let key = key_from_environment()?;
        if let Some(folder) = &self.sessions {
            check_folder(folder, "--sessions")?;
        }
        let listener = self.listen()?;
        if key.is_none() && !self.host.is_loopback() {
            progress::say("anybody who reaches this address may ask: set HECATE_API_KEY to have clients bring a key");
        }
        let stop = Stop::listen()?;
        let served = self.open(device)?;
        served.model.prepare(&[0], &mut |kernels| progress::say(&progress::compiling(kernels)))?;
        // Whoever started this can connect from here on.
        writeln!(stdout(), "{} on http://{}", served.id, listener.local_addr()?)?;
        stdout().flush()?;
        hecate_serve::serve(served, listener, self.settings(key), &stop.interrupt())?;
        Ok(if stop.asked() { ExitCode::from(status()) } else { ExitCode::SUCCESS })
    }
}

impl ServeArgs {
    /// The port is taken, so that nobody waits for weights in vain.
    fn listen(&self) -> Result<TcpListener> {
        let refused = |error| Error::flag("--port", format!("{} on {}: {error}; name another", self.port, self.host));
        // Port 0 is one that is free.
        TcpListener::bind((self.host, self.port)).map_err(refused)
    }

    /// The model and what it writes with.
    fn open<B: Backend>(&self, device: &B) -> Result<Served<B>> {
        let Some(path) = &self.model else {
            let folder = self.run.folder()?;
            let (model, vocabulary) = self.run.open(device, &folder)?;
            // A run says neither which tokens end a text nor how conversations are written.
            let model = stored(model, &self.precision)?;
            return Ok(Served { model, vocabulary, ends: Vec::new(), id: id(&folder), template: Arc::new(Plain) });
        };
        let (released, template) = released::open_with(device, path, |opened| Ok(opened.chat_template()))?;
        let (ends, template): (_, Arc<dyn Template>) = match template {
            Ok(template) => (ends(&released, &template)?, Arc::new(template)),
            // Completions need no template.
            Err(error) => {
                progress::say(&format!("conversations are refused: {error}"));
                (released.ends.clone(), Arc::new(Unknown))
            }
        };
        let model = stored(released.model, &self.precision)?;
        Ok(Served { model, vocabulary: released.vocabulary, ends, id: id(path), template })
    }

    fn settings(&self, key: Option<String>) -> Settings {
        let limits = Limits {
            texts: self.texts,
            waiting: self.waiting,
            prompt: self.most_read,
            tokens: self.most_written,
            sessions: self.sessions_in_memory,
            prefix_every: self.prefix_every,
            prefix_bytes: self.prefix_memory.saturating_mul(1 << 20),
            ..Limits::default()
        };
        Settings { limits, sessions: self.sessions.clone(), key }
    }
}

/// The model's name for clients: its folder's.
fn id(folder: &Path) -> String {
    // `.` and `..` have a name as well.
    let whole = folder.canonicalize().unwrap_or_else(|_| folder.to_owned());
    whole.file_name().map_or_else(|| "hecate".to_owned(), |name| name.to_string_lossy().into_owned())
}
