//! What a column of the matrix must provide.

use crate::{
    Decode, Decoded, Device, Dims, Error, Inputs, Outputs, Result, Rule, Tensor,
    families::{DeepEngine, LinearEngine},
    primitives::Primitives,
    rules::*,
};

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
/// `F` is the rule's [family](crate::families). A device with the engine of a family, [`LinearEngine`] or [`DeepEngine`], has
/// this of all its rules. Who asks for a cell writes `D: Kernel<R>`.
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

macro_rules! declare_rules {
    ($($rule:ident),*) => {
        /// Every rule: the engines of the families, and a cell of each rule that has kernels of its own. One that is missing
        /// is a compile error where a [`Backend`] is asked for.
        ///
        /// With the engines come rules that no list has:
        ///
        /// ```
        /// use hecate_core::{Backend, Kernel, families::LinearRule};
        /// fn wants_a_cell<D: Kernel<R>, R: LinearRule>(_: &D, _: R) {}
        /// fn any_linear_rule<B: Backend, R: LinearRule>(device: &B, rule: R) {
        ///     wants_a_cell(device, rule);
        /// }
        /// ```
        ///
        /// A device without cells is a [`Device`] still:
        ///
        /// ```
        /// use hecate_core::{DType, Device, DeviceId, Host, Result};
        ///
        /// #[derive(Clone, Debug)]
        /// struct Memory(DeviceId);
        /// impl Device for Memory {
        ///     const NAME: &'static str = "memory";
        ///     type Buffer = Host;
        ///     fn id(&self) -> &DeviceId {
        ///         &self.0
        ///     }
        ///     fn check_buffer(&self, _: &Host, _: DType, _: usize) -> Result<()> {
        ///         Ok(())
        ///     }
        ///     fn upload(&self, host: Host) -> Result<Host> {
        ///         Ok(host)
        ///     }
        ///     fn download(&self, buffer: &Host, _: DType, _: usize) -> Result<Host> {
        ///         Ok(buffer.clone())
        ///     }
        ///     fn synchronize(&self) -> Result<()> {
        ///         Ok(())
        ///     }
        /// }
        /// fn wants_a_device<D: Device>(_: &D) {}
        /// wants_a_device(&Memory(DeviceId::new(|number| format!("memory {number}"))));
        /// ```
        ///
        /// It is no backend, and no place for a rule that it has no cell of:
        ///
        /// ```compile_fail,E0277
        /// # use hecate_core::{DType, Device, DeviceId, Host, Result};
        /// # #[derive(Clone, Debug)]
        /// # struct Memory(DeviceId);
        /// # impl Device for Memory {
        /// #     const NAME: &'static str = "memory";
        /// #     type Buffer = Host;
        /// #     fn id(&self) -> &DeviceId {
        /// #         &self.0
        /// #     }
        /// #     fn check_buffer(&self, _: &Host, _: DType, _: usize) -> Result<()> {
        /// #         Ok(())
        /// #     }
        /// #     fn upload(&self, host: Host) -> Result<Host> {
        /// #         Ok(host)
        /// #     }
        /// #     fn download(&self, buffer: &Host, _: DType, _: usize) -> Result<Host> {
        /// #         Ok(buffer.clone())
        /// #     }
        /// #     fn synchronize(&self) -> Result<()> {
        /// #         Ok(())
        /// #     }
        /// # }
        /// use hecate_core::{Kernel, rules::Delta};
        /// fn wants_a_cell<D: Kernel<Delta>>(_: &D) {}
        /// wants_a_cell(&Memory(DeviceId::new(|number| format!("memory {number}"))));
        /// ```
        pub trait Rules: $(Kernel<$rule> +)* LinearEngine + DeepEngine {}
        impl<D: $(Kernel<$rule> +)* LinearEngine + DeepEngine> Rules for D {}
    };
}
crate::rule_list! { own declare_rules [] }

/// Compiles where a device has a cell of this rule.
const fn has_cell<D: Kernel<R>, R: Rule>() {}

/// That a [`Backend`] has all of them is a matter of compiling.
macro_rules! check_cells {
    ($($rule:ident),*) => {
        #[expect(dead_code, reason = "it only has to compile")]
        const fn check_cells<B: Backend>() {
            $(has_cell::<B, $rule>();)*
        }
    };
}
crate::for_each_rule!(check_cells);

/// A whole column: every primitive and every rule, forward and backward. Never implemented by hand.
pub trait Backend: Primitives + Rules {}
impl<D: Primitives + Rules> Backend for D {}
