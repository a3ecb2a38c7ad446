//! Blocks of values in the formats of ggml, as GGUF files have them.
//!
//! Formats of 32 values without a smaller group are read here alone; products with matrices in the others are
//! [`BlockFormat`]'s. Of a 16-bit scale `d`, a 16-bit minimum `m` and whole numbers `q`, a value is
//!
//! | format | bytes | in their order | a value |
//! |---|---|---|---|
//! | `q4_0` | 18 | `d`, 16 of four bits | `d (q − 8)` |
//! | `q4_1` | 20 | `d`, `m`, 16 of four bits | `d q + m` |
//! | `q5_0` | 22 | `d`, 4 of fifth bits, 16 of four bits | `d (q − 16)` |
//! | `q5_1` | 24 | `d`, `m`, 4 of fifth bits, 16 of four bits | `d q + m` |
//!
//! Byte `i` of four bits has value `i` in its lower half and value `16 + i` in its upper half.

use half::f16;
use hecate_core::{Result, quantized::BlockFormat};
use std::fmt;

/// Values of a block of the formats that are read here.
const VALUES: usize = 32;

/// How the values of a block are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Blocks {
    /// As this table has it.
    Small {
        /// Bits of a whole number, 4 or 5.
        bits: u8,
        /// Whether there is a minimum.
        minimum: bool,
    },
    /// As matrices are that products read.
    Known(BlockFormat),
}

impl Blocks {
    /// The format of this number in GGUF files.
    pub(super) fn numbered(number: u32) -> Option<Self> {
        let small = |bits, minimum| Self::Small { bits, minimum };
        Some(match number {
            2 => small(4, false),
            3 => small(4, true),
            6 => small(5, false),
            7 => small(5, true),
            8 => Self::Known(BlockFormat::Q8_0),
            12 => Self::Known(BlockFormat::Q4K),
            13 => Self::Known(BlockFormat::Q5K),
            14 => Self::Known(BlockFormat::Q6K),
            _ => return None,
        })
    }

    /// Values of a block.
    pub(super) fn values(self) -> usize {
        match self {
            Self::Small { .. } => VALUES,
            Self::Known(format) => format.block(),
        }
    }

    /// Bytes of a block.
    pub(super) fn bytes(self) -> usize {
        match self {
            Self::Small { bits, minimum } => 2 + 2 * usize::from(minimum) + usize::from(bits) * VALUES / 8,
            Self::Known(format) => format.block_bytes(),
        }
    }

    /// Appends the values of whole blocks.
    pub(super) fn widen(self, blocks: &[u8], values: &mut Vec<f32>) -> Result<()> {
        match self {
            Self::Small { bits, minimum } => {
                let each = blocks.chunks_exact(self.bytes());
                values.extend(each.flat_map(|block| small(block, bits, minimum)));
            }
            Self::Known(format) => values.extend(format.dequantize(blocks)?),
        }
        Ok(())
    }
}

/// The values of a block of the table above.
fn small(block: &[u8], bits: u8, minimum: bool) -> [f32; VALUES] {
    let half = |at: usize| f16::from_le_bytes([block[at], block[at + 1]]).to_f32();
    let (low, d) = (block.len() - VALUES / 2, half(0));
    let fifth = match bits {
        5 => u32::from_le_bytes([low - 4, low - 3, low - 2, low - 1].map(|at| block[at])),
        _ => 0,
    };
    // Without a minimum numbers have a sign.
    let (zero, m) = if minimum { (0, half(2)) } else { (1 << (bits - 1), 0.0) };
    std::array::from_fn(|i| {
        let byte = block[low + i % (VALUES / 2)];
        let four = if i < VALUES / 2 { byte & 15 } else { byte >> 4 };
        let q = i32::from(four) | ((fifth >> i & 1) << 4) as i32;
        d * (q - zero) as f32 + m
    })
}

impl fmt::Display for Blocks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Small { bits, minimum } => write!(f, "q{bits}_{}", u8::from(*minimum)),
            Self::Known(format) => format.fmt(f),
        }
    }
}
