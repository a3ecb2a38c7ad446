//! Specifications of well-known layers.
