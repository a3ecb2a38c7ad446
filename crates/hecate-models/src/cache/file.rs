//! What is remembered, in safetensors files.

use super::{Cache, LayerCache};
use crate::{
    Error, Result, Var,
    checkpoint::{read_file, write_whole},
    checksum::checksum,
    trainer::CONFIG,
    weights::{pack, pack_and_count, unpack_elements, verify},
};
use hecate_core::{Backend, Shape, Tensor};
use std::path::Path;

/// The number of tokens of each text that were read, in a file.
const POSITION: &str = "position";

/// Most tokens that a text has behind it: more than are ever read, and few enough to be counted on from.
const LONGEST: u64 = 1 << 48;

impl<B: Backend> LayerCache<B> {
    /// Writes all arrays to a safetensors file, in 32 bits, which hold every element as it is. The file is there whole or not at
    /// all; one that was there before is replaced.
    ///
    /// # Errors
    /// [`Error::Io`]; the device's own failures.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        write_whole(path, &pack(path, &self.named(""), &[], &[])?)
    }

    /// Takes all arrays from a file that [`LayerCache::save`] wrote. Names and shapes must be those of this cache: that of the
    /// same mixer and number of texts ([`Mixer::cache`](crate::layers::Mixer::cache)).
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::Checkpoint`] for a file that is damaged or of another mixer; the device's own failures. All arrays
    /// are then as they were.
    pub fn load(&mut self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        let (arrays, _) = unpack_elements(path, &read_file(path)?, &shapes(&self.named("")), None)?;
        self.fill(arrays)
    }

    /// All arrays by the names that files have for them. Parts may have arrays of one name: their number tells them apart.
    fn named(&self, scope: &str) -> Vec<(String, &Tensor<B>)> {
        self.iter().enumerate().map(|(i, (name, array))| (format!("{scope}{i}.{name}"), array)).collect()
    }

    /// Puts elements into the arrays, in their order, as 32-bit floats: what a fresh cache holds.
    fn fill(&mut self, arrays: Vec<Vec<f32>>) -> Result<()> {
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

impl<B: Backend> Cache<B> {
    /// Writes everything that is remembered to a safetensors file, and the position: arrays in 32 bits, which hold every element
    /// as it is. The file knows the model's configuration. It is there whole or not at all; one that was there before is replaced.
    ///
    /// # Errors
    /// [`Error::Io`]; the device's own failures.
    ///
    /// # Example
    ///
    /// ```
    /// use hecate_cpu::Cpu;
    /// use hecate_models::{Config, LanguageModel, Result};
    ///
    /// # fn main() -> Result<()> {
    /// let model = LanguageModel::new(&Cpu::new(), &Config::uniform("titans", 1, 32, 2)?, 0)?;
    /// let text: Vec<u32> = b"to be or not to be".map(u32::from).into();
    /// let mut cache = model.cache(1)?;
    /// model.infer(&text[..10], 1, &mut cache)?;
    /// # let folder = tempfile::tempdir().expect("a folder");
    /// # let path = folder.path().join("read.safetensors");
    /// cache.save(&path)?;
    ///
    /// // Another day, another program: the same model goes on, to the bit.
    /// let mut loaded = model.cache(1)?;
    /// loaded.load(&path)?;
    /// assert_eq!(loaded.position(), 10);
    /// let [here, there] = [&mut cache, &mut loaded].map(|cache| model.infer(&text[10..], 1, cache));
    /// assert_eq!(here?.to_f32()?, there?.to_f32()?);
    /// # Ok(())
    /// # }
    /// ```
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        let position = self.clone().counted_by_host()?.position as u64;
        let beside = [(CONFIG, self.config.content())];
        write_whole(path, &pack_and_count(path, &self.named(), (POSITION, position), &beside)?)
    }

    /// Takes everything from a file that [`Cache::save`] wrote of a model of the same configuration, and of as many texts.
    /// Which weights that model had the file does not know.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::Checkpoint`] for a file that is damaged, or of another model or number of texts; the device's own
    /// failures. The cache is then as it was.
    pub fn load(&mut self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        let content = read_file(path)?;
        let written = verify(path, &content)?.and_then(|beside| beside.get(CONFIG).cloned());
        if written.is_some_and(|sum| sum != checksum(self.config.content())) {
            let why = "what another model remembers; load it into a cache of a model of the same configuration";
            return Err(Error::checkpoint(path, why));
        }
        let (arrays, position) = unpack_elements(path, &content, &shapes(&self.named()), Some(POSITION))?;
        let position = position.filter(|&position| position <= LONGEST).and_then(|position| position.try_into().ok());
        let Some(position) = position else {
            return Err(Error::checkpoint(path, format!("`{POSITION}` is over {LONGEST}; use a copy of it")));
        };
        self.restore(arrays, position)
    }

    /// All arrays by the names that files have for them.
    pub(crate) fn named(&self) -> Vec<(String, &Tensor<B>)> {
        let layers = self.layers().iter().enumerate();
        layers.flat_map(|(i, layer)| layer.named(&format!("layers.{i}."))).collect()
    }

    /// Takes arrays of [`Cache::named`] in their order, at this position.
    pub(crate) fn restore(&mut self, arrays: Vec<Vec<f32>>, position: usize) -> Result<()> {
        self.memory.fill(arrays)?;
        (self.position, self.positions) = (position, None);
        Ok(())
    }
}

/// Names and shapes of arrays.
pub(crate) fn shapes<B: Backend>(named: &[(String, &Tensor<B>)]) -> Vec<(String, Shape)> {
    named.iter().map(|(name, array)| (name.clone(), array.shape().clone())).collect()
}
