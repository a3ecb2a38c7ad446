//! What a column of the matrix must provide.

use crate::{
    DType, Decode, Decoded, Dims, Error, Host, Inputs, Outputs, Recording, Result, Rule, Step, Tensor,
    primitives::Primitives, rules::*,
};
use std::fmt::Debug;

/// A place that holds arrays and runs work in order: a CPU pool, a CUDA stream, a WebGPU queue.
///
/// The value is the device; nothing is global. Clones are the same device.
pub trait Device: Clone + Debug + Send + Sync + 'static {
    /// Name in messages.
    const NAME: &'static str;

    /// Storage of a tensor's elements.
    type Buffer: Send + Sync + 'static;

    /// Copies host values to the device.
    ///
    /// # Errors
    /// [`Error::Device`](crate::Error::Device) when out of memory or lost.
    fn upload(&self, host: Host) -> Result<Self::Buffer>;

    /// Copies `count` elements to the host, after all work queued before.
    ///
    /// # Errors
    /// [`Error::Device`](crate::Error::Device) when lost.
    fn download(&self, buffer: &Self::Buffer, dtype: DType, count: usize) -> Result<Host>;

    /// `count` zeros.
    ///
    /// # Errors
    /// As [`Device::upload`].
    fn zeros(&self, dtype: DType, count: usize) -> Result<Self::Buffer> {
        self.upload(Host::zeros(dtype, count))
    }

    /// Waits until all queued work is done, so that a clock reads execution and not queueing.
    ///
    /// # Errors
    /// [`Error::Device`](crate::Error::Device) with the first failure of the queued work.
    fn synchronize(&self) -> Result<()>;

    /// The most bytes that arrays of this program took on the device at once, where it keeps count.
    ///
    /// # Errors
    /// [`Error::Device`](crate::Error::Device) when lost.
    fn peak_bytes(&self) -> Result<Option<usize>> {
        Ok(None)
    }

    /// Learns a step by heart, for states and inputs like these; the first [`Recording::step`] goes on from `state`. The
    /// step must do the same work whatever the values are, and whatever it was called with before; while it is learned,
    /// other threads that use the device's value wait. None where the device gains nothing or cannot do so, or where the
    /// step cannot be repeated so: it copies to or from the host on its way.
    ///
    /// # Errors
    /// The step's own; the device's own failures.
    fn record(
        &self,
        _state: &[Tensor<Self>],
        _input: &Tensor<Self>,
        _step: &mut Step<'_, Self>,
    ) -> Result<Option<Box<dyn Recording>>> {
        Ok(None)
    }
}

/// One cell of the matrix: rule `R` on this device.
///
/// Arguments are already checked ([`Inputs::dims`]). Results must not depend on the number of threads or on timing:
/// the same call gives the same bits. Gate values are data: logarithms of factors lie in `[−∞, 0]`, strengths may be
/// any finite number, of either sign. A cell either refuses one outside its range with
/// [`Error::Value`](crate::Error::Value) (where the host can look at it for nothing) or lets a NaN through to the
/// outputs of that sequence and head; it never hides it.
pub trait Kernel<R: Rule>: Device {
    /// What backward needs beside the inputs: the backend's own affair. Never a state per token.
    type Saved: Send + 'static;

    /// Runs the rule, keeping what [`Kernel::backward`] needs.
    ///
    /// # Errors
    /// Only what the caller could not foresee.
    fn forward(
        &self,
        rule: R,
        dims: &Dims,
        inputs: &Inputs<R, Tensor<Self>>,
    ) -> Result<(Outputs<R, Tensor<Self>>, Self::Saved)>;

    /// Gradients of all inputs, given those of all outputs.
    ///
    /// # Errors
    /// Only what the caller could not foresee.
    fn backward(
        &self,
        rule: R,
        dims: &Dims,
        inputs: &Inputs<R, Tensor<Self>>,
        saved: Self::Saved,
        grads: &Outputs<R, Tensor<Self>>,
    ) -> Result<Inputs<R, Tensor<Self>>>;

    /// Runs the rule, keeping nothing.
    ///
    /// # Errors
    /// Only what the caller could not foresee.
    fn infer(&self, rule: R, dims: &Dims, inputs: &Inputs<R, Tensor<Self>>) -> Result<Outputs<R, Tensor<Self>>> {
        Ok(self.forward(rule, dims, inputs)?.0)
    }

    /// Whether [`Kernel::decode`] is there for the rule with these options and sizes. Layers put the same together out of
    /// primitives where it is not.
    fn decodes(&self, _rule: R, _dims: &Dims) -> bool {
        false
    }

    /// One token of a layer's memory with all that surrounds the rule, where [`Kernel::decodes`] says so.
    ///
    /// # Errors
    /// Only what the caller could not foresee.
    fn decode(&self, _rule: R, _dims: &Dims, _inputs: &Decode<R, Tensor<Self>>) -> Result<Decoded<R, Tensor<Self>>> {
        let why = "there is no kernel for a whole layer; call its parts".into();
        Err(Error::Unsupported { backend: Self::NAME, what: R::NAME, why })
    }
}

/// Calls `$callback!` with the type of every rule, in the order of the table: the one list that all else is made from.
/// Arguments behind the callback's name are passed on in front of the list.
///
/// ```
/// use hecate_core::{Rule, rules::*};
/// macro_rules! names { ($($rule:ident),*) => { [$(<$rule as Rule>::NAME),*] } }
/// assert_eq!(hecate_core::for_each_rule!(names)[0], "hebbian");
/// ```
#[macro_export]
macro_rules! for_each_rule {
    ($callback:ident $(, $($before:tt)*)?) => {
        $callback! {
            $($($before)*)?
            Hebbian, Delta, Titans, Dgd,
            TitansMlp, Moneta, MonetaMatrix, Yaad, YaadMatrix, YaadMomentum, Memora, MemoraMatrix,
            Lattice, Trellis, Atlas
        }
    };
}

macro_rules! declare_rules {
    ($($rule:ident),*) => {
        /// Every rule: a missing cell is a compile error where a [`Backend`] is asked for.
        pub trait Rules: $(Kernel<$rule> +)* Device {}
        impl<D: $(Kernel<$rule> +)* Device> Rules for D {}
    };
}
for_each_rule!(declare_rules);

/// A whole column: every primitive and every rule, forward and backward. Never implemented by hand.
pub trait Backend: Primitives + Rules {}
impl<D: Primitives + Rules> Backend for D {}
