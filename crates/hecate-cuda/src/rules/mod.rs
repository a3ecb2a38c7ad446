//! Rules with a step of their own: a file each.

pub(crate) mod atlas;
pub(crate) mod channel;
pub(crate) mod lattice;
pub(crate) mod lif;
pub(crate) mod trellis;
