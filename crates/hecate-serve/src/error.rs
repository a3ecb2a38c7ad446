//! What ends a server, or keeps it from starting.

use std::{io, path::PathBuf};

/// Shorthand for results of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What a server can fail at. What a request gets wrong is told to whoever sent it, and ends nothing.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The model, or the file of a session.
    #[error(transparent)]
    Model(#[from] hecate_models::Error),
    /// The network: an address that is taken, or no runtime for connections.
    #[error("cannot serve: {0}")]
    Network(#[from] io::Error),
    /// The folder of sessions.
    #[error("{}: {why}", path.display())]
    Sessions {
        /// The folder, or a file in it.
        path: PathBuf,
        /// What is wrong, and the way out.
        why: String,
    },
    /// The key for requests.
    #[error("{0}")]
    Key(&'static str),
    /// The thread with all connections ended by itself.
    #[error("the thread with the connections failed; its message is above")]
    Connections,
}
