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

use super::{
    LinearEngine, LinearGate, LinearInputs, LinearMatrix, LinearOutputs, LinearRule, LowerGates, LowerState,
    constant_log_a,
};
use crate::{
    DType, Dims, Error, Inputs, InputsOn, KernelCall, Outputs, OutputsOn, Read, Result, Rule, Tensor,
    primitives::{Map, add, cast, map, mul, scale, sub},
    rules::{Delta, Erase, Hebbian, Matrix, WriteGates},
};
use std::fmt;

/// What a linear rule keeps for a backward: what its engine keeps, or what the parts keep.
pub enum LinearSaved<D: LinearEngine> {
    /// The engine's.
    Engine(D::Saved),
    /// That of momentum that looks ahead.
    LookAhead(Box<Saved<D>>),
}

impl<D: LinearEngine> fmt::Debug for LinearSaved<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Engine(saved) => saved.fmt(f),
            Self::LookAhead(saved) => saved.fmt(f),
        }
    }
}

/// What the backward needs of the forward.
pub struct Saved<D: LinearEngine> {
    error: Part<D, Delta>,
    read: Part<D, Delta>,
    momentum: Part<D, Hebbian>,
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
pub fn forward<D: LinearEngine, R: LinearRule>(
    call: KernelCall<'_, R, D>,
    keep: bool,
) -> Result<(OutputsOn<R, D>, Option<Box<Saved<D>>>)> {
    let KernelCall { device, rule, dims, inputs } = call;
    let inputs = LinearInputs::new(inputs, || constant_log_a(device, rule, dims))?;
    let (Found { out, state }, saved) = run::<D>(R::NAME, device, rule.spec().read, dims, &inputs, keep)?;
    Ok((Outputs { out, state: lowered::<R, _>(&state) }, keep.then(|| saved.into())))
}

/// Its gradients.
///
/// # Errors
/// The device's own failures; [`Error::Unsupported`] for a rule without momentum.
pub fn backward<D: LinearEngine, R: LinearRule>(
    call: KernelCall<'_, R, D>,
    saved: Saved<D>,
    grads: &OutputsOn<R, D>,
) -> Result<InputsOn<R, D>> {
    let KernelCall { device, rule, dims, inputs } = call;
    let LinearInputs { theta, .. } = LinearInputs::new(inputs, || constant_log_a(device, rule, dims))?;
    let LinearOutputs { out, state } = LinearOutputs::new(grads);
    let grads = Found { out, state: [state.m, state.s.ok_or_else(|| without_momentum::<D>(R::NAME))?] };
    let Grads { q, k, v, log_a, log_eta, theta, state } = saved.backward(device, dims, &theta, &grads)?;
    let gates = R::Gates::try_lower_backward(|gate| match gate {
        LinearGate::LogA => Ok(log_a.clone()),
        LinearGate::LogEta => Ok(log_eta.clone()),
        LinearGate::Theta => Ok(theta.clone()),
        LinearGate::Beta => Err(without_momentum::<D>(R::NAME)),
    })?;
    Ok(Inputs { q, k, v, gates, state: lowered::<R, _>(&state), anchor: None })
}

/// What is read, and `M` and `S`, or their gradients.
struct Found<D: LinearEngine> {
    out: Tensor<D>,
    state: [Tensor<D>; 2],
}

/// Gradients of the arguments, the state's those of `M` and `S`.
struct Grads<D: LinearEngine> {
    q: Tensor<D>,
    k: Tensor<D>,
    v: Tensor<D>,
    log_a: Tensor<D>,
    log_eta: Tensor<D>,
    theta: Tensor<D>,
    state: [Tensor<D>; 2],
}

/// The three parts, one after another.
fn run<D: LinearEngine>(
    what: &'static str,
    device: &D,
    read: Read,
    dims: &Dims,
    inputs: &LinearInputs<Tensor<D>>,
    keep: bool,
) -> Result<(Found<D>, Saved<D>)> {
    let LinearInputs { q, k, v, log_a, log_eta: Some(log_eta), theta, state, .. } = inputs else {
        return Err(without_momentum::<D>(what));
    };
    let dtype = q.dtype();
    let [q, k, v] = [cast(DType::F32, q)?, cast(DType::F32, k)?, cast(DType::F32, v)?];
    let [q, k, v] = [&q, &k, &v];
    let s = state.s.as_ref().ok_or_else(|| without_momentum::<D>(what))?;
    // What is predicted is read before the write, whenever the token itself reads.
    let n = add(&state.m, s)?;
    let delta = |read| Delta { erase: Erase::Undecayed, read, frozen: None };
    let inputs = arguments([k, k, v, log_a, theta, &n]);
    let (predicted, error) = Part::forward(device, delta(Read::Before), dims, inputs, keep)?;
    let inputs = arguments([q, k, v, log_a, theta, &n]);
    let (found, reading) = Part::forward(device, delta(read), dims, inputs, keep)?;
    // The momentum forgets by `η a`, and takes `η` of each write.
    let eta = map(Map::Exp, log_eta)?;
    let (d, forget, strength) = (sub(v, &predicted.out)?, add(log_a, log_eta)?, mul(&eta, theta)?);
    let inputs = arguments([q, k, &d, &forget, &strength, s]);
    let (carried, momentum) = Part::forward(device, Hebbian { read }, dims, inputs, keep)?;
    let (n, s) = (found.state.m, carried.state.m);
    let out = cast(dtype, &sub(&found.out, &carried.out)?)?;
    let found = Found { out, state: [sub(&n, &s)?, s] };
    Ok((found, Saved { error, read: reading, momentum, eta }))
}

/// Arguments of either rule, which have the same gates and the same state.
fn arguments<D: LinearEngine, R>(slots: [&Tensor<D>; 6]) -> InputsOn<R, D>
where
    R: Rule<Gates = WriteGates<()>, State = Matrix<()>>,
{
    let [q, k, v, log_a, theta, m] = slots.map(Tensor::clone);
    Inputs { q, k, v, gates: WriteGates { log_a, theta }, state: Matrix { m }, anchor: None }
}

impl<D: LinearEngine> Saved<D> {
    /// The three parts backward; `theta` is the call's.
    fn backward(self, device: &D, dims: &Dims, theta: &Tensor<D>, grads: &Found<D>) -> Result<Grads<D>> {
        let Self { error, read, momentum, eta } = self;
        // `M = N − S`: gradients of `N` and of `S` by itself.
        let (dtype, [dm, ds]) = (grads.out.dtype(), &grads.state);
        let out = &cast(DType::F32, &grads.out)?;
        let carried = Outputs { out: scale(-1.0, out)?, state: Matrix { m: sub(ds, dm)? } };
        let carried = momentum.backward(device, dims, &carried)?;
        // `d = v − k N`: its gradient is that of the value, and minus that of what was predicted.
        let nothing = Tensor::zeros(device, dims.matrices(), DType::F32)?;
        let predicted = Outputs { out: scale(-1.0, &carried.v)?, state: Matrix { m: nothing } };
        let predicted = error.backward(device, dims, &predicted)?;
        let found = read.backward(device, dims, &Outputs { out: out.clone(), state: Matrix { m: dm.clone() } })?;
        let gates = [&carried.gates, &predicted.gates, &found.gates];
        let n = add(&predicted.state.m, &found.state.m)?;
        Ok(Grads {
            q: cast(dtype, &add(&found.q, &carried.q)?)?,
            // The first part has the keys twice, as queries too.
            k: cast(dtype, &add(&predicted.q, &sum([&predicted.k, &found.k, &carried.k])?)?)?,
            v: cast(dtype, &sum([&predicted.v, &found.v, &carried.v])?)?,
            log_a: sum(gates.map(|gates| &gates.log_a))?,
            // `η` forgets and takes: by its logarithm, and by the strength `η θ`.
            log_eta: add(&carried.gates.log_a, &mul(&carried.gates.theta, &mul(&eta, theta)?)?)?,
            theta: sum([&predicted.gates.theta, &found.gates.theta, &mul(&carried.gates.theta, &eta)?])?,
            state: [n.clone(), add(&n, &carried.state.m)?],
        })
    }
}

/// One of the parts, to be turned around.
struct Part<D: LinearEngine, R: Rule> {
    rule: R,
    inputs: InputsOn<R, D>,
    saved: Option<D::Saved>,
}

impl<D: LinearEngine, R: LinearRule> Part<D, R> {
    /// The part forward, with what it keeps where a backward comes.
    fn forward(
        device: &D,
        rule: R,
        dims: &Dims,
        inputs: InputsOn<R, D>,
        keep: bool,
    ) -> Result<(OutputsOn<R, D>, Self)> {
        let (outputs, saved) = D::linear_forward(KernelCall { device, rule, dims, inputs: &inputs }, keep)?;
        Ok((outputs, Self { rule, inputs, saved }))
    }

    /// Its gradients.
    fn backward(self, device: &D, dims: &Dims, grads: &OutputsOn<R, D>) -> Result<InputsOn<R, D>> {
        let Self { rule, inputs, saved } = self;
        let why = "its forward kept nothing for a backward".into();
        let saved = saved.ok_or(Error::Unsupported { backend: D::NAME, what: R::NAME, why })?;
        D::linear_backward(KernelCall { device, rule, dims, inputs: &inputs }, saved, grads)
    }
}

/// The same gradient of three parts.
fn sum<D: LinearEngine>([a, b, c]: [&Tensor<D>; 3]) -> Result<Tensor<D>> {
    add(&add(a, b)?, c)
}

/// A rule that looks ahead along no momentum, or that erases by a strength of its own.
fn without_momentum<D: LinearEngine>(what: &'static str) -> Error {
    let why = "only a rule with momentum, which erases as much as it writes, can look ahead".into();
    Error::Unsupported { backend: D::NAME, what, why }
}

/// `M` and `S` as the rule's state.
fn lowered<R: LinearRule, T: Clone>([m, s]: &[T; 2]) -> crate::Of<R::State, T> {
    R::State::lower_backward(|matrix| match matrix {
        LinearMatrix::M => m.clone(),
        LinearMatrix::S => s.clone(),
    })
}
