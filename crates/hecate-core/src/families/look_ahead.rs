//! Momentum that looks ahead, of linear rules: made of two rules that every engine runs.
//!
//! With `N = M + S` the recurrence of [`LookAhead`](crate::rules::MomentumForm::LookAhead) falls apart:
//!
//! ```text
//! N_t = a_t N_{t−1} + θ_t k_tᵀ d_t,   d_t = v_t − k_t N_{t−1}          the delta rule
//! S_t = η_t a_t S_{t−1} + η_t θ_t k_tᵀ d_t                             the Hebbian rule
//! q_t M_t = q_t N_t − q_t S_t
//! ```
//!
//! Where `η` is near 1 the two that are subtracted are nearly the same, so everything between 16-bit arguments and results has
//! 32 bits.
//!
//! The delta rule runs twice: once with the keys as queries, which gives `d`, and once with the queries. Gradients go
//! the same way back. So engines need no kernels of their own for it, and what they have of the two rules serves here too.

use super::{LinearEngine, LinearInputs, LinearKernelCall, LinearOutputs, LinearRule, LinearSpec, LinearState};
use crate::{
    DType, Error, Read, Result, Tensor,
    primitives::{Map, add, cast, map, mul, scale, sub},
    rules::{Delta, Erase, Hebbian},
};
use std::fmt;

/// What a linear rule keeps for a backward.
#[derive(Debug)]
pub struct LinearSaved<D: LinearEngine> {
    /// What the rule said of itself.
    pub(super) spec: LinearSpec,
    pub(super) saved: SavedBy<D>,
}

/// What its engine keeps, or what the parts keep.
pub(super) enum SavedBy<D: LinearEngine> {
    /// The engine's.
    Engine(D::Saved),
    /// That of momentum that looks ahead.
    LookAhead(Box<Saved<D>>),
}

impl<D: LinearEngine> fmt::Debug for SavedBy<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Engine(saved) => saved.fmt(f),
            Self::LookAhead(saved) => saved.fmt(f),
        }
    }
}

/// What the backward needs of the forward.
pub(super) struct Saved<D: LinearEngine> {
    error: Part<D>,
    read: Part<D>,
    momentum: Part<D>,
    /// `η [B,T,H]`.
    eta: Tensor<D>,
}

impl<D: LinearEngine> fmt::Debug for Saved<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Saved").field("eta", &self.eta).finish_non_exhaustive()
    }
}

/// A rule whose momentum looks ahead, forward.
///
/// # Errors
/// The device's own failures; [`Error::Unsupported`] for a rule without momentum.
pub(super) fn forward<D: LinearEngine>(
    call: LinearKernelCall<'_, D>,
    keep: bool,
) -> Result<(LinearOutputs<Tensor<D>>, Option<Box<Saved<D>>>)> {
    let (Found { out, state: [m, s] }, saved) = run(call, keep)?;
    Ok((LinearOutputs { out, state: LinearState { m, s: Some(s) } }, keep.then(|| saved.into())))
}

/// Its gradients.
///
/// # Errors
/// The device's own failures; [`Error::Unsupported`] for a rule without momentum.
pub(super) fn backward<D: LinearEngine>(
    call: LinearKernelCall<'_, D>,
    saved: Saved<D>,
    grads: &LinearOutputs<Tensor<D>>,
) -> Result<LinearInputs<Tensor<D>>> {
    let LinearOutputs { out, state } = grads.clone();
    let grads = Found { out, state: [state.m, state.s.ok_or_else(|| without_momentum(call))?] };
    saved.backward(call, &grads)
}

/// What is read, and `M` and `S`, or their gradients.
struct Found<D: LinearEngine> {
    out: Tensor<D>,
    state: [Tensor<D>; 2],
}

/// The three parts, one after another.
fn run<D: LinearEngine>(call: LinearKernelCall<'_, D>, keep: bool) -> Result<(Found<D>, Saved<D>)> {
    let LinearInputs { q, k, v, log_a, log_eta: Some(log_eta), theta, state, .. } = call.inputs else {
        return Err(without_momentum(call));
    };
    let dtype = q.dtype();
    let [q, k, v] = [cast(DType::F32, q)?, cast(DType::F32, k)?, cast(DType::F32, v)?];
    let [q, k, v] = [&q, &k, &v];
    let s = state.s.as_ref().ok_or_else(|| without_momentum(call))?;
    // What is predicted is read before the write, whenever the token itself reads.
    let n = add(&state.m, s)?;
    let delta = |read| Delta { erase: Erase::Undecayed, read, frozen: None }.spec();
    let (predicted, error) = Part::forward(call, delta(Read::Before), arguments([k, k, v, log_a, theta, &n]), keep)?;
    let (found, reading) = Part::forward(call, delta(call.spec.read), arguments([q, k, v, log_a, theta, &n]), keep)?;
    // The momentum forgets by `η a`, and takes `η` of each write.
    let eta = map(Map::Exp, log_eta)?;
    let (d, forget, strength) = (sub(v, &predicted.out)?, add(log_a, log_eta)?, mul(&eta, theta)?);
    let hebbian = Hebbian { read: call.spec.read }.spec();
    let (carried, momentum) = Part::forward(call, hebbian, arguments([q, k, &d, &forget, &strength, s]), keep)?;
    let (n, s) = (found.state.m, carried.state.m);
    let out = cast(dtype, &sub(&found.out, &carried.out)?)?;
    let found = Found { out, state: [sub(&n, &s)?, s] };
    Ok((found, Saved { error, read: reading, momentum, eta }))
}

/// Arguments of either part, which have the same gates and the same state.
fn arguments<D: LinearEngine>(arrays: [&Tensor<D>; 6]) -> LinearInputs<Tensor<D>> {
    let [q, k, v, log_a, theta, m] = arrays.map(Tensor::clone);
    LinearInputs { q, k, v, log_a, log_eta: None, theta, beta: None, state: LinearState { m, s: None } }
}

/// Gradients of a part's results.
fn gradients<D: LinearEngine>(out: Tensor<D>, m: Tensor<D>) -> LinearOutputs<Tensor<D>> {
    LinearOutputs { out, state: LinearState { m, s: None } }
}

impl<D: LinearEngine> Saved<D> {
    /// The three parts backward.
    fn backward(self, call: LinearKernelCall<'_, D>, grads: &Found<D>) -> Result<LinearInputs<Tensor<D>>> {
        let LinearKernelCall { device, dims, inputs: LinearInputs { theta, .. }, .. } = call;
        let Self { error, read, momentum, eta } = self;
        // `M = N − S`: gradients of `N` and of `S` by itself.
        let (dtype, [dm, ds]) = (grads.out.dtype(), &grads.state);
        let out = &cast(DType::F32, &grads.out)?;
        let carried = momentum.backward(call, &gradients(scale(-1.0, out)?, sub(ds, dm)?))?;
        // `d = v − k N`: its gradient is that of the value, and minus that of what was predicted.
        let nothing = Tensor::zeros(device, dims.matrices(), DType::F32)?;
        let predicted = error.backward(call, &gradients(scale(-1.0, &carried.v)?, nothing))?;
        let found = read.backward(call, &gradients(out.clone(), dm.clone()))?;
        let n = add(&predicted.state.m, &found.state.m)?;
        Ok(LinearInputs {
            q: cast(dtype, &add(&found.q, &carried.q)?)?,
            // The first part has the keys twice, as queries too.
            k: cast(dtype, &add(&predicted.q, &sum([&predicted.k, &found.k, &carried.k])?)?)?,
            v: cast(dtype, &sum([&predicted.v, &found.v, &carried.v])?)?,
            log_a: sum([&carried.log_a, &predicted.log_a, &found.log_a])?,
            // `η` forgets and takes: by its logarithm, and by the strength `η θ`.
            log_eta: Some(add(&carried.log_a, &mul(&carried.theta, &mul(&eta, theta)?)?)?),
            theta: sum([&predicted.theta, &found.theta, &mul(&carried.theta, &eta)?])?,
            beta: None,
            state: LinearState { m: n.clone(), s: Some(add(&n, &carried.state.m)?) },
        })
    }
}

/// One of the parts, to be turned around.
struct Part<D: LinearEngine> {
    spec: LinearSpec,
    inputs: LinearInputs<Tensor<D>>,
    saved: Option<D::Saved>,
}

impl<D: LinearEngine> Part<D> {
    /// The part forward, with what it keeps where a backward comes. Its arrays are made of those of the call.
    fn forward(
        call: LinearKernelCall<'_, D>,
        spec: LinearSpec,
        inputs: LinearInputs<Tensor<D>>,
        keep: bool,
    ) -> Result<(LinearOutputs<Tensor<D>>, Self)> {
        let (outputs, saved) = D::linear_forward(LinearKernelCall { spec, inputs: &inputs, ..call }, keep)?;
        Ok((outputs, Self { spec, inputs, saved }))
    }

    /// Its gradients.
    fn backward(
        self,
        call: LinearKernelCall<'_, D>,
        grads: &LinearOutputs<Tensor<D>>,
    ) -> Result<LinearInputs<Tensor<D>>> {
        let Self { spec, inputs, saved } = self;
        let why = "its forward kept nothing for a backward".into();
        let saved = saved.ok_or(Error::Unsupported { backend: D::NAME, what: call.what, why })?;
        D::linear_backward(LinearKernelCall { spec, inputs: &inputs, ..call }, saved, grads)
    }
}

/// The same gradient of three parts.
fn sum<D: LinearEngine>([a, b, c]: [&Tensor<D>; 3]) -> Result<Tensor<D>> {
    add(&add(a, b)?, c)
}

/// A rule that looks ahead along no momentum.
fn without_momentum<D: LinearEngine>(call: LinearKernelCall<'_, D>) -> Error {
    let why = "only a rule with momentum, which erases as much as it writes, can look ahead".into();
    Error::Unsupported { backend: D::NAME, what: call.what, why }
}
