//! The forgetting gate.

use super::reduce::Parts;
use crate::{
    Cuda,
    launch::{Array, Grid, Pointer, Source, kernels, pointer, source},
};
use hecate_core::{DType, Result, Tensor, primitives};

pub(crate) const SOURCE: Source = source!("retention", "retention.cu");

kernels! { SOURCE {
    "retention" Retention { x: Array, slope: Pointer, offset: Pointer, y: Pointer, count: u64, width: u64 }
    "retention_backward" RetentionBackward {
        x: Array, dx: Array, slope: Pointer, offset: Pointer, dy: Pointer, of_slope: Pointer, of_offset: Pointer,
        rows: u64, width: u64, height: u64, columns: u32
    }
} }

/// Threads of a block.
const THREADS: usize = 256;

/// Heads of a block at most, blocks that fill a large GPU, and rows of a thread at least.
const COLUMNS: usize = 32;
const BLOCKS: usize = 512;
const ROWS: usize = 8;

impl primitives::Retention for Cuda {
    fn retention(&self, x: &Tensor<Self>, slope: &Tensor<Self>, offset: &Tensor<Self>) -> Result<Tensor<Self>> {
        let (count, width) = (x.shape().count(), x.shape().last() as u64);
        let y = self.empty(x.shape().clone(), DType::F32)?;
        let [slope, offset] = [slope, offset].map(pointer);
        let arguments = Retention { x: x.into(), slope, offset, y: pointer(&y), count: count as u64, width };
        self.launch(Grid::elements(count), &arguments)?;
        Ok(y)
    }

    fn retention_backward(
        &self,
        x: &Tensor<Self>,
        slope: &Tensor<Self>,
        offset: &Tensor<Self>,
        dy: &Tensor<Self>,
    ) -> Result<(Tensor<Self>, Tensor<Self>, Tensor<Self>)> {
        let (rows, width) = (x.shape().rows(), x.shape().last());
        let dx = self.empty(x.shape().clone(), x.dtype())?;
        let columns = width.next_power_of_two().min(COLUMNS);
        let across = width.div_ceil(columns);
        let height = rows.div_ceil((BLOCKS / across).max(1)).max(ROWS * THREADS / columns);
        let count = rows.div_ceil(height);
        let [of_slope, of_offset] = [Parts::new(self, count, width)?, Parts::new(self, count, width)?];
        let [slope, offset, dy] = [slope, offset, dy].map(pointer);
        let arguments = RetentionBackward {
            x: x.into(),
            dx: (&dx).into(),
            slope,
            offset,
            dy,
            of_slope: of_slope.pointer(),
            of_offset: of_offset.pointer(),
            rows: rows as u64,
            width: width as u64,
            height: height as u64,
            columns: columns as u32,
        };
        self.launch(Grid { blocks: (across, count, 1), ..Grid::blocks(1, THREADS as u32) }, &arguments)?;
        Ok((dx, of_slope.total(self, DType::F32)?, of_offset.total(self, DType::F32)?))
    }
}
