//! Which run of a sweep comes next, whatever number of threads asks.
//!
//! The first seed searches for the learning rate: its runs need nothing of each other. Those of other seeds wait for the
//! rate. Meanwhile a thread that asks gets a run of the next entry, so none waits for another entry's search.

use super::{Entry, Outcome, SweepRun, best};
use crate::error::Error;
use std::{
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    thread,
};

/// A run that is to be done.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Ticket {
    /// The entry, by its place.
    pub(super) entry: usize,
    /// Its run, by its place: all rates, then seeds.
    place: usize,
    /// Highest learning rate.
    pub(super) rate: f32,
    /// Of the weights and of the questions.
    pub(super) seed: u64,
}

/// All runs, those that are done among them.
pub(super) struct Schedule<'a> {
    rates: &'a [f32],
    seeds: u64,
    standing: Mutex<Standing>,
    /// A run is over.
    changed: Condvar,
}

/// How far a sweep is.
struct Standing {
    entries: Vec<Progress>,
    /// No further run begins.
    halted: bool,
    /// The first error.
    failure: Option<Error>,
}

/// How far an entry is.
#[derive(Default)]
struct Progress {
    /// Runs that began, in the order of their places.
    begun: usize,
    /// Those that are over.
    runs: Vec<Option<SweepRun>>,
    /// Elements of its state, once a model of it was made.
    state: usize,
}

/// What an entry can give a thread.
#[derive(Debug, PartialEq)]
enum Next {
    /// A run.
    Run(Ticket),
    /// None before others are over.
    Later,
    /// None any more.
    Nothing,
}

impl<'a> Schedule<'a> {
    /// Of so many entries, each with all rates and so many seeds.
    pub(super) fn new(entries: usize, rates: &'a [f32], seeds: u64) -> Self {
        let entries = (0..entries).map(|_| Progress::default()).collect();
        let standing = Mutex::new(Standing { entries, halted: false, failure: None });
        Self { rates, seeds, standing, changed: Condvar::new() }
    }

    /// The next run of the first entry that has one; waits where all wait for their rates.
    pub(super) fn next(&self) -> Option<Ticket> {
        let mut standing = self.standing();
        loop {
            if standing.halted {
                return None;
            }
            let mut later = false;
            for entry in 0..standing.entries.len() {
                match self.next_of(entry, &standing.entries[entry]) {
                    Next::Run(ticket) => {
                        standing.entries[entry].begun += 1;
                        return Some(ticket);
                    }
                    Next::Later => later = true,
                    Next::Nothing => {}
                }
            }
            if !later {
                return None;
            }
            standing = self.changed.wait(standing).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// What an entry has to do next.
    fn next_of(&self, entry: usize, Progress { begun: place, runs, .. }: &Progress) -> Next {
        let (place, rates) = (*place, self.rates.len());
        let ticket = |rate, seed| Next::Run(Ticket { entry, place, rate, seed });
        // Places are handed out in their order, so the next one is how many began.
        if let Some(&rate) = self.rates.get(place) {
            return ticket(rate, 0);
        }
        // The first seed has had its runs at all rates.
        let seed = (place - rates) as u64 + 1;
        if seed >= self.seeds {
            return Next::Nothing;
        }
        match searched(runs, rates) {
            Some(found) => best(found).map_or(Next::Nothing, |rate| ticket(rate, seed)),
            None => Next::Later,
        }
    }

    /// A model of this entry has a state of so many elements.
    pub(super) fn note_state(&self, entry: usize, elements: usize) {
        self.standing().entries[entry].state = elements;
    }

    /// A run is over.
    pub(super) fn done(&self, Ticket { entry, place, .. }: Ticket, run: SweepRun) {
        let runs = &mut self.standing().entries[entry].runs;
        // Places before it may still be under way.
        let length = runs.len().max(place + 1);
        runs.resize_with(length, || None);
        runs[place] = Some(run);
        self.changed.notify_all();
    }

    /// No further run begins; those that go on end.
    pub(super) fn halt(&self, failure: Option<Error>) {
        let mut standing = self.standing();
        standing.halted = true;
        // What comes after the first may follow from it.
        standing.failure = standing.failure.take().or(failure);
        self.changed.notify_all();
    }

    /// What came of every entry that began, in their order, and the first error.
    pub(super) fn end(self, entries: &[Entry<'_>]) -> (Vec<Outcome>, Option<Error>) {
        let Standing { entries: found, failure, .. } =
            self.standing.into_inner().unwrap_or_else(PoisonError::into_inner);
        let outcome = |(entry, Progress { runs, state, .. }): (&Entry<'_>, Progress)| {
            let rate = searched(&runs, self.rates.len()).and_then(best);
            let (name, measures) = (entry.candidate.name.clone(), entry.task.measures());
            Outcome { name, measures, state, runs: runs.into_iter().flatten().collect(), rate }
        };
        // Of those that never began there is nothing to tell.
        let begun = entries.iter().zip(found).filter(|(_, progress)| progress.begun > 0);
        (begun.map(outcome).collect(), failure)
    }

    /// A thread that panicked leaves nothing half done here.
    fn standing(&self) -> MutexGuard<'_, Standing> {
        self.standing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The runs of the first seed, once it had all rates.
fn searched(runs: &[Option<SweepRun>], rates: usize) -> Option<impl Iterator<Item = &SweepRun>> {
    let first = runs.get(..rates).filter(|runs| runs.iter().all(Option::is_some))?;
    Some(first.iter().flatten())
}

/// Ends the waiting of others where a thread panics, whose run is never over.
pub(super) struct Watch<'a>(pub(super) &'a Schedule<'a>);

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.halt(None);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A run with this share of right answers.
    fn run(Ticket { rate, seed, .. }: Ticket, right: f64) -> SweepRun {
        let (tuning, testing) = (vec![right], vec![right]);
        SweepRun { rate, seed, steps: 1, loss: 1.0, tuning, testing, failure: None }
    }

    #[test]
    fn seeds_wait_for_the_rate_and_entries_for_nothing() {
        let schedule = Schedule::new(2, &[1.0, 2.0], 3);
        let next = || schedule.next().map(|ticket| (ticket.entry, ticket.rate, ticket.seed)).unwrap();
        let ticket = |entry, place, rate, seed| Ticket { entry, place, rate, seed };
        // The first entry waits for its rates: the second begins meanwhile.
        assert_eq!([next(), next(), next()], [(0, 1.0, 0), (0, 2.0, 0), (1, 1.0, 0)]);
        // Whatever ends first, places tell which run it is.
        for (place, rate, right) in [(1, 2.0, 0.7), (0, 1.0, 0.2)] {
            schedule.done(ticket(0, place, rate, 0), run(ticket(0, place, rate, 0), right));
        }
        assert_eq!([next(), next(), next()], [(0, 2.0, 1), (0, 2.0, 2), (1, 2.0, 0)]);
        assert_eq!(schedule.next_of(1, &schedule.standing().entries[1]), Next::Later);
        // Who waits is told that nothing comes.
        thread::scope(|scope| {
            let waiting = scope.spawn(|| schedule.next());
            schedule.halt(Some(Error::flag("--first", "failed")));
            schedule.halt(Some(Error::flag("--second", "failed")));
            assert_eq!(waiting.join().unwrap(), None);
        });
        let (_, failure) = schedule.end(&[]);
        assert!(failure.unwrap().to_string().contains("--first"));
    }
}
