//! The cells of this column: a file a rule.

mod atlas;
mod delta;
mod dgd;
mod hebbian;
mod lattice;
mod memora;
mod moneta;
mod titans;
mod titans_mlp;
mod trellis;
mod yaad;
