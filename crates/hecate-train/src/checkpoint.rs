//! The folder of a run, and how checkpoints get into it whole.
//!
//! ```text
//! run/
//! ├── config.json, model.safetensors, …   the newest checkpoint's model, for everybody else
//! ├── best.safetensors                    the weights with the lowest held-out loss, once one was measured
//! ├── .lock                                held by the process that trains it
//! ├── .hecate-unfinished/                  while something is written
//! └── checkpoint-00000500/                 everything that resuming needs
//!     ├── config.json, model.safetensors, training.json, training.safetensors, …
//!     └── checksums.json                   of the others
//! ```
//!
//! A checkpoint is written into the folder of what is not finished, flushed to the disk, and then renamed. That one rename
//! is the moment at which it exists. Whatever is there under its final name is whole. Then its model is put into the run
//! folder file by file, each through a rename too. Only then older checkpoints go: they are renamed away before
//! they are removed. Stopped anywhere in between, the run has the old checkpoint or the new one, never a mix. The
//! files and the sweeping are done again by whoever resumes.
//!
//! Large files take room once. One that did not change since the last checkpoint is a second name of that file, as are those
//! in the run folder. Small files are copied, so that whoever edits one changes no checkpoint. A disk that is full refuses a
//! checkpoint before it exists; what was written of it is removed, and older ones stay.
//!
//! A run's folder may come from anybody. Its files are plain ones of plain names, and are opened without following links. And what
//! Hecate did not write is never removed or replaced: a file is known by its checksum in a checkpoint or beside weights.

mod commit;
mod contents;
mod disk;
#[cfg(test)]
mod tests;
mod unfinished;

pub use contents::{Companion, Contents};
pub(crate) use disk::open_to_change;

use commit::is_refusal;
use disk::remove_file;
use hecate_models::{
    Error, Result,
    files::{checkpoint_name, checksum, names, parse_json, read_file, step_of},
};
use std::{
    borrow::Cow,
    collections::BTreeMap,
    fs::{self, File, OpenOptions, TryLockError},
    io,
    path::{Path, PathBuf},
};

const CHECKSUMS: &str = "checksums.json";
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
        let none = || {
            let why = match fs::metadata(&self.folder) {
                Ok(found) if found.is_dir() => "holds no checkpoint to resume from; start a new run there",
                Ok(_) => "is no folder; name that of a run",
                Err(_) => "no such folder; name that of a run",
            };
            Error::checkpoint(&self.folder, why)
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
        let file = open_to_change(&path, OpenOptions::new().write(true).truncate(false))?;
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
    /// As [`Run::clear`]; if the checkpoint could not be written, the old run is as it was.
    pub fn replace(&self, step: u64, files: &Files<'_>, published: &[&str], beside: &[Companion]) -> Result<()> {
        self.replace_watched(step, files, published, beside, &mut || Ok(()))
    }

    /// The newest checkpoint's step and files, each proven whole. `published` files are put into the run folder again,
    /// and leftovers are removed. That is in case the run was stopped before that was done. A disk that refuses it, being
    /// full, keeps nobody from going on: the next checkpoint tries again.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] if there is none or a file of it is missing or damaged, or one that Hecate did not write is in
    /// the place of one that is published; [`Error::Io`].
    pub fn open(&self, published: &[&str]) -> Result<(u64, Files<'static>)> {
        let step = self.newest()?;
        if self.latest()?.is_none() {
            // Its successor of the same step was not there yet when the run was stopped.
            let (away, back) = (self.away(step), self.checkpoint(step));
            fs::rename(&away, &back).map_err(Error::io("rename", &away))?;
        }
        let files = read(&self.checkpoint(step)).map_err(|error| self.point_back(step, error))?;
        let publish = || self.publish(step, &files, published, &mut || Ok(()));
        // What was put away tells who wrote a published file. On a full disk it may take the room of the next one.
        let first = publish();
        let _ = self.sweep(&mut || Ok(()));
        match if first.as_ref().is_err_and(is_refusal) { publish() } else { first } {
            Err(error @ Error::Checkpoint { .. }) => Err(error),
            _ => Ok((step, files)),
        }
    }

    /// The error of a damaged checkpoint, which tells of the one before it.
    fn point_back(&self, step: u64, error: Error) -> Error {
        let whole = |&old: &u64| old < step && read(&self.checkpoint(old)).is_ok();
        let older = self.steps().unwrap_or_default().into_iter().filter(whole).max();
        match (error, older) {
            (Error::Checkpoint { path, why }, Some(older)) => {
                let folder = self.checkpoint(step);
                let why = format!("{why}, or move {} elsewhere to go on from step {older}", folder.display());
                Error::Checkpoint { path, why }
            }
            (error, _) => error,
        }
    }

    /// Removes the run: its checkpoints, what they published, and these files beside them. Nothing else is touched.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] where Hecate did not write what is there under one of these names, before anything is changed;
    /// [`Error::Io`].
    pub fn clear(&self, published: &[&str], beside: &[Companion]) -> Result<()> {
        self.check_ours(published, beside)?;
        self.remove_all(published, beside)
    }

    /// [`Run::clear`] of what was looked at.
    fn remove_all(&self, published: &[&str], beside: &[Companion]) -> Result<()> {
        self.remove_checkpoints(&self.steps()?, &mut || Ok(()))?;
        self.close();
        let beside = beside.iter().map(|(name, _)| name);
        published.iter().chain(beside).try_for_each(|name| remove_file(&self.file(name)))
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
}

/// Checksums of a checkpoint's files by their names, as they were written.
fn sums(folder: &Path) -> Result<BTreeMap<String, String>> {
    let list = folder.join(CHECKSUMS);
    let sums: BTreeMap<String, String> = parse_json(&list, &read_member(folder, CHECKSUMS)?)?;
    match sums.keys().find(|name| !is_plain(name)) {
        Some(name) => {
            let why = format!("damaged: it names {name:?}, which is no file of a checkpoint; use a copy of it");
            Err(Error::checkpoint(list, why))
        }
        None => Ok(sums),
    }
}

/// Whether a name is that of a file right in a folder, on every system, and could be one of a checkpoint.
fn is_plain(name: &str) -> bool {
    let reserved = |c: char| c.is_control() || "/\\:*?\"<>|".contains(c);
    !name.is_empty() && !name.starts_with('.') && !name.contains(reserved) && name != CHECKSUMS
}

/// A file of a checkpoint, whose folder is no link.
pub(crate) fn read_member(folder: &Path, name: &str) -> Result<Vec<u8>> {
    if fs::symlink_metadata(folder).is_ok_and(|found| !found.is_dir()) {
        let why = "is no folder itself; a checkpoint is one, so put a copy of it there";
        return Err(Error::checkpoint(folder, why));
    }
    read_file(&folder.join(name))
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
