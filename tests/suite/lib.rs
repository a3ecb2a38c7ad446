//! One conformance suite for every rule and primitive on every backend.
//!
//! * [`oracle`]: the equations in 64-bit floats, forward only, differentiated by dfdx. They are the rules' own
//!   equations and share nothing with the recurrence that backends lower them to.
//! * [`problems`]: the primitives with their arguments and equations.
//! * [`checks`]: what every cell must pass, as functions generic over rule and backend.
//! * [`conformance!`]: instantiates the checks for one backend, a module per rule and primitive.
//! * [`precision`]: what 16-bit arguments cost over thousands of tokens.
//! * [`report`]: the comparisons alone, for a table on the user's own device.
//! * [`require`]: what must not be skipped.
//!
//! Errors are the root mean square of the difference over that of the truth, one number a slot ([`error`]).

mod array;
pub mod case;
pub mod checks;
mod compare;
mod conformance;
pub mod oracle;
mod pieces;
pub mod precision;
pub mod problems;
pub mod report;
pub mod require;

pub use array::{Array, Random};
pub use case::{Case, Results, Sizes};
pub use compare::{BACKWARD, Comparison, FORWARD, assert_close, error};

/// The README's program compiles and runs.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
pub struct Readme;
