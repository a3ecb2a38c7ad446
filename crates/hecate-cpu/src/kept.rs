//! Memory that is used again: large arrays on a shelf, and scratch of the linear engine.
//!
//! A fresh large array costs the system a fault for every page, a quarter of the time of a call that only fills it.
//! Arrays that are dropped are therefore shelved. The arrays in use and those on the shelf are together never more than
//! those in use were once: keeping them does not raise the peak.

use crate::engine::Work;
use hecate_core::Host;
use std::{
    collections::VecDeque,
    fmt, mem,
    ops::{Deref, DerefMut},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// Numbers of the smallest array that is shelved: 1 MiB. Smaller ones are quick to get from the system.
const SMALLEST: usize = 1 << 18;

/// What a device keeps.
#[derive(Default)]
pub(crate) struct Kept {
    shelf: Mutex<Shelf>,
    work: Mutex<Vec<Work>>,
}

/// Large arrays that nobody uses, the oldest first; sizes in numbers.
#[derive(Default)]
struct Shelf {
    arrays: VecDeque<Vec<f32>>,
    shelved: usize,
    used: usize,
    most: usize,
}

impl Shelf {
    /// A shelved array with room for `count` numbers and little more.
    fn find(&mut self, count: usize) -> Option<Vec<f32>> {
        let fits = |x: &Vec<f32>| (count..=count + count / 8).contains(&x.capacity());
        let place = self.arrays.iter().rposition(fits)?;
        let array = self.arrays.remove(place)?;
        self.shelved -= array.capacity();
        Some(array)
    }

    fn add_used(&mut self, count: usize) {
        self.used += count;
        self.most = self.most.max(self.used);
        self.trim();
    }

    fn trim(&mut self) {
        while self.used + self.shelved > self.most {
            match self.arrays.pop_front() {
                Some(array) => self.shelved -= array.capacity(),
                None => return,
            }
        }
    }
}

fn lock<T>(x: &Mutex<T>) -> MutexGuard<'_, T> {
    x.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Kept {
    /// An array of `count` numbers, which may be anything; where debug assertions are on they are NaN, so that one which
    /// nobody wrote is seen.
    pub(crate) fn take(self: &Arc<Self>, count: usize) -> Lent {
        let mut lent = self.find(count);
        if cfg!(debug_assertions) {
            lent.fill(f32::NAN);
        }
        lent
    }

    fn find(self: &Arc<Self>, count: usize) -> Lent {
        if count < SMALLEST {
            return Lent { values: vec![0.0; count], kept: Arc::clone(self) };
        }
        let found = {
            let mut shelf = lock(&self.shelf);
            let found = shelf.find(count);
            shelf.add_used(found.as_ref().map_or(count, Vec::capacity));
            found
        };
        let values = match found {
            Some(mut values) => {
                values.resize(count, 0.0);
                values
            }
            None => vec![0.0; count],
        };
        Lent { values, kept: Arc::clone(self) }
    }

    /// Counts an array that came from elsewhere.
    fn adopt(&self, values: &Vec<f32>) {
        if values.capacity() >= SMALLEST {
            lock(&self.shelf).add_used(values.capacity());
        }
    }

    /// No longer counts an array that goes elsewhere.
    fn leave(&self, values: &Vec<f32>) {
        if values.capacity() >= SMALLEST {
            let mut shelf = lock(&self.shelf);
            shelf.used = shelf.used.saturating_sub(values.capacity());
        }
    }

    fn give(&self, values: Vec<f32>) {
        if values.capacity() < SMALLEST {
            return;
        }
        let mut shelf = lock(&self.shelf);
        shelf.used = shelf.used.saturating_sub(values.capacity());
        shelf.shelved += values.capacity();
        shelf.arrays.push_back(values);
        shelf.trim();
    }

    /// Scratch of a lane, given back when it is done.
    pub(crate) fn work<T>(&self, use_it: impl FnOnce(&mut Work) -> T) -> T {
        let mut work = lock(&self.work).pop().unwrap_or_default();
        let result = use_it(&mut work);
        lock(&self.work).push(work);
        result
    }

    /// Gives back to the system whatever nobody uses.
    pub(crate) fn release(&self) {
        let mut shelf = lock(&self.shelf);
        (shelf.shelved, shelf.most) = (0, shelf.used);
        shelf.arrays = VecDeque::new();
        *lock(&self.work) = Vec::new();
    }
}

/// Numbers that go back to the shelf.
pub(crate) struct Lent {
    values: Vec<f32>,
    kept: Arc<Kept>,
}

impl Lent {
    /// The numbers themselves, which do not come back.
    pub(crate) fn into_values(mut self) -> Vec<f32> {
        self.kept.leave(&self.values);
        mem::take(&mut self.values)
    }
}

impl Deref for Lent {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        &self.values
    }
}

impl DerefMut for Lent {
    fn deref_mut(&mut self) -> &mut [f32] {
        &mut self.values
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        self.kept.give(mem::take(&mut self.values));
    }
}

/// Elements of a tensor in main memory.
pub struct Array {
    host: Host,
    kept: Arc<Kept>,
}

impl Array {
    pub(crate) fn new(kept: &Arc<Kept>, host: Host) -> Self {
        if let Host::F32(values) = &host {
            kept.adopt(values);
        }
        Self { host, kept: Arc::clone(kept) }
    }

    /// The elements themselves.
    pub fn into_host(mut self) -> Host {
        let host = mem::replace(&mut self.host, Host::F32(Vec::new()));
        if let Host::F32(values) = &host {
            self.kept.leave(values);
        }
        host
    }
}

impl From<Lent> for Array {
    fn from(mut lent: Lent) -> Self {
        Self { host: Host::F32(mem::take(&mut lent.values)), kept: Arc::clone(&lent.kept) }
    }
}

impl Deref for Array {
    type Target = Host;

    fn deref(&self) -> &Host {
        &self.host
    }
}

impl Drop for Array {
    fn drop(&mut self) {
        if let Host::F32(values) = &mut self.host {
            self.kept.give(mem::take(values));
        }
    }
}

impl fmt::Debug for Array {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Array({} x {})", self.host.len(), self.host.dtype())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sizes(kept: &Kept) -> (usize, usize, usize) {
        let shelf = lock(&kept.shelf);
        (shelf.used, shelf.shelved, shelf.arrays.len())
    }

    #[test]
    fn an_array_is_used_again() {
        let kept = Arc::new(Kept::default());
        let first = kept.take(SMALLEST + 1);
        let place = first.as_ptr();
        drop(first);
        let again = kept.take(SMALLEST);
        assert_eq!((again.as_ptr(), again.len()), (place, SMALLEST));
        kept.release();
        drop(Array::from(again));
        assert_eq!(sizes(&kept), (0, SMALLEST + 1, 1));
        kept.release();
        assert_eq!(sizes(&kept), (0, 0, 0));
    }

    #[test]
    fn keeping_does_not_raise_the_peak() {
        let kept = Arc::new(Kept::default());
        let pair = (kept.take(SMALLEST), kept.take(SMALLEST));
        drop(pair);
        assert_eq!(sizes(&kept), (0, 2 * SMALLEST, 2));
        let other = kept.take(3 * SMALLEST / 2);
        assert_eq!(sizes(&kept), (3 * SMALLEST / 2, 0, 0));
        drop(other);
        let adopted = Array::new(&kept, Host::F32(vec![0.0; 2 * SMALLEST]));
        assert_eq!(sizes(&kept), (2 * SMALLEST, 0, 0));
        drop(adopted.into_host());
        assert_eq!(sizes(&kept), (0, 0, 0));
    }

    #[test]
    fn small_arrays_are_not_kept() {
        let kept = Arc::new(Kept::default());
        drop(kept.take(5));
        assert_eq!(sizes(&kept), (0, 0, 0));
    }
}
