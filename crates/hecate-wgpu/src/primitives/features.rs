//! Polynomial features of rows.

use crate::{
    Wgpu,
    error::unsupported,
    launch::{Binding, Kernel, PRELUDE, WgslSource},
    parameters::{Parameters, parameters},
};
use hecate_core::{
    Checked, DType, Result, Tensor,
    primitives::{Features, poly2_width},
};

/// What both directions share.
const TEXT: &str = include_str!("features.wgsl");
/// Features of rows.
const FORWARD: WgslSource = WgslSource {
    name: "features_forward",
    parts: &[PRELUDE, FeaturesArgs::WGSL, TEXT, include_str!("features_forward.wgsl")],
};
/// The gradient of rows, from that of their features.
const BACKWARD: WgslSource = WgslSource {
    name: "features_backward",
    parts: &[PRELUDE, FeaturesArgs::WGSL, TEXT, include_str!("features_backward.wgsl")],
};

/// `y [rows,features]`: a workgroup makes one row.
const POLY2: Kernel<'static> = Kernel { source: &FORWARD, entry: "poly2", constants: &[] };
/// `dx [rows,D]`: a workgroup makes one row, an invocation every 64th element.
const POLY2_BACKWARD: Kernel<'static> = Kernel { source: &BACKWARD, entry: "poly2_backward", constants: &[] };

/// Every kernel of both files.
pub(crate) const KERNELS: &[Kernel<'static>] = &[POLY2, POLY2_BACKWARD];

parameters! {
    /// What features and their gradient are told.
    struct FeaturesArgs {
        /// Rows in all.
        rows: u32,
        /// `D`.
        width: u32,
        /// `1 + D + D (D + 1)/2`.
        features: u32,
        /// `√c₀`.
        zeroth: f32,
        /// `√c₁`.
        first: f32,
        /// `√c₂`.
        second: f32,
    }
}

impl FeaturesArgs {
    /// Places are counted in 32 bits.
    fn new(coefficients: [f32; 3], x: &Tensor<Wgpu>) -> Result<Self> {
        let (rows, width) = (x.shape().rows(), x.shape().last());
        let features = poly2_width(width);
        if rows.saturating_mul(features) > u32::MAX as usize {
            let why = format!("{rows} rows of {features} features; make the batch smaller");
            return Err(unsupported("so many features", why));
        }
        let [zeroth, first, second] = coefficients.map(f32::sqrt);
        let (rows, width, features) = (rows as u32, width as u32, features as u32);
        Ok(Self { rows, width, features, zeroth, first, second })
    }
}

impl Features for Wgpu {
    /// `x [rows,D]` to `[rows,features]`.
    /// `features` is `1 + D + D (D + 1)/2`; axes before the last stay as they are.
    fn poly2(&self, _: Checked<Self>, coefficients: [f32; 3], x: &Tensor<Self>) -> Result<Tensor<Self>> {
        let (args, dtype) = (FeaturesArgs::new(coefficients, x)?, x.dtype());
        let axes = x.shape().axes();
        let outer = &axes[..axes.len().saturating_sub(1)];
        let x = self.widened(x)?;
        let y = self.empty([outer, &[args.features as usize][..]].concat(), DType::F32)?;
        let arrays = [Binding::Read(&x), Binding::Write(&y)];
        self.launch(&POLY2, (args.rows as usize, 1, 1), &args, &arrays)?;
        self.rounded(y, dtype)
    }

    /// `dy [rows,features]` to `dx [rows,D]`.
    /// A pair's gradient goes to both of its elements, the square's twice to its own.
    fn poly2_backward(
        &self,
        _: Checked<Self>,
        coefficients: [f32; 3],
        x: &Tensor<Self>,
        dy: &Tensor<Self>,
    ) -> Result<Tensor<Self>> {
        let (args, dtype) = (FeaturesArgs::new(coefficients, x)?, x.dtype());
        let (x, dy) = (self.widened(x)?, self.widened(dy)?);
        let dx = self.empty(x.shape().clone(), DType::F32)?;
        let arrays = [Binding::Read(&x), Binding::Read(&dy), Binding::Write(&dx)];
        self.launch(&POLY2_BACKWARD, (args.rows as usize, 1, 1), &args, &arrays)?;
        self.rounded(dx, dtype)
    }
}
