//! What one cell of the matrix is: a rule on a device.

use crate::{Decode, Decoded, Device, Dims, Error, Inputs, Outputs, Result, Rule, Tensor};

/// A rule's arguments on a device, or their gradients.
pub type InputsOn<R, D> = Inputs<R, Tensor<D>>;

/// A rule's results on a device, or their gradients.
pub type OutputsOn<R, D> = Outputs<R, Tensor<D>>;

/// A call of a rule whose arguments are checked ([`Inputs::dims`]). Only core makes one, so that no kernel meets others.
///
/// ```compile_fail,E0639
/// use hecate_core::{Device, Dims, InputsOn, KernelCall, rules::Delta};
/// fn unchecked<'a, D: Device>(device: &'a D, dims: &'a Dims, inputs: &'a InputsOn<Delta, D>) -> KernelCall<'a, Delta, D> {
///     KernelCall { device, rule: Delta::default(), dims, inputs }
/// }
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub struct KernelCall<'a, R: Rule, D: Device> {
    /// Where it runs, and where its arguments lie.
    pub device: &'a D,
    /// The rule.
    pub rule: R,
    /// Sizes.
    pub dims: &'a Dims,
    /// Arguments.
    pub inputs: &'a InputsOn<R, D>,
}

impl<R: Rule, D: Device> Clone for KernelCall<'_, R, D> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<R: Rule, D: Device> Copy for KernelCall<'_, R, D> {}

/// A call of [`decode`](crate::decode()) whose arguments are checked, as [`KernelCall`].
#[derive(Debug)]
#[non_exhaustive]
pub struct DecodeCall<'a, R: Rule, D: Device> {
    /// Where it runs, and where its arguments lie.
    pub device: &'a D,
    /// The rule.
    pub rule: R,
    /// Sizes.
    pub dims: &'a Dims,
    /// Arguments.
    pub inputs: &'a Decode<R, Tensor<D>>,
}

/// One cell of the matrix: rule `R` on this device.
///
/// Arguments are already checked. Results must not depend on the number of threads or on timing:
/// the same call gives the same bits. Gate values are data: logarithms of factors lie in `[−∞, 0]`, strengths may be
/// any finite number, of either sign. A cell may refuse one outside its range with
/// [`Error::Value`](crate::Error::Value), where the host can look at it for nothing. Otherwise it lets a NaN through to
/// the outputs of that sequence and head. It never hides one.
///
/// `F` is the rule's [family](crate::families). A device with the engine of a family, [`LinearEngine`](crate::families::LinearEngine),
/// [`ChannelEngine`](crate::families::ChannelEngine) or [`DeepEngine`](crate::families::DeepEngine), has this of all its rules. Who asks for a cell writes `D: Kernel<R>`.
pub trait Kernel<R: Rule, F = <R as Rule>::Family>: Device {
    /// What backward needs beside the inputs: the backend's own affair. Never a state per token.
    type Saved: Send + 'static;

    /// Runs the rule. Without `keep` no backward will come, and nothing is saved for it.
    ///
    /// # Errors
    /// Only what the caller could not foresee.
    fn forward(call: KernelCall<'_, R, Self>, keep: bool) -> Result<(OutputsOn<R, Self>, Option<Self::Saved>)>;

    /// Gradients of all inputs, given those of all outputs.
    ///
    /// # Errors
    /// Only what the caller could not foresee.
    fn backward(
        call: KernelCall<'_, R, Self>,
        saved: Self::Saved,
        grads: &OutputsOn<R, Self>,
    ) -> Result<InputsOn<R, Self>>;

    /// Whether [`Kernel::decode`] is there for the rule with these options and sizes. Layers put the same together out of
    /// primitives where it is not.
    fn has_fused_decode(&self, _rule: R, _dims: &Dims) -> bool {
        false
    }

    /// One token of a layer's memory with all that surrounds the rule, where [`Kernel::has_fused_decode`] says so.
    ///
    /// # Errors
    /// Only what the caller could not foresee.
    fn decode(_call: DecodeCall<'_, R, Self>) -> Result<Decoded<R, Tensor<Self>>> {
        Err(no_fused_decode::<Self>(R::NAME))
    }
}

/// The error of [`Kernel::decode`] where there is none.
pub(crate) fn no_fused_decode<D: Device>(what: &'static str) -> Error {
    let why = "there is no kernel for a whole layer; call its parts".into();
    Error::Unsupported { backend: D::NAME, what, why }
}
