//! Bind groups that were made before: a training step asks for the same kernels on the same memory again and again.

use crate::adapter::Adapter;
use std::{
    collections::HashMap,
    hash::{DefaultHasher, Hash, Hasher},
    sync::{Mutex, MutexGuard, PoisonError},
};

/// Most that a GPU keeps; where there are more, all go. A step of a large model has some thousands.
const MOST: usize = 1 << 14;
/// Most that one device of a driver on the CPU keeps. Mesa's maps memory for each of them, and Linux allows a process 65,530
/// maps, past which Mesa writes to where no memory is. So a dozen devices fit.
const MOST_ON_CPU: usize = 1 << 12;

/// Bind groups by the hash of what they bind.
type BindGroupCache = HashMap<u64, Vec<CachedBindGroup>>;

/// Bind groups by what is bound to which kernel.
pub(crate) struct BindGroups {
    kept: Mutex<BindGroupCache>,
    /// Most that are kept.
    most: usize,
}

struct CachedBindGroup {
    /// Of the kernel.
    layout: wgpu::BindGroupLayout,
    /// Buffers, and bytes of each that are bound.
    arrays: Vec<(wgpu::Buffer, u64)>,
    /// What was made of them.
    group: wgpu::BindGroup,
}

impl BindGroups {
    /// None yet, and later as many as such an adapter can hold.
    pub(crate) fn new(adapter: &Adapter) -> Self {
        let most = if adapter.kind == "CPU" { MOST_ON_CPU } else { MOST };
        Self { kept: Mutex::default(), most }
    }

    /// Those that are kept, under their lock.
    fn kept(&self) -> MutexGuard<'_, BindGroupCache> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The bind group of a layout for these buffers, and so many bytes of each; made where there is none.
    pub(crate) fn get<'a>(
        &self,
        layout: &wgpu::BindGroupLayout,
        arrays: impl ExactSizeIterator<Item = (&'a wgpu::Buffer, u64)> + Clone,
        make: impl FnOnce() -> wgpu::BindGroup,
    ) -> wgpu::BindGroup {
        // The hash finds candidates; layouts and buffers are then compared.
        let mut hasher = DefaultHasher::new();
        layout.hash(&mut hasher);
        arrays.clone().for_each(|array| array.hash(&mut hasher));
        let mut all = self.kept();
        // Bind groups keep their buffers alive: old ones must go at some time.
        if all.len() >= self.most {
            all.clear();
        }
        let alike = all.entry(hasher.finish()).or_default();
        let same = |cached: &&CachedBindGroup| {
            let mut pairs = cached.arrays.iter().zip(arrays.clone());
            let alike = pairs.all(|((buffer, bytes), (other, count))| buffer == other && *bytes == count);
            alike && cached.layout == *layout && cached.arrays.len() == arrays.len()
        };
        if let Some(cached) = alike.iter().find(same) {
            return cached.group.clone();
        }
        let group = make();
        let arrays = arrays.map(|(buffer, bytes)| (buffer.clone(), bytes)).collect();
        alike.push(CachedBindGroup { layout: layout.clone(), arrays, group: group.clone() });
        group
    }

    /// How many are kept, and how many can be.
    #[cfg(test)]
    pub(crate) fn count(&self) -> (usize, usize) {
        (self.kept().values().map(Vec::len).sum(), self.most)
    }

    /// Lets go of all, and so of the memory that is bound in them.
    pub(crate) fn clear(&self) {
        self.kept().clear();
    }
}
