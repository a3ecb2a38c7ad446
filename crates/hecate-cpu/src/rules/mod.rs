//! The cells of this column: a file a rule.

mod atlas;
mod delta;
mod dgd;
mod hebbian;
mod memora;
mod moneta;
mod titans;
mod titans_mlp;
mod yaad;
