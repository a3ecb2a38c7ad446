//! What a mixer remembers, in safetensors files.

use super::LayerCache;
use crate::{
    Result, Var,
    files::{read_file, write_whole},
    weights::{Named, pack_states, unpack_elements},
};
use hecate_core::{Backend, Tensor};
use std::path::Path;

impl<B: Backend> LayerCache<B> {
    /// Writes all arrays to a safetensors file, in 32 bits, which hold every element as it is. The file is there whole or not at
    /// all; one that was there before is replaced.
    ///
    /// # Errors
    /// [`Error::Io`](crate::Error::Io); the device's own failures.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        write_whole(path, &pack_states(path, &self.named(""))?)
    }

    /// Takes all arrays from a file that [`LayerCache::save`] wrote. Names and shapes must be those of this cache: that of the
    /// same mixer and number of texts ([`Mixer::cache`](crate::layers::Mixer::cache)), and of as long a text where room grows.
    ///
    /// # Errors
    /// [`Error::Io`](crate::Error::Io); [`Error::Checkpoint`](crate::Error::Checkpoint) for a file that is damaged or of another mixer; the device's own failures. All arrays
    /// are then as they were.
    pub fn load(&mut self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        let shapes = self.named("").into_iter().map(|(name, array)| (name, array.shape().clone())).collect();
        let (arrays, []) = unpack_elements(path, &read_file(path)?, [], |_| Ok(Named::clone(&shapes)))?;
        self.fill(&shapes, arrays)
    }

    /// Names and shapes of all arrays once `tokens` tokens were read of each text.
    pub(crate) fn shapes(&self, scope: &str, tokens: usize) -> Named {
        let mut room = Vec::new();
        self.rooms(tokens, &mut room);
        let named = self.named(scope).into_iter().zip(room);
        named
            .map(|((name, array), room)| {
                let mut axes = array.shape().axes().to_vec();
                axes.iter_mut().skip(1).take(1).for_each(|axis| *axis = room.unwrap_or(*axis));
                (name, axes.into())
            })
            .collect()
    }

    /// Appends for each array its axis 1 after so many tokens, where it grows.
    fn rooms(&self, tokens: usize, all: &mut Vec<Option<usize>>) {
        all.extend(self.arrays.iter().map(|_| self.grows.then(|| super::room(tokens))));
        self.parts.iter().for_each(|part| part.rooms(tokens, all));
    }

    /// All arrays by the names that files have for them. Parts may have arrays of one name: their number tells them apart.
    pub(crate) fn named(&self, scope: &str) -> Vec<(String, &Tensor<B>)> {
        self.iter().enumerate().map(|(i, (name, array))| (format!("{scope}{i}.{name}"), array)).collect()
    }

    /// Puts elements into the arrays, in their order and of these shapes, as 32-bit floats: what a fresh cache holds.
    pub(crate) fn fill(&mut self, shapes: &Named, arrays: Vec<Vec<f32>>) -> Result<()> {
        let mut places = self.arrays_mut();
        let values =
            places.iter().zip(shapes).zip(arrays).map(|((place, (_, shape)), elements)| {
                Tensor::from_f32(place.value().device(), shape.clone(), elements)
            });
        let values = values.collect::<hecate_core::Result<Vec<_>>>()?;
        places.iter_mut().zip(values).for_each(|(place, value)| **place = Var::constant(value));
        Ok(())
    }
}
