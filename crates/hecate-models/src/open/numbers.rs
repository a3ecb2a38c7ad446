//! Elements of arrays, as files store them and as models learn them.

use super::blocks::Blocks;
use crate::Result;
use half::{bf16, f16};
use safetensors::Dtype;
use std::fmt;

/// How the elements of an array are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stored {
    /// One by one. Models are read from floats of 16 and 32 bits, and have no use for others.
    Single(Dtype),
    /// In blocks that share scales.
    Blocks(Blocks),
}

impl Stored {
    /// Elements of the smallest part that can be read by itself, and its bytes; none of a type that models are not read from.
    pub(super) fn unit(self) -> Option<[usize; 2]> {
        match self {
            Self::Single(Dtype::F32) => Some([1, 4]),
            Self::Single(Dtype::F16 | Dtype::BF16) => Some([1, 2]),
            Self::Single(_) => None,
            Self::Blocks(blocks) => Some([blocks.values(), blocks.bytes()]),
        }
    }

    /// Appends the elements of whole units as 32-bit floats.
    pub(super) fn widen(self, bytes: &[u8], values: &mut Vec<f32>) -> Result<()> {
        match self {
            Self::Single(dtype) => widen(dtype, bytes, values),
            Self::Blocks(blocks) => blocks.widen(bytes, values)?,
        }
        Ok(())
    }
}

impl fmt::Display for Stored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Single(dtype) => f.write_str(&format!("{dtype:?}").to_lowercase()),
            Self::Blocks(blocks) => blocks.fmt(f),
        }
    }
}

/// Appends elements of one of these types, whole, as 32-bit floats: exactly.
fn widen(dtype: Dtype, bytes: &[u8], values: &mut Vec<f32>) {
    match dtype {
        Dtype::F32 => values.extend(bytes.as_chunks::<4>().0.iter().map(|x| f32::from_le_bytes(*x))),
        Dtype::F16 => values.extend(bytes.as_chunks::<2>().0.iter().map(|x| f16::from_le_bytes(*x).to_f32())),
        _ => values.extend(bytes.as_chunks::<2>().0.iter().map(|x| bf16::from_le_bytes(*x).to_f32())),
    }
}

/// The bytes of elements in one of these types, each rounded to the nearest.
pub(super) fn narrow(dtype: Dtype, values: &[f32]) -> Vec<u8> {
    match dtype {
        Dtype::F32 => values.iter().flat_map(|x| x.to_le_bytes()).collect(),
        Dtype::F16 => values.iter().flat_map(|x| f16::from_f32(*x).to_le_bytes()).collect(),
        _ => values.iter().flat_map(|x| bf16::from_f32(*x).to_le_bytes()).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All numbers of 16 bits, infinities and numbers under the normal ones among them; a NaN stays one.
    #[test]
    fn numbers_of_16_bits_come_back_as_they_were() {
        for dtype in [Dtype::F16, Dtype::BF16] {
            let all: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
            let mut values = Vec::new();
            widen(dtype, &all, &mut values);
            let back = narrow(dtype, &values);
            for (i, value) in values.iter().enumerate() {
                let (old, new) = (&all[2 * i..2 * i + 2], &back[2 * i..2 * i + 2]);
                assert!(old == new || value.is_nan(), "{dtype:?} {i:#x}: {new:?}");
            }
        }
    }

    #[test]
    fn numbers_are_what_they_are() {
        let mut values = Vec::new();
        widen(Dtype::BF16, &[0x80, 0x3f, 0x20, 0xc1], &mut values);
        widen(Dtype::F16, &[0x00, 0x3c, 0x01, 0x00], &mut values);
        widen(Dtype::F32, &1.5f32.to_le_bytes(), &mut values);
        assert_eq!(values, [1.0, -10.0, 1.0, 2f32.powi(-24), 1.5]);
        // To the nearest, and to the even one of two.
        assert_eq!(narrow(Dtype::BF16, &[1.0 + 3.0 / 256.0]), [0x82, 0x3f]);
    }
}
