//! What a model remembers between calls, and its file.

use crate::{
    Error, LayerCache, Result, Tape, Var,
    cache::room,
    files::{CONFIG, checksum, read_file, write_whole},
    model::KeptConfig,
    weights::{Named, pack_and_count, unpack_elements, verify},
};
use hecate_core::{Backend, Tensor, memory, primitives};
use std::{path::Path, sync::Arc};

/// The number of tokens of each text that were read, in a file.
pub(crate) const POSITION: &str = "position";

/// Of a file that does not fit.
const OF_ANOTHER: &str =
    "what another model remembers; load it into a cache of a model of the same configuration and weights";

/// Most tokens that a text has behind it: more than are ever read, and few enough to be counted on from.
const LONGEST: u64 = 1 << 48;

/// What a model remembers of the texts it is reading: memory states, inputs of convolutions, windows of attention, and
/// the position. A clone shares the arrays and costs nothing; both can go on by themselves.
#[derive(Debug)]
pub struct Cache<B: Backend> {
    batch: usize,
    position: usize,
    /// One part a mixer of the model.
    memory: LayerCache<B>,
    /// Tokens of each text read so far `[batch]`, where the device counts them as part of a captured step.
    positions: Option<Tensor<B>>,
    /// What the model is made of.
    config: Arc<KeptConfig<B>>,
}

impl<B: Backend> Cache<B> {
    /// A cache at position 0, with one part a mixer of a model of this configuration.
    pub(crate) fn new(batch: usize, memory: LayerCache<B>, config: Arc<KeptConfig<B>>) -> Self {
        Self { batch, position: 0, memory, positions: None, config }
    }

    /// Refuses a cache that a model of another configuration made.
    pub(crate) fn check(&self, config: &Arc<KeptConfig<B>>) -> Result<()> {
        if Arc::ptr_eq(&self.config, config) || self.config == *config {
            return Ok(());
        }
        let found = format!("one of another model, of {} layers", self.layers().len());
        Err(Error::config("cache", found, "one that this model made (`LanguageModel::cache`)"))
    }

    /// Number of texts.
    pub fn batch(&self) -> usize {
        self.batch
    }

    /// Tokens of each text read so far; of texts that were joined those of the longest.
    pub fn position(&self) -> usize {
        self.position
    }

    /// What each block's mixer remembers, first block first.
    pub fn layers(&self) -> &[LayerCache<B>] {
        self.memory.parts()
    }

    /// Size of all arrays, bytes.
    pub fn bytes(&self) -> usize {
        let arrays = self.memory.iter();
        arrays.map(|(_, array)| array.shape().count() * array.dtype().size()).sum()
    }

    /// All arrays, first block first, then the device's count of tokens where it counts.
    pub(crate) fn arrays(&self) -> Vec<Tensor<B>> {
        let arrays = self.memory.iter().map(|(_, array)| array.clone());
        arrays.chain(self.positions.clone()).collect()
    }

    /// The same texts with other arrays, in the order of [`Cache::arrays`].
    pub(crate) fn with_arrays(&self, arrays: Vec<Tensor<B>>) -> Self {
        let (mut cache, mut arrays) = (self.clone(), arrays.into_iter());
        let places = cache.memory.arrays_mut().into_iter();
        places.zip(arrays.by_ref()).for_each(|(place, array)| *place = Var::constant(array));
        cache.positions = arrays.next();
        cache
    }

    /// What all mixers remember, for a model that runs.
    pub(crate) fn memory_mut(&mut self) -> &mut LayerCache<B> {
        &mut self.memory
    }

    /// The same, with tokens counted by the device from here on, as part of its arrays.
    pub(crate) fn counted_by_device(mut self, device: &B) -> Result<Self> {
        let position = self.position;
        let count = u32::try_from(position).map_err(|_| Error::config("position", position, "under 2^32"))?;
        self.positions = Some(Tensor::from_u32(device, [self.batch], memory::filled("cache", self.batch, count)?)?);
        Ok(self)
    }

    /// The same, with tokens counted by the host again; waits for the device.
    pub(crate) fn counted_by_host(mut self) -> Result<Self> {
        if let Some(positions) = self.positions.take() {
            self.position = positions.to_u32()?.first().map_or(self.position, |&position| position as usize);
        }
        Ok(self)
    }

    /// Texts that stand at different places, to go on in one call of a token each.
    pub(crate) fn joined(tape: &Tape<'_, B>, device: &B, all: &[&Self]) -> Result<Self> {
        let Some(first) = all.first() else {
            return Err(Error::config("caches", 0, "those of one text or more"));
        };
        let memory = LayerCache::join(tape, &all.iter().map(|cache| &cache.memory).collect::<Vec<_>>())?;
        let positions: Vec<usize> = all.iter().map(|cache| cache.position).collect();
        Self { batch: all.len(), memory, ..(*first).clone() }.at_each(device, &positions)
    }

    /// The same with other texts in some places, which come in order; each text then stands at its position.
    pub(crate) fn with_texts(
        &self,
        tape: &Tape<'_, B>,
        device: &B,
        texts: &[(usize, &Self)],
        positions: &[usize],
    ) -> Result<Self> {
        let others: Vec<_> = texts.iter().map(|(place, cache)| (*place, &cache.memory)).collect();
        Self { memory: self.memory.with_texts(tape, &others)?, ..self.clone() }.at_each(device, positions)
    }

    /// The same texts in as many rows as there are positions: those beyond are copies of the first.
    pub(crate) fn padded(&self, tape: &Tape<'_, B>, device: &B, positions: &[usize]) -> Result<Self> {
        let first = self.memory.text(tape, 0)?;
        let copies = std::iter::repeat_n(&first, positions.len().saturating_sub(self.batch));
        let memory = LayerCache::join(tape, &std::iter::once(&self.memory).chain(copies).collect::<Vec<_>>())?;
        Self { batch: positions.len(), memory, ..self.clone() }.at_each(device, positions)
    }

    /// One of as many texts with arrays of the first alone, for [`Cache::with_arrays`].
    pub(crate) fn like(&self, tape: &Tape<'_, B>) -> Result<Self> {
        Ok(Self { memory: self.memory.text(tape, 0)?, ..self.clone() })
    }

    /// The same texts, each at its position, which the device counts on.
    fn at_each(self, device: &B, positions: &[usize]) -> Result<Self> {
        let number =
            |&position: &usize| u32::try_from(position).map_err(|_| Error::config("position", position, "under 2^32"));
        let numbers = positions.iter().map(number).collect::<Result<_>>()?;
        let position = positions.iter().copied().max().unwrap_or(0);
        Ok(Self { position, positions: Some(Tensor::from_u32(device, [positions.len()], numbers)?), ..self })
    }

    /// One of these texts, which stands at `position`.
    pub(crate) fn text(&self, tape: &Tape<'_, B>, text: usize, position: usize) -> Result<Self> {
        let memory = self.memory.text(tape, text)?.with_places(tape, room(position))?;
        Ok(Self { batch: 1, position, memory, positions: None, config: Arc::clone(&self.config) })
    }

    /// As [`Cache::position`] of each text `[batch]`, where the device counts or texts were joined.
    pub(crate) fn positions(&self) -> Option<&Tensor<B>> {
        self.positions.as_ref()
    }

    /// As [`Cache::advance`], where the device counts.
    pub(crate) fn advance_on_device(&mut self, tokens: u32) -> Result<()> {
        if let Some(positions) = &mut self.positions {
            *positions = primitives::advance(positions, tokens)?;
        }
        Ok(())
    }

    /// What the mixers of one text remember where the host counts.
    pub(crate) fn memory(&self) -> &LayerCache<B> {
        &self.memory
    }

    /// The same text at another place.
    pub(crate) fn moved(&self, memory: LayerCache<B>, position: usize) -> Self {
        Self { batch: self.batch, position, memory, positions: None, config: Arc::clone(&self.config) }
    }

    /// Moves the position on after a call of so many tokens a text.
    pub(crate) fn advance(&mut self, tokens: usize) {
        self.position = self.position.saturating_add(tokens);
    }

    /// Cuts the history of all arrays: gradients of later calls end here.
    pub(crate) fn settle(&mut self) {
        let arrays = self.memory.arrays_mut().into_iter();
        arrays.for_each(|array| *array = Var::constant(array.value().clone()));
    }
}

impl<B: Backend> Clone for Cache<B> {
    fn clone(&self) -> Self {
        let Self { batch, position, memory, positions, config } = self;
        let (memory, positions, config) = (memory.clone(), positions.clone(), Arc::clone(config));
        Self { batch: *batch, position: *position, memory, positions, config }
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
        self.save_with(path.as_ref(), &[], &[], &[])
    }

    /// As [`Cache::save`], with more arrays and whole numbers, and what else the file belongs to.
    pub(crate) fn save_with(
        &self,
        path: &Path,
        arrays: &[(String, &Tensor<B>)],
        numbers: &[(&str, Vec<u64>)],
        beside: &[(&str, &[u8])],
    ) -> Result<()> {
        let position = self.clone().counted_by_host()?.position as u64;
        let numbers = [&[(POSITION, vec![position])], numbers].concat();
        let beside = [&[(CONFIG, self.config.content())], beside].concat();
        write_whole(path, &pack_and_count(path, &[&self.by_name(), arrays].concat(), &numbers, &beside)?)
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
            return Err(Error::checkpoint(path, OF_ANOTHER));
        }
        let (arrays, [position]) =
            unpack_elements(path, &content, [POSITION], |[position]| Ok(self.shapes(one_position(path, position)?)))?;
        self.fill(arrays, one_position(path, &position)?)
    }

    /// As [`Cache::load`] of a file that [`Cache::save_with`] wrote, which must say that it belongs to `beside`. Its other
    /// arrays are those that `more` makes of its numbers.
    pub(crate) fn load_with<const N: usize>(
        &mut self,
        path: &Path,
        numbers: [&str; N],
        more: impl FnOnce(&[Vec<u64>; N]) -> Result<Named>,
        (name, belongs): (&str, &[u8]),
    ) -> Result<(Vec<Vec<f32>>, [Vec<u64>; N])> {
        let content = read_file(path)?;
        let written = verify(path, &content)?.unwrap_or_default();
        let of = |name: &str, content: &[u8]| written.get(name).is_some_and(|sum| *sum == checksum(content));
        if !of(CONFIG, self.config.content()) || !of(name, belongs) {
            return Err(Error::checkpoint(path, OF_ANOTHER));
        }
        let mut position = 0;
        let expected = |numbers: &[Vec<u64>; N]| {
            position = one_position(path, &numbers[0])?;
            Ok([self.shapes(position), more(numbers)?].concat())
        };
        let (mut arrays, numbers) = unpack_elements(path, &content, numbers, expected)?;
        let others = arrays.split_off(self.shapes(position).len());
        self.fill(arrays, position)?;
        Ok((others, numbers))
    }

    /// Names and shapes of all arrays after so many tokens of each text.
    fn shapes(&self, position: usize) -> Named {
        let layers = self.layers().iter().enumerate();
        layers.flat_map(|(i, layer)| layer.shapes(&format!("layers.{i}."), position)).collect()
    }

    /// All arrays by the names that files have for them.
    pub fn by_name(&self) -> Vec<(String, &Tensor<B>)> {
        let layers = self.layers().iter().enumerate();
        layers.flat_map(|(i, layer)| layer.named(&format!("layers.{i}."))).collect()
    }

    /// Takes arrays of [`Cache::by_name`] from the content of a file, at this position; `path` is for messages.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] for a file that is damaged or of other arrays; the device's own failures. The cache is then as it was.
    pub fn restore(&mut self, path: &Path, content: &[u8], position: usize) -> Result<()> {
        let (arrays, []) = unpack_elements(path, content, [], |_| Ok(self.shapes(position)))?;
        self.fill(arrays, position)
    }

    /// Takes arrays of [`Cache::by_name`] in their order, at this position.
    fn fill(&mut self, arrays: Vec<Vec<f32>>, position: usize) -> Result<()> {
        self.memory.fill(&self.shapes(position), arrays)?;
        (self.position, self.positions) = (position, None);
        Ok(())
    }
}

/// The position that a file says, alone and in range.
fn one_position(path: &Path, found: &[u64]) -> Result<usize> {
    let position = if let &[position] = found { Some(position) } else { None };
    let position = position.filter(|&position| position <= LONGEST).and_then(|position| position.try_into().ok());
    let why = || format!("`{POSITION}` is {found:?}, expected one number of at most {LONGEST}; use a copy of it");
    position.ok_or_else(|| Error::checkpoint(path, why()))
}
