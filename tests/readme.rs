//! The programs in README.md compile and run, as documentation tests.

/// README.md, whose Rust blocks are tests of this crate.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub struct Readme;
