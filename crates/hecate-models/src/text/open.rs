//! From paths to a text: files, folders, several of them.

use super::{Identity, Text};
use crate::{
    Error, Result,
    files::{self, Links, MODEL, names, step_of},
    tokens::{BETWEEN, BLOCK, Source, fail, length},
};
use std::{
    fs,
    io::{self, Read},
    path::{Path, PathBuf},
    str,
};

/// A file, and whether it was named or met in a folder.
struct Found {
    path: PathBuf,
    named: bool,
}

/// What is wrong with a file that is no text.
enum Flaw {
    Empty,
    /// The first byte that no UTF-8 has here.
    NotUtf8(usize),
    /// The first NUL, which only binary files hold; files that are named may.
    Nul,
}

/// What [`Text::open`] does.
pub(super) fn open(paths: &[PathBuf], in_memory: usize) -> Result<Text> {
    let files = find(paths)?;
    let mut bytes = files.len() as u64;
    for Found { path, .. } in &files {
        bytes += fs::metadata(path).map_err(|error| unreadable(path, error))?.len();
    }
    let (mut kept, mut skipped) = (Vec::new(), Vec::new());
    let source = if bytes <= in_memory as u64 {
        Source::Memory(read_all(files, bytes, &mut kept, &mut skipped)?.into())
    } else {
        for file in files {
            let flaw = flaw_on_disk(&file.path)?;
            file.judge(flaw, &mut kept, &mut skipped)?;
        }
        Source::files(kept.clone())?
    };
    if kept.is_empty() {
        let name = paths.first().map_or(Path::new("text"), PathBuf::as_path);
        let why = "no text in it; files that are hidden, empty or not UTF-8 are skipped; convert them, or name others";
        return Err(fail(name, why));
    }
    let identity = Identity::of_source(&source)?;
    Ok(Text { name: name(paths), source: source.into(), identity, files: kept.len(), skipped })
}

/// The files of these paths in their order, and those below folders.
fn find(paths: &[PathBuf]) -> Result<Vec<Found>> {
    let mut files = Vec::new();
    for path in paths {
        let found = fs::metadata(path).map_err(|error| unreadable(path, error))?;
        match found.is_dir() {
            true => gather(path, &mut files)?,
            false => files.push(Found { path: path.clone(), named: true }),
        }
    }
    Ok(files)
}

/// As they are found for a text: files that are named, and those below folders whose name ends so.
pub(super) fn named_or_ending(paths: &[PathBuf], endings: &[&str]) -> Result<Vec<PathBuf>> {
    let ends = |path: &Path| path.extension().is_some_and(|end| endings.iter().any(|known| end == *known));
    let files = find(paths)?.into_iter().filter(|file| file.named || ends(&file.path));
    Ok(files.map(|file| file.path).collect())
}

/// The only path, or the first and how many more.
pub(super) fn name(paths: &[PathBuf]) -> PathBuf {
    match paths {
        [path] => path.clone(),
        [first, more @ ..] => PathBuf::from(format!("{} and {} more", first.display(), more.len())),
        [] => PathBuf::new(),
    }
}

/// All files below a folder in the order of their paths. Hidden ones are left out, links to folders, which may lead in
/// circles, and runs, which grow while they learn the text.
fn gather(folder: &Path, files: &mut Vec<Found>) -> Result<()> {
    let io = |error| Error::io("read", folder)(error);
    let entries = fs::read_dir(folder).map_err(io)?.map(|entry| Ok(entry.map_err(io)?.path()));
    let mut entries = entries.collect::<Result<Vec<_>>>()?;
    entries.sort();
    for path in entries {
        let hidden = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with('.'));
        if hidden {
            continue;
        }
        let link = path.is_symlink();
        match fs::metadata(&path) {
            Ok(found) if found.is_dir() && !link && !is_run(&path)? => gather(&path, files)?,
            Ok(found) if found.is_file() => files.push(Found { path, named: false }),
            // Links that lead nowhere, sockets and the like.
            _ => {}
        }
    }
    Ok(())
}

/// Whether a folder holds checkpoints, or a model that was made of a run.
fn is_run(folder: &Path) -> Result<bool> {
    Ok(folder.join(MODEL).is_file() || names(folder)?.iter().any(|name| step_of(name).is_some()))
}

/// The content of all files that are text, about `bytes` in total.
fn read_all(files: Vec<Found>, bytes: u64, kept: &mut Vec<PathBuf>, skipped: &mut Vec<PathBuf>) -> Result<Vec<u8>> {
    let mut all = Vec::new();
    for file in files {
        let path = &file.path;
        all.try_reserve_exact(length(path, bytes)?.saturating_sub(all.len())).map_err(|_| {
            fail(path, format!("{bytes} bytes of text do not fit into memory; give less, or free some"))
        })?;
        let before = all.len();
        if !kept.is_empty() {
            all.push(BETWEEN);
        }
        let start = all.len();
        // No further than its length, which was counted.
        files::open(path, Links::Follow)
            .and_then(|(file, found)| file.take(found.len()).read_to_end(&mut all))
            .map_err(|error| unreadable(path, error))?;
        let flaw = match str::from_utf8(&all[start..]) {
            Ok("") => Some(Flaw::Empty),
            Ok(text) => text.contains('\0').then_some(Flaw::Nul),
            Err(error) => Some(Flaw::NotUtf8(error.valid_up_to())),
        };
        if !file.judge(flaw, kept, skipped)? {
            all.truncate(before);
        }
    }
    Ok(all)
}

impl Found {
    /// Keeps a file; one that is no text is an error where it was named, else it is skipped. Returns whether it was kept.
    fn judge(self, flaw: Option<Flaw>, kept: &mut Vec<PathBuf>, skipped: &mut Vec<PathBuf>) -> Result<bool> {
        let Self { path, named } = self;
        match flaw {
            None => kept.push(path),
            Some(Flaw::Nul) if named => kept.push(path),
            Some(Flaw::NotUtf8(offset)) if named => return Err(not_utf8(&path, offset)),
            Some(Flaw::Empty) if named => return Err(empty(&path)),
            Some(_) => {
                skipped.push(path);
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// Reads a file block by block, and says why it is no text, if it is none.
fn flaw_on_disk(path: &Path) -> Result<Option<Flaw>> {
    let io = |error| Error::io("read", path)(error);
    let (mut file, _) = files::open(path, Links::Follow).map_err(|error| unreadable(path, error))?;
    // Of the last block, the start of a character whose end is in the next.
    let (mut text, mut done, mut nul) = (Vec::new(), 0, false);
    loop {
        let read = file.by_ref().take(BLOCK as u64).read_to_end(&mut text).map_err(io)?;
        let valid = match str::from_utf8(&text) {
            Ok(text) => text.len(),
            Err(error) if error.error_len().is_none() && read > 0 => error.valid_up_to(),
            Err(error) => return Ok(Some(Flaw::NotUtf8(done + error.valid_up_to()))),
        };
        nul |= text[..valid].contains(&0);
        done += valid;
        text.drain(..valid);
        if read == 0 {
            return Ok(if done == 0 { Some(Flaw::Empty) } else { nul.then_some(Flaw::Nul) });
        }
    }
}

/// The error of a path that cannot be read.
pub(super) fn unreadable(path: &Path, error: io::Error) -> Error {
    match error.kind() {
        io::ErrorKind::NotFound => fail(path, "no such file; give the path of a text in UTF-8"),
        _ => Error::io("read", path)(error),
    }
}

pub(super) fn empty(path: &Path) -> Error {
    fail(path, "the file is empty; give a file with text in it")
}

pub(super) fn not_utf8(path: &Path, offset: usize) -> Error {
    fail(path, format!("not UTF-8 at byte {offset}; convert the file, for example with `iconv -t UTF-8`"))
}
