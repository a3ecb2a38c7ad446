//! Matrices of few bits a value, for inference: blocks of a row share scales, in the formats of ggml.
//!
//! | format | values a block | bytes a block | bits a value | a value |
//! |---|---|---|---|---|
//! | `q8_0` | 32 | 34 | 8.5 | `d q`, `q` of 8 bits with a sign |
//! | `q6_k` | 256 | 210 | 6.56 | `d s (q − 32)`, a scale `s` of 8 bits for 16 values |
//! | `q5_k` | 256 | 176 | 5.5 | `d s q − d' m`, `s` and `m` of 6 bits for 32 values |
//! | `q4_k` | 256 | 144 | 4.5 | the same with `q` of 4 bits |
//!
//! `d` and `d'` are 16-bit floats, one a block. Bytes lie as ggml has them, so that weights of one program serve the other.
//! Nothing here has a gradient: a model learns in 32 bits and is quantized then.

mod affine;
mod matrix;
mod q6_k;
mod q8_0;
mod scales;

pub use matrix::Quantized;
pub use scales::KScales;

use crate::{Error, Result, memory};
use std::{fmt, str::FromStr};

/// Values of a block of a K format, which are cut into smaller groups with scales of their own.
pub const SUPER_BLOCK: usize = 256;

/// Largest magnitude of a value: with more, a scale might leave the range of 16-bit floats.
const MOST: f32 = (1 << 21) as f32;

/// How the values of a block are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum BlockFormat {
    /// 8 bits a value, a scale for 32.
    #[cfg_attr(feature = "serde", serde(rename = "q8_0"))]
    Q8_0,
    /// 6 bits a value.
    #[cfg_attr(feature = "serde", serde(rename = "q6_k"))]
    Q6K,
    /// 5 bits a value.
    #[cfg_attr(feature = "serde", serde(rename = "q5_k"))]
    Q5K,
    /// 4 bits a value.
    #[cfg_attr(feature = "serde", serde(rename = "q4_k"))]
    Q4K,
}

impl BlockFormat {
    /// All, from the most bits to the fewest.
    pub const ALL: [Self; 4] = [Self::Q8_0, Self::Q6K, Self::Q5K, Self::Q4K];

    /// Its place in [`BlockFormat::ALL`].
    pub const fn index(self) -> usize {
        match self {
            Self::Q8_0 => 0,
            Self::Q6K => 1,
            Self::Q5K => 2,
            Self::Q4K => 3,
        }
    }

    /// Name in configurations and on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Q8_0 => "q8_0",
            Self::Q6K => "q6_k",
            Self::Q5K => "q5_k",
            Self::Q4K => "q4_k",
        }
    }

    /// Values of a block.
    pub const fn block(self) -> usize {
        match self {
            Self::Q8_0 => q8_0::VALUES,
            Self::Q6K | Self::Q5K | Self::Q4K => SUPER_BLOCK,
        }
    }

    /// Bytes of a block.
    pub const fn block_bytes(self) -> usize {
        match self {
            Self::Q8_0 => q8_0::BYTES,
            Self::Q6K => q6_k::BYTES,
            Self::Q5K => affine::FIVE_BITS,
            Self::Q4K => affine::FOUR_BITS,
        }
    }

    /// Bytes of `values` values; none where they are no whole blocks, or too many to be counted.
    pub const fn bytes(self, values: usize) -> Option<usize> {
        if values.is_multiple_of(self.block()) { (values / self.block()).checked_mul(self.block_bytes()) } else { None }
    }

    /// The blocks of `values`, of which there are whole blocks. Each scale is the one with the least squared error of those
    /// that were tried.
    ///
    /// # Errors
    /// [`Error::Config`] for another number of values; [`Error::Value`] for one that is not finite or over 2²¹ in magnitude.
    pub fn quantize(self, values: &[f32]) -> Result<Vec<u8>> {
        let what = "quantize";
        let bytes = self.bytes(values.len()).ok_or_else(|| self.no_whole_blocks(what, values.len()))?;
        if let Some(index) = values.iter().position(|x| x.is_nan() || x.abs() > MOST) {
            let (found, expected) = (f64::from(values[index]), "a finite number of at most 2^21 in magnitude");
            return Err(Error::Value { what, slot: "weight", index, found, expected });
        }
        let mut blocks = memory::zeros(what, bytes)?;
        for (x, block) in values.chunks_exact(self.block()).zip(blocks.chunks_exact_mut(self.block_bytes())) {
            match self {
                Self::Q8_0 => q8_0::quantize(x, block),
                Self::Q6K => q6_k::quantize(x, block),
                Self::Q5K => affine::quantize::<5>(x, block),
                Self::Q4K => affine::quantize::<4>(x, block),
            }
        }
        Ok(blocks)
    }

    /// The values of whole `blocks`, 32-bit floats. A scale that is not finite makes its values so.
    ///
    /// # Errors
    /// [`Error::Config`] for bytes that are no whole blocks; [`Error::OutOfMemory`].
    pub fn dequantize(self, blocks: &[u8]) -> Result<Vec<f32>> {
        let (count, rest) = (blocks.len() / self.block_bytes(), blocks.len() % self.block_bytes());
        if rest != 0 {
            return Err(self.no_whole_blocks("dequantize", blocks.len()));
        }
        let mut values = memory::zeros("dequantize", count.saturating_mul(self.block()))?;
        for (block, values) in blocks.chunks_exact(self.block_bytes()).zip(values.chunks_exact_mut(self.block())) {
            self.dequantize_block(block, values);
        }
        Ok(values)
    }

    /// The values of one block.
    fn dequantize_block(self, block: &[u8], values: &mut [f32]) {
        match self {
            Self::Q8_0 => q8_0::dequantize(block, values),
            Self::Q6K => q6_k::dequantize(block, values),
            Self::Q5K => affine::dequantize::<5>(block, values),
            Self::Q4K => affine::dequantize::<4>(block, values),
        }
    }

    /// The error of so many values, or of so many bytes of blocks.
    fn no_whole_blocks(self, what: &'static str, found: usize) -> Error {
        let (option, expected) = match (what, self) {
            ("dequantize", Self::Q8_0) => ("bytes", "a multiple of 34, the bytes of a block of q8_0"),
            ("dequantize", Self::Q6K) => ("bytes", "a multiple of 210, the bytes of a block of q6_k"),
            ("dequantize", Self::Q5K) => ("bytes", "a multiple of 176, the bytes of a block of q5_k"),
            ("dequantize", Self::Q4K) => ("bytes", "a multiple of 144, the bytes of a block of q4_k"),
            (_, Self::Q8_0) => ("values of a row", "a multiple of 32, the values of a block of q8_0"),
            (_, _) => ("values of a row", "a multiple of 256, the values of a block; q8_0 has blocks of 32"),
        };
        Error::Config { what, option, found: found.to_string(), expected }
    }
}

impl fmt::Display for BlockFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for BlockFormat {
    type Err = Error;

    /// The format of this name.
    ///
    /// # Errors
    /// [`Error::Config`] listing the known ones.
    fn from_str(name: &str) -> Result<Self> {
        let known = Self::ALL.into_iter().find(|format| format.name() == name);
        known.ok_or_else(|| Error::Config {
            what: "quantize",
            option: "format",
            found: format!("`{name}`"),
            expected: "one of q8_0, q6_k, q5_k, q4_k",
        })
    }
}

/// A 16-bit float at byte `at`.
fn half_at(block: &[u8], at: usize) -> f32 {
    half::f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

/// Writes `x` as a 16-bit float at byte `at`; returns what was written.
fn put_half(block: &mut [u8], at: usize, x: f32) -> f32 {
    let rounded = half::f16::from_f32(x);
    block[at..at + 2].copy_from_slice(&rounded.to_le_bytes());
    rounded.to_f32()
}

/// `x / y`, and 0 where `y` is: a block whose scale is 0 has no value but 0.
fn ratio(x: f32, y: f32) -> f32 {
    if y == 0.0 { 0.0 } else { x / y }
}

#[cfg(test)]
mod tests;
