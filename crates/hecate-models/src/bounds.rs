//! How large a size in a configuration or a setting may be: far above what any machine holds, far below an overflow.

use crate::{Error, Result};
use hecate_core::Bytes;
use std::ops::RangeInclusive;

/// Largest size of anything that a configuration or a setting names.
pub const SIZE: usize = 1 << 24;
/// Most blocks of a model.
pub(crate) const LAYERS: usize = 1 << 16;
/// Most taps of a short convolution. Each costs a product for every element of queries, keys and values, as an input of their
/// projections does; published layers have 4. So many see a whole sequence of `hecate train`.
const TAPS: usize = 256;
/// Most elements in a model, and in what one mixer remembers of a text.
pub(crate) const ELEMENTS: u128 = 1 << 32;

/// Most tokens of a text that a mixer has room for, and most elements of 32 bits in all of that room. Every call goes through
/// all of it, however short the text.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Room {
    tokens: usize,
    elements: u128,
}

/// Keys or values that attention sees: 65,536 tokens with keys of 1,024, or twice as many with narrower ones.
pub(crate) const WINDOW: Room = Room { tokens: 1 << 17, elements: 1 << 26 };
/// Keys or values that wait for the end of a chunk: 4,096 tokens with keys of 1,024, or four times as many with narrower ones.
pub(crate) const CHUNK: Room = Room { tokens: 1 << 14, elements: 1 << 22 };

/// Refuses a size outside of a range; `field` names it.
///
/// # Errors
/// [`Error::Config`].
pub fn within(field: impl Into<String>, found: usize, range: RangeInclusive<usize>) -> Result<()> {
    if range.contains(&found) {
        return Ok(());
    }
    let (least, most) = range.into_inner();
    let expected = if found < least { format!("at least {least}") } else { format!("at most {most}") };
    Err(Error::config(field, found, expected))
}

/// Refuses sizes that are fine one by one but whose product is over `most`; `field` names the product.
///
/// # Errors
/// [`Error::Config`].
pub fn at_most(field: impl Into<String>, found: u128, most: u128) -> Result<()> {
    if found <= most {
        return Ok(());
    }
    Err(Error::config(field, found, format!("at most {most}; make one of the sizes smaller")))
}

/// Refuses room for so many tokens, each of `width` elements; `field` names their number.
pub(crate) fn room(field: impl Into<String>, tokens: usize, width: u128, most: Room) -> Result<()> {
    let fits = (most.elements / width.max(1)).min(most.tokens as u128);
    if tokens as u128 <= fits {
        return Ok(());
    }
    let takes = Bytes((tokens as u128).saturating_mul(width).saturating_mul(4));
    let found = format!("{tokens}, which takes {takes} for a text of any length");
    Err(Error::config(field, found, format!("at most {fits}, with these heads and widths")))
}

/// The product of sizes, which cannot overflow.
pub fn product(sizes: &[usize]) -> u128 {
    sizes.iter().fold(1, |product: u128, &size| product.saturating_mul(size as u128))
}

/// Refuses heads that do not divide the hidden size; `instead` names the widths that could be given.
pub(crate) fn divides(field: String, heads: usize, hidden_size: usize, instead: &str) -> Result<()> {
    if hidden_size.is_multiple_of(heads) {
        return Ok(());
    }
    Err(Error::config(field, heads, format!("a divisor of hidden_size = {hidden_size}, or {instead} given")))
}

/// Refuses a convolution of one tap, which only scales, and one that is not short.
pub(crate) fn taps(field: String, found: usize) -> Result<()> {
    if found == 1 {
        return Err(Error::config(field, found, "0 for no convolution, or at least 2 taps"));
    }
    within(field, found, 0..=TAPS)
}
