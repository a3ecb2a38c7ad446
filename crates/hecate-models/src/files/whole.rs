//! Files that are there whole or not at all.

use super::plain::{self, JSON, Links};
use crate::{Error, Result};
use std::{
    fs::File,
    io::{self, Write},
    path::Path,
};
use tempfile::{Builder, TempPath};

/// Writes a file so that it is there whole or not at all. What was there under this name goes.
///
/// # Errors
/// [`Error::Io`].
pub fn write_whole(path: &Path, content: &[u8]) -> Result<()> {
    write_whole_with(path, |write| write(content))
}

/// As [`write_whole`] of content that comes in parts: `fill` hands each of them over.
pub(crate) fn write_whole_with(path: &Path, fill: impl FnOnce(Take<'_>) -> Result<()>) -> Result<()> {
    filled(folder_of(path), path, fill)?.put(path)
}

/// As [`write_whole`], of a file that is not there yet.
pub(crate) fn write_new(path: &Path, content: &[u8]) -> Result<()> {
    let Unfinished(file) = filled(folder_of(path), path, |write| write(content))?;
    file.persist_noclobber(path).map_err(|refused| Error::io("create", path)(refused.error))?;
    flush(folder_of(path))
}

/// The next part of a file's content.
type Take<'a> = &'a mut dyn FnMut(&[u8]) -> Result<()>;

/// A file that has no name for others yet. Dropped, it is removed.
#[derive(Debug)]
pub struct Unfinished(TempPath);

impl Unfinished {
    /// A file in `folder` with this content, on the disk; `path`, which it is to have, is for messages.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn written(folder: &Path, path: &Path, content: &[u8]) -> Result<Unfinished> {
        filled(folder, path, |write| write(content))
    }

    /// What `make` puts in `folder` under the name that it is given.
    ///
    /// # Errors
    /// Those of `make`.
    pub fn made(folder: &Path, make: impl FnMut(&Path) -> io::Result<()>) -> io::Result<Unfinished> {
        Ok(Self(builder().make_in(folder, make)?.into_temp_path()))
    }

    /// Gives the file its name.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn put(self, path: &Path) -> Result<()> {
        self.0.persist(path).map_err(|refused| Error::io("rename", path)(refused.error))?;
        flush(folder_of(path))
    }

    /// Whether a name is one of a file that was not finished.
    pub fn is_name(name: &str) -> bool {
        let drawn = name.strip_prefix(PARTIAL[0]).and_then(|rest| rest.strip_suffix(PARTIAL[1]));
        drawn.is_some_and(|drawn| drawn.len() == DRAWN && drawn.bytes().all(|byte| byte.is_ascii_alphanumeric()))
    }
}

/// A file in `folder` of what `fill` hands over, on the disk; `path`, which it is to have, is for messages.
fn filled(folder: &Path, path: &Path, fill: impl FnOnce(Take<'_>) -> Result<()>) -> Result<Unfinished> {
    let mut file = builder().tempfile_in(folder).map_err(Error::io("create", path))?;
    fill(&mut |part| file.write_all(part).map_err(Error::io("write", path)))?;
    file.as_file().sync_all().map_err(Error::io("write", path))?;
    Ok(Unfinished(file.into_temp_path()))
}

/// What a file's name begins and ends with while it is written.
const PARTIAL: [&str; 2] = [".hecate-", ".partial"];
/// Letters and digits between them, which nobody else has.
const DRAWN: usize = 6;

/// Names for files that are not finished.
fn builder<'a>() -> Builder<'a, 'a> {
    let mut builder = Builder::new();
    builder.prefix(PARTIAL[0]).rand_bytes(DRAWN).suffix(PARTIAL[1]);
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        // As of any new file: the user's own mask takes from it.
        builder.permissions(std::fs::Permissions::from_mode(0o666));
    }
    builder
}

/// The folder that a name is in.
fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

/// Makes the names in a folder last; only Unix can and need do so.
///
/// # Errors
/// [`Error::Io`].
pub fn flush(folder: &Path) -> Result<()> {
    if cfg!(unix) {
        File::open(folder).and_then(|file| file.sync_all()).map_err(Error::io("flush", folder))?;
    }
    Ok(())
}

/// A file of a model or a run that must be there; one of JSON has at most [`JSON`] bytes.
///
/// # Errors
/// [`Error::Checkpoint`] where it is missing, [`Error::Io`].
pub fn read_file(path: &Path) -> Result<Vec<u8>> {
    let most = if path.extension().is_some_and(|end| end == "json") { JSON } else { u64::MAX };
    plain::read(path, Links::Refuse, most).map_err(|error| match error {
        Error::Io { source, .. } if source.kind() == io::ErrorKind::NotFound => {
            Error::checkpoint(path, "missing; train a model there first, or use a copy of it")
        }
        error => error,
    })
}
