//! The tape: what was computed, so that it can be gone through backward.
//!
//! A Wengert list. Every array that gradients flow to has a *slot*; the first slots are the parameters'. An operation
//! puts a closure on the tape that takes the gradients of its results and adds those of its arguments to their slots.
//! [`Tape::backward`] runs the closures last to first and consumes them, so each frees what it kept as soon as it ran.
//! A closure owns only what its gradient needs; cloning a tensor shares its buffer.
//!
//! The same code runs on a tape that does not record ([`Tape::inert`]): nothing is kept then, and memories run their
//! inference kernel.

mod operations;

use crate::{Gradients, ParameterId, Parameters, Result, parameters::add_to};
use hecate_core::{Backend, Tensor};
use std::cell::RefCell;

/// A value on a tape.
#[derive(Debug)]
pub struct Var<B: Backend> {
    value: Tensor<B>,
    slot: Slot,
}

/// Where gradients of a value gather; nowhere for constants.
type Slot = Option<usize>;

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
struct Slots<B: Backend>(Vec<Option<Tensor<B>>>);

impl<B: Backend> Slots<B> {
    /// Adds to the gradient of a slot; drops what is wanted by nobody.
    fn add(&mut self, slot: Slot, gradient: Tensor<B>) -> Result<()> {
        match slot {
            Some(slot) => Ok(add_to(&mut self.0[slot], Some(gradient))?),
            None => Ok(()),
        }
    }

    /// Whether anything arrived.
    fn holds(&self, slot: Slot) -> bool {
        slot.is_some_and(|slot| self.0[slot].is_some())
    }

    /// What arrived, all of it: the operations that add to a slot lie behind the one that takes from it.
    fn take(&mut self, slot: Slot) -> Option<Tensor<B>> {
        self.0[slot?].take()
    }
}

type Operation<'p, B> = Box<dyn FnOnce(&mut Slots<B>) -> Result<()> + 'p>;

struct Record<'p, B: Backend> {
    slots: usize,
    operations: Vec<Operation<'p, B>>,
}

/// Operations in the order in which they ran.
pub struct Tape<'p, B: Backend> {
    parameters: &'p Parameters<B>,
    record: Option<RefCell<Record<'p, B>>>,
}

impl<'p, B: Backend> Tape<'p, B> {
    /// A tape that can be gone through backward.
    pub fn recording(parameters: &'p Parameters<B>) -> Self {
        let record = Record { slots: parameters.len(), operations: Vec::new() };
        Self { parameters, record: Some(RefCell::new(record)) }
    }

    /// A tape that keeps nothing: evaluation, generation.
    pub fn inert(parameters: &'p Parameters<B>) -> Self {
        Self { parameters, record: None }
    }

    /// A parameter's value.
    pub fn parameter(&self, id: ParameterId) -> Var<B> {
        let slot = self.record.as_ref().map(|_| id.index());
        Var { value: self.parameters.get(id).value.clone(), slot }
    }

    /// Gradients of `Σ seed · var` over the given pairs by all parameters.
    ///
    /// # Errors
    /// Seeds unlike their values; the device's own failures.
    pub fn backward(self, seeds: impl IntoIterator<Item = (Var<B>, Tensor<B>)>) -> Result<Gradients<B>> {
        let Record { slots: count, operations } = match self.record {
            Some(record) => record.into_inner(),
            None => Record { slots: self.parameters.len(), operations: Vec::new() },
        };
        let mut slots = Slots((0..count).map(|_| None).collect());
        for (var, seed) in seeds {
            slots.add(var.slot, seed)?;
        }
        for operation in operations.into_iter().rev() {
            operation(&mut slots)?;
        }
        slots.0.truncate(self.parameters.len());
        Ok(Gradients::new(slots.0))
    }

    /// Whether results of these arguments have to be recorded.
    fn follows(&self, arguments: &[&Var<B>]) -> bool {
        self.record.is_some() && arguments.iter().any(|var| var.slot.is_some())
    }

    /// A result with a slot of its own.
    fn result(&self, value: Tensor<B>) -> Var<B> {
        let slot = self.record.as_ref().map(|record| {
            let slots = &mut record.borrow_mut().slots;
            *slots += 1;
            *slots - 1
        });
        Var { value, slot }
    }

    /// Puts an operation on the tape: it takes the gradients of its results and adds those of its arguments.
    fn push(&self, operation: impl FnOnce(&mut Slots<B>) -> Result<()> + 'p) {
        if let Some(record) = &self.record {
            record.borrow_mut().operations.push(Box::new(operation));
        }
    }

    /// As [`Tape::push`] for an operation with one result.
    fn push_one(
        &self,
        value: Tensor<B>,
        operation: impl FnOnce(Tensor<B>, &mut Slots<B>) -> Result<()> + 'p,
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
