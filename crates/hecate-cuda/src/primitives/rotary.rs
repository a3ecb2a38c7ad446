//! Rotary positions.

use crate::{
    Cuda,
    launch::{Array, Grid, Pointer, Source, kernels, pointer, source},
};
use hecate_core::{
    Result, Tensor,
    primitives::{Rotary, RotaryDims},
};

pub(crate) const SOURCE: Source = source!("rotary", "rotary.cu");

kernels! { SOURCE {
    "rotary" Turn {
        x: Array, y: Array, frequencies: Pointer, shifts: Pointer, starts: Pointer, rows: u64, sequences: u32,
        heads: u32, half: u32
    }
} }

/// Threads that fill a large GPU.
const THREADS: usize = 1 << 18;

impl Rotary for Cuda {
    fn rotary(&self, dims: &RotaryDims, x: &Tensor<Self>) -> Result<Tensor<Self>> {
        let (rows, half, sequences) = (dims.sequences.rows(), dims.width / 2, dims.sequences.count());
        let (frequencies, shifts) = (frequencies(self, dims)?, shifts(self, dims)?);
        let starts: Vec<u32> = dims.sequences.ranges().map(|range| range.start as u32).collect();
        let (starts, y) = (self.table(&starts)?, self.empty(x.shape().clone(), x.dtype())?);
        let arguments = Turn {
            x: x.into(),
            y: (&y).into(),
            frequencies: pointer(&frequencies),
            shifts: pointer(&shifts),
            starts: pointer(&starts),
            rows: rows as u64,
            sequences: sequences as u32,
            heads: dims.heads as u32,
            half: half as u32,
        };
        let grid = Grid::elements(rows * half);
        let shares = dims.heads.min(THREADS.div_ceil(rows * half));
        self.launch(Grid { blocks: (grid.blocks.0, shares, 1), ..grid }, &arguments)?;
        Ok(y)
    }
}

/// Turns a token of each pair, in 64 bits.
fn frequencies(device: &Cuda, dims: &RotaryDims) -> Result<Tensor<Cuda>> {
    let step = -2.0 / dims.width as f64;
    let angle = |i: usize| f64::from(dims.sign) * f64::from(dims.base).powf(step * i as f64);
    wide(device, (0..dims.width / 2).map(|i| (angle(i) / std::f64::consts::TAU).to_bits()))
}

/// What makes positions of the rows of each sequence.
fn shifts(device: &Cuda, dims: &RotaryDims) -> Result<Tensor<Cuda>> {
    let shift = |(&start, &offset): (&usize, &usize)| (offset as u64).wrapping_sub(start as u64);
    wide(device, dims.sequences.starts().iter().zip(&dims.offsets).map(shift))
}

/// A table of 64-bit words.
fn wide(device: &Cuda, words: impl Iterator<Item = u64>) -> Result<Tensor<Cuda>> {
    let halves: Vec<u32> = words.flat_map(|word| [word as u32, (word >> 32) as u32]).collect();
    device.table(&halves)
}
