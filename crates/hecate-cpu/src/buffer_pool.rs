//! Memory that is used again: large arrays in a free list, and workspaces of engines.
//!
//! A fresh large array costs the system a page fault for every 4 KiB.
//! Those faults are a quarter of the time of a call that only fills the array.
//! Dropped arrays therefore go to a free list, and the next call of that size takes them from there.
//! Arrays in use and free ones together never exceed what was in use at once before.
//! Keeping them therefore does not raise the peak.

use hecate_core::{Host, Result, memory};
use std::{
    any::Any,
    collections::VecDeque,
    fmt, mem,
    ops::{Deref, DerefMut},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// Elements of the smallest array that is kept: 1 MiB.
/// The allocator hands smaller ones out without asking the system.
const SMALLEST: usize = 1 << 18;

/// What a device keeps between calls; its clones share it.
#[derive(Default)]
pub(crate) struct BufferPool {
    /// Locked while the list changes; nobody fills or reads an array with the lock.
    free: Mutex<FreeList>,
    /// Workspaces that no task uses. Each holds what one task of an engine needs.
    workspaces: Mutex<Vec<Box<dyn Any + Send>>>,
}

/// Large arrays that nobody uses, the oldest first. All sizes are capacities in elements.
#[derive(Default)]
struct FreeList {
    /// All of at least [`SMALLEST`] elements.
    arrays: VecDeque<Vec<f32>>,
    /// Sum over `arrays`.
    spare: usize,
    /// Sum over the arrays that callers hold.
    used: usize,
    /// The largest value that `used` has had: the limit of `used + spare`.
    most: usize,
}

impl FreeList {
    /// A free array that holds `count` elements and at most an eighth more.
    /// The newest fitting one is taken, because the caches hold it longest.
    fn find(&mut self, count: usize) -> Option<Vec<f32>> {
        // A much larger array would be missed by the call that needs all of it.
        let fits = |x: &Vec<f32>| (count..=count + count / 8).contains(&x.capacity());
        // A list of some tens of arrays: walking it costs less than ordering it.
        let place = self.arrays.iter().rposition(fits)?;
        let array = self.arrays.remove(place)?;
        self.spare -= array.capacity();
        Some(array)
    }

    /// Counts an array that a caller now holds, and drops free ones that exceed the limit.
    fn add_used(&mut self, count: usize) {
        self.used += count;
        self.most = self.most.max(self.used);
        self.trim();
    }

    /// No longer counts an array that a caller held.
    fn remove_used(&mut self, count: usize) {
        self.used = self.used.saturating_sub(count);
    }

    /// Drops the oldest arrays until all together fit the limit.
    fn trim(&mut self) {
        // The oldest first: a size that was not asked for lately may never come again.
        while self.used + self.spare > self.most {
            match self.arrays.pop_front() {
                Some(array) => self.spare -= array.capacity(),
                None => return,
            }
        }
    }
}

/// The lock also where a thread panicked with it: every state of the lists is a valid one.
fn lock<T>(x: &Mutex<T>) -> MutexGuard<'_, T> {
    x.lock().unwrap_or_else(PoisonError::into_inner)
}

impl BufferPool {
    /// An array of `count` elements with any values, for the operation `what`. The caller writes every one of them.
    /// With debug assertions they are NaN, which shows those that nobody wrote.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`](hecate_core::Error::OutOfMemory).
    pub(crate) fn take(self: &Arc<Self>, what: &'static str, count: usize) -> Result<PooledBuf> {
        let mut buffer = self.find(what, count)?;
        if cfg!(debug_assertions) {
            buffer.fill(f32::NAN);
        }
        Ok(buffer)
    }

    /// Refuses `count` elements of 32 bits that there is no room for, even once nothing is kept for later.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`](hecate_core::Error::OutOfMemory).
    pub(crate) fn room(&self, what: &'static str, count: usize) -> Result<()> {
        memory::check::<f32>(what, count).or_else(|_| {
            // What is kept counts as used: the system gets it back before it is asked again.
            self.release();
            memory::check::<f32>(what, count)
        })
    }

    /// [`BufferPool::take`] without the NaN: from the free list, or new.
    fn find(self: &Arc<Self>, what: &'static str, count: usize) -> Result<PooledBuf> {
        let new = || memory::zeros(what, count);
        // Not counted either: together they are no part of the peak.
        if count < SMALLEST {
            return Ok(PooledBuf { values: new()?, pool: Arc::clone(self) });
        }
        // Sums of what no memory holds would overflow.
        if count > usize::MAX / 16 {
            memory::check::<f32>(what, count)?;
        }
        // Under the lock only the lists change; elements are touched outside it.
        let found = {
            let mut free = lock(&self.free);
            let found = free.find(count);
            free.add_used(found.as_ref().map_or(count, Vec::capacity));
            found
        };
        // Outside the lock: a new array of zeros may wait for the system.
        let values = match found {
            // Within the capacity, so nothing is copied; elements that were there keep their old values.
            Some(mut values) => {
                values.resize(count, 0.0);
                Ok(values)
            }
            None => self.room(what, count).and_then(|()| new()).inspect_err(|_| {
                lock(&self.free).remove_used(count);
                // The limit of what is kept, which counted this array.
                self.release();
            }),
        };
        Ok(PooledBuf { values: values?, pool: Arc::clone(self) })
    }

    /// Counts an array that came from elsewhere, such as an upload.
    fn adopt(&self, values: &Vec<f32>) {
        if values.capacity() >= SMALLEST {
            lock(&self.free).add_used(values.capacity());
        }
    }

    /// No longer counts an array that goes elsewhere, such as a download.
    fn leave(&self, values: &Vec<f32>) {
        if values.capacity() >= SMALLEST {
            lock(&self.free).remove_used(values.capacity());
        }
    }

    /// Puts a dropped array into the free list.
    fn give(&self, values: Vec<f32>) {
        if values.capacity() < SMALLEST {
            return;
        }
        let mut free = lock(&self.free);
        free.remove_used(values.capacity());
        free.spare += values.capacity();
        free.arrays.push_back(values);
        free.trim();
    }

    /// Runs `use_it` with a workspace of type `W`, which keeps its arrays for the next task.
    /// The pool knows no engine: it holds workspaces of any type, and `W` picks its own.
    pub(crate) fn with_workspace<W: Default + Send + 'static, T>(&self, use_it: impl FnOnce(&mut W) -> T) -> T {
        let found = {
            let mut workspaces = lock(&self.workspaces);
            let place = workspaces.iter().rposition(|workspace| workspace.is::<W>());
            place.map(|place| workspaces.swap_remove(place))
        };
        // As many workspaces of a type come to be as tasks of it ran at once.
        let mut workspace = found.and_then(|found| found.downcast::<W>().ok()).unwrap_or_default();
        let result = use_it(&mut workspace);
        // A task that panicked leaves none: what it left half done is dropped.
        lock(&self.workspaces).push(workspace);
        result
    }

    /// Bytes of arrays that nobody uses: a call that lacks room takes or releases them.
    pub(crate) fn spare_bytes(&self) -> usize {
        lock(&self.free).spare.saturating_mul(size_of::<f32>())
    }

    /// Gives back to the system whatever nobody uses.
    pub(crate) fn release(&self) {
        let mut free = lock(&self.free);
        // Arrays in use stay counted, and come to the list when they are dropped.
        (free.spare, free.most) = (0, free.used);
        free.arrays = VecDeque::new();
        *lock(&self.workspaces) = Vec::new();
    }
}

/// Elements that go back to the free list when they are dropped.
pub(crate) struct PooledBuf {
    /// Of any length; capacities decide what is kept.
    values: Vec<f32>,
    /// Where the memory goes back to.
    pool: Arc<BufferPool>,
}

impl fmt::Debug for PooledBuf {
    /// Count, not the elements: workspaces may hold millions.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PooledBuf({} elements)", self.values.len())
    }
}

impl PooledBuf {
    /// The elements themselves, which do not come back.
    pub(crate) fn into_values(mut self) -> Vec<f32> {
        self.pool.leave(&self.values);
        mem::take(&mut self.values)
    }
}

impl Deref for PooledBuf {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        &self.values
    }
}

impl DerefMut for PooledBuf {
    fn deref_mut(&mut self) -> &mut [f32] {
        &mut self.values
    }
}

impl Drop for PooledBuf {
    /// The pool decides by the size whether the memory is kept.
    fn drop(&mut self) {
        self.pool.give(mem::take(&mut self.values));
    }
}

/// Elements of a tensor in main memory: the [`hecate_core::Device::Buffer`] of [`Cpu`](crate::Cpu).
///
/// It dereferences to the [`Host`] array. Large arrays of 32-bit floats go back to their device when dropped.
pub struct Array {
    /// Empty only while it is being taken.
    host: Host,
    /// Counts the elements, and takes those of 32-bit floats back.
    pool: Arc<BufferPool>,
}

impl Array {
    /// An array of `host`, which the pool counts from now on.
    pub(crate) fn new(pool: &Arc<BufferPool>, host: Host) -> Self {
        if let Host::F32(values) = &host {
            pool.adopt(values);
        }
        Self { host, pool: Arc::clone(pool) }
    }

    /// The elements themselves, without a copy.
    pub fn into_host(mut self) -> Host {
        let host = mem::replace(&mut self.host, Host::F32(Vec::new()));
        if let Host::F32(values) = &host {
            self.pool.leave(values);
        }
        host
    }

    /// The elements as they lie in the pool, without a copy; the array itself where they are no 32-bit floats.
    pub(crate) fn into_pooled(mut self) -> Result<PooledBuf, Self> {
        match &mut self.host {
            Host::F32(values) => Ok(PooledBuf { values: mem::take(values), pool: Arc::clone(&self.pool) }),
            _ => Err(self),
        }
    }
}

impl From<PooledBuf> for Array {
    /// Without a copy; the pool goes on counting the elements as before.
    fn from(mut buffer: PooledBuf) -> Self {
        Self { host: Host::F32(mem::take(&mut buffer.values)), pool: Arc::clone(&buffer.pool) }
    }
}

impl Deref for Array {
    type Target = Host;

    /// Elements in their own type: those of 16 bits are not widened.
    fn deref(&self) -> &Host {
        &self.host
    }
}

impl Drop for Array {
    /// Types other than 32-bit floats are not pooled: they are freed at once.
    fn drop(&mut self) {
        if let Host::F32(values) = &mut self.host {
            self.pool.give(mem::take(values));
        }
    }
}

impl fmt::Debug for Array {
    /// Count and type, not the elements: arrays may hold millions.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Array({} x {})", self.host.len(), self.host.dtype())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(pool: &Arc<BufferPool>, count: usize) -> PooledBuf {
        pool.take("a test", count).expect("room")
    }

    /// Elements in use, free elements, free arrays.
    fn sizes(pool: &BufferPool) -> (usize, usize, usize) {
        let free = lock(&pool.free);
        (free.used, free.spare, free.arrays.len())
    }

    #[test]
    // The same address comes back, for a size that fits closely enough.
    fn an_array_is_used_again() {
        let pool = Arc::new(BufferPool::default());
        let first = take(&pool, SMALLEST + 1);
        let place = first.as_ptr();
        drop(first);
        let again = take(&pool, SMALLEST);
        assert_eq!((again.as_ptr(), again.len()), (place, SMALLEST));
        pool.release();
        drop(Array::from(again));
        assert_eq!(sizes(&pool), (0, SMALLEST + 1, 1));
        pool.release();
        assert_eq!(sizes(&pool), (0, 0, 0));
    }

    #[test]
    fn keeping_does_not_raise_the_peak() {
        let pool = Arc::new(BufferPool::default());
        let pair = (take(&pool, SMALLEST), take(&pool, SMALLEST));
        drop(pair);
        assert_eq!(sizes(&pool), (0, 2 * SMALLEST, 2));
        // Neither free array fits, and with one of them beside this one the peak would rise.
        let other = take(&pool, 3 * SMALLEST / 2);
        assert_eq!(sizes(&pool), (3 * SMALLEST / 2, 0, 0));
        drop(other);
        let adopted = Array::new(&pool, Host::F32(vec![0.0; 2 * SMALLEST]));
        assert_eq!(sizes(&pool), (2 * SMALLEST, 0, 0));
        drop(adopted.into_host());
        assert_eq!(sizes(&pool), (0, 0, 0));
    }

    #[test]
    fn what_there_is_no_room_for_is_refused_and_not_counted() {
        let pool = Arc::new(BufferPool::default());
        drop(take(&pool, SMALLEST));
        for count in [1 << 50, usize::MAX / 4, usize::MAX] {
            let error = pool.take("matmul", count).expect_err("more than there is").to_string();
            assert!(error.starts_with("matmul: ") && error.contains("smaller sizes"), "{error}");
        }
        // Kept arrays went first: they might have made the room.
        assert_eq!(sizes(&pool), (0, 0, 0));
    }

    #[test]
    fn small_arrays_are_not_kept() {
        let pool = Arc::new(BufferPool::default());
        drop(take(&pool, 5));
        assert_eq!(sizes(&pool), (0, 0, 0));
    }

    #[test]
    fn a_workspace_comes_back_by_its_type() {
        let pool = BufferPool::default();
        pool.with_workspace(|x: &mut Vec<u8>| x.push(1));
        pool.with_workspace(|x: &mut String| x.push('a'));
        assert_eq!(pool.with_workspace(|x: &mut Vec<u8>| x.clone()), [1]);
        assert_eq!(pool.with_workspace(|x: &mut String| x.clone()), "a");
        pool.release();
        assert_eq!(pool.with_workspace(|x: &mut String| x.clone()), "");
    }
}
