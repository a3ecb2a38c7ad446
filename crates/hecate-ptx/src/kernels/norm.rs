//! Layer norm and RMS norm of rows.

use super::{
    GRID_X, Launch, load_at,
    reduce::{BlockSum, THREADS},
    within,
};
use crate::{
    error::Error,
    types::{Reg, Uniform},
    writer::{Axis, Converged, Global, Module, Pointer, Scope, kernel},
};

/// What of a row is made equal for all rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Norm {
    /// Mean 0 and variance 1: `y = (x − mean x) / √(var x + ε) · gamma + beta`.
    Mean,
    /// Root mean square 1: `y = x / √(mean x² + ε) · gamma`. Nothing is subtracted.
    Rms,
}

/// A norm of rows in f32, a block a row.
///
/// Parameters: `input` and `output` (rows × hidden), `gamma` (hidden), for [`Norm::Mean`] also `beta` (hidden), `rows`, `hidden`. The
/// text serves all sizes, and any number of blocks; it has the epsilon in it. Squares of a row must not overflow.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LayerNorm {
    norm: Norm,
    rows: u32,
    hidden: u32,
    epsilon: f32,
}

impl LayerNorm {
    /// The norm of `rows` rows of `hidden` elements.
    ///
    /// # Errors
    /// If a size is 0 or over 2³¹ − 1, or if `epsilon` is not positive and finite.
    ///
    /// ```
    /// use hecate_ptx::{LayerNorm, Norm, Specification};
    ///
    /// assert_eq!(Specification::from(LayerNorm::new(Norm::Mean, 8, 4096, 1e-5)?).name(), "layernorm");
    /// assert_eq!(Specification::from(LayerNorm::new(Norm::Rms, 8, 4096, 1e-6)?).name(), "rmsnorm");
    /// # Ok::<(), hecate_ptx::Error>(())
    /// ```
    pub fn new(norm: Norm, rows: u32, hidden: u32, epsilon: f32) -> Result<Self, Error> {
        within("LayerNorm", "rows", rows, 1..=GRID_X)?;
        within("LayerNorm", "hidden", hidden, 1..=GRID_X)?;
        if !(epsilon > 0.0 && epsilon.is_finite()) {
            let (found, expected) = (epsilon.to_string(), "a positive number, such as 1e-6".to_owned());
            return Err(Error::Size { specification: "LayerNorm", size: "epsilon", found, expected });
        }
        Ok(Self { norm, rows, hidden, epsilon })
    }

    pub(crate) fn name(&self) -> &'static str {
        match self.norm {
            Norm::Mean => "layernorm",
            Norm::Rms => "rmsnorm",
        }
    }

    pub(crate) fn launch(&self) -> Launch {
        Launch { grid: [self.rows, 1, 1], block: [THREADS, 1, 1] }
    }

    pub(crate) fn write(&self) -> Result<Module, Error> {
        kernel(self.name(), self.launch().block, |k| {
            k.comment(match self.norm {
                Norm::Mean => {
                    "y = (x - mean x) / sqrt(var x + epsilon) * gamma + beta of each row; a block computes a row"
                }
                Norm::Rms => "y = x / sqrt(mean x^2 + epsilon) * gamma of each row; a block computes a row",
            });
            let (input, output, gamma) = (k.pointer("input"), k.pointer("output"), k.pointer("gamma"));
            let beta = (self.norm == Norm::Mean).then(|| k.pointer("beta"));
            let (rows, hidden) = (k.parameter::<u32>("rows"), k.parameter::<u32>("hidden"));
            let (thread, block_sum) = (k.thread_index(Axis::X), BlockSum::new(k));
            let length = k.to_f32(hidden);
            let (first, stride) = (k.block_index(Axis::X), k.grid_size(Axis::X));
            k.for_range(first, rows, stride, |k, row| {
                let (x, y) = (k.row(input, row, hidden), k.row(output, row, hidden));
                let row = Row { x, thread, hidden, length, block_sum };
                let (mean, variance) = match self.norm {
                    Norm::Mean => row.mean_and_variance(k),
                    Norm::Rms => ([k.variable(0f32); 2], row.mean_square(k)),
                };
                k.comment("1 / sqrt(variance + epsilon)");
                let above = k.add(variance, self.epsilon);
                let deviation = k.sqrt(above);
                let scale = k.reciprocal(deviation);
                row.normalize(k, [y, gamma], beta, mean, scale);
            });
        })
    }
}

/// A row, and how its block sums over it.
struct Row {
    x: Pointer<f32, Global>,
    thread: Reg<u32>,
    hidden: Uniform<u32>,
    /// `hidden` as a float.
    length: Reg<f32>,
    block_sum: BlockSum,
}

impl Row {
    fn mean_square(&self, k: &mut Scope<'_, Converged>) -> Reg<f32> {
        k.comment("the mean of squares");
        let squares = k.variable(0f32);
        k.for_each(self.thread, self.hidden, THREADS, |k, i| {
            let x = load_at(k, self.x, i);
            k.accumulate(squares, x, x);
        });
        self.block_sum.sum(k, squares);
        k.div(squares, self.length)
    }

    /// The mean as a sum of two numbers, and the variance. The first number is the mean rounded to f32. The second is what is
    /// left, so that rows far from 0 lose no digits: the mean of differences from the first, which are small.
    fn mean_and_variance(&self, k: &mut Scope<'_, Converged>) -> ([Reg<f32>; 2], Reg<f32>) {
        k.comment("the mean, rounded");
        let sum = k.variable(0f32);
        k.for_each(self.thread, self.hidden, THREADS, |k, i| {
            let x = load_at(k, self.x, i);
            k.add_to(sum, x);
        });
        self.block_sum.sum(k, sum);
        let mean = k.div(sum, self.length);
        k.comment("what rounding took from the mean: the mean of differences from it; and the mean of their squares");
        let (differences, squares) = (k.variable(0f32), k.variable(0f32));
        k.for_each(self.thread, self.hidden, THREADS, |k, i| {
            let x = load_at(k, self.x, i);
            let difference = k.sub(x, mean);
            k.add_to(differences, difference);
            k.accumulate(squares, difference, difference);
        });
        self.block_sum.sum(k, differences);
        self.block_sum.sum(k, squares);
        let (rest, mean_square) = (k.div(differences, self.length), k.div(squares, self.length));
        let minus_rest = k.neg(rest);
        let variance = k.mul_add(minus_rest, rest, mean_square);
        ([mean, rest], variance)
    }

    /// Writes `(x − mean) scale gamma + beta`; zero is not subtracted where there is no `beta`.
    fn normalize(
        &self,
        k: &mut Scope<'_, Converged>,
        [y, gamma]: [Pointer<f32, Global>; 2],
        beta: Option<Pointer<f32, Global>>,
        [mean, rest]: [Reg<f32>; 2],
        scale: Reg<f32>,
    ) {
        k.for_each(self.thread, self.hidden, THREADS, |k, i| {
            let (x, weight) = (load_at(k, self.x, i), load_at(k, gamma, i));
            let value = match beta {
                None => {
                    let scaled = k.mul(x, scale);
                    k.mul(scaled, weight)
                }
                Some(beta) => {
                    let difference = k.sub(x, mean);
                    let centred = k.sub(difference, rest);
                    let scaled = k.mul(centred, scale);
                    let bias = load_at(k, beta, i);
                    k.mul_add(scaled, weight, bias)
                }
            };
            let to = k.at(y, i);
            k.store(to, value);
        });
    }
}
