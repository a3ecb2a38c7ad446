//! Control flow: branches and loops have one entry and one end, and the type of a scope says who comes there.
//!
//! A barrier waits for all threads of a block. Where some of them go another way it waits for ever, so [`Scope::barrier`] is a
//! method where control flow is [`Converged`] alone. So are operations of whole warps.

use super::{Scope, Writer};
use crate::types::{Class, Integer, Operand, Pred, Reg, Uniform, UniformPred, UniformValue, Value, sealed::Sealed};
use std::marker::PhantomData;

/// All threads of the block come here.
#[derive(Clone, Copy, Debug)]
pub struct Converged;

/// Some threads of the block come here.
#[derive(Clone, Copy, Debug)]
pub struct Diverged;

/// Instructions here are each under a predicate, so there are no branches.
#[derive(Clone, Copy, Debug)]
pub struct Guarded;

/// Scopes in which there may be branches: [`Converged`] and [`Diverged`].
pub trait Flow: Sealed {}

impl Sealed for Converged {}
impl Sealed for Diverged {}
impl Flow for Converged {}
impl Flow for Diverged {}

impl Writer {
    /// A number for the labels of one branch or loop.
    fn branch(&mut self) -> u32 {
        self.labels += 1;
        self.labels
    }
}

impl<'w, F> Scope<'w, F> {
    /// Writes a part of the kernel to which other threads come than here.
    fn within<G, R>(&mut self, body: impl FnOnce(&mut Scope<'_, G>) -> R) -> R {
        self.writer.depth += 1;
        let result = body(&mut Scope { writer: &mut *self.writer, flow: PhantomData });
        self.writer.depth -= 1;
        result
    }

    fn branch_if<G>(&mut self, p: Pred, body: impl FnOnce(&mut Scope<'_, G>)) {
        let number = self.writer.branch();
        self.writer.line(format_args!("@!{p} bra $end_{number}"));
        self.within(body);
        self.writer.label(&format!("$end_{number}"));
    }

    /// A loop over `from`, `from + step`, … below `to`.
    fn count<T: Integer, G>(&mut self, [from, to, step]: [Operand; 3], body: impl FnOnce(&mut Scope<'_, G>, Reg<T>)) {
        let number = self.writer.branch();
        let (i, ty) = (self.writer.register::<T>(), T::SUFFIX);
        self.writer.line(format_args!("mov.{ty} {i}, {from}"));
        self.writer.label(&format!("$loop_{number}"));
        let past = Pred(self.writer.number(Class::Pred));
        self.writer.line(format_args!("setp.ge.{ty} {past}, {i}, {to}"));
        self.writer.line(format_args!("@{past} bra $end_{number}"));
        self.within(|scope| {
            body(scope, i);
            scope.writer.line(format_args!("add.{ty} {i}, {i}, {step}"));
            scope.writer.line(format_args!("bra $loop_{number}"));
        });
        self.writer.label(&format!("$end_{number}"));
    }
}

impl<F: Flow> Scope<'_, F> {
    /// Writes a body that threads run in which the predicate holds.
    ///
    /// ```compile_fail,E0599
    /// hecate_ptx::kernel("wrong", [64, 1, 1], |k| {
    ///     let thread = k.thread_index(hecate_ptx::Axis::X);
    ///     let some = k.lt(thread, 32u32);
    ///     k.if_(some, |k| k.barrier()); // half of the block would wait for the other half
    /// });
    /// ```
    pub fn if_(&mut self, p: Pred, body: impl FnOnce(&mut Scope<'_, Diverged>)) {
        self.branch_if(p, body);
    }

    /// As [`Scope::if_`], with a body for the other threads.
    ///
    /// ```
    /// # use hecate_ptx::{Axis, kernel};
    /// # kernel("example", [64, 1, 1], |k| {
    /// let thread = k.thread_index(Axis::X);
    /// let is_low = k.lt(thread, 16u32);
    /// // 1 for the first 16 threads, else 2: a register from outside takes what a branch decides.
    /// let value = k.variable(0u32);
    /// k.if_else(is_low, |k| k.assign(value, 1u32), |k| k.assign(value, 2u32));
    /// # })?;
    /// # Ok::<(), hecate_ptx::Error>(())
    /// ```
    pub fn if_else(
        &mut self,
        p: Pred,
        then: impl FnOnce(&mut Scope<'_, Diverged>),
        otherwise: impl FnOnce(&mut Scope<'_, Diverged>),
    ) {
        let number = self.writer.branch();
        self.writer.line(format_args!("@!{p} bra $else_{number}"));
        self.within(|scope| {
            then(scope);
            scope.writer.line(format_args!("bra $end_{number}"));
        });
        self.writer.label(&format!("$else_{number}"));
        self.within(otherwise);
        self.writer.label(&format!("$end_{number}"));
    }

    /// A loop over `from`, `from + step`, … below `to`, which threads may leave after different numbers of rounds.
    /// `to + step` must fit into the type.
    ///
    /// ```
    /// # use hecate_ptx::{Axis, kernel};
    /// # kernel("example", [64, 1, 1], |k| {
    /// let (x, n) = (k.pointer::<f32>("x"), k.parameter::<u32>("n"));
    /// let thread = k.thread_index(Axis::X);
    /// // The sum of every 64th element, from the number of the thread on.
    /// let sum = k.variable(0f32);
    /// k.for_each(thread, n, 64u32, |k, i| {
    ///     let from = k.at(x, i);
    ///     let element = k.load(from);
    ///     k.add_to(sum, element);
    /// });
    /// # })?;
    /// # Ok::<(), hecate_ptx::Error>(())
    /// ```
    pub fn for_each<A: Value<Type: Integer>>(
        &mut self,
        from: A,
        to: impl Value<Type = A::Type>,
        step: impl Value<Type = A::Type>,
        body: impl FnOnce(&mut Scope<'_, Diverged>, Reg<A::Type>),
    ) {
        self.count([from.operand(), to.operand(), step.operand()], body);
    }

    /// Writes instructions that have an effect only where the predicate holds: each has it before it, and none branches.
    ///
    /// A register that is new here holds nothing where the predicate does not hold.
    ///
    /// ```
    /// # use hecate_ptx::{Axis, kernel};
    /// # kernel("example", [64, 1, 1], |k| {
    /// let (y, n) = (k.pointer::<f32>("y"), k.parameter::<u32>("n"));
    /// let thread = k.thread_index(Axis::X);
    /// let (inside, to) = (k.lt(thread, n), k.at(y, thread));
    /// k.guarded(inside, |k| k.store(to, 1f32)); // one instruction, and no branch
    /// # })?;
    /// # Ok::<(), hecate_ptx::Error>(())
    /// ```
    ///
    /// There are no branches under a predicate:
    ///
    /// ```compile_fail,E0599
    /// hecate_ptx::kernel("wrong", [64, 1, 1], |k| {
    ///     let thread = k.thread_index(hecate_ptx::Axis::X);
    ///     let some = k.lt(thread, 32u32);
    ///     k.guarded(some, |k| k.if_(some, |_| {})); // a label would have no predicate
    /// });
    /// ```
    pub fn guarded<R>(&mut self, p: Pred, body: impl FnOnce(&mut Scope<'_, Guarded>) -> R) -> R {
        self.writer.guard = Some(p);
        let result = body(&mut Scope { writer: &mut *self.writer, flow: PhantomData });
        self.writer.guard = None;
        result
    }
}

impl Scope<'_, Converged> {
    /// As [`Scope::if_`] for a predicate that is the same in all threads: the body may have barriers.
    ///
    /// ```
    /// # use hecate_ptx::{Axis, kernel};
    /// # kernel("example", [64, 1, 1], |k| {
    /// let (block, n) = (k.block_index(Axis::X), k.parameter::<u32>("n"));
    /// let has_work = k.uniform_lt(block, n);
    /// k.if_uniform(has_work, |k| k.barrier()); // all threads of a block come to it, or none
    /// # })?;
    /// # Ok::<(), hecate_ptx::Error>(())
    /// ```
    pub fn if_uniform(&mut self, UniformPred(p): UniformPred, body: impl FnOnce(&mut Scope<'_, Converged>)) {
        self.branch_if(p, body);
    }

    /// As [`Scope::for_each`] for bounds that are the same in all threads: the body may have barriers.
    ///
    /// ```compile_fail,E0277
    /// hecate_ptx::kernel("wrong", [64, 1, 1], |k| {
    ///     let thread = k.thread_index(hecate_ptx::Axis::X);
    ///     k.for_range(thread, 64u32, 1u32, |k, _| k.barrier()); // threads run different numbers of rounds
    /// });
    /// ```
    ///
    /// The same loop with bounds that all threads know compiles:
    ///
    /// ```
    /// # use hecate_ptx::{kernel};
    /// # kernel("example", [64, 1, 1], |k| {
    /// let n = k.parameter::<u32>("n");
    /// k.for_range(0u32, n, 1u32, |k, _| k.barrier());
    /// # })?;
    /// # Ok::<(), hecate_ptx::Error>(())
    /// ```
    pub fn for_range<A: UniformValue<Type: Integer>>(
        &mut self,
        from: A,
        to: impl UniformValue<Type = A::Type>,
        step: impl UniformValue<Type = A::Type>,
        body: impl FnOnce(&mut Scope<'_, Converged>, Uniform<A::Type>),
    ) {
        self.count([from.operand(), to.operand(), step.operand()], |scope, i| body(scope, Uniform(i)));
    }

    /// Waits for all threads of the block: what they wrote to shared memory before is seen after.
    ///
    /// ```
    /// # use hecate_ptx::{Axis, kernel};
    /// # kernel("example", [64, 1, 1], |k| {
    /// // Every thread reads what its neighbour wrote.
    /// let tile = k.shared::<u32>("tile", 64);
    /// let thread = k.thread_index(Axis::X);
    /// let mine = k.at_shared(tile, thread);
    /// k.store(mine, thread);
    /// k.barrier();
    /// let neighbour = k.xor(thread, 1u32);
    /// let theirs = k.at_shared(tile, neighbour);
    /// let value = k.load(theirs);
    /// # })?;
    /// # Ok::<(), hecate_ptx::Error>(())
    /// ```
    pub fn barrier(&mut self) {
        self.writer.line(format_args!("bar.sync 0"));
    }
}
