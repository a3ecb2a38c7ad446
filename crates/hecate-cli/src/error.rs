//! What the command can fail at.

use crate::features::install;
use hecate::models::Vocabulary;
use std::{io, path::PathBuf};

/// Shorthand for results of the command.
pub(crate) type Result<T, E = Error> = std::result::Result<T, E>;

/// What the command can fail at; messages name the flag or file, and the way out.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// A configuration, a text, a checkpoint or a run.
    #[error(transparent)]
    Model(hecate::models::Error),
    /// A device, or a kernel that refused its arguments.
    #[error(transparent)]
    Device(#[from] hecate::Error),
    /// A flag whose value makes no sense, or which another flag rules out.
    #[error("{flag}: {why}")]
    Flag { flag: String, why: String },
    /// A file or folder that is not as it has to be.
    #[error("{}: {why}", path.display())]
    File { path: PathBuf, why: String },
    /// A file or folder that the system refuses.
    #[error("{}: {source}", path.display())]
    Io { path: PathBuf, source: io::Error },
    /// The server.
    #[cfg(feature = "serve")]
    #[error(transparent)]
    Serve(Box<hecate_serve::Error>),
    /// A spiking network.
    #[cfg(feature = "spikes")]
    #[error(transparent)]
    Spikes(Box<hecate_spiking::Error>),
    /// Standard output is closed or full.
    #[error("cannot write to the terminal: {0}")]
    Output(#[from] io::Error),
    /// The system takes no handler for Ctrl-C.
    #[error("cannot listen for Ctrl-C: {0}")]
    Interrupt(#[from] ctrlc::Error),
    /// The system does not tell what is done about hang-ups.
    #[cfg(unix)]
    #[error("cannot listen for hang-ups: {0}")]
    HangUp(#[from] nix::errno::Errno),
}

impl From<hecate::models::Error> for Error {
    /// A tokenizer that this build cannot read becomes an error that names the command which builds one that can.
    fn from(error: hecate::models::Error) -> Self {
        match error {
            hecate::models::Error::Tokenizer { path, .. } if !Vocabulary::READS_TOKENIZERS => {
                let why = format!("this build reads bytes only; build it again: {}", install(&["tokenizer"]));
                Self::File { path, why }
            }
            error => Self::Model(error),
        }
    }
}

#[cfg(feature = "serve")]
impl From<hecate_serve::Error> for Error {
    fn from(error: hecate_serve::Error) -> Self {
        // All others would be as large as this one.
        Self::Serve(Box::new(error))
    }
}

#[cfg(feature = "spikes")]
impl From<hecate_spiking::Error> for Error {
    fn from(error: hecate_spiking::Error) -> Self {
        Self::Spikes(Box::new(error))
    }
}

impl Error {
    /// An [`Error::Flag`]; `why` ends with the way out.
    pub(crate) fn flag(flag: impl Into<String>, why: impl ToString) -> Self {
        Self::Flag { flag: flag.into(), why: why.to_string() }
    }

    /// An [`Error::File`]; `why` ends with the way out.
    pub(crate) fn file(path: impl Into<PathBuf>, why: impl ToString) -> Self {
        Self::File { path: path.into(), why: why.to_string() }
    }

    /// Whether a file could not be written or read: a disk that is full now may have room later.
    pub(crate) fn is_of_a_file(&self) -> bool {
        matches!(self, Self::Model(hecate::models::Error::Io { .. }) | Self::Io { .. })
    }

    /// Whether somebody downstream, such as `head`, has read enough.
    pub(crate) fn is_closed_pipe(&self) -> bool {
        matches!(self, Self::Output(error) if error.kind() == io::ErrorKind::BrokenPipe)
    }
}
