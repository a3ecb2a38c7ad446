//! Writing checkpoints so that a stop at any moment, or a disk that refuses, leaves one that is whole.

use super::{
    AWAY, CHECKSUMS, Files, Run, checkpoint_name, checksums,
    disk::{flush, holds, is_same, link, names, put_in_place, remove, write},
    step_of, sums, to_json,
};
use crate::{Error, Result};
use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

/// Called before every change of the disk.
type Reached<'a> = &'a mut dyn FnMut() -> Result<()>;

/// Files, and checksums of them: large files are gone through once.
type Summed<'a> = (&'a Files<'a>, &'a BTreeMap<String, String>);

/// Whether the disk refused, and not a test that stops.
fn is_refusal(error: &Error) -> bool {
    matches!(error, Error::Io { .. })
}

impl Run {
    /// Removes checkpoints, each renamed first so that it is none any more.
    pub(super) fn remove_checkpoints(&self, steps: &[u64], reached: Reached) -> Result<()> {
        for &step in steps {
            self.put_away(step, reached)?;
            reached()?;
            remove(&self.away(step))?;
        }
        Ok(())
    }

    /// Renames a checkpoint, if there is one of this step, so that it is none any more.
    fn put_away(&self, step: u64, reached: Reached) -> Result<()> {
        let (old, away) = (self.checkpoint(step), self.away(step));
        if !old.exists() {
            return Ok(());
        }
        reached()?;
        remove(&away)?;
        reached()?;
        fs::rename(&old, &away).map_err(Error::io("rename", &old))
    }

    /// Where the checkpoint of this step was put away.
    pub(super) fn away(&self, step: u64) -> PathBuf {
        self.file(&format!(".{}{AWAY}", checkpoint_name(step)))
    }

    /// Step of the newest checkpoint that was put away and not removed yet.
    pub(super) fn put_away_last(&self) -> Result<Option<u64>> {
        let names = names(&self.folder)?;
        let step = |name: &String| step_of(name.strip_prefix('.')?.strip_suffix(AWAY)?);
        Ok(names.iter().filter_map(step).max())
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
            if entered.as_ref().is_err_and(is_refusal) && !self.checkpoint(step).exists() {
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
        beside: &[&str],
        reached: Reached,
    ) -> Result<()> {
        self.stage_or_nothing(step, (files, &checksums(files)), reached)?;
        // From here on what is staged is all there is: it stays whatever happens.
        self.clear(beside)?;
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
            let _ = remove(&self.partial(&self.checkpoint(step)));
        }
        outcome
    }

    /// Writes a checkpoint under its partial name. Large files that the newest one has alike are linked.
    fn stage(&self, step: u64, (files, sums_of_files): Summed<'_>, reached: Reached) -> Result<()> {
        reached()?;
        fs::create_dir_all(&self.folder).map_err(Error::io("create", &self.folder))?;
        let last = self.latest()?.map(|last| self.checkpoint(last));
        let known = last.as_deref().and_then(|last| sums(last).ok()).unwrap_or_default();
        let partial = self.partial(&self.checkpoint(step));
        remove(&partial)?;
        fs::create_dir(&partial).map_err(Error::io("create", &partial))?;
        for (name, content) in files {
            reached()?;
            let (target, old) = (partial.join(name), last.as_deref().map(|last| last.join(name)));
            // Only what its checksum promises to be alike is read.
            match old.filter(|old| known.get(name) == sums_of_files.get(name) && holds(old, content)) {
                Some(old) => link(&old, &target)?,
                None => write(&target, content)?,
            }
        }
        reached()?;
        write(&partial.join(CHECKSUMS), &to_json(Path::new(CHECKSUMS), sums_of_files)?)?;
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

    /// Gives files of a checkpoint their names in the run folder too.
    pub(super) fn publish(&self, step: u64, files: &Files<'_>, published: &[&str], reached: Reached) -> Result<()> {
        for name in published {
            let Some(content) = files.get(*name) else { continue };
            let (source, target) = (self.checkpoint(step).join(name), self.file(name));
            if is_same(&source, &target, content) {
                continue;
            }
            let partial = self.partial(&target);
            reached()?;
            let linked = link(&source, &partial);
            reached()?;
            put_in_place(linked, &partial, &target)?;
        }
        flush(&self.folder)
    }

    /// Removes what was not finished.
    pub(super) fn sweep(&self, reached: Reached) -> Result<()> {
        for name in names(&self.folder)?.iter().filter(|name| name.starts_with('.') && name.ends_with(".partial")) {
            reached()?;
            remove(&self.file(name))?;
        }
        Ok(())
    }
}
