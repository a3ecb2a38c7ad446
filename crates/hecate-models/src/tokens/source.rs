//! Where the bytes of a text are: in memory, or still in its files.

use crate::{
    Error, Result,
    files::{self, Links},
};
use hecate_core::memory;
use std::{
    borrow::Cow,
    fs,
    io::{Read, Seek, SeekFrom},
    ops::Range,
    path::{Path, PathBuf},
    time::SystemTime,
};

/// Bytes that are read at once where a text is read from start to end.
pub(crate) const BLOCK: usize = 1 << 20;
/// What stands between two files of a text.
pub(crate) const BETWEEN: u8 = b'\n';

/// An [`Error::Text`].
pub(crate) fn fail(path: &Path, why: impl Into<String>) -> Error {
    Error::Text { path: path.to_owned(), why: why.into() }
}

/// The bytes of a text.
#[derive(Debug)]
pub(crate) enum Source {
    /// All of them.
    Memory(Cow<'static, [u8]>),
    /// They are read where they are needed.
    Files(Vec<Part>),
}

/// A file of a text. After each but the last comes [`BETWEEN`].
#[derive(Debug)]
pub(crate) struct Part {
    path: PathBuf,
    /// Where its bytes start in the text.
    start: usize,
    length: usize,
    /// When it was last written, as far as the system tells.
    modified: Option<SystemTime>,
}

impl Source {
    /// Files in this order, left where they are.
    pub(crate) fn files(paths: Vec<PathBuf>) -> Result<Self> {
        let mut start = 0;
        let part = |path: PathBuf| {
            let found = fs::metadata(&path).map_err(Error::io("read", &path))?;
            let length = length(&path, found.len())?;
            let part = Part { path, start, length, modified: found.modified().ok() };
            start = part.end() + 1;
            Ok(part)
        };
        Ok(Self::Files(paths.into_iter().map(part).collect::<Result<_>>()?))
    }

    /// Number of bytes.
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Memory(bytes) => bytes.len(),
            Self::Files(parts) => parts.last().map_or(0, Part::end),
        }
    }

    /// These bytes, added to `into`. The range lies within the text.
    pub(crate) fn read(&self, range: Range<usize>, into: &mut Vec<u8>) -> Result<()> {
        // Everything at once, so that nothing below asks for more.
        memory::reserve("text", into, range.len())?;
        let parts = match self {
            Self::Memory(bytes) => {
                into.extend_from_slice(&bytes[range]);
                return Ok(());
            }
            Self::Files(parts) => parts,
        };
        let first = parts.partition_point(|part| part.end() < range.start);
        for (i, part) in parts.iter().enumerate().skip(first).take_while(|(_, part)| part.start < range.end) {
            part.read(range.start.max(part.start)..range.end.min(part.end()), into)?;
            if range.contains(&part.end()) && i + 1 < parts.len() {
                into.push(BETWEEN);
            }
        }
        Ok(())
    }

    /// All bytes in order, block by block.
    pub(crate) fn for_each_block(&self, mut take: impl FnMut(&[u8]) -> Result<()>) -> Result<()> {
        if let Self::Memory(bytes) = self {
            return take(bytes);
        }
        let mut block = Vec::new();
        for start in (0..self.len()).step_by(BLOCK) {
            block.clear();
            self.read(start..self.len().min(start + BLOCK), &mut block)?;
            take(&block)?;
        }
        Ok(())
    }

    /// The last start of a character at or before this place.
    pub(crate) fn character_start(&self, at: usize) -> Result<usize> {
        // A character has at most four bytes, and all but the first look like 10xxxxxx.
        let (from, mut bytes) = (at.saturating_sub(3), Vec::new());
        self.read(from..self.len().min(at + 1), &mut bytes)?;
        let back = bytes.iter().rev().take_while(|&&byte| byte & 0xc0 == 0x80).count();
        Ok(if at < self.len() { at.saturating_sub(back) } else { at })
    }
}

impl Part {
    /// Where its bytes end in the text.
    fn end(&self) -> usize {
        self.start + self.length
    }

    /// Bytes of the text that are in this file. Another file under its name is an error, as far as time and length tell.
    fn read(&self, range: Range<usize>, into: &mut Vec<u8>) -> Result<()> {
        if range.is_empty() {
            return Ok(());
        }
        let io = |error| Error::io("read", &self.path)(error);
        let (mut file, found) = files::open(&self.path, Links::Follow).map_err(io)?;
        if found.len() != self.length as u64 || found.modified().ok() != self.modified {
            let why = "changed while it was being read from the disk; go on once it is as it was, or with a copy of it";
            return Err(fail(&self.path, why));
        }
        file.seek(SeekFrom::Start((range.start - self.start) as u64)).map_err(io)?;
        let start = into.len();
        into.resize(start + range.len(), 0);
        file.read_exact(&mut into[start..]).map_err(io)
    }
}

/// A file's length in memory's own type.
pub(crate) fn length(path: &Path, bytes: u64) -> Result<usize> {
    usize::try_from(bytes).map_err(|_| fail(path, "longer than this machine counts; give a part of it"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        text::{Windows, windows},
        tokens::Tokens,
    };
    use std::{fs::File, sync::Arc};

    /// A file of 4 TiB that takes no room on the disk.
    fn huge(folder: &Path) -> Source {
        let path = folder.join("text");
        File::create(&path).and_then(|file| file.set_len(1 << 42)).expect("a file with a hole");
        Source::files(vec![path]).expect("a file")
    }

    #[test]
    fn texts_larger_than_memory_are_errors() {
        let folder = tempfile::tempdir().expect("a folder");
        let source = huge(folder.path());
        let length = source.len();
        let told = source.read(0..length, &mut Vec::new()).expect_err("4 TiB").to_string();
        assert!(told.contains("text: ") && told.contains("GB of memory are needed"), "{told}");
        // The part that is read is what takes room.
        let mut part = Vec::new();
        source.read(length - 5..length, &mut part).expect("five bytes");
        assert_eq!(part, [0; 5]);
        let tokens = Tokens::bytes(Arc::new(source), 0..length);
        let all = tokens.to_vec().map(|all| all.len());
        let drawn = windows((&tokens).into(), [0], length - 1).map(|(inputs, _)| inputs.len());
        for found in [all, drawn] {
            let told = found.expect_err("4 TiB").to_string();
            assert!(told.contains("GB of memory are needed"), "{told}");
        }
        assert!(Windows::new(1).draw(&tokens, 1, 3).is_ok());
    }
}
