//! Products of a residual stream's rows, with what layers do before and after them.

use super::{
    Broadcast, Combine, Map, Matmul, MatmulDims, Norm, RmsNormInputs, RmsNormOptions, check_device, check_dtype,
    check_epsilon, check_shape, matmul::check_each,
};
use crate::{Checked, DType, Device, Error, Result, Tensor};

/// What is made of the products.
#[derive(Debug)]
pub enum ProjectionEnd<'a, D: Device> {
    /// Nothing: each is a result.
    Each,
    /// One result of two products, `p₀ silu(p₁)`: SwiGLU.
    Gated,
    /// One result of one product, `p₀ + residual`, for a residual stream of the shape and type of the result.
    Added(&'a Tensor<D>),
}

/// Arguments of [`project`].
#[derive(Debug)]
pub struct ProjectionInputs<'a, D: Device> {
    /// `[.., K]`.
    pub x: &'a Tensor<D>,
    /// The weight `[K]` of an RMS norm of rows before the products, of the type of `x`, and what it adds to mean squares.
    pub norm: Option<(&'a Tensor<D>, f32)>,
    /// `[N, K]` each, with an `N` of its own.
    pub weights: &'a [&'a Tensor<D>],
    /// What follows the products.
    pub end: ProjectionEnd<'a, D>,
}

impl<D: Device> Clone for ProjectionEnd<'_, D> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<D: Device> Copy for ProjectionEnd<'_, D> {}

/// Projections of rows: a norm, products and what is made of them, where a device has one kernel for it all.
pub trait Projection: Matmul + Norm {
    /// Whether [`Projection::project`] of so many rows, with weights of this type, is less work for the device than its parts.
    /// Layers ask, and otherwise put sums and norms together.
    fn fuses_projections(&self, _rows: usize, _weights: DType) -> bool {
        false
    }

    /// `p_i = norm(x) W_iᵀ`, and what [`ProjectionEnd`] makes of them. Rows may be rounded as in [`Matmul::matmul_each`],
    /// before or after the norm's factor.
    ///
    /// # Errors
    /// Only what the caller could not foresee.
    fn project(
        &self,
        checked: Checked<Self>,
        dims: &[MatmulDims],
        inputs: &ProjectionInputs<'_, Self>,
    ) -> Result<Vec<Tensor<Self>>> {
        self.project_in_parts(checked, dims, inputs)
    }

    /// [`Projection::project`] by other primitives, one after another.
    ///
    /// # Errors
    /// Only what the caller could not foresee.
    fn project_in_parts(
        &self,
        checked: Checked<Self>,
        dims: &[MatmulDims],
        inputs: &ProjectionInputs<'_, Self>,
    ) -> Result<Vec<Tensor<Self>>> {
        let norm = |(weight, epsilon)| {
            self.rms_norm(checked, RmsNormOptions::new(epsilon), &RmsNormInputs { x: inputs.x, weight, g: None })
        };
        let normed = inputs.norm.map(norm).transpose()?.map(|normed| normed.y);
        let weights: Vec<_> = dims.iter().copied().zip(inputs.weights.iter().copied()).collect();
        let products = self.matmul_each(checked, normed.as_ref().unwrap_or(inputs.x), &weights)?;
        Ok(match inputs.end {
            ProjectionEnd::Each => products,
            ProjectionEnd::Gated => vec![self.gated(checked, Map::Silu, &products[0], &products[1])?],
            ProjectionEnd::Added(residual) => {
                let residual = residual.reshape(products[0].shape().clone())?;
                let alike = Broadcast { rows: 1, width: residual.shape().count() };
                vec![self.combine(checked, Combine::Sum, alike, &products[0], &residual)?]
            }
        })
    }
}

/// `norm(x [.., K]) W_iᵀ` for several `W_i [N_i, K]`, the norm where there is one, then what [`ProjectionEnd`] says.
/// There is one result `[.., N_i]` a matrix, or a single one. Weights may have 16 bits where `x` has 32, as in
/// [`matmul_each`](super::matmul_each()). There is no gradient: this is what a token that is drawn goes through.
///
/// # Errors
/// Shapes and types that do not fit, a negative or infinite `ε`, another number of matrices than the end takes.
pub fn project<D: Projection>(inputs: &ProjectionInputs<'_, D>) -> Result<Vec<Tensor<D>>> {
    let what = "project";
    let (dims, shapes): (Vec<_>, Vec<_>) = check_each(inputs.x, inputs.weights)?.into_iter().unzip();
    if let Some((weight, epsilon)) = inputs.norm {
        check_device(what, inputs.x, &[("norm", weight)])?;
        check_shape(what, "norm", weight, &[inputs.x.shape().last()].into())?;
        check_dtype(what, "norm", weight, inputs.x.dtype())?;
        check_epsilon(what, epsilon)?;
    }
    let wanted = match inputs.end {
        ProjectionEnd::Each => shapes.len(),
        ProjectionEnd::Gated => 2,
        ProjectionEnd::Added(_) => 1,
    };
    if shapes.len() != wanted {
        let expected = "two that a gate is made of, or one that is added";
        return Err(Error::Config { what, option: "weights", found: shapes.len().to_string(), expected });
    }
    match inputs.end {
        ProjectionEnd::Each => {}
        ProjectionEnd::Gated => check_shape(what, "weights", inputs.weights[1], inputs.weights[0].shape())?,
        ProjectionEnd::Added(residual) => {
            check_device(what, inputs.x, &[("residual", residual)])?;
            check_shape(what, "residual", residual, &shapes[0])?;
            check_dtype(what, "residual", residual, inputs.x.dtype())?;
        }
    }
    let results = inputs.x.device().project(Checked::new(), &dims, inputs)?;
    results.into_iter().zip(shapes).map(|(result, shape)| result.reshape(shape)).collect()
}
