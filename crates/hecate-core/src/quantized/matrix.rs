//! A quantized matrix on a device.

use super::BlockFormat;
use crate::{Bytes, Device, Error, Host, Result, Tensor, memory};
use std::fmt;

/// A matrix `[rows, columns]` whose rows are blocks, as [`quantized_matmul`](crate::primitives::quantized_matmul) reads it.
pub struct Quantized<D: Device> {
    /// The bytes of all rows as they lie, in whole words.
    words: Tensor<D>,
    format: BlockFormat,
    rows: usize,
    columns: usize,
}

impl<D: Device> Quantized<D> {
    /// Copies blocks to the device, row after row.
    ///
    /// # Errors
    /// [`Error::Empty`] for no element, [`Error::Config`] for columns that are no whole blocks and for another number of bytes
    /// than the rows have; the device's own failures.
    pub fn new(device: &D, format: BlockFormat, [rows, columns]: [usize; 2], blocks: &[u8]) -> Result<Self> {
        let what = "quantized matrix";
        let bytes = check(what, format, [rows, columns])?;
        if blocks.len() != bytes {
            let found = format!("{} for {rows} rows of {columns} values of {format}, which have {bytes}", blocks.len());
            return Err(Error::Config { what, option: "bytes", found, expected: "those of all rows" });
        }
        let mut words = memory::with_capacity(what, bytes.div_ceil(4))?;
        let (whole, rest) = blocks.as_chunks::<4>();
        // As the host has them: reading the words' bytes gives the blocks' bytes.
        words.extend(whole.iter().map(|bytes| u32::from_ne_bytes(*bytes)));
        if !rest.is_empty() {
            words.push(u32::from_ne_bytes(std::array::from_fn(|i| rest.get(i).copied().unwrap_or(0))));
        }
        Ok(Self { words: Tensor::from_u32(device, [words.len()], words)?, format, rows, columns })
    }

    /// Zeros, to be overwritten.
    ///
    /// # Errors
    /// As [`Quantized::new`].
    pub fn zeros(device: &D, format: BlockFormat, [rows, columns]: [usize; 2]) -> Result<Self> {
        let bytes = check("quantized matrix", format, [rows, columns])?;
        Ok(Self { words: Tensor::zeros(device, [bytes.div_ceil(4)], crate::DType::U32)?, format, rows, columns })
    }

    /// The blocks, copied to the host.
    ///
    /// # Errors
    /// The device's own failures.
    pub fn blocks(&self) -> Result<Vec<u8>> {
        let Host::U32(words) = self.words.download()? else {
            return Err(Error::DType {
                what: "quantized matrix",
                slot: "words",
                expected: "u32",
                found: self.words.dtype(),
            });
        };
        let mut bytes: Vec<u8> = words.into_iter().flat_map(u32::to_ne_bytes).collect();
        bytes.truncate(self.rows * self.row_bytes());
        Ok(bytes)
    }

    /// The values `[rows, columns]`, copied to the host.
    ///
    /// # Errors
    /// The device's own failures.
    pub fn to_f32(&self) -> Result<Vec<f32>> {
        self.format.dequantize(&self.blocks()?)
    }

    /// The bytes of all rows as they lie, in words; after the last there may be zeros.
    pub fn words(&self) -> &Tensor<D> {
        &self.words
    }

    /// How values are stored.
    pub fn format(&self) -> BlockFormat {
        self.format
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Values of a row.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// Bytes of a row.
    pub fn row_bytes(&self) -> usize {
        self.columns / self.format.block() * self.format.block_bytes()
    }
}

impl<D: Device> fmt::Debug for Quantized<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { format, rows, columns, .. } = self;
        write!(f, "{format} [{rows},{columns}]")
    }
}

impl<D: Device> Clone for Quantized<D> {
    fn clone(&self) -> Self {
        Self { words: self.words.clone(), ..*self }
    }
}

/// Bytes of a matrix; refuses one of no element or of parts of blocks.
fn check(what: &'static str, format: BlockFormat, [rows, columns]: [usize; 2]) -> Result<usize> {
    if rows == 0 || columns == 0 {
        return Err(Error::Empty { what, slot: "weight", found: [rows, columns].into() });
    }
    let row = format.bytes(columns).ok_or_else(|| format.no_whole_blocks(what, columns))?;
    let bytes = row.checked_mul(rows).filter(|&bytes| isize::try_from(bytes).is_ok());
    bytes.ok_or(Error::OutOfMemory { what, bytes: Bytes(row as u128 * rows as u128), free: None })
}
