//! The CPU backend: the default column, and the one that needs nothing but a processor.
//!
//! Linear rules run through one engine, parallel over sequences, heads and blocks of value columns; the others token by
//! token, parallel over sequences and heads; primitives run in parallel over rows. Sums are taken in an order that depends
//! on sizes alone, so the same call gives the same bits whatever the number of threads. Loops are compiled for every level
//! of vector instructions and the best one is taken; with `HECATE_CPU_SIMD=scalar` in the environment, none. States are
//! 32-bit floats; `q`, `k`, `v` and activations may be 16-bit ones, which are widened on the way in and rounded on the way
//! out.

mod bill;
mod deep;
mod device;
mod engine;
mod kept;
mod primitives;
mod product;
mod recurrent;
mod rows;
mod rules;
mod simd;
mod sweep;

pub use bill::Bill;
pub use device::{Algorithm, Cpu};
pub use engine::Saved;
pub use kept::Array;
pub use recurrent::Kept;
