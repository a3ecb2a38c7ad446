//! The cells of this column: a file a rule.

pub(crate) mod atlas;
mod delta;
mod dgd;
mod hebbian;
pub(crate) mod lattice;
pub(crate) mod memora;
pub(crate) mod moneta;
mod titans;
pub(crate) mod titans_mlp;
pub(crate) mod trellis;
pub(crate) mod yaad;
