//! Second names, comparisons and removals of a run's files.

use hecate_models::{
    Error, Result,
    files::{self, Links, Unfinished},
};
use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read, Write},
    path::Path,
};

/// A file's content under another name in `folder`, to be put in its place: a copy of a small file, else a second name of the
/// same file, which takes no room and can then be written by nobody. A copy too where the file system has no such names.
pub(super) fn linked(from: &Path, folder: &Path) -> Result<Unfinished> {
    Unfinished::made(folder, |to| link(from, to)).map_err(Error::io("write", from))
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
    let (mut file, found) = files::open(from, Links::Refuse)?;
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
    files::is_there(a) && holds(b, content)
}

/// Whether a file has this content.
pub(super) fn holds(path: &Path, content: &[u8]) -> bool {
    // A file of another length is not read.
    files::open(path, Links::Refuse)
        .is_ok_and(|(file, found)| found.len() == content.len() as u64 && reads(file, content))
}

/// Whether a file has the beginning of this content and no more, as one that was cut short.
pub(super) fn begins(path: &Path, content: &[u8]) -> bool {
    let beginning = |length: u64| content.get(..usize::try_from(length).ok()?);
    files::open(path, Links::Refuse)
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

/// Removes a file; one that is not there is fine. Folders stay.
pub(super) fn remove_file(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(Error::io("remove", path)(error)),
        _ => Ok(()),
    }
}

/// Opens a file of a run to change it; it is made if need be.
pub(crate) fn open_to_change(path: &Path, options: &mut OpenOptions) -> Result<File> {
    let opened = files::open_with(path, Links::Refuse, options.create(true));
    Ok(opened.map_err(Error::io("open", path))?.0)
}
