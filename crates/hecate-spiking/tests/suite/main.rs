//! What a network must do: recorded and generated networks, plasticity, bad input, damaged files.

mod bad_inputs;
mod damage;
mod generated;
#[cfg(all(feature = "cuda", feature = "wgpu"))]
mod gpu;
mod naive;
mod plasticity;
mod recorded;
// Which tests may be skipped is said once, for all tests of the workspace.
#[path = "../../../hecate-conformance/src/require.rs"]
#[allow(dead_code, unreachable_pub)]
mod require;
mod specs;
mod vectors;
