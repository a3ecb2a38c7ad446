//! The programs in README.md, in the tutorial and on the page about own rules compile and run, as documentation tests.

/// README.md, whose Rust blocks are tests of this crate.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub struct Readme;

/// docs/tutorial.md, whose Rust blocks are whole programs.
#[cfg(doctest)]
#[doc = include_str!("../docs/tutorial.md")]
pub struct Tutorial;

/// The page about rules of one's own, likewise.
#[cfg(doctest)]
#[doc = include_str!("../docs/own-rule.md")]
pub struct OwnRule;
