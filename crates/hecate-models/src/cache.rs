//! What a model remembers between calls.

use hecate_core::{Backend, Tensor};

/// What one mixer remembers: named arrays, `N` sequences in front, and what the mixers that it is made of remember.
/// The shapes never change, so a text of any length is gone through in constant memory.
#[derive(Debug)]
pub struct LayerCache<B: Backend> {
    arrays: Vec<(&'static str, Tensor<B>)>,
    parts: Vec<LayerCache<B>>,
}

impl<B: Backend> LayerCache<B> {
    /// Names and arrays, in the order in which the mixer uses them.
    pub fn new(arrays: Vec<(&'static str, Tensor<B>)>) -> Self {
        Self { arrays, parts: Vec::new() }
    }

    /// The same, and what the mixer's parts remember, in their order.
    pub fn with_parts(self, parts: Vec<LayerCache<B>>) -> Self {
        Self { parts, ..self }
    }

    /// Names and arrays, those of the parts behind.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, &Tensor<B>)> {
        let mut all = Vec::new();
        self.gather(&mut all);
        all.into_iter()
    }

    fn gather<'a>(&'a self, all: &mut Vec<(&'static str, &'a Tensor<B>)>) {
        all.extend(self.arrays.iter().map(|(name, array)| (*name, array)));
        self.parts.iter().for_each(|part| part.gather(all));
    }

    /// The mixer's own array of this name; none if it has no such array.
    pub fn get(&self, name: &str) -> Option<&Tensor<B>> {
        self.arrays.iter().find(|(known, _)| *known == name).map(|(_, array)| array)
    }

    /// Replaces the mixer's own array of this name.
    pub(crate) fn set(&mut self, name: &str, array: Tensor<B>) {
        if let Some((_, old)) = self.arrays.iter_mut().find(|(known, _)| *known == name) {
            *old = array;
        }
    }

    /// What the part of this number remembers.
    pub(crate) fn part_mut(&mut self, part: usize) -> Option<&mut Self> {
        self.parts.get_mut(part)
    }
}

impl<B: Backend> Clone for LayerCache<B> {
    fn clone(&self) -> Self {
        Self { arrays: self.arrays.clone(), parts: self.parts.clone() }
    }
}

/// What a model remembers of the texts it is reading: memory states, inputs of convolutions, windows of attention, and
/// the position. A clone shares the arrays and costs nothing; both can go on by themselves.
#[derive(Debug)]
pub struct Cache<B: Backend> {
    batch: usize,
    position: usize,
    layers: Vec<LayerCache<B>>,
}

impl<B: Backend> Cache<B> {
    pub(crate) fn new(batch: usize, layers: Vec<LayerCache<B>>) -> Self {
        Self { batch, position: 0, layers }
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
        &self.layers
    }

    /// Size of all arrays, bytes.
    pub fn bytes(&self) -> usize {
        let arrays = self.layers.iter().flat_map(LayerCache::iter);
        arrays.map(|(_, array)| array.shape().count() * array.dtype().size()).sum()
    }

    pub(crate) fn layers_mut(&mut self) -> &mut [LayerCache<B>] {
        &mut self.layers
    }

    pub(crate) fn advance(&mut self, tokens: usize) {
        self.position += tokens;
    }
}

impl<B: Backend> Clone for Cache<B> {
    fn clone(&self) -> Self {
        Self { batch: self.batch, position: self.position, layers: self.layers.clone() }
    }
}
