//! Training, and everything it leaves on disk: exact resuming, damaged files, bad text, sampling.

mod best;
mod carrying;
mod checkpoints;
mod damage;
mod dropping;
pub(crate) mod fixtures;
mod guard;
mod mad_tasks;
mod measuring;
mod monitors;
mod optimizer;
mod own;
mod precision;
mod resuming;
mod sampling;
mod stopping;
mod tasks;
mod text;
mod updates;
