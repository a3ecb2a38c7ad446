//! The cells of this column: a file a rule.

mod delta;
mod dgd;
mod hebbian;
pub(crate) mod memora;
pub(crate) mod moneta;
mod titans;
pub(crate) mod titans_mlp;
pub(crate) mod yaad;
