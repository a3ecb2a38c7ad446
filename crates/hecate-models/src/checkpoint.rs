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
//! A checkpoint is written under a name that begins with a dot, flushed to the disk, and then renamed: that one rename
//! is the moment at which it exists. Whatever is there under its final name is whole. Then its model is copied to the
//! run folder file by file, each through a rename too, and only then older checkpoints go, by being renamed away
//! before they are removed. Stopped anywhere in between, the run has the old checkpoint or the new one, never a mix;
//! the copies and the sweeping are done again by whoever resumes.

#[cfg(test)]
mod tests;

use crate::{Error, Result, checksum::checksum};
use std::{
    collections::BTreeMap,
    fs::{self, File, OpenOptions, TryLockError},
    io::{self, Write},
    path::{Path, PathBuf},
};

const CHECKSUMS: &str = "checksums.json";
const PREFIX: &str = "checkpoint-";
const LOCK: &str = ".lock";

/// Names and contents of files that belong together.
pub type Files = BTreeMap<String, Vec<u8>>;

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
        let none = || Error::checkpoint(&self.folder, "holds no checkpoint to resume from; start a new run there");
        self.latest()?.ok_or_else(none)
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

    /// Writes a checkpoint, copies those of its files that are `published` to the run folder, and removes older ones.
    /// Nothing is written again if there is a checkpoint of this step.
    ///
    /// # Errors
    /// [`Error::Io`]; older checkpoints are then as they were.
    pub fn commit(&self, step: u64, files: &Files, published: &[&str]) -> Result<()> {
        self.commit_watched(step, files, published, &mut || Ok(()))
    }

    /// As [`Run::commit`] for the first checkpoint of a run in the place of what was there: the checkpoint is written,
    /// and only then everything goes that [`Run::clear`] removes.
    ///
    /// # Errors
    /// [`Error::Io`]; if the checkpoint could not be written, the old run is as it was.
    pub fn replace(&self, step: u64, files: &Files, published: &[&str], beside: &[&str]) -> Result<()> {
        self.replace_watched(step, files, published, beside, &mut || Ok(()))
    }

    /// The newest checkpoint's step and files, each proven whole; `published` files are copied to the run folder again
    /// and leftovers are removed, in case the run was stopped before that was done.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] if there is none or a file of it is missing or damaged, [`Error::Io`].
    pub fn open(&self, published: &[&str]) -> Result<(u64, Files)> {
        let step = self.newest()?;
        let files = read(&self.checkpoint(step))?;
        self.settle(step, &files, published, &mut || Ok(()))?;
        Ok((step, files))
    }

    /// Removes the run: its checkpoints, what they published, and these files beside them. Nothing else is touched.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn clear(&self, beside: &[&str]) -> Result<()> {
        for step in self.steps()? {
            remove(&self.put_away(step)?)?;
        }
        beside.iter().try_for_each(|name| remove(&self.file(name)))
    }

    /// Where the checkpoint of this step is.
    pub fn checkpoint(&self, step: u64) -> PathBuf {
        self.file(&checkpoint_name(step))
    }

    /// Steps of all checkpoints.
    fn steps(&self) -> Result<Vec<u64>> {
        let names = names(&self.folder)?;
        let step = |name: &String| {
            let step = name.strip_prefix(PREFIX)?.parse().ok()?;
            (*name == checkpoint_name(step)).then_some(step)
        };
        Ok(names.iter().filter_map(step).collect())
    }

    /// Renames a checkpoint so that it is no longer one, to what it returns.
    fn put_away(&self, step: u64) -> Result<PathBuf> {
        let (old, away) = (self.checkpoint(step), self.file(&format!(".{}.old.partial", checkpoint_name(step))));
        remove(&away)?;
        fs::rename(&old, &away).map_err(Error::io("rename", &old))?;
        Ok(away)
    }

    /// [`Run::commit`], calling `reached` before every change of the disk: an error there is as good as a power cut.
    fn commit_watched(&self, step: u64, files: &Files, published: &[&str], reached: Reached) -> Result<()> {
        if !self.checkpoint(step).exists() {
            self.stage(step, files, reached)?;
            self.enter(step, reached)?;
        }
        self.settle(step, files, published, reached)
    }

    /// [`Run::replace`], watched as [`Run::commit_watched`].
    fn replace_watched(
        &self,
        step: u64,
        files: &Files,
        published: &[&str],
        beside: &[&str],
        reached: Reached,
    ) -> Result<()> {
        self.stage(step, files, reached)?;
        self.clear(beside)?;
        self.enter(step, reached)?;
        self.settle(step, files, published, reached)
    }

    /// Writes a checkpoint under its partial name.
    fn stage(&self, step: u64, files: &Files, reached: Reached) -> Result<()> {
        reached()?;
        fs::create_dir_all(&self.folder).map_err(Error::io("create", &self.folder))?;
        let partial = self.partial(&self.checkpoint(step));
        remove(&partial)?;
        fs::create_dir(&partial).map_err(Error::io("create", &partial))?;
        for (name, content) in files.iter().chain([(&CHECKSUMS.to_owned(), &checksums(files)?)]) {
            reached()?;
            write(&partial.join(name), content)?;
        }
        flush(&partial)
    }

    /// Makes a staged checkpoint exist.
    fn enter(&self, step: u64, reached: Reached) -> Result<()> {
        let target = self.checkpoint(step);
        let partial = self.partial(&target);
        reached()?;
        fs::rename(&partial, &target).map_err(Error::io("rename", &partial))?;
        flush(&self.folder)
    }

    /// What comes after a checkpoint exists.
    fn settle(&self, step: u64, files: &Files, published: &[&str], reached: Reached) -> Result<()> {
        for name in published {
            let Some(content) = files.get(*name) else { continue };
            let target = self.file(name);
            if fs::read(&target).is_ok_and(|found| found == *content) {
                continue;
            }
            let partial = self.partial(&target);
            reached()?;
            write(&partial, content)?;
            reached()?;
            fs::rename(&partial, &target).map_err(Error::io("rename", &partial))?;
        }
        flush(&self.folder)?;
        for old in self.steps()?.into_iter().filter(|&old| old != step) {
            reached()?;
            self.put_away(old)?;
        }
        for name in names(&self.folder)?.iter().filter(|name| name.starts_with('.') && name.ends_with(".partial")) {
            reached()?;
            remove(&self.file(name))?;
        }
        Ok(())
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

/// Called before every change of the disk.
type Reached<'a> = &'a mut dyn FnMut() -> Result<()>;

/// Writes a file so that it is there whole or not at all.
///
/// # Errors
/// [`Error::Io`].
pub fn write_whole(path: &Path, content: &[u8]) -> Result<()> {
    let folder = path.parent().unwrap_or(Path::new(""));
    let run = Run::new(folder);
    let partial = run.partial(path);
    write(&partial, content)?;
    fs::rename(&partial, path).map_err(Error::io("rename", &partial))?;
    flush(folder)
}

/// Files of a checkpoint, each as its checksum says.
fn read(folder: &Path) -> Result<Files> {
    let list = folder.join(CHECKSUMS);
    let sums: BTreeMap<String, String> = parse_json(&list, &read_file(&list)?)?;
    sums.into_iter()
        .map(|(name, sum)| {
            let path = folder.join(&name);
            let content = read_file(&path)?;
            if checksum(&content) == sum {
                return Ok((name, content));
            }
            Err(Error::checkpoint(path, "damaged: its checksum does not fit; use a copy of it, or start a new run"))
        })
        .collect()
}

fn checksums(files: &Files) -> Result<Vec<u8>> {
    let sums: BTreeMap<&String, String> = files.iter().map(|(name, content)| (name, checksum(content))).collect();
    to_json(Path::new(CHECKSUMS), &sums)
}

/// A file that must be there.
pub(crate) fn read_file(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).map_err(|source| match source.kind() {
        io::ErrorKind::NotFound => Error::checkpoint(path, "missing; train a model there first, or use a copy of it"),
        _ => Error::Io { action: "read", path: path.to_owned(), source },
    })
}

/// What a JSON file says.
pub(crate) fn parse_json<T: serde::de::DeserializeOwned>(path: &Path, content: &[u8]) -> Result<T> {
    serde_json::from_slice(content)
        .map_err(|error| Error::checkpoint(path, format!("{error}; correct it, or use a copy of it")))
}

/// A value as indented JSON.
pub(crate) fn to_json<T: serde::Serialize>(path: &Path, value: &T) -> Result<Vec<u8>> {
    let mut text = serde_json::to_vec_pretty(value).map_err(|error| Error::checkpoint(path, error.to_string()))?;
    text.push(b'\n');
    Ok(text)
}

/// Names in a folder; none if there is no such folder.
fn names(folder: &Path) -> Result<Vec<String>> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other.map_err(Error::io("read", folder))?,
    };
    entries
        .map(|entry| Ok(entry.map_err(Error::io("read", folder))?.file_name().to_string_lossy().into_owned()))
        .collect()
}

fn write(path: &Path, content: &[u8]) -> Result<()> {
    let mut file = File::create(path).map_err(Error::io("create", path))?;
    file.write_all(content).and_then(|()| file.sync_all()).map_err(Error::io("write", path))
}

/// Makes the names in a folder last; only Unix can and need do so.
fn flush(folder: &Path) -> Result<()> {
    if cfg!(unix) && !folder.as_os_str().is_empty() {
        File::open(folder).and_then(|file| file.sync_all()).map_err(Error::io("flush", folder))?;
    }
    Ok(())
}

/// Removes a file or folder; one that is not there is fine.
fn remove(path: &Path) -> Result<()> {
    let result = if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
    match result {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(Error::io("remove", path)(error)),
        _ => Ok(()),
    }
}
