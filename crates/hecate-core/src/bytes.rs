//! Numbers of bytes in messages.

use std::fmt;

/// A number of bytes in messages: `12 bytes`, `3.4 MB`, `1.23 GB`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Bytes(pub u128);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 as f64 {
            bytes if bytes < 1e5 => write!(f, "{} bytes", self.0),
            bytes if bytes < 1e9 => write!(f, "{:.1} MB", bytes / 1e6),
            bytes if bytes < 1e15 => write!(f, "{:.2} GB", bytes / 1e9),
            bytes => write!(f, "{:.2e} GB", bytes / 1e9),
        }
    }
}
