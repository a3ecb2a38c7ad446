//! What can go wrong around a model: its configuration, its files, its text.

use crate::Place;
use hecate_core::{Bytes, Shape};
use std::{
    fmt, io,
    path::{Path, PathBuf},
};

/// Shorthand for results of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What a user of models can get wrong, or a file system can fail at. Messages name the thing and the way out.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A primitive or a rule refused its arguments, or a device failed.
    #[error(transparent)]
    Core(hecate_core::Error),
    /// A layer was given an array of another width than its own.
    #[error(
        "layer `{layer}`: `x` has shape {found}, expected rows of {expected} elements; `{parameter}` has shape {own}"
    )]
    Width {
        /// What its parameters are called, such as `model.layers.0.mlp.up_proj`.
        layer: String,
        /// Width that it takes.
        expected: usize,
        /// What was given.
        found: Shape,
        /// The parameter that says so.
        parameter: String,
        /// That parameter's shape.
        own: Shape,
    },
    /// A setting has a value that it cannot have.
    #[error("`{field}` is {found}, expected {expected}")]
    Config {
        /// Name of the setting.
        field: String,
        /// What was given.
        found: String,
        /// What is accepted.
        expected: String,
    },
    /// The file system refused.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// What was being done: `read`, `write`, …
        action: &'static str,
        /// File or folder.
        path: PathBuf,
        /// The system's own error.
        source: io::Error,
    },
    /// A file of a run is missing, damaged, or belongs to another model.
    #[error("{}: {why}", path.display())]
    Checkpoint {
        /// File or folder.
        path: PathBuf,
        /// What is wrong, and the way out.
        why: String,
    },
    /// A text cannot be learned from.
    #[error("{}: {why}", path.display())]
    Text {
        /// The text's file.
        path: PathBuf,
        /// What is wrong, and the way out.
        why: String,
    },
    /// A tokenizer file cannot be read, or does not know what it is asked for.
    #[error("{}: {why}", path.display())]
    Tokenizer {
        /// The tokenizer's file.
        path: PathBuf,
        /// What is wrong, and the way out.
        why: String,
    },
    /// Learning takes more memory than the device has.
    #[error(
        "does not fit: learning takes about {needed}, and {free} of {total} are free; try a smaller batch or sequence \
         length, a smaller hidden size, fewer layers, or activations of 16 bits"
    )]
    DoesNotFit {
        /// What is needed.
        needed: Bytes,
        /// What of the device's memory nobody uses.
        free: Bytes,
        /// All of the device's memory.
        total: Bytes,
    },
    /// Training or sampling met an element that is NaN or infinite.
    #[error("{what}{place} is {found} at {at}; {way_out}")]
    NonFinite {
        /// What is not finite.
        what: String,
        /// Where in the model it appeared first.
        place: Place,
        /// The value.
        found: f64,
        /// When.
        at: At,
        /// What to do.
        way_out: &'static str,
    },
    /// An [`Interrupt`](crate::Interrupt) was asked for; what the call would have changed is as it was.
    #[error("stopped because that was asked for; nothing was changed, so the call can be made again")]
    Stopped,
}

/// When an element was not finite, from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum At {
    /// Of learning.
    Step(u64),
    /// Of a text that is measured or written.
    Token(u64),
}

impl fmt::Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Step(step) => write!(f, "step {step}"),
            Self::Token(token) => write!(f, "token {token}"),
        }
    }
}

/// An error of models that went by way of the core's type is itself again.
impl From<hecate_core::Error> for Error {
    fn from(error: hecate_core::Error) -> Self {
        let hecate_core::Error::Other(other) = error else { return Self::Core(error) };
        other.downcast().map_or_else(|other| Self::Core(hecate_core::Error::Other(other)), |own| *own)
    }
}

/// So that `?` takes errors of models into the core's type, which is that of the crate `hecate`.
impl From<Error> for hecate_core::Error {
    fn from(error: Error) -> Self {
        match error {
            Error::Core(error) => error,
            other => Self::other(other),
        }
    }
}

impl Error {
    /// An [`Error::Config`].
    pub fn config(field: impl Into<String>, found: impl ToString, expected: impl Into<String>) -> Self {
        Self::Config { field: field.into(), found: found.to_string(), expected: expected.into() }
    }

    /// For `map_err`: the system's error while doing `action` to `path`.
    pub fn io<'a>(action: &'static str, path: &'a Path) -> impl FnOnce(io::Error) -> Self + 'a {
        move |source| Self::Io { action, path: path.to_owned(), source }
    }

    /// An [`Error::Checkpoint`].
    pub fn checkpoint(path: impl Into<PathBuf>, why: impl Into<String>) -> Self {
        Self::Checkpoint { path: path.into(), why: why.into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `?` in functions of either type, there and back again.
    #[test]
    fn errors_go_either_way_and_stay_what_they_are() {
        let there = |error: Error| hecate_core::Error::from(error);
        let config = Error::from(there(Error::config("heads", 3, "4")));
        assert!(matches!(&config, Error::Config { field, .. } if field == "heads"), "{config:?}");
        assert_eq!(there(config).to_string(), "`heads` is 3, expected 4");
        let shape = || hecate_core::Error::Length { what: "upload", shape: [2].into(), found: 3 };
        assert!(matches!(there(Error::from(shape())), hecate_core::Error::Length { found: 3, .. }));
        // What is of neither keeps its words.
        let other = there(Error::from(hecate_core::Error::other("no such planet")));
        assert!(matches!(other, hecate_core::Error::Other(_)) && other.to_string() == "no such planet");
        let file = hecate_core::Error::from(io::Error::other("cut short"));
        assert_eq!(Error::from(file).to_string(), "cut short");
    }
}
