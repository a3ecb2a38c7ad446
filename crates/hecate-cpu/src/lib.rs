//! The CPU backend: the default column, and the one that needs nothing but a processor.
//!
//! Rules run through one linear engine, parallel over sequences, heads and blocks of value columns; primitives run in
//! parallel over rows. Sums are taken in an order that depends on sizes alone, so the same call gives the same bits
//! whatever the number of threads. States are 32-bit floats; `q`, `k`, `v` and activations may be 16-bit ones, which
//! are widened on the way in and rounded on the way out.

mod device;
mod engine;
mod primitives;
mod product;
mod rows;
mod rules;
mod simd;

pub use device::{Algorithm, Cpu};
pub use engine::{Saved, peak_bytes};
