//! What is shown without a GPU: that an assembler takes every kernel, and that what the text says is what was asked for.

#[allow(dead_code, unreachable_pub, reason = "the list of what tests may require is another crate's")]
#[path = "../../../hecate-conformance/src/require.rs"]
mod require;

mod assembles;
mod elementwise;
mod golden;
mod interpreter;
mod numbers;
mod specifications;
mod writer;
