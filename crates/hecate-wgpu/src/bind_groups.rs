//! Bind groups that were made before: a training step asks for the same kernels on the same memory again and again.

use std::{
    collections::HashMap,
    hash::{DefaultHasher, Hash, Hasher},
    sync::{Mutex, PoisonError},
};

/// Most that are kept; where there are more, all go.
const MOST: usize = 1 << 14;

/// Bind groups by what is bound to which kernel.
#[derive(Default)]
pub(crate) struct BindGroups(Mutex<HashMap<u64, Vec<Known>>>);

struct Known {
    layout: wgpu::BindGroupLayout,
    arrays: Vec<(wgpu::Buffer, u64)>,
    group: wgpu::BindGroup,
}

impl BindGroups {
    /// The bind group of a layout for these buffers, and so many bytes of each; made where there is none.
    pub(crate) fn get<'a>(
        &self,
        layout: &wgpu::BindGroupLayout,
        arrays: impl ExactSizeIterator<Item = (&'a wgpu::Buffer, u64)> + Clone,
        make: impl FnOnce() -> wgpu::BindGroup,
    ) -> wgpu::BindGroup {
        let mut hasher = DefaultHasher::new();
        layout.hash(&mut hasher);
        arrays.clone().for_each(|array| array.hash(&mut hasher));
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() >= MOST {
            all.clear();
        }
        let alike = all.entry(hasher.finish()).or_default();
        let same = |known: &&Known| {
            let mut pairs = known.arrays.iter().zip(arrays.clone());
            let alike = pairs.all(|((buffer, bytes), (other, count))| buffer == other && *bytes == count);
            alike && known.layout == *layout && known.arrays.len() == arrays.len()
        };
        if let Some(known) = alike.iter().find(same) {
            return known.group.clone();
        }
        let group = make();
        let arrays = arrays.map(|(buffer, bytes)| (buffer.clone(), bytes)).collect();
        alike.push(Known { layout: layout.clone(), arrays, group: group.clone() });
        group
    }

    /// Lets go of all, and so of the memory that is bound in them.
    pub(crate) fn clear(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}
