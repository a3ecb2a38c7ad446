//! What a mixer remembers, in safetensors files.

use super::LayerCache;
use crate::{
    Result, Var,
    files::{read_file, write_whole},
    weights::{pack, unpack_elements},
};
use hecate_core::{Backend, Shape, Tensor};
use std::path::Path;

impl<B: Backend> LayerCache<B> {
    /// Writes all arrays to a safetensors file, in 32 bits, which hold every element as it is. The file is there whole or not at
    /// all; one that was there before is replaced.
    ///
    /// # Errors
    /// [`Error::Io`](crate::Error::Io); the device's own failures.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        write_whole(path, &pack(path, &self.named(""), &[], &[])?)
    }

    /// Takes all arrays from a file that [`LayerCache::save`] wrote. Names and shapes must be those of this cache: that of the
    /// same mixer and number of texts ([`Mixer::cache`](crate::layers::Mixer::cache)).
    ///
    /// # Errors
    /// [`Error::Io`](crate::Error::Io); [`Error::Checkpoint`](crate::Error::Checkpoint) for a file that is damaged or of another mixer; the device's own failures. All arrays
    /// are then as they were.
    pub fn load(&mut self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        let (arrays, _) = unpack_elements(path, &read_file(path)?, &shapes(&self.named("")), None)?;
        self.fill(arrays)
    }

    /// All arrays by the names that files have for them. Parts may have arrays of one name: their number tells them apart.
    pub(crate) fn named(&self, scope: &str) -> Vec<(String, &Tensor<B>)> {
        self.iter().enumerate().map(|(i, (name, array))| (format!("{scope}{i}.{name}"), array)).collect()
    }

    /// Puts elements into the arrays, in their order, as 32-bit floats: what a fresh cache holds.
    pub(crate) fn fill(&mut self, arrays: Vec<Vec<f32>>) -> Result<()> {
        let mut places = self.arrays_mut();
        let values = places.iter().zip(arrays).map(|(place, elements)| {
            let old = place.value();
            Tensor::from_f32(old.device(), old.shape().clone(), elements)
        });
        let values = values.collect::<hecate_core::Result<Vec<_>>>()?;
        places.iter_mut().zip(values).for_each(|(place, value)| **place = Var::constant(value));
        Ok(())
    }
}

/// Names and shapes of arrays.
pub(crate) fn shapes<B: Backend>(named: &[(String, &Tensor<B>)]) -> Vec<(String, Shape)> {
    named.iter().map(|(name, array)| (name.clone(), array.shape().clone())).collect()
}
