//! What a tape has recorded: operations in their order, and a slot for every value that gradients flow to.

use super::Var;
use crate::{Error, Result, parameters::add_to};
use hecate_core::{Backend, DType, Tensor, primitives};
use std::{
    cell::RefCell,
    collections::{HashMap, hash_map::Entry},
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
};

/// Count of tapes made so far. Each tape takes one as its identity, which its values carry.
static TAPES: AtomicU64 = AtomicU64::new(0);

/// Where gradients of a value gather; nowhere for constants.
pub(super) type Slot = Option<SlotIndex>;

/// A place among the gradients of one tape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SlotIndex {
    tape: u64,
    index: usize,
}

/// Takes the gradients of an operation's results, and adds those of its arguments to their slots.
type Operation<'p, B> = Box<dyn FnOnce(&mut GradientSlots<B>) -> Result<()> + 'p>;

/// An operation of an operator, which values carry from thread to thread.
type SharedOperation<B> = Box<dyn FnOnce(&mut GradientSlots<B>) -> Result<()> + Send>;

/// Operations by the number of slots that there were when they were recorded. Every operation has a result, so these differ.
type Numbered<O> = Vec<(usize, O)>;

/// The list of a tape that records.
pub(super) struct Recording<'p, B: Backend> {
    ledger: Arc<Ledger<B>>,
    operations: RefCell<Numbered<Operation<'p, B>>>,
}

/// What a tape shares with its values: which tape it is, its slots, and what operators between values record.
pub(super) struct Ledger<B: Backend> {
    tape: u64,
    slots: AtomicUsize,
    operations: Mutex<Numbered<SharedOperation<B>>>,
}

impl<B: Backend> fmt::Debug for Ledger<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ledger").field("tape", &self.tape).field("slots", &self.slots).finish_non_exhaustive()
    }
}

impl<'p, B: Backend> Recording<'p, B> {
    /// Nothing yet, with slots for so many parameters.
    pub(super) fn new(parameters: usize) -> Self {
        let (tape, slots) = (TAPES.fetch_add(1, Ordering::Relaxed), AtomicUsize::new(parameters));
        let ledger = Arc::new(Ledger { tape, slots, operations: Mutex::default() });
        Self { ledger, operations: RefCell::default() }
    }

    /// What values of the tape know of it.
    pub(super) fn ledger(&self) -> &Arc<Ledger<B>> {
        &self.ledger
    }

    /// Number of operations so far.
    pub(super) fn operations(&self) -> usize {
        self.operations.borrow().len() + self.ledger.operations().len()
    }

    /// Appends an operation whose results have their slots.
    pub(super) fn push(&self, operation: Operation<'p, B>) {
        self.operations.borrow_mut().push((self.ledger.slots(), operation));
    }

    /// A place for every gradient, and all operations in their order.
    pub(super) fn into_parts(self) -> (GradientSlots<B>, Vec<Operation<'p, B>>) {
        let Self { ledger, operations } = self;
        let gradients = (0..ledger.slots()).map(|_| None).collect();
        let slots = GradientSlots { tape: ledger.tape, gradients, of_rounded: HashMap::new() };
        let mut all = operations.into_inner();
        let shared = std::mem::take(&mut *ledger.operations());
        all.extend(shared.into_iter().map(|(at, operation)| (at, operation as Operation<'p, B>)));
        all.sort_by_key(|(at, _)| *at);
        (slots, all.into_iter().map(|(_, operation)| operation).collect())
    }
}

impl<B: Backend> Ledger<B> {
    fn slots(&self) -> usize {
        self.slots.load(Ordering::Relaxed)
    }

    fn operations(&self) -> MutexGuard<'_, Numbered<SharedOperation<B>>> {
        self.operations.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A value whose gradient gathers in the slot of this number.
    pub(super) fn var(self: &Arc<Self>, value: Tensor<B>, index: usize) -> Var<B> {
        Var { value, slot: Some(SlotIndex { tape: self.tape, index }), ledger: Arc::downgrade(self) }
    }

    /// A result with a slot of its own.
    pub(super) fn result(self: &Arc<Self>, value: Tensor<B>) -> Var<B> {
        self.var(value, self.slots.fetch_add(1, Ordering::Relaxed))
    }

    /// Records an operation with one result.
    pub(super) fn push_one(
        self: &Arc<Self>,
        value: Tensor<B>,
        operation: impl FnOnce(Tensor<B>, &mut GradientSlots<B>) -> Result<()> + Send + 'static,
    ) -> Var<B> {
        let result = self.result(value);
        let slot = result.slot;
        let operation: SharedOperation<B> =
            Box::new(move |slots| slots.take(slot).map_or(Ok(()), |gradient| operation(gradient, slots)));
        self.operations().push((self.slots(), operation));
        result
    }
}

/// Gradients on their way back, one a slot.
pub(super) struct GradientSlots<B: Backend> {
    tape: u64,
    gradients: Vec<Option<Tensor<B>>>,
    /// What the first use of each rounded weight gave, as it came, by the parameters' places.
    of_rounded: HashMap<usize, Tensor<B>>,
}

impl<B: Backend> GradientSlots<B> {
    /// Adds to the gradient of a slot; drops what is wanted by nobody, and refuses slots of other tapes.
    pub(super) fn add(&mut self, slot: Slot, gradient: Tensor<B>) -> Result<()> {
        match slot {
            Some(place) if place.tape == self.tape => Ok(add_to(&mut self.gradients[place.index], Some(gradient))?),
            Some(_) => Err(Error::config("value", "one of another tape", "values of the tape that is gone through")),
            None => Ok(()),
        }
    }

    /// What a use of a rounded weight gave: kept for [`GradientSlots::widen`], or added in 32 bits where there is one already.
    pub(super) fn add_rounded(&mut self, parameter: usize, gradient: Tensor<B>) -> Result<()> {
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

    /// Those of so many parameters, whose slots are the first.
    pub(super) fn into_gradients(mut self, parameters: usize) -> Result<Vec<Option<Tensor<B>>>> {
        self.widen()?;
        self.gradients.truncate(parameters);
        Ok(self.gradients)
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
    pub(super) fn take_partial(&mut self, slot: Slot) -> Option<Tensor<B>> {
        self.gradients[slot.filter(|place| place.tape == self.tape)?.index].take()
    }

    /// Whether anything arrived, for a result of this tape.
    pub(super) fn holds(&self, slot: Slot) -> bool {
        slot.is_some_and(|place| self.gradients[place.index].is_some())
    }

    /// The whole gradient of a result of this tape: every operation that adds to a slot was recorded after the one that
    /// takes from it, and ran before it.
    pub(super) fn take(&mut self, slot: Slot) -> Option<Tensor<B>> {
        self.gradients[slot?.index].take()
    }
}
