//! Word problems of symmetric groups.

use super::Questions;
use hecate_models::{
    Random, Result,
    bounds::{SIZE, within},
};

/// The word problem of a symmetric group: each token is a way to rearrange some things, and after each the question is
/// which rearrangement all tokens so far make together.
///
/// S5 is the smallest symmetric group that no constant depth of usual layers follows (Merrill et al., "The Illusion of
/// State in State-Space Models"). S3 is the smallest whose order of tokens matters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SymmetricGroup {
    /// All rearrangements in the order of their digits; a token is a place in this list.
    elements: Vec<Vec<usize>>,
    /// Tokens `[then, first]` of "`first`, and `then` after it".
    products: Vec<u32>,
}

impl SymmetricGroup {
    /// The group of all rearrangements of `degree` things.
    ///
    /// # Errors
    /// [`Error::Config`](hecate_models::Error::Config) for a degree outside of 2 to 6.
    pub fn new(degree: usize) -> Result<Self> {
        within("degree", degree, 2..=6)?;
        let elements = arrangements(degree);
        // Places in the list by an arrangement's digits: there are half a million products of six things.
        let mut places = vec![0; degree.pow(degree as u32)];
        for (place, element) in elements.iter().enumerate() {
            places[number(element.iter().copied(), degree)] = place as u32;
        }
        let product =
            |then: &Vec<usize>, first: &Vec<usize>| places[number(then.iter().map(|&place| first[place]), degree)];
        let pairs = elements.iter().flat_map(|then| elements.iter().map(move |first| (then, first)));
        let products = pairs.map(|(then, first)| product(then, first)).collect();
        Ok(Self { elements, products })
    }

    /// Number of different tokens, which is that of the group's elements.
    pub fn vocabulary(&self) -> usize {
        self.elements.len()
    }

    /// What a token does: place `i` gets the thing that was in place `element(token)[i]`. None for no token.
    pub fn element(&self, token: u32) -> Option<&[usize]> {
        self.elements.get(token as usize).map(Vec::as_slice)
    }

    /// `batch` sequences of `length` tokens, each followed by a question.
    ///
    /// # Errors
    /// [`Error::Config`](hecate_models::Error::Config) for no sequence, no token, or too many.
    pub fn draw(&self, random: &mut Random, batch: usize, length: usize) -> Result<Questions> {
        within("length", length, 1..=SIZE)?;
        within("batch", batch, 1..=SIZE / length)?;
        let count = self.vocabulary() as u32;
        let inputs: Vec<u32> = (0..batch * length).map(|_| random.within(0..count)).collect();
        let so_far = |tokens: &[u32]| {
            // The first element of the list leaves everything in its place.
            let states = tokens.iter().scan(0, |state, &token| {
                *state = self.products[(token * count + *state) as usize];
                Some(*state)
            });
            states.collect::<Vec<_>>()
        };
        let answers = inputs.chunks(length).flat_map(so_far).collect();
        Ok(Questions { batch, rows: (0..inputs.len() as u32).collect(), inputs, answers })
    }
}

/// The number with these digits to the base `base`.
fn number(digits: impl Iterator<Item = usize>, base: usize) -> usize {
    digits.fold(0, |number, digit| base * number + digit)
}

/// All arrangements of `0..count`, in order.
fn arrangements(count: usize) -> Vec<Vec<usize>> {
    let begun = |all: Vec<Vec<usize>>, _| {
        let longer = |start: &Vec<usize>| {
            let others = (0..count).filter(|next| !start.contains(next));
            others.map(|next| [start.as_slice(), &[next]].concat()).collect::<Vec<_>>()
        };
        all.iter().flat_map(longer).collect()
    };
    (0..count).fold(vec![Vec::new()], begun)
}
