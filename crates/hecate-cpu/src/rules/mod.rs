//! The rules with a step of their own: a folder each.
//!
//! Linear and deep rules have no file here: `hecate_core` lowers them, and one engine a family runs them all. Those that forget by
//! channel are one step, in `channel`.

mod atlas;
mod channel;
mod lattice;
mod lif;
mod trellis;
