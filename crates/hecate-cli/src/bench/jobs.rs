//! Several runs at once, on threads of one program.
//!
//! A small model leaves most of a GPU idle, and a small step most of a processor. Each thread opens the device for itself:
//! what two values of a GPU queue overlaps there, and on the processor each has its own pool of threads.

use crate::{
    device::{Choice, with_device},
    error::Result,
};
use clap::{Args, builder::RangedU64ValueParser};
use hecate::{Backend, Job};
use std::{panic, thread};

/// How many runs go on at once.
#[derive(Args, Clone, Copy, Debug)]
pub(super) struct JobsArgs {
    /// Runs at once
    ///
    /// Results do not depend on it. Each run has its own stream on a GPU, its part of the threads on the CPU.
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = RangedU64ValueParser::<usize>::new().range(1..=1024))]
    pub(super) jobs: usize,
}

/// Runs that threads take one by one.
pub(super) trait Runs: Sync {
    /// What is to be done.
    type Run;

    /// The next one. Waits where that depends on runs that go on; none where nothing is left to begin.
    fn next(&self) -> Option<Self::Run>;

    /// Does it, and keeps what comes of it.
    fn perform<B: Backend>(&self, device: &B, run: Self::Run);
}

/// What one thread does with its device.
struct Worker<'a, R>(&'a R);

impl<R: Runs> Job for Worker<'_, R> {
    type Output = Result<()>;

    fn run<B: Backend>(self, device: &B) -> Result<()> {
        // The device stays open from run to run: kernels are compiled once.
        while let Some(run) = self.0.next() {
            self.0.perform(device, run);
        }
        Ok(())
    }
}

/// All runs, at most `jobs` at once. A device that cannot be opened is an error; other threads do what is left then.
pub(super) fn all<R: Runs>(choice: &Choice, jobs: usize, runs: &R) -> Result<()> {
    // One job has the device as it was asked for.
    let choice = &choice.shared_by(jobs);
    let work = || with_device(choice, Worker(runs));
    thread::scope(|scope| {
        // Where the system starts no thread, those that there are do its runs.
        let start = |_| thread::Builder::new().spawn_scoped(scope, work).ok();
        let threads: Vec<_> = (1..jobs).filter_map(start).collect();
        let own = work();
        // All of them first: an error must not leave a thread whose outcome nobody sees.
        let outcomes: Vec<_> = threads.into_iter().map(thread::ScopedJoinHandle::join).collect();
        outcomes.into_iter().try_for_each(|outcome| outcome.unwrap_or_else(|panic| panic::resume_unwind(panic)))?;
        own
    })
}
