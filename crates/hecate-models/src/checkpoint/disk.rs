//! Changes of the disk, each whole or not at all.

use super::Run;
use crate::{Error, Result};
use std::{
    fs::{self, File},
    io::{self, Read, Write},
    path::Path,
};

/// Writes a file so that it is there whole or not at all.
///
/// # Errors
/// [`Error::Io`].
pub fn write_whole(path: &Path, content: &[u8]) -> Result<()> {
    write_whole_with(path, |write| write(content))
}

/// As [`write_whole`] of content that comes in parts: `fill` hands each of them over.
pub(crate) fn write_whole_with(
    path: &Path,
    fill: impl FnOnce(&mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()>,
) -> Result<()> {
    let folder = path.parent().unwrap_or(Path::new(""));
    let partial = Run::new(folder).partial(path);
    // Left by a run that was killed, it may be another name of a file that counts.
    remove(&partial)?;
    let written = File::create(&partial).map_err(Error::io("create", &partial)).and_then(|mut file| {
        fill(&mut |part| file.write_all(part).map_err(Error::io("write", &partial)))?;
        file.sync_all().map_err(Error::io("write", &partial))
    });
    put_in_place(written, &partial, path)?;
    flush(folder)
}

/// Renames a file that was written under its partial name, or removes what there is of it: on a full disk it takes room
/// that others need.
pub(super) fn put_in_place(written: Result<()>, partial: &Path, target: &Path) -> Result<()> {
    let placed = written.and_then(|()| fs::rename(partial, target).map_err(Error::io("rename", partial)));
    if placed.is_err() {
        // The first error is the one to tell.
        let _ = remove(partial);
    }
    placed
}

/// Writes a file and waits until it is on the disk.
pub(super) fn write(path: &Path, content: &[u8]) -> Result<()> {
    let mut file = File::create(path).map_err(Error::io("create", path))?;
    file.write_all(content).and_then(|()| file.sync_all()).map_err(Error::io("write", path))
}

/// Bytes that are compared at once.
const BLOCK: usize = 1 << 16;
/// Bytes from which on a file under two names is one file. Smaller ones are what people edit, and take no room to speak of.
const LINKED: u64 = 1 << 20;

/// A file's content under another name: a copy of a small file, else a second name of the same file, which takes no room
/// and can then be written by nobody. A copy too where the file system has no such names.
pub(super) fn link(from: &Path, to: &Path) -> Result<()> {
    remove(to)?;
    let found = fs::metadata(from).map_err(Error::io("read", from))?;
    if found.len() >= LINKED && fs::hard_link(from, to).is_ok() {
        if cfg!(unix) {
            let mut permissions = found.permissions();
            permissions.set_readonly(true);
            // Where it cannot be had, the file is as safe as any other.
            let _ = fs::set_permissions(to, permissions);
        }
        return Ok(());
    }
    fs::copy(from, to).and_then(|_| File::open(to)?.sync_all()).map_err(Error::io("write", to))
}

/// Whether both names are of one file, or of files of this content where that cannot be told.
pub(super) fn is_same(a: &Path, b: &Path, content: &[u8]) -> bool {
    #[cfg(unix)]
    if let (Ok(a), Ok(b)) = (fs::metadata(a), fs::metadata(b)) {
        use std::os::unix::fs::MetadataExt;
        if (a.dev(), a.ino()) == (b.dev(), b.ino()) {
            return true;
        }
    }
    a.exists() && holds(b, content)
}

/// Whether a file has this content.
pub(super) fn holds(path: &Path, content: &[u8]) -> bool {
    // A file of another length is not read.
    fs::metadata(path).is_ok_and(|found| found.len() == content.len() as u64)
        && File::open(path).is_ok_and(|file| reads(file, content))
}

/// Whether this is what comes from there, block by block: a large file needs no memory.
fn reads(mut from: impl Read, content: &[u8]) -> bool {
    let mut block = vec![0; content.len().min(BLOCK)];
    content.chunks(BLOCK).all(|part| {
        let found = &mut block[..part.len()];
        from.read_exact(found).is_ok() && found == part
    })
}

/// A file that must be there.
pub(crate) fn read_file(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).map_err(|source| match source.kind() {
        io::ErrorKind::NotFound => Error::checkpoint(path, "missing; train a model there first, or use a copy of it"),
        _ => Error::Io { action: "read", path: path.to_owned(), source },
    })
}

/// Names in a folder; none if there is no such folder.
pub(super) fn names(folder: &Path) -> Result<Vec<String>> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other.map_err(Error::io("read", folder))?,
    };
    entries
        .map(|entry| Ok(entry.map_err(Error::io("read", folder))?.file_name().to_string_lossy().into_owned()))
        .collect()
}

/// Makes the names in a folder last; only Unix can and need do so.
pub(super) fn flush(folder: &Path) -> Result<()> {
    if cfg!(unix) && !folder.as_os_str().is_empty() {
        File::open(folder).and_then(|file| file.sync_all()).map_err(Error::io("flush", folder))?;
    }
    Ok(())
}

/// Removes a file or folder; one that is not there is fine.
pub(super) fn remove(path: &Path) -> Result<()> {
    let result = if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
    match result {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(Error::io("remove", path)(error)),
        _ => Ok(()),
    }
}
