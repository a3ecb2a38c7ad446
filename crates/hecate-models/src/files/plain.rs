//! Plain files: what is opened has bytes and an end.
//!
//! A name may lead to anything: to a pipe that nobody writes to, a device without an end, or by a link to somebody else's
//! file. So it is looked at before it is opened, opened without waiting, looked at again, and read no further than its length.

use crate::{Error, Result};
use hecate_core::memory;
use std::{
    fs::{self, File, FileType, Metadata, OpenOptions},
    io::{self, Read},
    path::Path,
};

/// Most bytes of a JSON file. Large vocabularies have some 40 MB; whatever is read from the text takes several times its room.
pub const JSON: u64 = 64 << 20;

/// What becomes of a name that is a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Links {
    /// It is followed: where a user's own names lead is the user's to say.
    Follow,
    /// It is an error: a run may come from anybody, and writes where its names lead.
    Refuse,
}

/// A plain file to read, and what the system says of it.
///
/// # Errors
/// The system's own; what is no plain file.
pub fn open(path: &Path, links: Links) -> io::Result<(File, Metadata)> {
    open_with(path, links, OpenOptions::new().read(true))
}

/// As [`open`], for what `options` say; they may make the file.
///
/// # Errors
/// As [`open`].
pub fn open_with(path: &Path, links: Links, options: &mut OpenOptions) -> io::Result<(File, Metadata)> {
    let found = match links {
        Links::Follow => fs::metadata(path),
        Links::Refuse => fs::symlink_metadata(path),
    };
    match found {
        // Before it is opened: that alone may change a device.
        Ok(found) => check(&found)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    let file = guarded(options, links).open(path)?;
    // Another file may have taken the name meanwhile.
    let found = file.metadata()?;
    check(&found)?;
    Ok((file, found))
}

/// All of a plain file of at most `most` bytes.
///
/// # Errors
/// [`Error::Io`]; [`Error::Core`] where memory has no room for it.
pub fn read(path: &Path, links: Links, most: u64) -> Result<Vec<u8>> {
    let (file, found) = open(path, links).map_err(Error::io("read", path))?;
    let length = found.len();
    if length > most {
        let why = format!("{length} bytes, expected at most {most}; use a copy of the file as it was written");
        return Err(Error::io("read", path)(io::Error::new(io::ErrorKind::InvalidData, why)));
    }
    // Before its bytes are read: a file with a hole may be longer than any memory.
    let mut content = memory::with_capacity("file", usize::try_from(length).unwrap_or(usize::MAX))?;
    file.take(length).read_to_end(&mut content).map_err(Error::io("read", path))?;
    Ok(content)
}

/// Whether there is something of this name, whatever it is.
pub fn is_there(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok()
}

/// Whether the name is that of a folder itself, and not of a link to one.
pub fn is_folder(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|found| found.is_dir())
}

/// Refuses what is no plain file.
fn check(found: &Metadata) -> io::Result<()> {
    if found.is_file() {
        return Ok(());
    }
    let way_out = match found.is_symlink() {
        true => "links are not followed here, so put the file itself in its place",
        false => "use a plain file, or pipe a text in and name it `-`",
    };
    let why = format!("it is {}, expected a plain file; {way_out}", kind(found.file_type()));
    Err(io::Error::new(io::ErrorKind::InvalidInput, why))
}

/// What a name stands for that is no plain file.
fn kind(found: FileType) -> &'static str {
    #[cfg(unix)]
    {
        use std::os::unix::fs::FileTypeExt;
        let kinds = [
            (found.is_fifo(), "a pipe"),
            (found.is_socket(), "a socket"),
            (found.is_char_device() || found.is_block_device(), "a device"),
        ];
        if let Some((_, kind)) = kinds.into_iter().find(|(is, _)| *is) {
            return kind;
        }
    }
    match found {
        _ if found.is_dir() => "a folder",
        _ if found.is_symlink() => "a link",
        _ => "none of the system's files",
    }
}

/// The options, with those that the system has against waiting and against links.
fn guarded(options: &mut OpenOptions, links: Links) -> &mut OpenOptions {
    #[cfg(unix)]
    {
        use rustix::fs::OFlags;
        use std::os::unix::fs::OpenOptionsExt;
        let no_links = if links == Links::Refuse { OFlags::NOFOLLOW } else { OFlags::empty() };
        options.custom_flags((OFlags::NONBLOCK | no_links).bits() as i32);
    }
    #[cfg(windows)]
    if links == Links::Refuse {
        use std::os::windows::fs::OpenOptionsExt;
        /// `FILE_FLAG_OPEN_REPARSE_POINT`: a link is opened itself, and then refused.
        const THE_LINK_ITSELF: u32 = 0x0020_0000;
        options.custom_flags(THE_LINK_ITSELF);
    }
    #[cfg(not(any(unix, windows)))]
    let _ = links;
    options
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    /// Read within a second, or it waits for ever.
    fn read_soon(path: PathBuf, links: Links, most: u64) -> Result<Vec<u8>, String> {
        let (tell, told) = std::sync::mpsc::channel();
        std::thread::spawn(move || tell.send(read(&path, links, most).map_err(|error| error.to_string())));
        told.recv_timeout(std::time::Duration::from_secs(5)).expect("an answer, without waiting")
    }

    #[test]
    fn files_are_read_up_to_a_length() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("file");
        fs::write(&path, "four").expect("a file");
        assert_eq!(read_soon(path.clone(), Links::Refuse, 4), Ok(b"four".to_vec()));
        let told = read_soon(path.clone(), Links::Refuse, 3).expect_err("a byte too many");
        assert!(told.contains("4 bytes, expected at most 3") && told.contains("file"), "{told}");
        // Longer than any memory, and no byte of it on the disk.
        File::create(&path).and_then(|file| file.set_len(1 << 42)).expect("a file with a hole");
        let told = read_soon(path, Links::Follow, u64::MAX).expect_err("4 TiB");
        assert!(told.contains("GB of memory are needed"), "{told}");
    }

    #[cfg(unix)]
    #[test]
    fn what_is_no_plain_file_is_refused_at_once() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = |name: &str| folder.path().join(name);
        fs::write(path("file"), "four").expect("a file");
        std::os::unix::fs::symlink("file", path("link")).expect("a link");
        let made = std::process::Command::new("mkfifo").arg(path("pipe")).status().expect("the system's mkfifo");
        assert!(made.success());
        std::os::unix::net::UnixListener::bind(path("socket")).expect("a socket");
        for (path, kind) in [
            (path("pipe"), "a pipe"),
            (path("socket"), "a socket"),
            (folder.path().to_owned(), "a folder"),
            (PathBuf::from("/dev/zero"), "a device"),
        ] {
            for links in [Links::Follow, Links::Refuse] {
                let told = read_soon(path.clone(), links, u64::MAX).expect_err(kind);
                assert!(told.contains(kind) && told.contains("expected a plain file"), "{told}");
            }
        }
        let told = read_soon(path("link"), Links::Refuse, 9).expect_err("a link");
        assert!(told.contains("a link") && told.contains("the file itself"), "{told}");
        assert_eq!(read_soon(path("link"), Links::Follow, 9), Ok(b"four".to_vec()));
        // Nothing is made or cut where a link leads.
        fs::remove_file(path("file")).expect("a file");
        let mut options = OpenOptions::new();
        assert!(open_with(&path("link"), Links::Refuse, options.append(true).create(true)).is_err());
        assert!(!path("file").exists());
    }
}
