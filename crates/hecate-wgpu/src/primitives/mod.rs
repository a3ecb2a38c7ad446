//! Primitives, one file each, with the kernels beside them.

pub(crate) mod elementwise;
mod missing;
pub(crate) mod reduce;
