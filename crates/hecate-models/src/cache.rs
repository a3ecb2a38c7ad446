//! What a mixer remembers between calls.

mod file;

pub(crate) use file::shapes;

use crate::{Result, Tape, Var};
use hecate_core::{Backend, Tensor, memory};

/// What one mixer remembers: named arrays `[N, ..]` of `N` sequences, and what the mixers that it is made of remember.
/// The shapes never change, so a text of any length is gone through in constant memory; but for keys and values of
/// [`FullAttention`](crate::layers::FullAttention), whose room grows with the text.
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

    /// What the parts remember, in their order.
    pub(crate) fn parts(&self) -> &[Self] {
        &self.parts
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
