//! The cells of this column: a file a rule.

mod delta;
mod dgd;
mod hebbian;
mod titans;
