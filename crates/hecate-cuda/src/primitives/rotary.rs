//! Rotary positions.

use crate::{
    Cuda,
    arguments::{In, Out},
    launch::{Array, Grid, Pointer, kernels, pointer},
    source::{KernelSource, kernel_source},
};
use hecate_core::{
    Checked, DType, Result, Tensor,
    primitives::{Rotary, RotaryDims},
};

/// `cat(x₁ cos φ − x₂ sin φ, x₂ cos φ + x₁ sin φ)` of the halves of each head; `φ = position · base^(−2i/width)`.
pub(crate) const SOURCE: KernelSource = kernel_source!("rotary", "rotary.cu");

kernels! { SOURCE {
    // x and y [rows, heads, 2 half]; the table holds frequencies [half], shifts and first rows [sequences]; positions
    // [sequences] or null.
    "rotary" Turn {
        x: Array, y: Array, table: In<u64>, positions: In<u32>, rows: u64, sequences: u32, heads: u32, half: u32
    }
    "rotary_advance" Advance { x: In<u32>, y: Out<u32>, count: u32, tokens: u32 }
} }

/// Threads that fill a large GPU.
const THREADS: usize = 1 << 18;

// Core has checked that `x` is `[rows, heads, width]` with an even width, and `positions` `[B]` whole numbers.
impl Rotary for Cuda {
    /// Of tokens whose first position the host knows.
    /// `dims.sign` of −1 turns back, which is the gradient.
    fn rotary(&self, _: Checked<Self>, dims: &RotaryDims, x: &Tensor<Self>) -> Result<Tensor<Self>> {
        turn(self, dims, x, 0)
    }

    /// Of tokens whose first positions `[B]` the device has counted.
    /// A captured step must not hold positions as constants: each of its replays is of a later token.
    fn rotary_from(
        &self,
        _: Checked<Self>,
        dims: &RotaryDims,
        x: &Tensor<Self>,
        positions: &Tensor<Self>,
    ) -> Result<Tensor<Self>> {
        turn(self, dims, x, pointer(positions))
    }

    /// Positions `[B]` after so many further tokens.
    /// They are counted where they lie, so that a replay of a captured step needs nothing from the host.
    fn advance(&self, _: Checked<Self>, positions: &Tensor<Self>, tokens: u32) -> Result<Tensor<Self>> {
        let y = self.empty(positions.shape().clone(), DType::U32)?;
        // One a text.
        let count = positions.shape().count();
        let arguments = Advance { x: pointer(positions), y: pointer(&y), count: count as u32, tokens };
        self.launch(Grid::elements(count), &arguments)?;
        Ok(y)
    }
}

/// `y` of the shape of `x`: halves of each head turned by the angle of their token.
fn turn(device: &Cuda, dims: &RotaryDims, x: &Tensor<Cuda>, positions: Pointer) -> Result<Tensor<Cuda>> {
    let (rows, half, sequences) = (dims.sequences.rows(), dims.width / 2, dims.sequences.count());
    let (table, y) = (table(device, dims)?, device.empty(x.shape().clone(), x.dtype())?);
    let arguments = Turn {
        x: x.into(),
        y: (&y).into(),
        table: pointer(&table),
        positions,
        rows: rows as u64,
        sequences: sequences as u32,
        heads: dims.heads as u32,
        half: half as u32,
    };
    // A thread a token and pair.
    let grid = Grid::elements(rows * half);
    // Threads share the heads of a token where there are few tokens.
    let shares = dims.heads.min(THREADS.div_ceil(rows * half));
    device.launch(Grid { blocks: (grid.blocks.0, shares, 1), ..grid }, &arguments)?;
    Ok(y)
}

/// In words of 64 bits: turns a token of each pair. What is to be added to the rows of each sequence to make them
/// positions. The first row of each sequence.
/// Frequencies have 64 bits: at position 10⁶ a frequency of 32 bits would turn by a wrong angle.
fn table(device: &Cuda, dims: &RotaryDims) -> Result<Tensor<Cuda>> {
    let (step, starts) = (-2.0 / dims.width as f64, dims.sequences.starts());
    let angle = |i: usize| f64::from(dims.sign) * f64::from(dims.base).powf(step * i as f64);
    let frequencies = (0..dims.width / 2).map(|i| (angle(i) / std::f64::consts::TAU).to_bits());
    let shifts = starts.clone().zip(&dims.offsets).map(|(start, &offset)| (offset as u64).wrapping_sub(start as u64));
    let starts = starts.take(dims.offsets.len()).map(|start| start as u64);
    // Halves of each word, as the device takes them.
    let words = frequencies.chain(shifts).chain(starts);
    device.table(&words.flat_map(|word| [word as u32, (word >> 32) as u32]).collect::<Vec<_>>())
}
