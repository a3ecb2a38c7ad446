//! A linear rule's call as its engine sees it.
//!
//! What a rule says of itself is read here, once, and compared with the arrays. An engine is told what was found and never asks
//! the rule again: a rule of somebody's own crate may answer otherwise the second time.

use super::{
    LinearGate, LinearGates, LinearInputs, LinearMatrix, LinearOutputs, LinearRule, LinearSpec, LinearState,
    LowerGates, LowerState,
};
use crate::{
    ConvInput, DType, Decode, DecodeCall, Device, Dims, Error, GateForm, Inputs, InputsOn, KernelCall, Of, Outputs,
    OutputsOn, Result, Shape, Slots, Tensor, TokenGates,
    family::constant_log_a,
    primitives::Elementwise,
    rule::{check_frozen, check_slots},
};
use std::convert::Infallible;

/// A call of the linear engine. Shapes, types and devices of the arrays are those of [`LinearInputs`] for these sizes, and there
/// is a momentum and a `β` where the spec has them. Only core makes one.
///
/// ```compile_fail,E0639
/// use hecate_core::{Device, Dims, Tensor, families::{LinearKernelCall, LinearInputs, LinearSpec}};
/// fn unchecked<'a, D: Device>(device: &'a D, dims: &'a Dims, inputs: &'a LinearInputs<Tensor<D>>) -> LinearKernelCall<'a, D> {
///     LinearKernelCall { what: "mine", device, spec: LinearSpec::default(), dims, inputs }
/// }
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub struct LinearKernelCall<'a, D: Device> {
    /// The rule's name in messages.
    pub what: &'static str,
    /// Where it runs, and where its arguments lie.
    pub device: &'a D,
    /// The rule.
    pub spec: LinearSpec,
    /// Sizes.
    pub dims: &'a Dims,
    /// Arguments.
    pub inputs: &'a LinearInputs<Tensor<D>>,
}

impl<D: Device> Clone for LinearKernelCall<'_, D> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<D: Device> Copy for LinearKernelCall<'_, D> {}

/// The spec of a rule, if an engine can run it.
pub(super) fn spec_of<D: Device, R: LinearRule>(rule: R) -> Result<LinearSpec> {
    let spec = rule.spec().runnable(D::NAME, R::NAME)?;
    check_frozen(R::NAME, spec.frozen)?;
    if spec.look_ahead && (!spec.momentum || spec.erase.has_beta()) {
        let why = "only a rule with momentum, which erases as much as it writes, can look ahead".into();
        return Err(Error::Unsupported { backend: D::NAME, what: R::NAME, why });
    }
    Ok(spec)
}

/// The arguments of a call as the engine's, checked for this spec.
pub(super) fn lowered<D: Elementwise, R: LinearRule>(
    KernelCall { device, rule, dims, inputs }: KernelCall<'_, R, D>,
    spec: LinearSpec,
) -> Result<LinearInputs<Tensor<D>>> {
    if dims.anchored {
        let (found, expected) = ("an anchor".into(), "none: what this memory forgets goes to zero");
        return Err(Error::Config { what: R::NAME, option: "anchor", found, expected });
    }
    let Inputs { q, k, v, gates, state, .. } = inputs.clone();
    let LinearGates { log_a, log_eta, theta, beta } = R::Gates::lower(gates);
    let log_a = log_a.map_or_else(|| constant_log_a(device, rule, dims), Ok)?;
    let inputs = LinearInputs { q, k, v, log_a, log_eta, theta, beta, state: R::State::lower(state) };
    let dtype = inputs.q.dtype();
    let Ok(expected) = LinearInputs::try_build(spec, dims, dtype, |shape, _| Ok::<_, Infallible>(shape));
    check::<D, R>(device, &inputs.list(), &expected.list(), 3, dtype)?;
    Ok(inputs)
}

/// Gradients of a call's results as the engine's, checked for this spec.
pub(super) fn lowered_grads<D: Device, R: LinearRule>(
    KernelCall { device, dims, inputs, .. }: KernelCall<'_, R, D>,
    spec: LinearSpec,
    grads: &OutputsOn<R, D>,
) -> Result<LinearOutputs<Tensor<D>>> {
    let Outputs { out, state } = grads.clone();
    let grads = LinearOutputs { out, state: R::State::lower(state) };
    let dtype = inputs.q.dtype();
    let Ok(expected) = LinearOutputs::try_build(spec, dims, dtype, |shape, _| Ok::<_, Infallible>(shape));
    check::<D, R>(device, &grads.list(), &expected.list(), 1, dtype)?;
    Ok(grads)
}

/// Refuses other arrays than those of the spec, and other shapes, types or devices; the first `tokens` have `dtype`.
fn check<D: Device, R: LinearRule>(
    device: &D,
    found: &[(&'static str, &Tensor<D>)],
    expected: &[(&'static str, &Shape)],
    tokens: usize,
    dtype: DType,
) -> Result<()> {
    let (names, wanted) = (found.iter().map(|(name, _)| name), expected.iter().map(|(name, _)| name));
    if !names.eq(wanted) {
        return Err(disagrees(
            R::NAME,
            "slots",
            "those of its spec: `log_eta` and `s` with momentum, `beta` where it erases by it",
        ));
    }
    check_slots(R::NAME, device, found, expected, tokens, dtype)
}

/// A rule whose parts say different things.
pub(super) fn disagrees(what: &'static str, option: &'static str, expected: &'static str) -> Error {
    Error::Config { what, option, found: "others than the rule's spec says".into(), expected }
}

/// The engine's results as the rule's.
pub(super) fn outputs<D: Device, R: LinearRule>(
    LinearOutputs { out, state }: LinearOutputs<Tensor<D>>,
) -> Result<OutputsOn<R, D>> {
    Ok(Outputs { out, state: state_of::<D, R>(state)? })
}

/// The engine's gradients as the rule's.
pub(super) fn gradients<D: Device, R: LinearRule>(grads: LinearInputs<Tensor<D>>) -> Result<InputsOn<R, D>> {
    let LinearInputs { q, k, v, log_a, log_eta, theta, beta, state } = grads;
    let gates = R::Gates::try_lower_backward(|gate| {
        let found = match gate {
            LinearGate::LogA => Some(&log_a),
            LinearGate::LogEta => log_eta.as_ref(),
            LinearGate::Theta => Some(&theta),
            LinearGate::Beta => beta.as_ref(),
        };
        found.cloned().ok_or_else(|| disagrees(R::NAME, "gates", "those that its spec has"))
    })?;
    Ok(Inputs { q, k, v, gates, state: state_of::<D, R>(state)?, anchor: None })
}

/// The matrices of an engine as the rule's state.
pub(super) fn state_of<D: Device, R: LinearRule>(
    LinearState { m, s }: LinearState<Tensor<D>>,
) -> Result<Of<R::State, Tensor<D>>> {
    let state = R::State::lower_backward(|matrix| match matrix {
        LinearMatrix::M => Some(&m),
        LinearMatrix::S => s.as_ref(),
    });
    R::State::try_map(state, |_, x: Option<&Tensor<D>>| {
        x.cloned().ok_or_else(|| disagrees(R::NAME, "state", "the matrices that its spec has"))
    })
}

/// One token of a layer with a linear rule, as its engine sees it; as [`LinearKernelCall`].
#[derive(Debug)]
#[non_exhaustive]
pub struct LinearDecode<'a, D: Device> {
    /// The rule's name in messages.
    pub what: &'static str,
    /// Where it runs, and where its arguments lie.
    pub device: &'a D,
    /// The rule.
    pub spec: LinearSpec,
    /// Sizes.
    pub dims: &'a Dims,
    /// As [`Decode::q`].
    pub q: &'a ConvInput<Tensor<D>>,
    /// As [`Decode::k`].
    pub k: &'a ConvInput<Tensor<D>>,
    /// As [`Decode::v`].
    pub v: &'a ConvInput<Tensor<D>>,
    /// As [`Decode::norm_epsilon`].
    pub norm_epsilon: f32,
    /// As [`Decode::gates`].
    pub gates: &'a TokenGates<Tensor<D>>,
    /// State before the token.
    pub state: LinearState<Tensor<D>>,
    /// As [`Decode::weight`].
    pub weight: &'a Tensor<D>,
    /// As [`Decode::epsilon`].
    pub epsilon: f32,
    /// As [`Decode::gate`].
    pub gate: Option<&'a Tensor<D>>,
}

/// Results of a [`LinearDecode`].
#[derive(Clone, Debug)]
pub struct LinearDecoded<T> {
    /// `[N,1,H·V]`.
    pub out: T,
    /// State after the token.
    pub state: LinearState<T>,
    /// Last inputs of the convolutions of q, k and v, where there are such.
    pub convs: [Option<T>; 3],
}

/// One token as the engine's, checked.
pub(super) fn lowered_token<D: Device, R: LinearRule>(
    DecodeCall { device, rule, dims, inputs, .. }: DecodeCall<'_, R, D>,
) -> Result<LinearDecode<'_, D>> {
    let spec = spec_of::<D, R>(rule)?;
    let Decode { q, k, v, norm_epsilon, gates, weight, epsilon, gate, .. } = inputs;
    let state = R::State::lower(R::State::map(R::State::as_ref(&inputs.state), |_, x| x.clone()));
    let Ok(expected) = LinearState::try_build(spec, dims, |shape, _| Ok::<_, Infallible>(shape));
    let names = ["m", "s"];
    let found: Vec<_> = names.into_iter().zip(state.list()).collect();
    check::<D, R>(device, &found, &names.into_iter().zip(expected.list()).collect::<Vec<_>>(), 0, DType::F32)?;
    let has = match gates.strengths {
        GateForm::Write(_) => (false, false),
        GateForm::Momentum(_) => (true, false),
        GateForm::Erase(_) | GateForm::EraseRest(_) => (false, true),
    };
    if has != (spec.momentum, spec.erase.has_beta()) {
        return Err(disagrees(R::NAME, "strengths", "a momentum where its spec has one, `beta` where it erases by it"));
    }
    let (what, gate) = (R::NAME, gate.as_ref());
    let (norm_epsilon, epsilon) = (*norm_epsilon, *epsilon);
    Ok(LinearDecode { what, device, spec, dims, q, k, v, norm_epsilon, gates, state, weight, epsilon, gate })
}
