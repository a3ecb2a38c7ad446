//! An assembler takes every kernel, and what its text says is what was asked for: by an interpreter, and on a GPU where one is.

#[allow(dead_code, unreachable_pub, reason = "the list of what tests may require is another crate's")]
#[path = "../../../hecate-conformance/src/require.rs"]
mod require;

mod assembles;
mod elementwise;
mod golden;
mod gpu;
mod interpreter;
mod numbers;
mod specifications;
mod writer;
