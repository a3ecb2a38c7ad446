//! Primitives, one file each, with the kernels beside them.

pub(crate) mod elementwise;
pub(crate) mod layout;
pub(crate) mod loss;
mod missing;
pub(crate) mod optimizer;
pub(crate) mod reduce;
