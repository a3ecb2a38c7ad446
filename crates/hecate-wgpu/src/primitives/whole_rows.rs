//! How rows that are read as a whole are spread over invocations.

use crate::Wgpu;
use crate::parameters::parameters;
use hecate_core::{Result, Tensor};

/// What kernels of whole rows share.
pub(super) const TEXT: &str = include_str!("whole_rows.wgsl");

/// Rows of `x` as they are, and of a sum with a residual, for kernels that have their last bindings from `ADDED` on.
pub(super) const ROWS: [&str; 2] = [
    "fn first_of(i: u32) -> f32 { return x[i]; }\nfn kept(i: u32) -> f32 { return x[i]; }",
    include_str!("residual.wgsl"),
];

/// What is added to gradients of such rows: nothing, or the gradient of the sum itself.
pub(super) const BESIDE: [&str; 2] =
    ["fn beside(i: u32) -> f32 { return 0.0; }", include_str!("residual_backward.wgsl")];

/// `LANES` and `INVOCATIONS`.
pub(super) type Constants = [(&'static str, u32); 2];

/// Invocations of a row and of a workgroup, where rows are short and where they are long.
pub(super) static CONSTANTS: [Constants; 2] =
    [[("LANES", 16), ("INVOCATIONS", 64)], [("LANES", 256), ("INVOCATIONS", 256)]];

/// Elements of a short row at most.
const SHORT: usize = 512;

parameters! {
    /// What kernels of whole rows are told.
    pub(super) struct RowArgs {
        /// Rows in all.
        pub(super) rows: u32,
        /// `D`.
        pub(super) width: u32,
        /// Of layer norm.
        pub(super) epsilon: f32,
    }
}

/// How the rows of a call are spread.
#[derive(Debug)]
pub(super) struct WholeRows {
    /// The kernel's parameters.
    pub(super) args: RowArgs,
    /// Which of [`CONSTANTS`].
    pub(super) which: usize,
    /// Workgroups: several short rows, or one long row each.
    pub(super) groups: usize,
}

impl WholeRows {
    /// Rows over the last axis of `x`.
    pub(super) fn new(x: &Tensor<Wgpu>) -> Result<Self> {
        let (rows, width) = (x.shape().rows(), x.shape().last());
        let which = usize::from(width > SHORT);
        let [(_, lanes), (_, invocations)] = CONSTANTS[which];
        // Three passes over a row, and the sums of its invocations.
        x.device().check_rounds("rows of this length", 3 * (width / lanes as usize + 16))?;
        let args = RowArgs { rows: rows as u32, width: width as u32, epsilon: 0.0 };
        Ok(Self { args, which, groups: rows.div_ceil((invocations / lanes) as usize) })
    }
}
