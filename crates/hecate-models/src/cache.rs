//! What a model remembers between calls.

mod file;

pub(crate) use file::shapes;

use crate::{Error, Result, Tape, Var, model::KeptConfig};
use hecate_core::{Backend, Tensor, memory, primitives};
use std::sync::Arc;

/// What one mixer remembers: named arrays `[N, ..]` of `N` sequences, and what the mixers that it is made of remember.
/// The shapes never change, so a text of any length is gone through in constant memory.
///
/// Arrays are values of the tape that the mixer ran on: inside of one tape gradients flow from call to call, and what an
/// inert tape leaves is constant. A mixer starts afresh from arrays that are not there yet.
#[derive(Debug)]
pub struct LayerCache<B: Backend> {
    arrays: Vec<(&'static str, Var<B>)>,
    parts: Vec<LayerCache<B>>,
    /// Somebody asked for a part that is not there.
    lacks_part: bool,
}

impl<B: Backend> LayerCache<B> {
    /// Names and arrays, in the order in which the mixer uses them.
    pub fn new(arrays: Vec<(&'static str, Tensor<B>)>) -> Self {
        Self::of_vars(arrays.into_iter().map(|(name, array)| (name, Var::constant(array))).collect())
    }

    /// As [`LayerCache::new`], from values of a tape.
    fn of_vars(arrays: Vec<(&'static str, Var<B>)>) -> Self {
        Self { arrays, parts: Vec::new(), lacks_part: false }
    }

    /// The same, and what the mixer's parts remember, in their order.
    pub fn with_parts(self, parts: Vec<LayerCache<B>>) -> Self {
        Self { parts, ..self }
    }

    /// Names and arrays, then those of the parts.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, &Tensor<B>)> {
        let mut all = Vec::new();
        self.gather(&mut all);
        all.into_iter()
    }

    /// Appends own arrays, then those of the parts, depth first.
    fn gather<'a>(&'a self, all: &mut Vec<(&'static str, &'a Tensor<B>)>) {
        all.extend(self.arrays.iter().map(|(name, array)| (*name, array.value())));
        self.parts.iter().for_each(|part| part.gather(all));
    }

    /// The mixer's own array of this name; none if it has no such array.
    pub fn get(&self, name: &str) -> Option<&Tensor<B>> {
        self.var(name).map(Var::value)
    }

    /// As [`LayerCache::get`], with its history.
    pub(crate) fn var(&self, name: &str) -> Option<&Var<B>> {
        self.arrays.iter().find(|(known, _)| *known == name).map(|(_, array)| array)
    }

    /// Sets the mixer's own array of this name, or adds it.
    pub(crate) fn set(&mut self, name: &'static str, array: Var<B>) {
        match self.arrays.iter_mut().find(|(known, _)| *known == name) {
            Some((_, old)) => *old = array,
            None => self.arrays.push((name, array)),
        }
    }

    /// The arrays, then those of the parts, to be replaced by others of their shape.
    pub(crate) fn arrays_mut(&mut self) -> Vec<&mut Var<B>> {
        let own = self.arrays.iter_mut().map(|(_, array)| array);
        own.chain(self.parts.iter_mut().flat_map(Self::arrays_mut)).collect()
    }

    /// What the part at this index remembers.
    pub(crate) fn part_mut(&mut self, part: usize) -> Option<&mut Self> {
        self.lacks_part |= part >= self.parts.len();
        self.parts.get_mut(part)
    }

    /// Whether somebody asked for a part that is not there, and remembers nothing.
    pub(crate) fn lacks_part(&self) -> bool {
        self.lacks_part
    }

    /// Whether something is remembered that belongs to no part.
    pub(crate) fn has_own_arrays(&self) -> bool {
        !self.arrays.is_empty()
    }

    /// The same for `batch` texts, where all is known of one.
    pub(crate) fn repeated(&self, tape: &Tape<'_, B>, batch: usize) -> Result<Self> {
        Self::join(tape, &memory::filled("cache", batch, self)?)
    }

    /// One cache of all texts: arrays joined along axis 0.
    pub(crate) fn join(tape: &Tape<'_, B>, all: &[&Self]) -> Result<Self> {
        Self::zip(all, &|arrays| match arrays {
            [one] => Ok((*one).clone()),
            [first, ..] if first.value().shape().count() == 0 => {
                without_elements(first, arrays.iter().map(|array| array.axes()[0]).sum())
            }
            _ => tape.concat(arrays, 0),
        })
    }

    /// The cache of one text: index `text` of axis 0, `[1, ..]`.
    pub(crate) fn text(&self, tape: &Tape<'_, B>, text: usize) -> Result<Self> {
        Self::zip(&[self], &|arrays| match arrays[0] {
            array if array.value().shape().count() == 0 => without_elements(array, 1),
            array => tape.narrow(array, 0, text, 1),
        })
    }

    /// Makes each array from those of the same name in `all`.
    fn zip(all: &[&Self], make: &dyn Fn(&[&Var<B>]) -> Result<Var<B>>) -> Result<Self> {
        let Some(first) = all.first() else {
            return Ok(Self::of_vars(Vec::new()));
        };
        let array = |i: usize| make(&all.iter().map(|cache| &cache.arrays[i].1).collect::<Vec<_>>());
        let arrays = first.arrays.iter().enumerate().map(|(i, (name, _))| Ok((*name, array(i)?)));
        let part = |i: usize| Self::zip(&all.iter().map(|cache| &cache.parts[i]).collect::<Vec<_>>(), make);
        let parts = (0..first.parts.len()).map(part);
        Ok(Self { parts: parts.collect::<Result<_>>()?, ..Self::of_vars(arrays.collect::<Result<_>>()?) })
    }
}

/// An array `[texts, ..]` without elements, of the other axes of `like`: some slots have an axis of length 0, which
/// primitives refuse.
fn without_elements<B: Backend>(like: &Var<B>, texts: usize) -> Result<Var<B>> {
    let axes: Vec<usize> = [texts].into_iter().chain(like.axes()[1..].iter().copied()).collect();
    Ok(Var::constant(Tensor::zeros(like.value().device(), axes, like.value().dtype())?))
}

impl<B: Backend> Clone for LayerCache<B> {
    fn clone(&self) -> Self {
        Self { arrays: self.arrays.clone(), parts: self.parts.clone(), lacks_part: self.lacks_part }
    }
}

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

    /// Tokens of each text read so far.
    pub fn position(&self) -> usize {
        self.position
    }

    /// What each block's mixer remembers, first block first.
    pub fn layers(&self) -> &[LayerCache<B>] {
        &self.memory.parts
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

    /// As [`Cache::position`] of each text `[batch]`, where the device counts.
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
