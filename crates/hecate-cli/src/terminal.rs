//! What is told on standard output and standard error, from where no failure comes back.
//!
//! A run is worth more than its log: a log on a full disk, or a reader that has seen enough, ends no training. What could
//! not be told on one stream is said once on the other.

use std::{
    fmt::Display,
    io::{self, Write, stderr, stdout},
    sync::{
        OnceLock,
        atomic::{AtomicBool, Ordering},
    },
};

/// A stream of the program, and its first failure.
pub(crate) struct Stream {
    name: &'static str,
    failure: OnceLock<String>,
    /// The failure was told of.
    told: AtomicBool,
}

/// Standard output: results.
pub(crate) static OUTPUT: Stream = Stream::new("standard output");
/// Standard error: progress and errors.
pub(crate) static ERRORS: Stream = Stream::new("standard error");

impl Stream {
    /// A stream of this name, of which no failure was told.
    const fn new(name: &'static str) -> Self {
        Self { name, failure: OnceLock::new(), told: AtomicBool::new(false) }
    }

    /// Notes that something could not be written; the first failure is the one to tell.
    pub(crate) fn note(&self, failure: &dyn Display) {
        // Later ones follow from it.
        let _ = self.failure.set(failure.to_string());
    }

    /// Writes a line to where this stream goes.
    fn line(&self, mut to: impl Write, line: &str) {
        // In one piece: lines of several threads do not mix.
        let written: io::Result<()> = to.write_all(format!("{line}\n").as_bytes()).and_then(|()| to.flush());
        if let Err(error) = written {
            self.note(&error);
        }
    }

    /// What is to be said on the other stream, once.
    fn complaint(&self) -> Option<String> {
        let failure = self.failure.get().filter(|_| !self.told.swap(true, Ordering::Relaxed))?;
        Some(format!("{} cannot be written ({failure}): what would be told there is lost", self.name))
    }
}

/// A line on standard error.
pub(crate) fn say(line: &str) {
    ERRORS.line(stderr(), line);
}

/// A line on standard output.
pub(crate) fn print(line: &str) {
    OUTPUT.line(stdout(), line);
}

/// Says of each stream that failed so far, on the other one.
pub(crate) fn tell_failures() {
    OUTPUT.complaint().iter().for_each(|line| say(line));
    ERRORS.complaint().iter().for_each(|line| print(line));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes no byte.
    struct Full;

    impl Write for Full {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::StorageFull.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn the_first_failure_is_told_once() {
        let stream = Stream::new("the log");
        let mut taken = Vec::new();
        stream.line(&mut taken, "a line");
        assert_eq!((taken.as_slice(), stream.complaint()), (b"a line\n".as_slice(), None));
        stream.line(Full, "lost");
        stream.note(&"another failure");
        let told = stream.complaint().unwrap();
        assert!(told.contains("the log cannot be written (no storage space)"), "{told}");
        assert_eq!(stream.complaint(), None);
    }
}
