//! Training, and everything it leaves on disk: exact resuming, damaged files, bad text, sampling.

mod best;
mod carrying;
mod checkpoints;
pub(crate) mod fixtures;
mod guard;
mod measuring;
mod precision;
mod resuming;
mod sampling;
mod tasks;
mod text;
mod updates;
