//! How large a size in a configuration or a setting may be: far above what any machine holds, far below an overflow.

use crate::{Error, Result};
use std::ops::RangeInclusive;

/// Largest size of anything that a configuration or a setting names.
pub(crate) const SIZE: usize = 1 << 24;
/// Most blocks of a model.
pub(crate) const LAYERS: usize = 1 << 16;
/// Most elements in a model, and in what one mixer remembers of a text.
pub(crate) const ELEMENTS: u128 = 1 << 32;

/// Refuses a size outside of a range; `field` names it.
pub(crate) fn within(field: impl Into<String>, found: usize, range: RangeInclusive<usize>) -> Result<()> {
    if range.contains(&found) {
        return Ok(());
    }
    let (least, most) = range.into_inner();
    let expected = if found < least { format!("at least {least}") } else { format!("at most {most}") };
    Err(Error::config(field, found, expected))
}

/// Refuses sizes that are fine one by one but whose product is over `most`; `field` names the product.
pub(crate) fn at_most(field: impl Into<String>, found: u128, most: u128) -> Result<()> {
    if found <= most {
        return Ok(());
    }
    Err(Error::config(field, found, format!("at most {most}; make one of the sizes smaller")))
}

/// The product of sizes, which cannot overflow.
pub(crate) fn product(sizes: &[usize]) -> u128 {
    sizes.iter().fold(1, |product: u128, &size| product.saturating_mul(size as u128))
}
