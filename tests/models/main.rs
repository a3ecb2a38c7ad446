//! Models on the CPU: layers against 64-bit arithmetic, compositions, decoding, the bridge to dfdx, training and its files.

mod bridge;
mod compositions;
mod configs;
mod decoding;
mod layers;
mod levels;
mod training;
