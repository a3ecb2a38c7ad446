//! Failures of the driver and of the compiler, as core's error.

use hecate_core::Error;

/// What a CUDA library said.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Cause(pub(crate) String);

/// A failure of the device while `context` was done.
pub(crate) fn failed(context: impl Into<String>, cause: impl std::fmt::Display) -> Error {
    Error::Device { backend: "cuda", context: context.into(), source: Box::new(Cause(cause.to_string())) }
}

/// A GPU, or a driver, that is not there or too old.
pub(crate) fn no_device(why: impl Into<String>) -> Error {
    Error::NoDevice { backend: "cuda", why: why.into() }
}

/// Something this machine cannot do.
pub(crate) fn unsupported(what: &'static str, why: impl Into<String>) -> Error {
    Error::Unsupported { backend: "cuda", what, why: why.into() }
}
