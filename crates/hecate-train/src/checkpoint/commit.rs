//! Writing checkpoints so that a stop at any moment, or a disk that refuses, leaves one that is whole.

use super::{
    CHECKSUMS, Companion, Files, Run, checksums,
    contents::{Origin, foreign, is_whole},
    disk::{begins, holds, is_same, link, linked, write},
    sums,
    unfinished::discard,
};
use hecate_models::{
    Error, Result,
    files::{flush, is_there, names, to_json},
};
use std::{collections::BTreeMap, fs, path::Path};

/// Called before every change of the disk.
type Reached<'a> = &'a mut dyn FnMut() -> Result<()>;

/// Files, and checksums of them: large files are gone through once.
type Summed<'a> = (&'a Files<'a>, &'a BTreeMap<String, String>);

/// Whether the disk refused, and not a test that stops.
pub(super) fn is_refusal(error: &Error) -> bool {
    matches!(error, Error::Io { .. })
}

impl Run {
    /// Removes checkpoints, each renamed first so that it is none any more. One that is not as it was written is somebody's
    /// work, and stays.
    pub(super) fn remove_checkpoints(&self, steps: &[u64], reached: Reached) -> Result<()> {
        for &step in steps.iter().filter(|&&step| is_whole(&self.checkpoint(step))) {
            self.put_away(step, reached)?;
            reached()?;
            discard(&self.away(step))?;
        }
        Ok(())
    }

    /// Renames a checkpoint, if there is one of this step, so that it is none any more.
    fn put_away(&self, step: u64, reached: Reached) -> Result<()> {
        let (old, away) = (self.checkpoint(step), self.away(step));
        if !is_there(&old) {
            return Ok(());
        }
        if !is_whole(&old) {
            return Err(foreign(old));
        }
        reached()?;
        self.unfinished()?;
        free(&away)?;
        reached()?;
        fs::rename(&old, &away).map_err(Error::io("rename", &old))
    }

    /// [`Run::commit`], calling `reached` before every change of the disk: an error there is as good as a power cut.
    pub(super) fn commit_watched(
        &self,
        step: u64,
        files: &Files<'_>,
        published: &[&str],
        keep: usize,
        reached: Reached,
    ) -> Result<()> {
        let known = checksums(files);
        if sums(&self.checkpoint(step)).ok().as_ref() != Some(&known) {
            self.stage_in_room(step, (files, &known), keep, reached)?;
            let entered = self.put_away(step, reached).and_then(|()| self.enter(step, reached));
            if entered.as_ref().is_err_and(is_refusal) && !is_there(&self.checkpoint(step)) {
                // The one of before takes its place again.
                let _ = fs::rename(self.away(step), self.checkpoint(step));
            }
            self.or_nothing(step, entered)?;
        }
        self.publish(step, files, published, reached)?;
        let (mut older, newer): (Vec<_>, Vec<_>) = self.steps()?.into_iter().partition(|&old| old <= step);
        older.sort_unstable();
        // Newer ones are of another run: the last checkpoint is the one that is resumed.
        let superseded = &older[..older.len().saturating_sub(keep.max(1))];
        self.remove_checkpoints(&[superseded, &newer].concat(), reached)?;
        self.sweep(reached)
    }

    /// [`Run::replace`], watched as [`Run::commit_watched`].
    pub(super) fn replace_watched(
        &self,
        step: u64,
        files: &Files<'_>,
        published: &[&str],
        beside: &[Companion],
        reached: Reached,
    ) -> Result<()> {
        self.check_ours(published, beside)?;
        self.stage_or_nothing(step, (files, &checksums(files)), reached)?;
        // From here on what is staged is all there is: it stays whatever happens.
        self.remove_all(published, beside)?;
        self.enter(step, reached)?;
        self.publish(step, files, published, reached)?;
        self.sweep(reached)
    }

    /// As [`Run::stage_or_nothing`]. If the disk refuses, checkpoints go that would go after this one, and it is tried again.
    fn stage_in_room(&self, step: u64, files: Summed<'_>, keep: usize, reached: Reached) -> Result<()> {
        let Err(error) = self.stage_or_nothing(step, files, reached) else { return Ok(()) };
        let mut older: Vec<u64> = self.steps()?.into_iter().filter(|&old| old < step).collect();
        older.sort_unstable();
        let superseded = older.len().saturating_sub(keep.max(2) - 1);
        if !is_refusal(&error) || superseded == 0 {
            return Err(error);
        }
        self.remove_checkpoints(&older[..superseded], reached)?;
        self.stage_or_nothing(step, files, reached)
    }

    /// As [`Run::stage`]; what the disk took before it refused the rest is removed.
    fn stage_or_nothing(&self, step: u64, files: Summed<'_>, reached: Reached) -> Result<()> {
        let staged = self.stage(step, files, reached);
        self.or_nothing(step, staged)
    }

    /// Removes what there is of a checkpoint that the disk refused.
    fn or_nothing(&self, step: u64, outcome: Result<()>) -> Result<()> {
        if outcome.as_ref().is_err_and(is_refusal) {
            // The first error is the one to tell.
            let _ = discard(&self.coming(step));
            self.close();
        }
        outcome
    }

    /// Writes a checkpoint where it is not one yet. Large files that the newest one has alike are linked.
    fn stage(&self, step: u64, (files, sums_of_files): Summed<'_>, reached: Reached) -> Result<()> {
        reached()?;
        fs::create_dir_all(&self.folder).map_err(Error::io("create", &self.folder))?;
        let last = self.latest()?.map(|last| self.checkpoint(last));
        let known = last.as_deref().and_then(|last| sums(last).ok()).unwrap_or_default();
        self.unfinished()?;
        let coming = self.coming(step);
        free(&coming)?;
        fs::create_dir(&coming).map_err(Error::io("create", &coming))?;
        // First of all: by it the files are known, should the rest not be written.
        reached()?;
        write(&coming.join(CHECKSUMS), &to_json(Path::new(CHECKSUMS), sums_of_files)?)?;
        for (name, content) in files {
            reached()?;
            let (target, old) = (coming.join(name), last.as_deref().map(|last| last.join(name)));
            // Only what its checksum promises to be alike is read.
            match old.filter(|old| known.get(name) == sums_of_files.get(name) && holds(old, content)) {
                Some(old) => link(&old, &target).map_err(Error::io("write", &target))?,
                None => write(&target, content)?,
            }
        }
        flush(&coming)
    }

    /// Makes a staged checkpoint exist.
    fn enter(&self, step: u64, reached: Reached) -> Result<()> {
        let (coming, target) = (self.coming(step), self.checkpoint(step));
        reached()?;
        fs::rename(&coming, &target).map_err(Error::io("rename", &coming))?;
        flush(&self.folder)
    }

    /// Gives files of a checkpoint their names in the run folder too. One there that was cut short is made whole; one that Hecate did
    /// not write is an error.
    pub(super) fn publish(&self, step: u64, files: &Files<'_>, published: &[&str], reached: Reached) -> Result<()> {
        let mut origin = None;
        for name in published {
            let Some(content) = files.get(*name) else { continue };
            let (source, target) = (self.checkpoint(step).join(name), self.file(name));
            if is_same(&source, &target, content) {
                continue;
            }
            if is_there(&target) && !begins(&target, content) {
                let origin = origin.get_or_insert(Origin::of(self, &names(&self.folder)?));
                if !origin.wrote(&target, name) {
                    return Err(foreign(target));
                }
            }
            reached()?;
            let coming = linked(&source, &self.unfinished()?)?;
            reached()?;
            coming.put(&target)?;
        }
        self.close();
        Ok(())
    }
}

/// Removes a rest of what was not finished, so that its name is free.
fn free(path: &Path) -> Result<()> {
    if is_there(path) {
        discard(path)?;
    }
    if is_there(path) { Err(foreign(path.to_owned())) } else { Ok(()) }
}
