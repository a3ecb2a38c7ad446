//! The CPU backend: the default column, and the one that needs nothing but a processor.

mod device;

pub use device::{Algorithm, Cpu};
