//! The programs in README.md and in the tutorial compile and run, as documentation tests.

/// README.md, whose Rust blocks are tests of this crate.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub struct Readme;

/// docs/tutorial.md, whose Rust blocks are whole programs.
#[cfg(doctest)]
#[doc = include_str!("../docs/tutorial.md")]
pub struct Tutorial;
