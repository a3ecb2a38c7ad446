//! Softmax of rows.

use super::{GRID_X, Launch, load_at, reduce, within};
use crate::{
    error::Error,
    types::Reg,
    writer::{Axis, Module, Scope, kernel},
};
use std::f32::consts::LOG2_E;

/// `y = exp(x − max x) / Σ exp(x − max x)` of rows in f32, a warp a row.
///
/// Parameters: `input` and `output` (rows × length), `rows`, `length`. The text serves all sizes, and any number of blocks. A row
/// with NaN or +∞, or of −∞ alone, becomes NaN, as the formula says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Softmax {
    rows: u32,
    length: u32,
}

impl Softmax {
    /// Softmax of `rows` rows of `length` elements.
    ///
    /// # Errors
    /// If a size is 0 or over 2³¹ − 1.
    ///
    /// ```
    /// use hecate_ptx::{Softmax, Specification};
    ///
    /// assert_eq!(Specification::from(Softmax::new(8, 1000)?).name(), "softmax_warp");
    /// assert_eq!(Softmax::new(8, 0).unwrap_err().to_string(), "Softmax: `length` is 0; give it 1 to 2147483647");
    /// # Ok::<(), hecate_ptx::Error>(())
    /// ```
    pub fn new(rows: u32, length: u32) -> Result<Self, Error> {
        within("Softmax", "rows", rows, 1..=GRID_X)?;
        within("Softmax", "length", length, 1..=GRID_X)?;
        Ok(Self { rows, length })
    }

    pub(crate) fn name(&self) -> &'static str {
        "softmax_warp"
    }

    pub(crate) fn launch(&self) -> Launch {
        Launch { grid: [self.rows, 1, 1], block: [32, 1, 1] }
    }

    pub(crate) fn write(&self) -> Result<Module, Error> {
        kernel(self.name(), self.launch().block, |k| {
            k.comment(
                "y = exp(x - max x) / sum exp(x - max x) of each row; a warp computes a row, a lane every 32nd element",
            );
            let (input, output) = (k.pointer::<f32>("input"), k.pointer::<f32>("output"));
            let (rows, length) = (k.parameter::<u32>("rows"), k.parameter::<u32>("length"));
            let lane = k.lane();
            let (first, stride) = (k.block_index(Axis::X), k.grid_size(Axis::X));
            k.for_range(first, rows, stride, |k, row| {
                let (x, y) = (k.row(input, row, length), k.row(output, row, length));
                k.comment("the largest element, so that no exponential overflows");
                let largest = k.variable(f32::NEG_INFINITY);
                k.for_each(lane, length, 32u32, |k, i| {
                    let element = load_at(k, x, i);
                    let larger = k.max(largest, element);
                    k.assign(largest, larger);
                });
                reduce::warp(k, largest, |k, a, b| k.max(a, b));
                k.comment("the sum of exponentials");
                let sum = k.variable(0f32);
                k.for_each(lane, length, 32u32, |k, i| {
                    let element = load_at(k, x, i);
                    let exponential = exp_of_difference(k, element, largest);
                    k.add_to(sum, exponential);
                });
                reduce::warp(k, sum, |k, a, b| k.add(a, b));
                k.comment("the quotients");
                k.for_each(lane, length, 32u32, |k, i| {
                    let element = load_at(k, x, i);
                    let exponential = exp_of_difference(k, element, largest);
                    let quotient = k.div(exponential, sum);
                    let to = k.at(y, i);
                    k.store(to, quotient);
                });
            });
        })
    }
}

/// `exp(a − b)`, as a power of two.
pub(super) fn exp_of_difference<F>(k: &mut Scope<'_, F>, a: Reg<f32>, b: Reg<f32>) -> Reg<f32> {
    let difference = k.sub(a, b);
    let power = k.mul(difference, LOG2_E);
    k.exp2(power)
}
