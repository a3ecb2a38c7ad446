//! What a backend promises of a family: one engine for all its rules, also for those of crates that it has not heard of.
//!
//! Here is the one place where an engine becomes a [`Kernel`] of each rule. So code that is generic over
//! [`Backend`](crate::Backend) can call a linear or deep rule of its own crate.

use super::{
    Channel, ChannelRule, Deep, DeepRule, DeepSpec, Linear, LinearDecode, LinearDecoded, LinearInputs,
    LinearKernelCall, LinearOutputs, LinearRule, LinearSpec, LowerGates,
    channel_call::Listed,
    linear_call,
    look_ahead::{self, LinearSaved, SavedBy},
    settled::Settled,
};
use crate::{
    DecodeCall, Decoded, Device, Dims, InputsOn, Kernel, KernelCall, OutputsOn, Result, Slots, Tensor, kernel,
    primitives::Elementwise,
};
use std::fmt::Debug;

/// Runs every linear rule: a device with it has [`Kernel`] of all of them.
///
/// Arguments are checked, as those of a [`Kernel`]. A rule comes with its [`spec`](LinearRule::spec); what a device has no
/// kernels for it refuses ([`LinearSpec::runnable`](super::LinearSpec::runnable)). Momentum that looks ahead never gets here:
/// core makes it of two rules.
pub trait LinearEngine: Elementwise {
    /// What backward needs beside the inputs. Never a state per token.
    type Saved: Debug + Send + 'static;

    /// Refuses gates outside their ranges, where the host can look at them for nothing.
    ///
    /// # Errors
    /// [`Error::Value`](crate::Error::Value) naming the slot.
    fn check_gates(_call: LinearKernelCall<'_, Self>) -> Result<()> {
        Ok(())
    }

    /// As [`Kernel::forward`].
    ///
    /// # Errors
    /// Only what the caller could not foresee.
    fn linear_forward(
        call: LinearKernelCall<'_, Self>,
        keep: bool,
    ) -> Result<(LinearOutputs<Tensor<Self>>, Option<Self::Saved>)>;

    /// As [`Kernel::backward`].
    ///
    /// # Errors
    /// Only what the caller could not foresee.
    fn linear_backward(
        call: LinearKernelCall<'_, Self>,
        saved: Self::Saved,
        grads: &LinearOutputs<Tensor<Self>>,
    ) -> Result<LinearInputs<Tensor<Self>>>;

    /// As [`Kernel::has_fused_decode`], of rules with a gate of retention.
    fn has_linear_decode(&self, _spec: LinearSpec, _dims: &Dims) -> bool {
        false
    }

    /// As [`Kernel::decode`].
    ///
    /// # Errors
    /// Only what the caller could not foresee.
    fn linear_decode(call: LinearDecode<'_, Self>) -> Result<LinearDecoded<Tensor<Self>>> {
        Err(kernel::no_fused_decode::<Self>(call.what))
    }
}

/// Runs every rule of the channel family: a device with it has [`Kernel`] of all of them. Arguments are checked, as those of a
/// [`Kernel`]; the gates of the rule are those of its [`FORM`](ChannelRule::FORM), in their order.
pub trait ChannelEngine: Device {
    /// What backward needs beside the inputs. Never a state per token.
    type Saved: Debug + Send + 'static;

    /// As [`Kernel::forward`].
    ///
    /// # Errors
    /// Only what the caller could not foresee.
    fn channel_forward<R: ChannelRule>(
        call: KernelCall<'_, R, Self>,
        keep: bool,
    ) -> Result<(OutputsOn<R, Self>, Option<Self::Saved>)>;

    /// As [`Kernel::backward`].
    ///
    /// # Errors
    /// Only what the caller could not foresee.
    fn channel_backward<R: ChannelRule>(
        call: KernelCall<'_, R, Self>,
        saved: Self::Saved,
        grads: &OutputsOn<R, Self>,
    ) -> Result<InputsOn<R, Self>>;
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
        let spec = linear_call::spec_of::<D, R>(call.rule)?;
        let inputs = linear_call::lowered(call, spec)?;
        let call = LinearKernelCall { what: R::NAME, device: call.device, spec, dims: call.dims, inputs: &inputs };
        let (made, saved) = if spec.look_ahead {
            // Its parts have other gates.
            D::check_gates(call)?;
            let (made, saved) = look_ahead::forward(call, keep)?;
            (made, saved.map(SavedBy::LookAhead))
        } else {
            let (made, saved) = D::linear_forward(call, keep)?;
            (made, saved.map(SavedBy::Engine))
        };
        // A rule may say something else next time: its backward is that of this forward.
        Ok((linear_call::outputs::<D, R>(made)?, saved.map(|saved| LinearSaved { spec, saved })))
    }

    fn backward(call: KernelCall<'_, R, D>, saved: LinearSaved<D>, grads: &OutputsOn<R, D>) -> Result<InputsOn<R, D>> {
        let LinearSaved { spec, saved } = saved;
        let (inputs, grads) = (linear_call::lowered(call, spec)?, linear_call::lowered_grads(call, spec, grads)?);
        let call = LinearKernelCall { what: R::NAME, device: call.device, spec, dims: call.dims, inputs: &inputs };
        linear_call::gradients::<D, R>(match saved {
            SavedBy::Engine(saved) => D::linear_backward(call, saved, &grads)?,
            SavedBy::LookAhead(saved) => look_ahead::backward(call, *saved, &grads)?,
        })
    }

    fn has_fused_decode(&self, rule: R, dims: &Dims) -> bool {
        has_retention::<R>() && self.has_linear_decode(rule.spec(), dims)
    }

    fn decode(call: DecodeCall<'_, R, D>) -> Result<Decoded<R, Tensor<D>>> {
        if !has_retention::<R>() {
            return Err(kernel::no_fused_decode::<D>(R::NAME));
        }
        let LinearDecoded { out, state, convs } = D::linear_decode(linear_call::lowered_token(call)?)?;
        Ok(Decoded { out, state: linear_call::state_of::<D, R>(state)?, convs })
    }
}

/// Whether a token says how much it forgets.
fn has_retention<R: LinearRule>() -> bool {
    R::Gates::lower(R::Gates::build(|_| ())).log_a.is_some()
}

/// What a deep rule keeps for a backward.
#[derive(Debug)]
pub struct DeepSaved<S> {
    /// What the rule said of itself.
    spec: DeepSpec,
    /// What its engine keeps.
    saved: S,
}

impl<D: DeepEngine, R: DeepRule> Kernel<R, Deep> for D {
    type Saved = DeepSaved<<D as DeepEngine>::Saved>;

    fn forward(
        call: KernelCall<'_, R, D>,
        keep: bool,
    ) -> Result<(OutputsOn<R, D>, Option<DeepSaved<<D as DeepEngine>::Saved>>)> {
        let rule = Settled::new(call.rule, call.dims)?;
        let inputs = rule.inputs(call)?;
        let (made, saved) =
            D::deep_forward(KernelCall { device: call.device, rule, dims: call.dims, inputs: &inputs }, keep)?;
        Ok((Settled::outputs(made)?, saved.map(|saved| DeepSaved { spec: rule.spec(), saved })))
    }

    fn backward(
        call: KernelCall<'_, R, D>,
        saved: DeepSaved<<D as DeepEngine>::Saved>,
        grads: &OutputsOn<R, D>,
    ) -> Result<InputsOn<R, D>> {
        let rule = Settled::again(saved.spec);
        let (inputs, grads) = (rule.inputs(call)?, rule.grads(call, grads)?);
        let call = KernelCall { device: call.device, rule, dims: call.dims, inputs: &inputs };
        Settled::gradients(D::deep_backward(call, saved.saved, &grads)?)
    }
}

impl<D: ChannelEngine, R: ChannelRule> Kernel<R, Channel> for D {
    type Saved = <D as ChannelEngine>::Saved;

    fn forward(call: KernelCall<'_, R, D>, keep: bool) -> Result<(OutputsOn<R, D>, Option<Self::Saved>)> {
        let rule = Listed::<R>::new()?;
        let inputs = rule.inputs(call)?;
        let call = KernelCall { device: call.device, rule, dims: call.dims, inputs: &inputs };
        let (made, saved) = D::channel_forward(call, keep)?;
        Ok((Listed::outputs(made)?, saved))
    }

    fn backward(call: KernelCall<'_, R, D>, saved: Self::Saved, grads: &OutputsOn<R, D>) -> Result<InputsOn<R, D>> {
        let rule = Listed::<R>::new()?;
        let (inputs, grads) = (rule.inputs(call)?, rule.grads(call, grads)?);
        let call = KernelCall { device: call.device, rule, dims: call.dims, inputs: &inputs };
        Listed::gradients(D::channel_backward(call, saved, &grads)?)
    }
}
