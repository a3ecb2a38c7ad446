//! `hecate info` and `hecate runs`: what runs there are, how far they came, and what a released model is.
//!
//! Nothing is loaded but descriptions: a run's weights are counted by the header of their file.

use crate::{
    defaults,
    error::{Error, Result},
    measure::learned_windows,
    released,
    runs::{MODEL, check_run, find, trained},
    table::Table,
    train::{CURVE, METRICS},
    visible::{visible, visible_path},
};
use clap::Args;
use hecate::{
    Bytes,
    models::{
        Config, MixerConfig,
        trained::load_config,
        weights::{Alike, stored},
    },
    train::{
        Standing,
        checkpoint::Run,
        metrics::{Record, read_metrics},
    },
};
use indicatif::{HumanCount, HumanDuration};
use std::{
    collections::BTreeMap,
    fs,
    io::{Write, stdout},
    path::{Path, PathBuf},
    process::ExitCode,
    time::SystemTime,
};

/// Flags of `hecate info`.
#[derive(Args, Debug)]
pub(crate) struct InfoArgs {
    /// Folder of the run; the one trained last unless given
    #[arg(value_name = "RUN")]
    run: Option<PathBuf>,
    /// The same by a flag, as other commands have it
    #[arg(long = "run", value_name = "DIR", conflicts_with = "run")]
    named: Option<PathBuf>,
    /// Model that others released: a folder as Hugging Face has it, or a GGUF file
    #[arg(long, value_name = "PATH", conflicts_with_all = ["run", "named"])]
    model: Option<PathBuf>,
}

/// Flags of `hecate runs`.
#[derive(Args, Debug)]
pub(crate) struct RunsArgs {
    /// Folder with runs in it
    #[arg(value_name = "DIR", default_value = defaults::RUNS)]
    folder: PathBuf,
}

/// Prints what a run is, and how far it came.
pub(crate) fn run(arguments: InfoArgs) -> Result<ExitCode> {
    if let Some(folder) = arguments.model {
        return released::describe(folder);
    }
    let folder = find(arguments.run.or(arguments.named), "hecate info")?;
    check_run(&folder, "`hecate runs` lists the runs that there are")?;
    // All of it is read before a line is printed: half a description helps nobody.
    let summary = Summary::read(&folder)?;
    let mut out = stdout().lock();
    // Names of texts and folders may hold control characters.
    let mut line = |name: &str, what: String| writeln!(out, "{name:<11} {}", visible(&what));
    line("run", visible_path(&folder))?;
    line("model", describe(&summary.config))?;
    line("parameters", HumanCount(summary.parameters()).to_string())?;
    if summary.config.quantization.is_some() {
        let arrays = summary.stored.iter().map(|(name, alike)| format!("{} in {name}", alike.arrays));
        line("arrays", arrays.collect::<Vec<_>>().join(", "))?;
    }
    line("on disk", Bytes(size(&folder)?.into()).to_string())?;
    // A model that somebody else made has weights and no training.
    if let Some(Standing { step, settings, plan, .. }) = &summary.standing {
        line("steps", format!("{step} of {}, each of {} tokens", settings.schedule.steps, settings.tokens_per_step()))?;
        line("text", format!("{}, {}", texts(&plan.text), Bytes(plan.identity.bytes as u128)))?;
    }
    line("best", summary.best().map_or("not measured yet".to_owned(), held_out))?;
    line("last loss", summary.learned())?;
    // Drawn with the first checkpoint after a step.
    let picture = folder.join(CURVE);
    line("picture", if picture.is_file() { visible_path(&picture) } else { "not drawn yet".to_owned() })?;
    Ok(ExitCode::SUCCESS)
}

/// Prints a row a run, the one written last at the end.
pub(crate) fn list(arguments: RunsArgs) -> Result<ExitCode> {
    let folder = arguments.folder;
    check_run(&folder, "train a run with `hecate train`, or name another folder with `hecate runs DIR`")?;
    let entries = fs::read_dir(&folder).map_err(|source| Error::Io { path: folder.clone(), source })?;
    // Folders below are not looked into: a run's own checkpoints have weights too.
    let mut runs: Vec<(SystemTime, PathBuf)> =
        entries.flatten().filter_map(|entry| Some((trained(&entry.path())?, entry.path()))).collect();
    runs.sort();
    if runs.is_empty() {
        return Err(none(&folder));
    }
    let mut table = Table::new(&["run", "model", "parameters", "steps", "bits/byte, one pass", "age"]);
    // All rows are there: columns are as wide as the widest of them.
    let rows: Vec<_> = runs.iter().map(|(at, run)| row(run, *at)).collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    table = table.with_widths(std::array::from_fn(width));
    rows.into_iter().try_for_each(|row| table.row(row))?;
    Ok(ExitCode::SUCCESS)
}

/// The error of a folder without runs.
fn none(folder: &Path) -> Error {
    Error::file(folder, "no runs in it; train one with `hecate train`, or name another folder with `hecate runs DIR`")
}

/// What is known of a run without its weights.
struct Summary {
    /// What its model is made of.
    config: Config,
    /// How its weights are stored.
    stored: BTreeMap<String, Alike>,
    /// None where there is a model and no run.
    standing: Option<Standing>,
    /// A line a step.
    records: Vec<Record>,
}

impl Summary {
    /// Of the run in this folder.
    ///
    /// # Errors
    /// A configuration, weights or a checkpoint that are missing or cannot be understood.
    fn read(folder: &Path) -> Result<Self> {
        let run = Run::new(folder);
        let config = load_config(&run.file("config.json"))?;
        let (stored, standing) = (stored(&run.file(MODEL), config.quantization)?, Standing::read(&run)?);
        Ok(Self { config, stored, standing, records: read_metrics(&run.file(METRICS))? })
    }

    /// Elements of all its weights.
    fn parameters(&self) -> u64 {
        self.stored.values().map(|alike| alike.elements).fold(0, u64::saturating_add)
    }

    /// The measurement on held-out text with the lowest loss.
    fn best(&self) -> Option<&Record> {
        // Not that of the checkpoint: a record tells the step too.
        let measured = self.records.iter().filter_map(|record| Some((record.held_out_loss?, record)));
        measured.min_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, record)| record)
    }

    /// The loss of the last step, and what it is of where the training is known.
    fn learned(&self) -> String {
        let Some(record) = self.records.iter().rfind(|record| record.loss.is_some()) else {
            return "no step yet".to_owned();
        };
        let of = self.standing.as_ref().map_or_else(String::new, |x| format!(" ({})", learned_windows(&x.settings)));
        let (bits, nats) = (record.bits_per_byte.unwrap_or(f64::NAN), record.loss.unwrap_or(f64::NAN));
        format!("{bits:.4} bits/byte, {nats:.4} nats/token{of}, in step {}", record.step)
    }
}

/// Cells of a run; of one that cannot be read, why.
fn row(folder: &Path, written: SystemTime) -> [String; 6] {
    let name = visible(&folder.file_name().unwrap_or_default().to_string_lossy());
    let age = format!("{:#}", HumanDuration(written.elapsed().unwrap_or_default()));
    // In the place of what is not known.
    let dash = || "-".to_owned();
    match Summary::read(folder) {
        Ok(summary) => {
            let steps = summary.standing.as_ref().map(|x| format!("{}/{}", x.step, x.settings.schedule.steps));
            let best = summary.best().and_then(|record| record.held_out_bits_per_byte);
            let best = best.map_or_else(dash, |bits| format!("{bits:.3}"));
            [
                name,
                mixers(&summary.config),
                HumanCount(summary.parameters()).to_string(),
                steps.unwrap_or_else(dash),
                best,
                age,
            ]
        }
        // `hecate info` says why.
        Err(_) => [name, "damaged".to_owned(), dash(), dash(), dash(), age],
    }
}

/// Mixers, blocks, width and what tokens are.
fn describe(config: &Config) -> String {
    let tokens =
        if config.vocabulary_size == 256 { "bytes".to_owned() } else { format!("{} tokens", config.vocabulary_size) };
    let layers = match config.layers.len() {
        1 => "1 layer".to_owned(),
        count => format!("{count} layers"),
    };
    let stored = config.quantization.map_or_else(String::new, |format| format!(", in {format}"));
    format!("{} in {layers} of width {}, of {tokens}{stored}", mixers(config), config.hidden_size)
}

/// What the blocks are made of, each kind once.
fn mixers(config: &Config) -> String {
    let mut names: Vec<String> = Vec::new();
    for layer in &config.layers {
        let name = mixer(&layer.mixer);
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names.join(", ")
}

/// The rule of a memory alone, else the composition and its rule, by the names that configurations have.
fn mixer(mixer: &MixerConfig) -> String {
    // A name that is not there reads as null, which is no text.
    let mixer = serde_json::to_value(mixer).unwrap_or_default();
    let kind = mixer["kind"].as_str().unwrap_or("unknown");
    match (mixer["rule"]["name"].as_str(), mixer["memory"]["rule"]["name"].as_str()) {
        (Some(rule), _) => rule.to_owned(),
        (None, Some(rule)) => format!("{kind} ({rule})"),
        (None, None) => kind.to_owned(),
    }
}

/// Bytes of all files in a folder and below it. Files that have several names there count once.
fn size(folder: &Path) -> Result<u64> {
    let io = |source| Error::Io { path: folder.to_owned(), source };
    // Devices and numbers of files, by which the system knows them.
    let mut seen = Vec::new();
    // Folders that are still to be looked into.
    let mut folders = vec![folder.to_owned()];
    let mut all = 0;
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).map_err(io)? {
            let entry = entry.map_err(io)?;
            let found = entry.metadata().map_err(io)?;
            if found.is_dir() {
                folders.push(entry.path());
            } else if !is_again(&found, &mut seen) {
                all += found.len();
            }
        }
    }
    Ok(all)
}

/// Whether this is another name of a file that was seen.
#[cfg(unix)]
fn is_again(found: &fs::Metadata, seen: &mut Vec<(u64, u64)>) -> bool {
    use std::os::unix::fs::MetadataExt;
    let file = (found.dev(), found.ino());
    // Most files have one name, and need not be looked for.
    let again = found.nlink() > 1 && seen.contains(&file);
    seen.push(file);
    again
}

/// Other systems do not tell.
#[cfg(not(unix))]
fn is_again(_: &fs::Metadata, _: &mut Vec<(u64, u64)>) -> bool {
    false
}

/// Paths of a text, or what it is instead.
fn texts(paths: &[PathBuf]) -> String {
    match paths {
        [] => "Hecate's own sources".to_owned(),
        [path] if crate::sources::is_stdin(path) => "standard input, kept with the run".to_owned(),
        [path] => path.display().to_string(),
        [first, more @ ..] => format!("{} and {} more", first.display(), more.len()),
    }
}

/// A measurement on held-out text.
fn held_out(record: &Record) -> String {
    // Records of before have the loss alone.
    let bits = record.held_out_bits_per_byte.unwrap_or(f64::NAN);
    let loss = record.held_out_loss.unwrap_or(f64::NAN);
    format!("{bits:.4} bits/byte, {loss:.4} nats/token held out (one pass), after step {}", record.step)
}
