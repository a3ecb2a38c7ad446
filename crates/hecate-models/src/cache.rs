//! What a model remembers between calls.

use hecate_core::{Backend, Tensor};

/// What one mixer remembers: named arrays, `N` sequences in front. Their shapes never change, so a text of any length
/// is gone through in constant memory.
#[derive(Debug)]
pub struct LayerCache<B: Backend>(Vec<(&'static str, Tensor<B>)>);

impl<B: Backend> LayerCache<B> {
    /// Names and arrays, in the order in which the mixer uses them.
    pub fn new(arrays: Vec<(&'static str, Tensor<B>)>) -> Self {
        Self(arrays)
    }

    /// Names and arrays.
    pub fn iter(&self) -> std::slice::Iter<'_, (&'static str, Tensor<B>)> {
        self.0.iter()
    }

    /// The array of this name; none if the mixer has no such array.
    pub fn get(&self, name: &str) -> Option<&Tensor<B>> {
        self.0.iter().find(|(known, _)| *known == name).map(|(_, array)| array)
    }

    /// Replaces the array of this name.
    pub(crate) fn set(&mut self, name: &str, array: Tensor<B>) {
        if let Some((_, old)) = self.0.iter_mut().find(|(known, _)| *known == name) {
            *old = array;
        }
    }
}

impl<B: Backend> Clone for LayerCache<B> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
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
