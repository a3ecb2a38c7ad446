//! One conformance suite for every rule and primitive on every backend.
//!
//! * [`oracle`]: the equations in 64-bit floats, forward only, differentiated by dfdx. They are the rules' own
//!   equations and share nothing with the recurrence that backends lower them to.
//! * [`primitive_cases`]: the primitives with their arguments and equations.
//! * [`checks`]: what every cell must pass, as functions generic over rule and backend.
//! * [`conformance!`]: instantiates the checks for one backend, a module per rule and primitive;
//!   [`conformance_cell!`]: for one rule alone.
//! * [`precision`]: what 16-bit arguments cost over thousands of tokens.
//! * [`report`]: the comparisons alone, for a table on the user's own device.
//! * [`record`]: what came of such a run, written down for tables in documents.
//! * [`require`]: what must not be skipped.
//!
//! Errors are the root mean square of the difference over that of the truth, one number a slot ([`error`]).
//!
//! ```
//! use hecate_conformance::error;
//!
//! // The root mean square of the difference over that of the truth.
//! assert!(error(&[3.0, 4.0], &[3.0, 4.0]) < 1e-12);
//! assert!(error(&[3.0, 4.0], &[3.0, f64::NAN]).is_nan());
//! ```
//!
//! Truth is in 64 bits and what is tested in 32, so the truth's own rounding does not count.

mod array;
mod blockwise;
pub mod case;
pub mod checks;
mod compare;
mod conformance;
pub mod oracle;
pub mod precision;
pub mod primitive_cases;
pub mod record;
pub mod report;
pub mod require;

pub use array::{Array, Random};
pub use case::{Case, Results, Sizes};
pub use compare::{BACKWARD, Comparison, FORWARD, assert_close, error};
pub use conformance::every_cell_is_tested;
