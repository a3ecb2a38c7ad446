//! Any rule on any backend as an operation on a dfdx tape, so that dfdx networks can have memories.
//!
//! dfdx tensors cannot lie in foreign buffers: arguments are copied to the backend and results back, once a call.
//!
//! ```
//! use dfdx::{prelude::*, tensor::Cpu as Dfdx};
//! use hecate_core::{Inputs, rules::{Delta, Matrix, WriteGates}};
//! use hecate_models::bridge;
//!
//! let (host, backend) = (Dfdx::seed_from_u64(1), hecate_cpu::Cpu::new());
//! // One sequence of 6 tokens, 2 heads, keys and values of 4 elements.
//! let array = || host.sample_normal::<Rank4<1, 6, 2, 4>>();
//! let gate = |value: f32| host.zeros::<Rank3<1, 6, 2>>() + value;
//! let (q, k, v) = (array(), array() * 0.5, array());
//!
//! let (traced, tape) = q.leaky_trace().split_tape();
//! let inputs = Inputs {
//!     q: traced.into(),
//!     k: k.into(),
//!     v: v.into(),
//!     gates: WriteGates { log_a: gate(-0.01).into(), theta: gate(0.5).into() },
//!     state: Matrix { m: host.zeros::<Rank4<1, 2, 4, 4>>().into() },
//!     anchor: None,
//! };
//! let (out, _state) = bridge::memory(&backend, Delta::default(), inputs, tape)?;
//! let gradients = out.square().sum().backward();
//! assert!(gradients.get(&q).as_vec().iter().any(|&x| x != 0.0));
//! # Ok::<(), hecate_models::Error>(())
//! ```

use crate::Result;
use dfdx::{
    shapes::{HasShape, Shape},
    tensor::{Cpu, CpuError, Gradients, PutTape, SplitTape, Tape, Tensor as DfdxTensor, TensorFromVec},
    tensor_ops::ReshapeTo,
};
use hecate_core::{Backend, Error, Forward, Inputs, Kernel, Of, Outputs, Pass, Rule, Slots, Tensor, forward, infer};
use std::fmt;

/// A dfdx array of four axes whose lengths are known at run time.
pub type Array4<T = dfdx::tensor::NoneTape> = DfdxTensor<(usize, usize, usize, usize), f32, Cpu, T>;
/// An array in row-major order as one axis.
type Flat = DfdxTensor<(usize,), f32, Cpu>;

/// An argument: a dfdx array of any shape, which `Slot::from` takes off its hands.
///
/// Arrays come without a tape. One that was computed has to have been on a tape, or no gradient goes beyond it. Take
/// the tape off the last of them (`split_tape`) and hand it to [`memory`].
pub struct Slot<T> {
    /// Lengths of the axes.
    axes: Vec<usize>,
    /// The elements in row-major order, whatever the strides, with the way back recorded.
    flatten: Box<dyn FnOnce(T) -> Result<(Flat, T), CpuError>>,
}

impl<T> fmt::Debug for Slot<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slot").field("axes", &self.axes).finish_non_exhaustive()
    }
}

impl<S: Shape, T: Tape<f32, Cpu> + 'static> From<DfdxTensor<S, f32, Cpu>> for Slot<T> {
    fn from(array: DfdxTensor<S, f32, Cpu>) -> Self {
        let axes = array.shape().concrete().into_iter().collect();
        let count = array.shape().num_elements();
        let flatten = Box::new(move |tape| Ok(array.put_tape(tape).try_reshape_like(&(count,))?.split_tape()));
        Self { axes, flatten }
    }
}

/// Runs a rule as an operation on `tape`. Returns what was read `[B,T,H,V]`, with the tape on it, and the state after
/// the last token, without. Each array of the state is `[N,H,..]`: axes between the second and the last are one. Put
/// the tape on a state before going on to compute with it. Without a tape to record on (`NoneTape`), nothing is kept
/// for a backward.
///
/// # Errors
/// What does not fit the rule, as [`hecate_core::forward`]; the device's own failures.
///
/// # Panics
/// In dfdx's backward, if the backend fails there: dfdx's error type has no room for another device's.
pub fn memory<B, R, T>(
    backend: &B,
    rule: R,
    inputs: Inputs<R, Slot<T>>,
    tape: T,
) -> Result<(Array4<T>, Of<R::State, Array4>)>
where
    B: Backend + Kernel<R>,
    R: Rule,
    T: Tape<f32, Cpu>,
{
    let mut tape = tape;
    let mut leaves = Vec::new();
    let inputs = inputs.try_map(|_, slot| {
        let (flat, next) = (slot.flatten)(std::mem::take(&mut tape)).map_err(failed)?;
        tape = next;
        let tensor = Tensor::from_f32(backend, slot.axes, flat.as_vec())?;
        leaves.push(flat);
        Ok::<_, Error>(tensor)
    })?;
    let (outputs, pass) = if T::OWNS_TAPE {
        let Forward { outputs, pass } = forward(backend, rule, inputs)?;
        (outputs, Some(pass))
    } else {
        (infer(backend, rule, &inputs)?, None)
    };
    let results = outputs.try_map(|_, tensor| array(&tensor).map(|array| (array, tensor.shape().clone())))?;
    if let Some(pass) = pass {
        let (device, results) = (backend.clone(), results.clone());
        tape.add_backward_op(move |grads| backward(grads, &device, pass, results, &leaves));
    }
    Ok((results.out.0.put_tape(tape), R::State::map(results.state, |_, (array, _)| array)))
}

/// Takes the gradients of the results and adds those of the arguments.
fn backward<B: Backend + Kernel<R>, R: Rule>(
    grads: &mut Gradients<f32, Cpu>,
    device: &B,
    pass: Pass<B, R>,
    results: Outputs<R, (Array4, hecate_core::Shape)>,
    leaves: &[Flat],
) -> Result<(), CpuError> {
    let upstream = results.try_map(|_, (array, shape)| {
        // Zeros where nothing used a result.
        grads.try_alloc_for(&array)?;
        Ok::<_, CpuError>((grads.get(&array).as_vec(), shape))
    })?;
    let gradients =
        solve(device, pass, upstream).unwrap_or_else(|error| panic!("gradient of a {} memory: {error}", R::NAME));
    for (leaf, gradient) in leaves.iter().zip(gradients) {
        grads.get_or_alloc_mut(leaf)?.iter_mut().zip(gradient).for_each(|(sum, term)| *sum += term);
    }
    Ok(())
}

/// Gradients of the arguments, in order.
fn solve<B: Backend + Kernel<R>, R: Rule>(
    device: &B,
    pass: Pass<B, R>,
    upstream: Outputs<R, (Vec<f32>, hecate_core::Shape)>,
) -> hecate_core::Result<Vec<Vec<f32>>> {
    let upstream = upstream.try_map(|_, (values, shape)| Tensor::from_f32(device, shape, values))?;
    pass.backward(upstream)?.list().into_iter().map(|(_, gradient)| gradient.to_f32()).collect()
}

/// A copy of a result, seen with four axes.
fn array<B: Backend>(tensor: &Tensor<B>) -> hecate_core::Result<Array4> {
    let axes = tensor.shape().axes();
    let (first, second) = (axes.first().copied().unwrap_or(1), axes.get(1).copied().unwrap_or(1));
    let last = if axes.len() > 2 { tensor.shape().last() } else { 1 };
    let between = tensor.shape().count() / (first * second * last);
    Cpu::default().try_tensor_from_vec(tensor.to_f32()?, (first, second, between, last)).map_err(failed)
}

/// An error of dfdx as one of a device.
fn failed(source: CpuError) -> Error {
    Error::Device { backend: "dfdx", context: "copying an array".into(), source: Box::new(source) }
}
