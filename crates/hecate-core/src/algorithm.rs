//! How the linear rules are computed: one option on every backend.

use crate::{Error, Result};
use std::{fmt, str::FromStr};

/// How the linear rules are computed. The function is the same in all forms, and results differ by rounding alone.
///
/// Every backend value has `with_algorithm(&self, Algorithm) -> Result<Self>`, and keeps to the form from then on. A
/// form that the backend does not have at all is refused: [`Error::Unsupported`] names the way out. Where a backend has
/// a form for some rules or sizes only, other calls go token by token.
///
/// | device | [`Auto`](Self::Auto), [`Scan`](Self::Scan) | [`Chunk`](Self::Chunk) |
/// |---|---|---|
/// | CPU | taken | taken for every rule and size |
/// | CUDA | taken | taken in chunks of 64 where its kernels fit the rule and the sizes |
/// | WebGPU | one form is both: token by token | refused |
/// | the reference of crate `hecate` | one form is both: token by token | refused |
///
/// ```
/// use hecate_core::Algorithm;
/// let algorithm: Algorithm = "chunk:16".parse()?;
/// assert_eq!(algorithm, Algorithm::Chunk(16));
/// # Ok::<(), hecate_core::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// What is fastest for the call's sizes.
    #[default]
    Auto,
    /// Token by token, as the equations stand.
    Scan,
    /// Matrix products over chunks of at most this many tokens, at least 1. Kernels with chunks of one length, those of
    /// GPUs, keep to theirs (64).
    Chunk(usize),
}

impl Algorithm {
    /// Tokens of a chunk where nobody says how many.
    pub const CHUNK: usize = 64;

    /// Refuses chunks of no token.
    ///
    /// # Errors
    /// [`Error::Config`].
    pub fn check(self) -> Result<Self> {
        match self {
            Self::Chunk(0) => Err(refused("chunk:0")),
            other => Ok(other),
        }
    }
}

fn refused(found: &str) -> Error {
    let expected = "auto, scan, chunk, or chunk:N with N at least 1";
    Error::Config { what: "linear rules", option: "algorithm", found: format!("`{found}`"), expected }
}

/// `auto`, `scan`, `chunk` or `chunk:16`.
impl FromStr for Algorithm {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match (text, text.strip_prefix("chunk:").and_then(|tokens| tokens.parse().ok())) {
            ("auto", _) => Ok(Self::Auto),
            ("scan", _) => Ok(Self::Scan),
            ("chunk", _) => Ok(Self::Chunk(Self::CHUNK)),
            (_, Some(tokens)) => Self::Chunk(tokens).check(),
            _ => Err(refused(text)),
        }
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Scan => f.write_str("scan"),
            Self::Chunk(tokens) => write!(f, "chunk:{tokens}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_printed() {
        for algorithm in [Algorithm::Auto, Algorithm::Scan, Algorithm::Chunk(1), Algorithm::Chunk(64)] {
            assert_eq!(algorithm.to_string().parse::<Algorithm>().expect("its own name"), algorithm);
        }
        assert_eq!("chunk".parse::<Algorithm>().expect("a name"), Algorithm::Chunk(64));
        for text in ["", "Auto", "chunk:", "chunk:0", "chunk:-1", "chunk:x", "scan:2"] {
            let error = text.parse::<Algorithm>().expect_err(text).to_string();
            assert!(error.contains(&format!("`{text}`")) && error.contains("auto, scan, chunk"), "{text}: {error}");
        }
    }
}
