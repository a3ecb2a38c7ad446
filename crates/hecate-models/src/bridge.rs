//! Any rule on any backend as an operation on a dfdx tape.
