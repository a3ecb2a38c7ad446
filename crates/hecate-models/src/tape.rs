//! The tape: what was computed, so that it can be gone through backward.
//!
//! A Wengert list. Every array that gradients flow to has a *slot*; the first slots are the parameters'. An operation
//! puts a closure on the tape that takes the gradients of its results and adds those of its arguments to their slots.
//! [`Tape::backward`] runs the closures last to first and consumes them, so each frees what it kept as soon as it ran.
//! A closure owns only what its gradient needs; cloning a tensor shares its buffer.
//!
//! The same code runs on a tape that does not record ([`Tape::inert`]): nothing is kept then, and memories run their
//! inference kernel.
//!
//! [`Tape::custom`] puts an operation of the caller's own on the tape. Sums, differences, products and quotients are operators
//! of [`Var`] too.

mod arithmetic;
mod arrays;
mod attention;
mod conv;
mod custom;
mod dropout;
mod erased;
mod fp8;
mod loss;
mod memory;
mod operations;
mod operators;
mod record;

pub(crate) use erased::ErasedRule;
pub use operators::Operand;

pub(crate) use fp8::Fp8Pass;
pub use fp8::{FactorKind, Fp8Found};

use crate::{
    Error, Gradients, Interrupt, Parameter, ParameterId, Parameters, Probe, Result, dropout::Draws,
    parameters::Adapter, probe::ProbeSite,
};
use hecate_core::{Backend, DType, Shape, Tensor, primitives};
use record::{GradientSlots, Ledger, Recording, Slot};
use std::{
    cell::RefCell,
    collections::HashMap,
    fmt,
    rc::Rc,
    sync::{Arc, Weak},
};

/// A value on a tape: a tensor, and where its gradient gathers.
///
/// ```
/// use hecate_core::Tensor;
/// use hecate_cpu::Cpu;
/// use hecate_models::{Parameters, Tape, Var};
///
/// # fn main() -> hecate_models::Result<()> {
/// let (cpu, mut parameters) = (Cpu::new(), Parameters::new());
/// let place = parameters.add("weight", Tensor::from_f32(&cpu, [2], vec![1.0, 2.0])?, false);
/// let tape = Tape::recording(&parameters);
/// // Gradients flow to parameters, and to nothing that is constant.
/// let (weight, x) = (tape.parameter(place)?, Var::constant(Tensor::from_f32(&cpu, [3, 2], vec![0.5; 6])?));
/// // The row `[2]` serves all rows of `[3,2]`.
/// let y = (&x * &weight + &x)?;
/// assert_eq!((y.axes(), x.is_constant(), y.is_constant()), (&[3, 2][..], true, false));
/// assert_eq!(y.value().to_f32()?[..2], [1.0, 1.5]);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Var<B: Backend> {
    value: Tensor<B>,
    slot: Slot,
    /// Where operators record what they make of it; of no tape for constants.
    ledger: Weak<Ledger<B>>,
}

impl<B: Backend> Var<B> {
    /// A value that no gradient is wanted of.
    pub fn constant(value: Tensor<B>) -> Self {
        Self { value, slot: None, ledger: Weak::new() }
    }

    /// The value.
    pub fn value(&self) -> &Tensor<B> {
        &self.value
    }

    /// The value, without its history.
    pub fn into_value(self) -> Tensor<B> {
        self.value
    }

    /// Lengths of the axes.
    pub fn axes(&self) -> &[usize] {
        self.value.shape().axes()
    }

    /// Whether no gradient flows to it.
    pub fn is_constant(&self) -> bool {
        self.slot.is_none()
    }
}

impl<B: Backend> Clone for Var<B> {
    fn clone(&self) -> Self {
        Self { value: self.value.clone(), slot: self.slot, ledger: self.ledger.clone() }
    }
}

/// Operations in the order in which they ran.
///
/// A line is fitted to three points by descent:
///
/// ```
/// use hecate_core::{Tensor, primitives};
/// use hecate_cpu::Cpu;
/// use hecate_models::{Parameters, Tape, Var};
///
/// # fn main() -> hecate_models::Result<()> {
/// let (cpu, mut parameters) = (Cpu::new(), Parameters::new());
/// let slope = parameters.add("slope", Tensor::from_f32(&cpu, [1], vec![0.0])?, false);
/// let offset = parameters.add("offset", Tensor::from_f32(&cpu, [1], vec![0.0])?, false);
/// let column = |values| Ok::<_, hecate_core::Error>(Var::constant(Tensor::from_f32(&cpu, [3, 1], values)?));
/// let (x, y) = (column(vec![-1.0, 0.0, 1.0])?, column(vec![-1.0, 1.0, 3.0])?);
/// for _ in 0..50 {
///     // A tape for each step: `backward` consumes it.
///     let tape = Tape::recording(&parameters);
///     let line = (&x * tape.parameter(slope)? + tape.parameter(offset)?)?;
///     let loss = tape.mean_squared_error(&line, &y)?;
///     let gradients = tape.backward(&loss)?;
///     for (parameter, gradient) in parameters.iter_mut().zip(gradients.iter().flatten()) {
///         parameter.value = primitives::add(&parameter.value, &primitives::scale(-0.3, gradient)?)?;
///     }
/// }
/// let found = [slope, offset].map(|place| parameters.get(place)?.value.to_f32().map_err(hecate_models::Error::from));
/// for (found, truth) in found.into_iter().zip([2.0, 1.0]) {
///     assert!((found?[0] - truth).abs() < 0.01);
/// }
/// # Ok(())
/// # }
/// ```
pub struct Tape<'p, B: Backend> {
    parameters: &'p Parameters<B>,
    record: Option<Recording<'p, B>>,
    probe: Option<&'p Probe>,
    /// Looked at before every operation that may take long.
    interrupt: Option<&'p Interrupt>,
    /// Masks that elements are dropped by.
    draws: Option<Draws>,
    /// Element type of activations.
    dtype: DType,
    /// Weights rounded to it, by their places.
    rounded: RefCell<HashMap<usize, Tensor<B>>>,
    /// Linear maps whose products have factors of 8 bits.
    fp8: Option<Rc<Fp8Pass<B>>>,
}

impl<B: Backend> fmt::Debug for Tape<'_, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let operations = self.record.as_ref().map(Recording::operations);
        f.debug_struct("Tape")
            .field("operations", &operations)
            .field("activations", &self.dtype)
            .field("watched", &self.probe.is_some())
            .finish_non_exhaustive()
    }
}

impl<'p, B: Backend> Tape<'p, B> {
    /// A tape that can be gone through backward.
    pub fn recording(parameters: &'p Parameters<B>) -> Self {
        Self { record: Some(Recording::new(parameters.len())), ..Self::inert(parameters) }
    }

    /// A tape that keeps nothing: evaluation, generation.
    pub fn inert(parameters: &'p Parameters<B>) -> Self {
        let (dtype, rounded) = (DType::F32, RefCell::default());
        Self { parameters, record: None, probe: None, interrupt: None, draws: None, dtype, rounded, fp8: None }
    }

    /// The same tape, on which `probe` looks at what passes: slow, and of use where something went wrong.
    pub fn watched(mut self, probe: &'p Probe) -> Self {
        self.probe = Some(probe);
        self
    }

    /// The same tape, whose operations end with [`Error::Stopped`] once `interrupt` was asked for.
    pub fn interruptible(mut self, interrupt: Option<&'p Interrupt>) -> Self {
        self.interrupt = interrupt;
        self
    }

    /// Refuses to begin another operation once somebody asked to stop.
    pub(crate) fn check(&self) -> Result<()> {
        queue(self.parameters, self.interrupt)
    }

    /// The same tape with activations of this float type: weights meet them as [`Tape::weight`] gives them.
    pub fn with_activations(self, dtype: DType) -> Self {
        Self { dtype, ..self }
    }

    /// Element type of activations.
    pub fn activations(&self) -> DType {
        self.dtype
    }

    /// Whether nothing is kept and no probe looks: one fused kernel may stand for several operations.
    pub(crate) fn is_inert(&self) -> bool {
        self.record.is_none() && self.probe.is_none()
    }

    /// Tells the probe which block runs from here on.
    pub fn enter(&self, layer: Option<usize>) {
        if let Some(probe) = self.probe {
            probe.enter(layer);
        }
    }

    /// Shows a value to the probe, if there is one.
    ///
    /// # Errors
    /// The device's own failures.
    pub fn watch(&self, what: &str, x: &Var<B>) -> Result<()> {
        let Some(probe) = self.probe else { return Ok(()) };
        let site = ProbeSite { kind: "", slot: what, of: "", layer: probe.layer(), heads: None };
        probe.look(site, &x.value)
    }

    /// A parameter's value in the type of activations. Rounding happens once a tape; gradients of every use are added in
    /// 32 bits.
    ///
    /// # Errors
    /// As [`Tape::parameter`]; the device's own failures.
    pub fn weight(&self, id: ParameterId) -> Result<Var<B>> {
        let master = self.parameter(id)?;
        if master.value.dtype() == self.dtype {
            return Ok(master);
        }
        let slot = self.parameters.slot(id);
        if self.record.is_some() && slot.is_some() && master.value.dtype() != DType::F32 {
            let (name, found) = (&self.parameters.get(id)?.name, format!("stored as {}", master.value.dtype()));
            return Err(Error::config(
                name,
                found,
                "32 bits: what is to learn is loaded without rounding its matrices",
            ));
        }
        let value = self.rounded(id)?;
        match slot.filter(|_| self.record.is_some()) {
            Some(slot) => Ok(self.push_one(value, move |dy, slots| slots.add_rounded(slot, dy))),
            None => Ok(Var::constant(value)),
        }
    }

    /// Whether products read this parameter as it is stored: with fewer bits than activations have, where nothing is recorded.
    pub(crate) fn reads_stored(&self, id: ParameterId) -> Result<bool> {
        let dtype = self.parameters.get(id)?.value.dtype();
        Ok(self.is_inert() && self.dtype == DType::F32 && dtype != self.dtype)
    }

    /// A weight in the type of activations. A tape that records needs nearly all that learn till it is gone through, and
    /// makes them in one call.
    fn rounded(&self, id: ParameterId) -> Result<Tensor<B>> {
        let mut rounded = self.rounded.borrow_mut();
        if !rounded.contains_key(&id.index()) {
            let learns = self.record.is_some() && self.parameters.slot(id).is_some();
            let ids = if learns { self.parameters.ids().collect() } else { vec![id] };
            let wide = ids.iter().map(|&id| Ok(&self.parameters.get(id)?.value)).collect::<Result<Vec<_>>>()?;
            let made = primitives::cast_all(self.dtype, &wide)?;
            rounded.extend(ids.iter().map(|id| id.index()).zip(made));
        }
        Ok(rounded[&id.index()].clone())
    }

    /// Whether no gradient of this parameter is wanted, whatever the tape records.
    pub(crate) fn is_frozen(&self, id: ParameterId) -> bool {
        self.parameters.slot(id).is_none()
    }

    /// What is added to products with this matrix.
    pub(crate) fn adapter(&self, matrix: ParameterId) -> Option<Adapter> {
        self.parameters.adapter(matrix)
    }

    /// A parameter's value, 32-bit floats: a constant where it is frozen.
    ///
    /// # Errors
    /// As [`Parameters::get`].
    pub fn parameter(&self, id: ParameterId) -> Result<Var<B>> {
        let value = self.parameters.get(id)?.value.clone();
        Ok(match (self.ledger(), self.parameters.slot(id)) {
            (Some(ledger), Some(slot)) => ledger.var(value, slot),
            _ => Var::constant(value),
        })
    }

    /// Refuses an `x [.., D]` unless `D` is `width`, that of the layer that the parameter belongs to.
    pub(crate) fn check_width(&self, id: ParameterId, width: usize, x: &Var<B>) -> Result<()> {
        let Parameter { name, value, .. } = self.parameters.get(id)?;
        check_width(name, width, value.shape(), x)
    }

    /// Gradients of `Σ seed · var` over the given pairs by all parameters.
    ///
    /// # Errors
    /// [`Error::Config`] on a tape that does not record, and for a value of another tape. Seeds of another device,
    /// shape or element type than their values. The device's own failures.
    pub fn backward_seeded(self, seeds: impl IntoIterator<Item = (Var<B>, Tensor<B>)>) -> Result<Gradients<B>> {
        let Some(record) = self.record else {
            return Err(Error::config("tape", "inert", "a recording one to go backward"));
        };
        // What is still needed of the rounded weights, operations hold.
        drop(self.rounded);
        let (mut slots, operations) = record.into_parts();
        for (var, seed) in seeds {
            check_seed(&var.value, &seed)?;
            slots.add(var.slot, seed)?;
        }
        for operation in operations.into_iter().rev() {
            queue(self.parameters, self.interrupt)?;
            operation(&mut slots)?;
        }
        Ok(Gradients::by(self.parameters, slots.into_gradients(self.parameters.len())?))
    }

    /// What values of the tape know of it; none of a tape that does not record.
    fn ledger(&self) -> Option<&Arc<Ledger<B>>> {
        self.record.as_ref().map(Recording::ledger)
    }

    /// Whether results of these arguments have to be recorded.
    fn follows(&self, arguments: &[&Var<B>]) -> bool {
        self.record.is_some() && arguments.iter().any(|var| var.slot.is_some())
    }

    /// A result with a slot of its own.
    fn result(&self, value: Tensor<B>) -> Var<B> {
        match self.ledger() {
            Some(ledger) => ledger.result(value),
            None => Var::constant(value),
        }
    }

    /// Puts an operation on the tape: it takes the gradients of its results and adds those of its arguments.
    fn push(&self, operation: impl FnOnce(&mut GradientSlots<B>) -> Result<()> + 'p) {
        if let Some(record) = &self.record {
            record.push(Box::new(operation));
        }
    }

    /// As [`Tape::push`] for an operation with one result.
    fn push_one(
        &self,
        value: Tensor<B>,
        operation: impl FnOnce(Tensor<B>, &mut GradientSlots<B>) -> Result<()> + 'p,
    ) -> Var<B> {
        let result = self.result(value);
        let slot = result.slot;
        self.push(move |slots| slots.take(slot).map_or(Ok(()), |gradient| operation(gradient, slots)));
        result
    }

    /// As [`Tape::push_one`] for an operation with one argument.
    fn push_map(
        &self,
        argument: &Var<B>,
        value: Tensor<B>,
        operation: impl FnOnce(Tensor<B>) -> hecate_core::Result<Tensor<B>> + 'p,
    ) -> Var<B> {
        if !self.follows(&[argument]) {
            return Var::constant(value);
        }
        let slot = argument.slot;
        self.push_one(value, move |gradient, slots| slots.add(slot, operation(gradient)?))
    }
}

/// Refuses an `x [.., D]` unless `D` is `width`, that of the layer that the parameter of this name and shape belongs to.
fn check_width<B: Backend>(name: &str, width: usize, own: &Shape, x: &Var<B>) -> Result<()> {
    if x.axes().last() == Some(&width) {
        return Ok(());
    }
    let (layer, parameter) = name.rsplit_once('.').unwrap_or((name, name));
    Err(Error::Width {
        layer: layer.to_owned(),
        expected: width,
        found: x.value.shape().clone(),
        parameter: parameter.to_owned(),
        own: own.clone(),
    })
}

/// Refuses to queue another operation on the device of `parameters` once somebody asked to stop.
fn queue<B: Backend>(parameters: &Parameters<B>, interrupt: Option<&Interrupt>) -> Result<()> {
    match (interrupt, parameters.iter().next()) {
        (Some(interrupt), Some(first)) => interrupt.check_queued(|| first.value.device().synchronize()),
        _ => Ok(()),
    }
}

/// Refuses a seed unlike its value.
fn check_seed<B: Backend>(value: &Tensor<B>, seed: &Tensor<B>) -> hecate_core::Result<()> {
    let (what, slot) = ("backward", "seed");
    seed.check_device(value.device(), what, slot)?;
    if value.shape() != seed.shape() {
        let (expected, found) = (value.shape().clone(), seed.shape().clone());
        return Err(hecate_core::Error::Shape { what, slot, expected, found });
    }
    if value.dtype() != seed.dtype() {
        return Err(hecate_core::Error::DType { what, slot, expected: "that of its value", found: seed.dtype() });
    }
    Ok(())
}
