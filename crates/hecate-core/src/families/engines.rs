//! What a backend promises of a family: one engine for all its rules, also for those of crates that it has not heard of.
//!
//! Here is the one place where an engine becomes a [`Kernel`] of each rule. So code that is generic over
//! [`Backend`](crate::Backend) can call a linear or deep rule of its own crate.

use super::{
    Deep, DeepRule, Linear, LinearRule,
    look_ahead::{self, LinearSaved},
};
use crate::{
    Decode, Decoded, Device, Dims, InputsOn, Kernel, KernelCall, OutputsOn, Result, Tensor, backend,
    primitives::Elementwise,
};
use std::fmt::Debug;

/// Runs every linear rule: a device with it has [`Kernel`] of all of them.
///
/// Arguments are checked, as those of a [`Kernel`]. A rule comes with its [`spec`](LinearRule::spec); what a device has no
/// kernels for it refuses ([`LinearSpec::runnable`](super::LinearSpec::runnable)). Momentum that looks ahead never gets here:
/// [`look_ahead`] makes it of two rules.
pub trait LinearEngine: Elementwise {
    /// What backward needs beside the inputs. Never a state per token.
    type Saved: Debug + Send + 'static;

    /// Refuses gates outside their ranges, where the host can look at them for nothing.
    ///
    /// # Errors
    /// [`Error::Value`](crate::Error::Value) naming the slot.
    fn check_gates<R: LinearRule>(_call: KernelCall<'_, R, Self>) -> Result<()> {
        Ok(())
    }

    /// As [`Kernel::forward`].
    ///
    /// # Errors
    /// Only what the caller could not foresee.
    fn linear_forward<R: LinearRule>(
        call: KernelCall<'_, R, Self>,
        keep: bool,
    ) -> Result<(OutputsOn<R, Self>, Option<Self::Saved>)>;

    /// As [`Kernel::backward`].
    ///
    /// # Errors
    /// Only what the caller could not foresee.
    fn linear_backward<R: LinearRule>(
        call: KernelCall<'_, R, Self>,
        saved: Self::Saved,
        grads: &OutputsOn<R, Self>,
    ) -> Result<InputsOn<R, Self>>;

    /// As [`Kernel::has_fused_decode`].
    fn has_linear_decode<R: LinearRule>(&self, _rule: R, _dims: &Dims) -> bool {
        false
    }

    /// As [`Kernel::decode`].
    ///
    /// # Errors
    /// Only what the caller could not foresee.
    fn linear_decode<R: LinearRule>(
        &self,
        _rule: R,
        _dims: &Dims,
        _inputs: &Decode<R, Tensor<Self>>,
    ) -> Result<Decoded<R, Tensor<Self>>> {
        Err(backend::no_fused_decode::<Self, R>())
    }
}

/// Runs every deep rule: a device with it has [`Kernel`] of all of them. Arguments are checked, as those of a [`Kernel`].
pub trait DeepEngine: Device {
    /// What backward needs beside the inputs. Never a state per token.
    type Saved: Debug + Send + 'static;

    /// As [`Kernel::forward`].
    ///
    /// # Errors
    /// Only what the caller could not foresee.
    fn deep_forward<R: DeepRule>(
        call: KernelCall<'_, R, Self>,
        keep: bool,
    ) -> Result<(OutputsOn<R, Self>, Option<Self::Saved>)>;

    /// As [`Kernel::backward`].
    ///
    /// # Errors
    /// Only what the caller could not foresee.
    fn deep_backward<R: DeepRule>(
        call: KernelCall<'_, R, Self>,
        saved: Self::Saved,
        grads: &OutputsOn<R, Self>,
    ) -> Result<InputsOn<R, Self>>;
}

impl<D: LinearEngine, R: LinearRule> Kernel<R, Linear> for D {
    type Saved = LinearSaved<D>;

    fn forward(call: KernelCall<'_, R, D>, keep: bool) -> Result<(OutputsOn<R, D>, Option<LinearSaved<D>>)> {
        if call.rule.spec().look_ahead {
            // Refused by the rule's own names; its parts have other gates.
            D::check_gates(call)?;
            let (outputs, saved) = look_ahead::forward(call, keep)?;
            return Ok((outputs, saved.map(LinearSaved::LookAhead)));
        }
        let (outputs, saved) = D::linear_forward(call, keep)?;
        Ok((outputs, saved.map(LinearSaved::Engine)))
    }

    fn backward(call: KernelCall<'_, R, D>, saved: LinearSaved<D>, grads: &OutputsOn<R, D>) -> Result<InputsOn<R, D>> {
        match saved {
            LinearSaved::Engine(saved) => D::linear_backward(call, saved, grads),
            LinearSaved::LookAhead(saved) => look_ahead::backward(call, *saved, grads),
        }
    }

    fn has_fused_decode(&self, rule: R, dims: &Dims) -> bool {
        self.has_linear_decode(rule, dims)
    }

    fn decode(&self, rule: R, dims: &Dims, inputs: &Decode<R, Tensor<D>>) -> Result<Decoded<R, Tensor<D>>> {
        self.linear_decode(rule, dims, inputs)
    }
}

impl<D: DeepEngine, R: DeepRule> Kernel<R, Deep> for D {
    type Saved = <D as DeepEngine>::Saved;

    fn forward(call: KernelCall<'_, R, D>, keep: bool) -> Result<(OutputsOn<R, D>, Option<<D as DeepEngine>::Saved>)> {
        D::deep_forward(call, keep)
    }

    fn backward(
        call: KernelCall<'_, R, D>,
        saved: <D as DeepEngine>::Saved,
        grads: &OutputsOn<R, D>,
    ) -> Result<InputsOn<R, D>> {
        D::deep_backward(call, saved, grads)
    }
}
