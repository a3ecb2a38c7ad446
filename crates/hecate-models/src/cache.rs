//! What a mixer remembers between calls.

mod file;

use crate::{Result, Tape, Var};
use hecate_core::{Backend, Tensor, memory};

/// Tokens by which the room of what grows with the text grows, so that it is not made anew for every token.
const GROWTH: usize = 64;

/// Places that there are for so many tokens, where one is kept of each.
pub(crate) fn room(tokens: usize) -> usize {
    // A text of as many tokens as can be counted has no room left to grow into.
    tokens.checked_next_multiple_of(GROWTH).unwrap_or(tokens)
}

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
    /// Own arrays are `[N, P, ..]` with a place for each token, the last tokens in the last places: `P` grows with the text.
    grows: bool,
}

impl<B: Backend> LayerCache<B> {
    /// Names and arrays, in the order in which the mixer uses them.
    pub fn new(arrays: Vec<(&'static str, Tensor<B>)>) -> Self {
        Self::of_vars(arrays.into_iter().map(|(name, array)| (name, Var::constant(array))).collect())
    }

    /// As [`LayerCache::new`], from values of a tape.
    fn of_vars(arrays: Vec<(&'static str, Var<B>)>) -> Self {
        Self { arrays, parts: Vec::new(), lacks_part: false, grows: false }
    }

    /// The same, of arrays `[N, P, ..]` whose axis `P` has [`room`] for all tokens so far.
    pub(crate) fn growing(self) -> Self {
        Self { grows: true, ..self }
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

    /// One cache of all texts: arrays joined along axis 0. What grows has room for the longest of them.
    pub(crate) fn join(tape: &Tape<'_, B>, all: &[&Self]) -> Result<Self> {
        let places = all.iter().map(|cache| cache.places()).max().unwrap_or(0);
        let widened = all.iter().map(|cache| cache.with_places(tape, places)).collect::<Result<Vec<_>>>()?;
        Self::zip(&widened.iter().collect::<Vec<_>>(), &|arrays| match arrays {
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

    /// The same with other texts in some places, which come in order: index `place` of axis 0.
    pub(crate) fn with_texts(&self, tape: &Tape<'_, B>, texts: &[(usize, &Self)]) -> Result<Self> {
        let all: Vec<&Self> = std::iter::once(self).chain(texts.iter().map(|(_, cache)| *cache)).collect();
        let places = || texts.iter().map(|(place, _)| *place);
        Self::zip(&all, &|arrays| match arrays[0] {
            array if array.value().shape().count() == 0 => Ok(array.clone()),
            array => replaced(tape, array, places().zip(arrays[1..].iter().copied())),
        })
    }

    /// The most places that an array has which grows.
    fn places(&self) -> usize {
        let own = self.arrays.iter().filter(|_| self.grows).map(|(_, array)| array.axes()[1]);
        own.chain(self.parts.iter().map(Self::places)).max().unwrap_or(0)
    }

    /// The same tokens in so many places, where places grow: empty ones are put before, or left out.
    pub(crate) fn with_places(&self, tape: &Tape<'_, B>, places: usize) -> Result<Self> {
        let arrays = self
            .arrays
            .iter()
            .map(|(name, array)| Ok((*name, if self.grows { in_places(tape, array, places)? } else { array.clone() })));
        let parts = self.parts.iter().map(|part| part.with_places(tape, places)).collect::<Result<_>>()?;
        let Self { lacks_part, grows, .. } = *self;
        Ok(Self { arrays: arrays.collect::<Result<_>>()?, parts, lacks_part, grows })
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
        let grows = first.grows;
        Ok(Self { parts: parts.collect::<Result<_>>()?, grows, ..Self::of_vars(arrays.collect::<Result<_>>()?) })
    }
}

/// The last `places` places of `x [N,P,..]`, or all of them behind empty ones.
pub(crate) fn in_places<B: Backend>(tape: &Tape<'_, B>, x: &Var<B>, places: usize) -> Result<Var<B>> {
    let has = x.axes()[1];
    let empty = |places: usize| {
        let mut axes = x.axes().to_vec();
        axes[1] = places;
        Ok(Var::constant(Tensor::zeros(x.value().device(), axes, x.value().dtype())?))
    };
    match (has, places) {
        _ if has == places => Ok(x.clone()),
        // Primitives refuse an axis of length 0.
        (0, _) | (_, 0) => empty(places),
        _ if has > places => tape.narrow(x, 1, has - places, places),
        _ => tape.concat(&[&empty(places - has)?, x], 1),
    }
}

/// `x [N,..]` with others `[1,..]` at some indices of axis 0, which come in order.
fn replaced<'a, B: Backend>(
    tape: &Tape<'_, B>,
    x: &Var<B>,
    others: impl Iterator<Item = (usize, &'a Var<B>)>,
) -> Result<Var<B>> {
    let (mut parts, mut next) = (Vec::new(), 0);
    for (place, other) in others {
        if place > next {
            parts.push(tape.narrow(x, 0, next, place - next)?);
        }
        parts.push(other.clone());
        next = place + 1;
    }
    if x.axes()[0] > next {
        parts.push(tape.narrow(x, 0, next, x.axes()[0] - next)?);
    }
    tape.concat(&parts.iter().collect::<Vec<_>>(), 0)
}

/// An array `[texts, ..]` without elements, of the other axes of `like`: some slots have an axis of length 0, which
/// primitives refuse.
fn without_elements<B: Backend>(like: &Var<B>, texts: usize) -> Result<Var<B>> {
    let axes: Vec<usize> = [texts].into_iter().chain(like.axes()[1..].iter().copied()).collect();
    Ok(Var::constant(Tensor::zeros(like.value().device(), axes, like.value().dtype())?))
}

impl<B: Backend> Clone for LayerCache<B> {
    fn clone(&self) -> Self {
        let Self { arrays, parts, lacks_part, grows } = self;
        Self { arrays: arrays.clone(), parts: parts.clone(), lacks_part: *lacks_part, grows: *grows }
    }
}
