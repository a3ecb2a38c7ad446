//! Folders of runs.

use crate::{
    defaults,
    error::{Error, Result},
};
use clap::Args;
use hecate::{
    Backend,
    models::{
        LanguageModel, Vocabulary,
        trained::{Trained, WhichWeights, load_config},
    },
};
use std::{
    fs,
    path::{Path, PathBuf},
    time::SystemTime,
};

/// The given folder, or that of the run trained last; `flag` names one.
pub(crate) fn find(given: Option<PathBuf>, flag: &str) -> Result<PathBuf> {
    if let Some(folder) = given {
        return Ok(folder);
    }
    // Without a folder of runs there is none, which is said below.
    let entries = fs::read_dir(defaults::RUNS).into_iter().flatten().flatten();
    let mut runs: Vec<_> = entries.filter_map(|entry| Some((trained(&entry.path())?, entry.path()))).collect();
    runs.sort_unstable();
    // From the newest on, so that few configurations are read.
    let latest = runs.into_iter().rev().find(|(_, folder)| !is_quantized(folder));
    latest.map(|(_, folder)| folder).ok_or_else(|| {
        let found = if Path::new(defaults::RUNS).is_dir() { "in it" } else { "here" };
        let why = format!("no trained run {found}; train one with `hecate train`, or name one with `{flag} DIR`");
        Error::file(defaults::RUNS, why)
    })
}

/// Refuses what is no folder of a run; `way_out` says what to do.
pub(crate) fn check_run(folder: &Path, way_out: &str) -> Result<()> {
    match fs::metadata(folder) {
        Ok(found) if found.is_dir() => Ok(()),
        Ok(_) => Err(Error::file(folder, format!("is no folder, and a run is one; {way_out}"))),
        Err(_) => Err(Error::file(folder, format!("no such folder; {way_out}"))),
    }
}

/// Refuses a folder that is a file or would be below one: the system would only say that it is no directory.
pub(crate) fn check_folder(folder: &Path, flag: &str) -> Result<()> {
    // The nearest that is there: what is missing below it can be made.
    match folder.ancestors().find(|path| path.exists()) {
        Some(path) if !path.is_dir() => {
            let why = format!("{} is a file; name a folder with `{flag} DIR`", path.display());
            Err(Error::flag(flag, why))
        }
        _ => Ok(()),
    }
}

/// Whether it has a quantized copy of a run, which nobody trained.
fn is_quantized(folder: &Path) -> bool {
    load_config(&folder.join("config.json")).is_ok_and(|config| config.quantization.is_some())
}

/// The last weights of a run.
pub(crate) const MODEL: &str = "model.safetensors";

/// When the run's model was last written.
pub(crate) fn trained(folder: &Path) -> Option<SystemTime> {
    // Of a link itself, which is not followed.
    fs::symlink_metadata(folder.join(MODEL)).ok()?.modified().ok()
}

/// Which weights of which run.
#[derive(Args, Debug)]
pub(crate) struct RunArgs {
    /// Folder of the run; the one trained last unless given
    #[arg(long, value_name = "DIR")]
    run: Option<PathBuf>,
    /// Use the weights that did best on the held-out text, instead of the last ones
    #[arg(long)]
    best: bool,
}

impl RunArgs {
    /// The folder.
    ///
    /// # Errors
    /// As [`find`].
    pub(crate) fn folder(&self) -> Result<PathBuf> {
        find(self.run.clone(), "--run")
    }

    /// The model in this folder, and what its tokens mean.
    ///
    /// # Errors
    /// As [`open`].
    pub(crate) fn open<B: Backend>(&self, device: &B, folder: &Path) -> Result<(LanguageModel<B>, Vocabulary)> {
        let Trained { model, vocabulary, .. } = self.load(device, folder)?;
        Ok((model, vocabulary))
    }

    /// As [`RunArgs::open`], and the content of the tokenizer's file.
    ///
    /// # Errors
    /// As [`open`].
    pub(crate) fn load<B: Backend>(&self, device: &B, folder: &Path) -> Result<Trained<B>> {
        open(device, folder, self.best, "--run")
    }
}

/// The model in a run's folder, and what its tokens mean; `flag` names another.
pub(crate) fn open<B: Backend>(device: &B, folder: &Path, best: bool, flag: &str) -> Result<Trained<B>> {
    check_run(folder, &format!("train a model with `hecate train --out DIR`, or name another with `{flag} DIR`"))?;
    // The library would say that a longer training writes such a file.
    if best && is_quantized(folder) {
        let why = format!(
            "{} is a quantized copy, whose weights are the only ones; leave it out, or copy the run's best ones with \
             `hecate quantize --best`",
            folder.display()
        );
        return Err(Error::flag("--best", why));
    }
    let trained = Trained::load(device, folder, if best { WhichWeights::Best } else { WhichWeights::Last })?;
    check_vocabulary(trained.model.vocabulary_size(), &trained.vocabulary)?;
    Ok(trained)
}

/// Refuses a model that knows fewer tokens than its vocabulary has.
pub(crate) fn check_vocabulary(model: usize, vocabulary: &Vocabulary) -> Result<()> {
    if model >= vocabulary.size() {
        return Ok(());
    }
    let expected = format!("at least {}, the size of its vocabulary", vocabulary.size());
    Err(hecate::models::Error::config("vocabulary_size", model, expected).into())
}
