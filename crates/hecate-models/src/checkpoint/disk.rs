//! Changes of the disk, each whole or not at all.

use crate::{
    Error, Result,
    checksum::Checksum,
    plain_file::{self, JSON, Links},
};
use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read, Write},
    path::Path,
};
use tempfile::{Builder, NamedTempFile};

/// Writes a file so that it is there whole or not at all. What was there under this name goes.
///
/// # Errors
/// [`Error::Io`].
pub fn write_whole(path: &Path, content: &[u8]) -> Result<()> {
    write_whole_with(path, |write| write(content))
}

/// As [`write_whole`] of content that comes in parts: `fill` hands each of them over.
pub(crate) fn write_whole_with(path: &Path, fill: impl FnOnce(Take<'_>) -> Result<()>) -> Result<()> {
    put(filled(folder_of(path), path, fill)?, path)
}

/// As [`write_whole`], of a file that is not there yet.
///
/// # Errors
/// [`Error::Io`], also where there is something of this name.
pub(crate) fn write_new(path: &Path, content: &[u8]) -> Result<()> {
    let file = filled(folder_of(path), path, |write| write(content))?;
    file.persist_noclobber(path).map_err(|refused| Error::io("create", path)(refused.error))?;
    flush(folder_of(path))
}

/// The next part of a file's content.
pub(super) type Take<'a> = &'a mut dyn FnMut(&[u8]) -> Result<()>;

/// A file in `folder` that has no name for others yet, and is on the disk; `path` is for messages. Dropped, it is removed.
pub(super) fn filled(folder: &Path, path: &Path, fill: impl FnOnce(Take<'_>) -> Result<()>) -> Result<NamedTempFile> {
    let mut file = builder().tempfile_in(folder).map_err(Error::io("create", path))?;
    fill(&mut |part| file.write_all(part).map_err(Error::io("write", path)))?;
    file.as_file().sync_all().map_err(Error::io("write", path))?;
    Ok(file)
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
        builder.permissions(fs::Permissions::from_mode(0o666));
    }
    builder
}

/// Whether a name is one of a file that was not finished.
pub(super) fn is_partial(name: &str) -> bool {
    let drawn = name.strip_prefix(PARTIAL[0]).and_then(|rest| rest.strip_suffix(PARTIAL[1]));
    drawn.is_some_and(|drawn| drawn.len() == DRAWN && drawn.bytes().all(|byte| byte.is_ascii_alphanumeric()))
}

/// A file's content under another name in `folder`, to be put in its place: a copy of a small file, else a second name of the
/// same file, which takes no room and can then be written by nobody. A copy too where the file system has no such names.
pub(super) fn linked(from: &Path, folder: &Path) -> Result<NamedTempFile<()>> {
    builder().make_in(folder, |to| link(from, to)).map_err(Error::io("write", from))
}

/// Gives a file its name.
pub(super) fn put<F>(file: NamedTempFile<F>, path: &Path) -> Result<()> {
    file.persist(path).map_err(|refused| Error::io("rename", path)(refused.error))?;
    flush(folder_of(path))
}

/// The folder that a name is in.
fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

/// Writes a file that is not there yet, and waits until it is on the disk.
pub(super) fn write(path: &Path, content: &[u8]) -> Result<()> {
    let mut file = File::create_new(path).map_err(Error::io("create", path))?;
    file.write_all(content).and_then(|()| file.sync_all()).map_err(Error::io("write", path))
}

/// Bytes that are compared at once.
const BLOCK: usize = 1 << 16;
/// Bytes from which on a file under two names is one file. Smaller ones are what people edit, and take no room to speak of.
const LINKED: u64 = 1 << 20;

/// A file's content under another name that is not there yet, as [`linked`] says.
pub(super) fn link(from: &Path, to: &Path) -> io::Result<()> {
    let (mut file, found) = plain_file::open(from, Links::Refuse)?;
    if found.len() >= LINKED && fs::hard_link(from, to).is_ok() {
        if cfg!(unix) {
            let mut permissions = found.permissions();
            permissions.set_readonly(true);
            // Where it cannot be had, the file is as safe as any other.
            let _ = fs::set_permissions(to, permissions);
        }
        return Ok(());
    }
    let mut copy = File::create_new(to)?;
    let copied = io::copy(&mut file, &mut copy).and_then(|_| copy.sync_all());
    // On a full disk a part of it takes room that others need.
    copied.inspect_err(|_| drop(fs::remove_file(to)))
}

/// Whether both names are of one file, or of files of this content where that cannot be told.
pub(super) fn is_same(a: &Path, b: &Path, content: &[u8]) -> bool {
    #[cfg(unix)]
    if let (Ok(a), Ok(b)) = (fs::symlink_metadata(a), fs::symlink_metadata(b)) {
        use std::os::unix::fs::MetadataExt;
        if (a.dev(), a.ino()) == (b.dev(), b.ino()) {
            return true;
        }
    }
    plain_file::is_there(a) && holds(b, content)
}

/// Whether a file has this content.
pub(super) fn holds(path: &Path, content: &[u8]) -> bool {
    // A file of another length is not read.
    plain_file::open(path, Links::Refuse)
        .is_ok_and(|(file, found)| found.len() == content.len() as u64 && reads(file, content))
}

/// Whether a file has the beginning of this content and no more, as one that was cut short.
pub(super) fn begins(path: &Path, content: &[u8]) -> bool {
    let beginning = |length: u64| content.get(..usize::try_from(length).ok()?);
    plain_file::open(path, Links::Refuse)
        .is_ok_and(|(file, found)| beginning(found.len()).is_some_and(|part| reads(file, part)))
}

/// Whether this is what comes from there, block by block: a large file needs no memory.
fn reads(mut from: impl Read, content: &[u8]) -> bool {
    let mut block = vec![0; content.len().min(BLOCK)];
    content.chunks(BLOCK).all(|part| {
        let found = &mut block[..part.len()];
        from.read_exact(found).is_ok() && found == part
    })
}

/// The checksum of a plain file, which is read block by block; none where there is no such file.
pub(super) fn sum_of(path: &Path) -> Option<String> {
    let (mut file, found) = plain_file::open(path, Links::Refuse).ok()?;
    let mut all = Checksum::new(usize::try_from(found.len()).ok()?);
    let (mut block, mut left) = (vec![0; BLOCK], found.len());
    while left > 0 {
        let part = &mut block[..left.min(BLOCK as u64) as usize];
        file.read_exact(part).ok()?;
        all.take(part);
        left -= part.len() as u64;
    }
    Some(all.digits())
}

/// A file of a run that must be there.
pub(crate) fn read_file(path: &Path) -> Result<Vec<u8>> {
    let most = if path.extension().is_some_and(|end| end == "json") { JSON } else { u64::MAX };
    plain_file::read(path, Links::Refuse, most).map_err(|error| match error {
        Error::Io { source, .. } if source.kind() == io::ErrorKind::NotFound => {
            Error::checkpoint(path, "missing; train a model there first, or use a copy of it")
        }
        error => error,
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
    if cfg!(unix) {
        File::open(folder).and_then(|file| file.sync_all()).map_err(Error::io("flush", folder))?;
    }
    Ok(())
}

/// Removes a file; one that is not there is fine. Folders stay.
pub(super) fn remove_file(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(Error::io("remove", path)(error)),
        _ => Ok(()),
    }
}

/// Opens a file of a run to change it; it is made if need be.
pub(crate) fn open_to_change(path: &Path, options: &mut OpenOptions) -> Result<File> {
    let opened = plain_file::open_with(path, Links::Refuse, options.create(true));
    Ok(opened.map_err(Error::io("open", path))?.0)
}
