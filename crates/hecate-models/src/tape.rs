//! The tape: what was computed, so that it can be gone through backward.
//!
//! A Wengert list. Every array that gradients flow to has a *slot*; the first slots are the parameters'. An operation
//! puts a closure on the tape that takes the gradients of its results and adds those of its arguments to their slots.
//! [`Tape::backward`] runs the closures last to first and consumes them, so each frees what it kept as soon as it ran.
//! A closure owns only what its gradient needs; cloning a tensor shares its buffer.
//!
//! The same code runs on a tape that does not record ([`Tape::inert`]): nothing is kept then, and memories run their
//! inference kernel.

mod arrays;
mod attention;
mod conv;
mod dropout;
mod erased;
mod fp8;
mod loss;
mod memory;
mod operations;

pub(crate) use erased::ErasedRule;
pub(crate) use fp8::{FactorKind, Fp8Found, Fp8Pass};

use crate::{
    Error, Gradients, Interrupt, Parameter, ParameterId, Parameters, Probe, Result, dropout::Draws, parameters::add_to,
    probe::ProbeSite,
};
use hecate_core::{Backend, DType, Shape, Tensor, primitives};
use std::{
    cell::RefCell,
    collections::{HashMap, hash_map::Entry},
    fmt,
    rc::Rc,
    sync::atomic::{AtomicU64, Ordering},
};

/// Count of tapes made so far. Each tape takes one as its identity, which its values carry.
static TAPES: AtomicU64 = AtomicU64::new(0);

/// A value on a tape.
#[derive(Debug)]
pub struct Var<B: Backend> {
    value: Tensor<B>,
    slot: Slot,
}

/// Where gradients of a value gather; nowhere for constants.
type Slot = Option<SlotIndex>;

/// A place among the gradients of one tape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SlotIndex {
    tape: u64,
    index: usize,
}

impl<B: Backend> Var<B> {
    /// A value that no gradient is wanted of.
    pub fn constant(value: Tensor<B>) -> Self {
        Self { value, slot: None }
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
}

impl<B: Backend> Clone for Var<B> {
    fn clone(&self) -> Self {
        Self { value: self.value.clone(), slot: self.slot }
    }
}

/// Gradients on their way back, one a slot.
struct GradientSlots<B: Backend> {
    tape: u64,
    gradients: Vec<Option<Tensor<B>>>,
    /// What the first use of each rounded weight gave, as it came, by the parameters' places.
    of_rounded: HashMap<usize, Tensor<B>>,
}

impl<B: Backend> GradientSlots<B> {
    /// Adds to the gradient of a slot; drops what is wanted by nobody, and refuses slots of other tapes.
    fn add(&mut self, slot: Slot, gradient: Tensor<B>) -> Result<()> {
        match slot {
            Some(place) if place.tape == self.tape => Ok(add_to(&mut self.gradients[place.index], Some(gradient))?),
            Some(_) => Err(Error::config("value", "one of another tape", "values of the tape that is gone through")),
            None => Ok(()),
        }
    }

    /// What a use of a rounded weight gave: kept for [`GradientSlots::widen`], or added in 32 bits where there is one already.
    fn add_rounded(&mut self, parameter: usize, gradient: Tensor<B>) -> Result<()> {
        match self.of_rounded.entry(parameter) {
            Entry::Vacant(entry) => {
                entry.insert(gradient);
                Ok(())
            }
            Entry::Occupied(_) => {
                let wide = primitives::cast(DType::F32, &gradient)?;
                Ok(add_to(&mut self.gradients[parameter], Some(wide))?)
            }
        }
    }

    /// Adds all that was kept to the parameters' gradients, in 32 bits.
    fn widen(&mut self) -> Result<()> {
        let mut kept: Vec<_> = self.of_rounded.drain().collect();
        kept.sort_unstable_by_key(|&(parameter, _)| parameter);
        let (parameters, kept): (Vec<_>, Vec<_>) = kept.into_iter().unzip();
        let wide = primitives::cast_all(DType::F32, &kept.iter().collect::<Vec<_>>())?;
        drop(kept);
        for (parameter, gradient) in parameters.into_iter().zip(wide) {
            add_to(&mut self.gradients[parameter], Some(gradient))?;
        }
        Ok(())
    }

    /// The partial gradient of a slot, for a kernel that accumulates onto it; [`GradientSlots::add`] puts it back.
    fn take_partial(&mut self, slot: Slot) -> Option<Tensor<B>> {
        self.gradients[slot.filter(|place| place.tape == self.tape)?.index].take()
    }

    /// Whether anything arrived, for a result of this tape.
    fn holds(&self, slot: Slot) -> bool {
        slot.is_some_and(|place| self.gradients[place.index].is_some())
    }

    /// The whole gradient of a result of this tape: every operation that adds to a slot was recorded after the one that
    /// takes from it, and ran before it.
    fn take(&mut self, slot: Slot) -> Option<Tensor<B>> {
        self.gradients[slot?.index].take()
    }
}

type Operation<'p, B> = Box<dyn FnOnce(&mut GradientSlots<B>) -> Result<()> + 'p>;

/// The list of a tape that records: every operation so far, and how many slots they use.
struct Recording<'p, B: Backend> {
    tape: u64,
    slots: usize,
    operations: Vec<Operation<'p, B>>,
}

/// Operations in the order in which they ran.
pub struct Tape<'p, B: Backend> {
    parameters: &'p Parameters<B>,
    record: Option<RefCell<Recording<'p, B>>>,
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
        let operations = self.record.as_ref().map(|record| record.borrow().operations.len());
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
        let tape = TAPES.fetch_add(1, Ordering::Relaxed);
        let record = Recording { tape, slots: parameters.len(), operations: Vec::new() };
        Self { record: Some(RefCell::new(record)), ..Self::inert(parameters) }
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
        if self.record.is_some() && master.value.dtype() != DType::F32 {
            let (name, found) = (&self.parameters.get(id)?.name, format!("stored as {}", master.value.dtype()));
            return Err(Error::config(
                name,
                found,
                "32 bits: what is to learn is loaded without rounding its matrices",
            ));
        }
        let value = self.rounded(id.index())?;
        if self.record.is_none() {
            return Ok(Var::constant(value));
        }
        Ok(self.push_one(value, move |dy, slots| slots.add_rounded(id.index(), dy)))
    }

    /// Whether products read this parameter as it is stored: with fewer bits than activations have, where nothing is recorded.
    pub(crate) fn reads_stored(&self, id: ParameterId) -> Result<bool> {
        let dtype = self.parameters.get(id)?.value.dtype();
        Ok(self.is_inert() && self.dtype == DType::F32 && dtype != self.dtype)
    }

    /// A weight in the type of activations. A tape that records needs nearly all of them till it is gone through, and
    /// makes them in one call.
    fn rounded(&self, index: usize) -> Result<Tensor<B>> {
        let mut rounded = self.rounded.borrow_mut();
        if !rounded.contains_key(&index) {
            let all = if self.record.is_some() { 0..self.parameters.len() } else { index..index + 1 };
            let wide: Vec<_> =
                self.parameters.iter().map(|parameter| &parameter.value).skip(all.start).take(all.len()).collect();
            rounded.extend(all.zip(primitives::cast_all(self.dtype, &wide)?));
        }
        Ok(rounded[&index].clone())
    }

    /// A parameter's value, 32-bit floats.
    ///
    /// # Errors
    /// As [`Parameters::get`].
    pub fn parameter(&self, id: ParameterId) -> Result<Var<B>> {
        let value = self.parameters.get(id)?.value.clone();
        let slot = self.record.as_ref().map(|record| SlotIndex { tape: record.borrow().tape, index: id.index() });
        Ok(Var { value, slot })
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
        let Recording { tape, slots: count, operations } = record.into_inner();
        // What is still needed of the rounded weights, operations hold.
        drop(self.rounded);
        let mut slots =
            GradientSlots { tape, gradients: (0..count).map(|_| None).collect(), of_rounded: HashMap::new() };
        for (var, seed) in seeds {
            check_seed(&var.value, &seed)?;
            slots.add(var.slot, seed)?;
        }
        for operation in operations.into_iter().rev() {
            queue(self.parameters, self.interrupt)?;
            operation(&mut slots)?;
        }
        slots.widen()?;
        slots.gradients.truncate(self.parameters.len());
        Ok(Gradients::by(self.parameters, slots.gradients))
    }

    /// Whether results of these arguments have to be recorded.
    fn follows(&self, arguments: &[&Var<B>]) -> bool {
        self.record.is_some() && arguments.iter().any(|var| var.slot.is_some())
    }

    /// A result with a slot of its own.
    fn result(&self, value: Tensor<B>) -> Var<B> {
        let slot = self.record.as_ref().map(|record| {
            let record = &mut *record.borrow_mut();
            record.slots += 1;
            SlotIndex { tape: record.tape, index: record.slots - 1 }
        });
        Var { value, slot }
    }

    /// Puts an operation on the tape: it takes the gradients of its results and adds those of its arguments.
    fn push(&self, operation: impl FnOnce(&mut GradientSlots<B>) -> Result<()> + 'p) {
        if let Some(record) = &self.record {
            record.borrow_mut().operations.push(Box::new(operation));
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
