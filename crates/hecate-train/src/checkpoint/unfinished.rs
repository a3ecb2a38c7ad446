//! What is not finished, in a folder of its own: nothing else in a run's folder is ever taken for a rest of it.
//!
//! ```text
//! .hecate-unfinished/
//! ├── checkpoint-00000500.new/   is being written; its list of checksums comes first
//! ├── checkpoint-00000400.old/   is no checkpoint any more, and is being removed
//! └── .hecate-….partial         a file that gets its name next
//! ```
//!
//! The folder is there while something is in it. Files are removed by their names one by one: what somebody else put there stays.

use super::{CHECKSUMS, Run, contents::foreign, disk::remove_file, sums};
use hecate_models::{
    Error, Result,
    files::{Unfinished, checkpoint_name, is_folder, names, step_of},
};
use std::{
    fs, io,
    path::{Path, PathBuf},
};

/// The folder's name.
pub(super) const UNFINISHED: &str = ".hecate-unfinished";
/// Ends the name of a checkpoint that is to be.
const NEW: &str = ".new";
/// Ends the name of one that was.
const OLD: &str = ".old";

impl Run {
    /// Writes a file of the run, whole or not at all.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn write(&self, name: &str, content: &[u8]) -> Result<()> {
        let path = self.file(name);
        let written = Unfinished::written(&self.unfinished()?, &path, content).and_then(|file| file.put(&path));
        self.close();
        written
    }

    /// The folder of what is not finished, which is made if need be.
    pub(super) fn unfinished(&self) -> Result<PathBuf> {
        let folder = self.file(UNFINISHED);
        match fs::create_dir(&folder) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                if is_folder(&folder) {
                    Ok(folder)
                } else {
                    Err(foreign(folder))
                }
            }
            other => other.map_err(Error::io("create", &folder)).map(|()| folder),
        }
    }

    /// Removes that folder where nothing is in it.
    pub(super) fn close(&self) {
        let _ = fs::remove_dir(self.file(UNFINISHED));
    }

    /// Where the checkpoint of this step is until it is one.
    pub(super) fn coming(&self, step: u64) -> PathBuf {
        self.file(UNFINISHED).join(format!("{}{NEW}", checkpoint_name(step)))
    }

    /// Where the checkpoint of this step was put away.
    pub(super) fn away(&self, step: u64) -> PathBuf {
        self.file(UNFINISHED).join(format!("{}{OLD}", checkpoint_name(step)))
    }

    /// Step of the newest checkpoint that was put away and not removed yet.
    pub(super) fn put_away_last(&self) -> Result<Option<u64>> {
        let names = names(&self.file(UNFINISHED))?;
        Ok(names.iter().filter_map(|name| step_of(name.strip_suffix(OLD)?)).max())
    }

    /// Removes what was not finished; `reached` is called before each change of the disk.
    pub(super) fn sweep(&self, reached: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        let folder = self.file(UNFINISHED);
        for name in names(&folder)? {
            let path = folder.join(&name);
            if is_ours(&path, &name) {
                reached()?;
                discard(&path)?;
            }
        }
        self.close();
        Ok(())
    }

    /// Something in the folder of what is not finished that Hecate did not write.
    pub(super) fn stranger(&self) -> Result<Option<PathBuf>> {
        let folder = self.file(UNFINISHED);
        for name in names(&folder)? {
            let path = folder.join(&name);
            let members = if is_folder(&path) { names(&path)? } else { Vec::new() };
            let known = listed(&path);
            let other = |member: &String| *member != CHECKSUMS && !known.contains(member);
            match members.iter().find(|member| other(member)) {
                Some(member) => return Ok(Some(path.join(member))),
                None if !is_ours(&path, &name) => return Ok(Some(path)),
                None => {}
            }
        }
        Ok(None)
    }
}

/// Whether Hecate gives such a name to such a thing that is not finished.
fn is_ours(path: &Path, name: &str) -> bool {
    let checkpoint = name.strip_suffix(NEW).or(name.strip_suffix(OLD)).and_then(step_of);
    if is_folder(path) { checkpoint.is_some() } else { Unfinished::is_name(name) }
}

/// Names of the files of a checkpoint, as its list has them; none where the list was not finished.
fn listed(folder: &Path) -> Vec<String> {
    sums(folder).map(|sums| sums.into_keys().collect()).unwrap_or_default()
}

/// Removes a file, or the folder of a checkpoint with the files of its list. Whatever else is in the folder stays, and then so
/// does the folder.
pub(super) fn discard(path: &Path) -> Result<()> {
    if !is_folder(path) {
        return remove_file(path);
    }
    let listed = listed(path);
    listed.iter().try_for_each(|name| remove_file(&path.join(name)))?;
    // Last: a rest without it would be nobody's.
    if names(path)? == [CHECKSUMS] {
        remove_file(&path.join(CHECKSUMS))?;
    }
    match fs::remove_dir(path) {
        Err(error) if error.kind() != io::ErrorKind::DirectoryNotEmpty => Err(Error::io("remove", path)(error)),
        _ => Ok(()),
    }
}
