//! What the command can fail at.

use std::{io, path::PathBuf};

/// Shorthand for results of the command.
pub(crate) type Result<T, E = Error> = std::result::Result<T, E>;

/// What the command can fail at; messages name the flag or file, and the way out.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error(transparent)]
    Model(#[from] hecate_models::Error),
    #[error(transparent)]
    Device(#[from] hecate_core::Error),
    #[error("{flag}: {why}")]
    Flag { flag: String, why: String },
    #[error("{}: {why}", path.display())]
    File { path: PathBuf, why: String },
    #[error("{}: {source}", path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error("cannot write to the terminal: {0}")]
    Output(#[from] io::Error),
    #[error("cannot listen for Ctrl-C: {0}")]
    Signal(#[from] ctrlc::Error),
}

impl Error {
    pub(crate) fn flag(flag: impl Into<String>, why: impl ToString) -> Self {
        Self::Flag { flag: flag.into(), why: why.to_string() }
    }

    pub(crate) fn file(path: impl Into<PathBuf>, why: impl ToString) -> Self {
        Self::File { path: path.into(), why: why.to_string() }
    }

    /// Whether somebody downstream, such as `head`, has read enough.
    pub(crate) fn is_closed_pipe(&self) -> bool {
        matches!(self, Self::Output(error) if error.kind() == io::ErrorKind::BrokenPipe)
    }
}
