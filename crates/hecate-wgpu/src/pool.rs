//! Memory that tensors let go of, kept for those that come after them.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

/// Freed buffers by their size, and a count of the bytes in use.
#[derive(Default)]
pub(crate) struct Pool(Mutex<Content>);

#[derive(Default)]
struct Content {
    /// Freed buffers by size.
    free: HashMap<u64, Vec<Free>>,
    /// Bytes of all of them.
    free_bytes: u64,
    /// Bytes in use.
    used: u64,
    /// Most bytes that were in use at once.
    peak: u64,
    /// Number of the batch of work that is being queued.
    batch: u64,
}

/// A buffer, and the batch of work in which it was let go of: work of that batch may still touch it.
struct Free {
    /// The memory.
    buffer: wgpu::Buffer,
    /// Batch in which it was let go of.
    batch: u64,
}

/// Bytes that a buffer for `bytes` bytes has. It is the next of four steps to each power of two, so that arrays of about
/// one size can use each other's memory.
pub(crate) fn class(bytes: u64, largest: u64) -> u64 {
    let bytes = bytes.max(256);
    let step = (1 << (bytes - 1).ilog2()) / 4;
    let class = bytes.div_ceil(step) * step;
    if class > largest { bytes.div_ceil(4) * 4 } else { class }
}

impl Pool {
    /// The state under its lock.
    fn content(&self) -> MutexGuard<'_, Content> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A freed buffer of this class. With `settled`, one that no work which is not yet under way touches.
    pub(crate) fn take(&self, class: u64, settled: bool) -> Option<wgpu::Buffer> {
        let mut content = self.content();
        let batch = content.batch;
        let free = content.free.get_mut(&class)?;
        // The last one freed is the likeliest to be in a cache; a settled one must be of an earlier batch.
        let place =
            if settled { free.iter().rposition(|free| free.batch < batch)? } else { free.len().checked_sub(1)? };
        let Free { buffer, .. } = free.swap_remove(place);
        content.free_bytes -= class;
        content.enter(class);
        Some(buffer)
    }

    /// A new buffer of this class is in use.
    pub(crate) fn count(&self, class: u64) {
        self.content().enter(class);
    }

    /// Takes a buffer back.
    pub(crate) fn put(&self, buffer: wgpu::Buffer) {
        let (mut content, class) = (self.content(), buffer.size());
        let batch = content.batch;
        content.used -= class;
        content.free_bytes += class;
        content.free.entry(class).or_default().push(Free { buffer, batch });
    }

    /// What was queued until now is under way.
    pub(crate) fn next_batch(&self) {
        self.content().batch += 1;
    }

    /// Lets go of all that is free; whether there was any.
    pub(crate) fn clear(&self) -> bool {
        let mut content = self.content();
        content.free.clear();
        std::mem::take(&mut content.free_bytes) > 0
    }

    /// Most bytes that were in use at once.
    pub(crate) fn peak(&self) -> u64 {
        self.content().peak
    }
}

impl Content {
    /// A buffer comes into use.
    fn enter(&mut self, class: u64) {
        self.used += class;
        self.peak = self.peak.max(self.used);
    }
}

#[cfg(test)]
mod tests {
    use super::class;

    #[test]
    fn classes_hold_what_they_are_for_and_waste_a_quarter_at_most() {
        for bytes in (1..5000).chain([1 << 20, (1 << 20) + 1, 100_000_000]) {
            let class = class(bytes, 1 << 30);
            assert!(class >= bytes && class.is_multiple_of(4), "{bytes}: {class}");
            assert!(bytes < 256 || 4 * class <= 5 * bytes, "{bytes}: {class}");
        }
        assert_eq!(class(1000, 1000), 1000);
        assert_eq!(class(999, 1000), 1000);
    }
}
