//! What in a folder Hecate wrote: by names and by contents. Nothing else is ever removed or replaced.

use super::{CHECKSUMS, LOCK, Run, sums, unfinished::UNFINISHED};
use hecate_models::{
    Error, Result,
    files::{self, Links, checksum_of, names, read_file, step_of},
    weights::{Beside, verify},
};
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

/// A file beside a run's checkpoints: its name, and whether a content is one that Hecate writes there.
pub type Companion = (&'static str, fn(&[u8]) -> bool);

/// Who wrote something in a folder.
enum Verdict {
    /// Hecate: it is of a run or of a model.
    Ours,
    /// Hecate, and nobody misses it.
    Rest,
    /// Somebody else, under a name that no run has.
    Other,
    /// Somebody else, where a run would write.
    InTheWay(PathBuf),
}

/// What a folder holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Contents {
    /// Nothing that counts: a new run may begin there.
    Nothing,
    /// A run, or a model of Hecate's; files of other names beside it are left alone.
    Ours,
    /// Something else: there is no run of Hecate's, or this is in the place of one of its files.
    Foreign(PathBuf),
}

impl Run {
    /// What the run's folder holds: `published` are names of files that its checkpoints have too, `beside` others of the run.
    ///
    /// # Errors
    /// [`Error::Io`] for a folder that cannot be read.
    pub fn contents(&self, published: &[&str], beside: &[Companion]) -> Result<Contents> {
        let mut all = names(self.folder())?;
        all.sort();
        let origin = Origin::of(self, &all);
        let (mut ours, mut others) = (false, None);
        for name in &all {
            match self.judge(name, &origin, published, beside)? {
                Verdict::Ours => ours = true,
                Verdict::Rest => {}
                Verdict::Other => others = others.or_else(|| Some(self.file(name))),
                Verdict::InTheWay(path) => return Ok(Contents::Foreign(path)),
            }
        }
        Ok(match others {
            _ if ours => Contents::Ours,
            Some(path) => Contents::Foreign(path),
            None => Contents::Nothing,
        })
    }

    /// Who wrote what is in the folder under this name.
    fn judge(&self, name: &str, origin: &Origin, published: &[&str], beside: &[Companion]) -> Result<Verdict> {
        let path = self.file(name);
        let ours = match name {
            LOCK if files::open(&path, Links::Refuse).is_ok_and(|(_, found)| found.len() == 0) => {
                return Ok(Verdict::Rest);
            }
            UNFINISHED if files::is_folder(&path) => {
                return Ok(self.stranger()?.map_or(Verdict::Rest, Verdict::InTheWay));
            }
            LOCK | UNFINISHED => false,
            _ if step_of(name).is_some() => is_whole(&path),
            _ if published.contains(&name) => origin.wrote(&path, name),
            _ => match beside.iter().find(|(known, _)| *known == name) {
                Some(companion) => !self.is_foreign(companion),
                None => return Ok(Verdict::Other),
            },
        };
        Ok(if ours { Verdict::Ours } else { Verdict::InTheWay(path) })
    }

    /// Whether something is in the place of this file of the run that Hecate did not write.
    pub fn is_foreign(&self, (name, is_known): &Companion) -> bool {
        let path = self.file(name);
        files::is_there(&path) && !read_file(&path).is_ok_and(|content| is_known(&content))
    }

    /// Refuses a folder with something else in it than a run.
    pub(super) fn check_ours(&self, published: &[&str], beside: &[Companion]) -> Result<()> {
        match self.contents(published, beside)? {
            Contents::Foreign(path) => Err(foreign(path)),
            Contents::Nothing | Contents::Ours => Ok(()),
        }
    }
}

/// The error of something that Hecate did not write, where it would write.
pub(super) fn foreign(path: PathBuf) -> Error {
    Error::checkpoint(path, "is not what Hecate wrote, so it is not touched; move it elsewhere, or name another folder")
}

/// Whether a folder is a checkpoint and nothing else: files that its list has, each as its checksum says.
pub(super) fn is_whole(folder: &Path) -> bool {
    let (Ok(sums), Ok(names)) = (sums(folder), names(folder)) else { return false };
    names.iter().all(|name| name == CHECKSUMS || sums.contains_key(name))
        && sums.iter().all(|(name, sum)| checksum_of(&folder.join(name)).as_ref() == Some(sum))
}

/// By what files of a run are known.
pub(super) struct Origin {
    /// Checksums of its checkpoints' files, also of those that were put away.
    checkpoints: Vec<BTreeMap<String, String>>,
    /// What its weights say that they were written beside.
    beside: Vec<Beside>,
}

impl Origin {
    /// Of a run whose folder has these names.
    pub(super) fn of(run: &Run, all: &[String]) -> Self {
        let away = run.put_away_last().ok().flatten().map(|step| run.away(step));
        let folders = all.iter().filter(|name| step_of(name).is_some()).map(|name| run.file(name)).chain(away);
        let weights = all.iter().filter(|name| is_weights(name)).map(|name| run.file(name));
        Self {
            checkpoints: folders.filter_map(|folder| sums(&folder).ok()).collect(),
            beside: weights.filter_map(|path| marked(&path)).collect(),
        }
    }

    /// Whether Hecate wrote this file of the run: a checkpoint has the same one, or it was written beside weights of the run,
    /// or is weights that bear Hecate's mark.
    pub(super) fn wrote(&self, path: &Path, name: &str) -> bool {
        let Some(sum) = checksum_of(path) else { return false };
        let known = |sums: &BTreeMap<String, String>| sums.get(name) == Some(&sum);
        self.checkpoints.iter().chain(&self.beside).any(known) || is_weights(name) && marked(path).is_some()
    }
}

fn is_weights(name: &str) -> bool {
    name.ends_with(".safetensors")
}

/// What weights say that they were written beside, where all of them is as Hecate wrote it.
fn marked(path: &Path) -> Option<Beside> {
    verify(path, &read_file(path).ok()?).ok().flatten()
}
