//! Proof that arguments were checked.

use std::{fmt, marker::PhantomData};

/// Proof that core checked the sizes, types and devices of a call on a device of type `D`. Kernels trust their arguments, so
/// every method of a primitive that starts one asks for it. Only the functions beside the traits make one:
///
/// ```
/// use hecate_core::{Result, Tensor, primitives::{Softmax, softmax}};
/// fn rows<D: Softmax>(x: &Tensor<D>) -> Result<Tensor<D>> {
///     softmax(x)
/// }
/// ```
///
/// The method itself, with sizes that nobody compared, does not compile:
///
/// ```compile_fail,E0061
/// use hecate_core::{Result, Tensor, primitives::{Matmul, MatmulDims, MatmulInputs}};
/// fn out_of_bounds<D: Matmul>(dims: MatmulDims, a: &Tensor<D>) -> Result<Tensor<D>> {
///     a.device().matmul(dims, MatmulInputs { a, b: a, onto: None })
/// }
/// ```
///
/// Nor does a proof of one's own:
///
/// ```compile_fail,E0624
/// use hecate_core::{Checked, Device};
/// fn proof<D: Device>() -> Checked<D> {
///     Checked::new()
/// }
/// ```
///
/// A backend is given one with each call. It passes it on to its own primitives, for sizes that follow from those of the call.
/// Those of another device take none of it:
///
/// ```compile_fail,E0308
/// use hecate_core::{Checked, Result, Tensor, primitives::Reduce};
/// fn lent<D: Reduce, E: Reduce>(proof: Checked<E>, x: &Tensor<D>) -> Result<Tensor<D>> {
///     x.device().sum_rows(proof, usize::MAX, x)
/// }
/// ```
pub struct Checked<D>(PhantomData<fn(D) -> D>);

impl<D> Checked<D> {
    /// Whoever writes this has checked the call.
    pub(crate) const fn new() -> Self {
        Self(PhantomData)
    }
}

impl<D> Clone for Checked<D> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<D> Copy for Checked<D> {}

impl<D> fmt::Debug for Checked<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Checked")
    }
}
