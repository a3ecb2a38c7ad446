//! The folder of a run, and how checkpoints get into it whole.
//!
//! ```text
//! run/
//! ├── config.json, model.safetensors, …   the newest checkpoint's model, for everybody else
//! ├── best.safetensors                    the weights with the lowest held-out loss, once one was measured
//! ├── .lock                                held by the process that trains it
//! └── checkpoint-00000500/                 everything that resuming needs
//!     ├── config.json, model.safetensors, training.json, training.safetensors, …
//!     └── checksums.json                   of the others
//! ```
//!
//! A checkpoint is written under a name that begins with a dot, flushed to the disk, and then renamed. That one rename
//! is the moment at which it exists. Whatever is there under its final name is whole. Then its model is put into the run
//! folder file by file, each through a rename too. Only then older checkpoints go: they are renamed away before
//! they are removed. Stopped anywhere in between, the run has the old checkpoint or the new one, never a mix. The
//! files and the sweeping are done again by whoever resumes.
//!
//! Large files take room once. One that did not change since the last checkpoint is a second name of that file, as are those
//! in the run folder. Small files are copied, so that whoever edits one changes no checkpoint. A disk that is full refuses a
//! checkpoint before it exists; what was written of it is removed, and older ones stay.

mod commit;
mod disk;
#[cfg(test)]
mod tests;

pub use disk::write_whole;
pub(crate) use disk::{read_file, write_whole_with};

use crate::{Error, Result, checksum::checksum, json};
use disk::{names, remove};
use serde::{Serialize, de::DeserializeOwned};
use std::{
    borrow::Cow,
    collections::BTreeMap,
    fs::{self, File, OpenOptions, TryLockError},
    io,
    path::{Path, PathBuf},
};

const CHECKSUMS: &str = "checksums.json";
const PREFIX: &str = "checkpoint-";
/// Ends the name of a checkpoint that is to be removed.
const AWAY: &str = ".old.partial";
const LOCK: &str = ".lock";

/// Names and contents of files that belong together.
pub type Files<'a> = BTreeMap<String, Cow<'a, [u8]>>;

/// The folder of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    folder: PathBuf,
}

/// The right to change a run, given back when it is dropped or its process ends.
#[derive(Debug)]
pub struct Lock {
    _file: File,
}

impl Run {
    /// The run in this folder, which need not exist yet.
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self { folder: folder.into() }
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// A file in the folder.
    pub fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Step of the newest checkpoint, if there is any.
    ///
    /// # Errors
    /// [`Error::Io`] if the folder cannot be read.
    pub fn latest(&self) -> Result<Option<u64>> {
        Ok(self.steps()?.into_iter().max())
    }

    /// Step of the newest checkpoint.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] if there is none, [`Error::Io`].
    pub fn newest(&self) -> Result<u64> {
        let none = || match self.folder.is_dir() {
            true => Error::checkpoint(&self.folder, "holds no checkpoint to resume from; start a new run there"),
            false => Error::checkpoint(&self.folder, "no such folder; name that of a run"),
        };
        self.latest()?.or(self.put_away_last()?).ok_or_else(none)
    }

    /// Keeps other processes from training in this folder, which is made if need be. Without effect on file systems
    /// that have no locks.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] if another process holds it, [`Error::Io`].
    pub fn lock(&self) -> Result<Lock> {
        fs::create_dir_all(&self.folder).map_err(Error::io("create", &self.folder))?;
        let path = self.file(LOCK);
        let options = OpenOptions::new().write(true).create(true).truncate(false).open(&path);
        let file = options.map_err(Error::io("open", &path))?;
        match file.try_lock() {
            Err(TryLockError::WouldBlock) => {
                let why = "this run is being trained by another process; wait for it, or name another folder";
                Err(Error::checkpoint(&self.folder, why))
            }
            Err(TryLockError::Error(error)) if error.kind() != io::ErrorKind::Unsupported => {
                Err(Error::io("lock", &path)(error))
            }
            _ => Ok(Lock { _file: file }),
        }
    }

    /// Writes a checkpoint, puts those of its files that are `published` into the run folder, and removes all but the
    /// newest `keep` checkpoints, at least one. Nothing is written again if there is a checkpoint of this step with these
    /// files. Where the disk is full, checkpoints that this one supersedes give way to it; at least one is left.
    ///
    /// # Errors
    /// [`Error::Io`]. The newest checkpoint of before is then as it was, and what was written of this one is removed.
    pub fn commit(&self, step: u64, files: &Files<'_>, published: &[&str], keep: usize) -> Result<()> {
        self.commit_watched(step, files, published, keep, &mut || Ok(()))
    }

    /// As [`Run::commit`] for the first checkpoint of a run in the place of what was there: the checkpoint is written,
    /// and only then everything goes that [`Run::clear`] removes.
    ///
    /// # Errors
    /// [`Error::Io`]; if the checkpoint could not be written, the old run is as it was.
    pub fn replace(&self, step: u64, files: &Files<'_>, published: &[&str], beside: &[&str]) -> Result<()> {
        self.replace_watched(step, files, published, beside, &mut || Ok(()))
    }

    /// The newest checkpoint's step and files, each proven whole. `published` files are put into the run folder again,
    /// and leftovers are removed. That is in case the run was stopped before that was done. A disk that refuses it, being
    /// full, keeps nobody from going on: the next checkpoint tries again.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] if there is none or a file of it is missing or damaged, [`Error::Io`].
    pub fn open(&self, published: &[&str]) -> Result<(u64, Files<'static>)> {
        let step = self.newest()?;
        if self.latest()?.is_none() {
            // Its successor of the same step was not there yet when the run was stopped.
            let (away, back) = (self.away(step), self.checkpoint(step));
            fs::rename(&away, &back).map_err(Error::io("rename", &away))?;
        }
        let files = read(&self.checkpoint(step)).map_err(|error| self.point_back(step, error))?;
        let _ = self.sweep(&mut || Ok(()));
        let _ = self.publish(step, &files, published, &mut || Ok(()));
        Ok((step, files))
    }

    /// The error of a damaged checkpoint, which tells of the one before it.
    fn point_back(&self, step: u64, error: Error) -> Error {
        let whole = |&old: &u64| old < step && read(&self.checkpoint(old)).is_ok();
        let older = self.steps().unwrap_or_default().into_iter().filter(whole).max();
        match (error, older) {
            (Error::Checkpoint { path, why }, Some(older)) => {
                let folder = self.checkpoint(step);
                let why = format!("{why}, or remove {} to go on from step {older}", folder.display());
                Error::Checkpoint { path, why }
            }
            (error, _) => error,
        }
    }

    /// Removes the run: its checkpoints, what they published, and these files beside them. Nothing else is touched.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn clear(&self, beside: &[&str]) -> Result<()> {
        self.remove_checkpoints(&self.steps()?, &mut || Ok(()))?;
        beside.iter().try_for_each(|name| remove(&self.file(name)))
    }

    /// Where the checkpoint of this step is.
    pub fn checkpoint(&self, step: u64) -> PathBuf {
        self.file(&checkpoint_name(step))
    }

    /// Steps of all checkpoints.
    fn steps(&self) -> Result<Vec<u64>> {
        let names = names(&self.folder)?;
        Ok(names.iter().filter_map(|name| step_of(name)).collect())
    }

    /// The name under which a file or folder is not yet, or no longer, part of the run.
    fn partial(&self, target: &Path) -> PathBuf {
        let name = target.file_name().unwrap_or_default().to_string_lossy();
        self.file(&format!(".{name}.partial"))
    }
}

fn checkpoint_name(step: u64) -> String {
    format!("{PREFIX}{step:08}")
}

/// The step of a checkpoint of this name; none for names that are never written.
fn step_of(name: &str) -> Option<u64> {
    let step = name.strip_prefix(PREFIX)?.parse().ok()?;
    (name == checkpoint_name(step)).then_some(step)
}

/// Checksums of a checkpoint's files by their names, as they were written.
fn sums(folder: &Path) -> Result<BTreeMap<String, String>> {
    let list = folder.join(CHECKSUMS);
    parse_json(&list, &read_file(&list)?)
}

/// Files of a checkpoint, each as its checksum says.
fn read(folder: &Path) -> Result<Files<'static>> {
    let sums = sums(folder)?;
    if sums.is_empty() {
        return Err(Error::checkpoint(folder.join(CHECKSUMS), "damaged: it names no file; use a copy of it"));
    }
    sums.into_iter()
        .map(|(name, sum)| {
            let path = folder.join(&name);
            let content = read_file(&path)?;
            if checksum(&content) == sum {
                return Ok((name, content.into()));
            }
            Err(Error::checkpoint(path, "damaged: its checksum does not fit; use a copy of it, or start a new run"))
        })
        .collect()
}

fn checksums(files: &Files<'_>) -> BTreeMap<String, String> {
    files.iter().map(|(name, content)| (name.clone(), checksum(content))).collect()
}

/// What a JSON file says.
pub(crate) fn parse_json<T: DeserializeOwned + Serialize>(path: &Path, content: &[u8]) -> Result<T> {
    json::from_slice(content)
        .map_err(|error| Error::checkpoint(path, format!("{error}; correct it, or use a copy of it")))
}

/// A value as indented JSON.
pub(crate) fn to_json<T: Serialize>(path: &Path, value: &T) -> Result<Vec<u8>> {
    let mut text = serde_json::to_vec_pretty(value).map_err(|error| Error::checkpoint(path, error.to_string()))?;
    text.push(b'\n');
    Ok(text)
}
