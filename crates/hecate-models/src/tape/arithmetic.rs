//! Sums, differences, products, quotients and means: of a tape's methods, and of the operators of its values.
//!
//! Operators have no tape at hand. So these functions record by what a value knows of its tape, and keep values alone.

use super::{Tape, Var, record::Ledger};
use crate::Result;
use hecate_core::{
    Backend, DType, Shape, Tensor,
    primitives::{self as p, Map, Operands},
};
use std::sync::Arc;

impl<B: Backend> Tape<'_, B> {
    /// `a + b`. One may serve all rows of the other: its shape is that of the other's innermost axes. So it is for
    /// [`Tape::sub`], [`Tape::mul`] and [`Tape::div`], and for the operators of [`Var`].
    ///
    /// # Errors
    /// As [`primitives::add`](p::add).
    pub fn add(&self, a: &Var<B>, b: &Var<B>) -> Result<Var<B>> {
        add(self.ledger(), a, b)
    }

    /// `a − b`.
    ///
    /// # Errors
    /// As [`primitives::sub`](p::sub).
    pub fn sub(&self, a: &Var<B>, b: &Var<B>) -> Result<Var<B>> {
        sub(self.ledger(), a, b)
    }

    /// `a b` element by element.
    ///
    /// # Errors
    /// As [`primitives::mul`](p::mul).
    pub fn mul(&self, a: &Var<B>, b: &Var<B>) -> Result<Var<B>> {
        self.check()?;
        mul(self.ledger(), a, b)
    }

    /// `a / b` element by element.
    ///
    /// # Errors
    /// As [`primitives::div`](p::div).
    pub fn div(&self, a: &Var<B>, b: &Var<B>) -> Result<Var<B>> {
        self.check()?;
        div(self.ledger(), a, b)
    }

    /// `factor x`; `x` itself where the factor is 1.
    ///
    /// # Errors
    /// As [`primitives::scale`](p::scale).
    pub fn scale(&self, factor: f32, x: &Var<B>) -> Result<Var<B>> {
        if factor == 1.0 { Ok(x.clone()) } else { scale(self.ledger(), factor, x) }
    }

    /// The sum of all elements of `x`, of any shape: `[1]` in 32 bits.
    ///
    /// # Errors
    /// As [`primitives::sum`](p::sum).
    pub fn sum(&self, x: &Var<B>) -> Result<Var<B>> {
        self.check()?;
        let (value, shape, dtype) = (p::sum(&x.value)?, x.value.shape().clone(), x.value.dtype());
        Ok(self.push_map(x, value, move |dy| filled_with(&dy, &shape, dtype)))
    }

    /// The mean of all elements of `x`, of any shape: `[1]` in 32 bits.
    ///
    /// # Errors
    /// As [`Tape::sum`].
    pub fn mean(&self, x: &Var<B>) -> Result<Var<B>> {
        self.scale(share(x), &self.sum(x)?)
    }

    /// The mean of `(a − b)²` over all elements: `[1]` in 32 bits. Shapes as in [`Tape::add`].
    ///
    /// # Errors
    /// As [`Tape::sub`].
    pub fn mean_squared_error(&self, a: &Var<B>, b: &Var<B>) -> Result<Var<B>> {
        let difference = self.sub(a, b)?;
        let (share, kept) = (share(&difference), difference.value.clone());
        let value = p::scale(share, &p::sum_squares(&kept)?)?;
        Ok(self.push_map(&difference, value, move |dy| {
            // In 32 bits, where a small share of a small gradient is a number still.
            let wide = p::cast(DType::F32, &kept)?.reshape([kept.shape().count(), 1])?;
            let gradient = p::mul(&wide, &p::scale(2.0 * share, &dy)?)?;
            p::cast(kept.dtype(), &gradient)?.reshape(kept.shape().clone())
        }))
    }
}

/// Each element's share of a mean.
fn share<B: Backend>(x: &Var<B>) -> f32 {
    (x.value.shape().count() as f32).recip()
}

/// An array of this shape and type with the number `x [1]`, of any float type, everywhere. The number stays on the device.
fn filled_with<B: Backend>(x: &Tensor<B>, shape: &Shape, dtype: DType) -> hecate_core::Result<Tensor<B>> {
    let zeros = Tensor::zeros(x.device(), [shape.count(), 1], dtype)?;
    p::add(&zeros, &p::cast(dtype, x)?)?.reshape(shape.clone())
}

/// The list of a tape, if there is one.
type List<'a, B> = Option<&'a Arc<Ledger<B>>>;

/// The list on which a result of these arguments is recorded: none where no gradient flows to them.
fn list_for<'a, B: Backend>(list: List<'a, B>, arguments: &[&Var<B>]) -> List<'a, B> {
    list.filter(|_| arguments.iter().any(|x| x.slot.is_some()))
}

/// Whether `a` is the one of the two that serves all rows of the other.
fn serves<B: Backend>(a: &Var<B>, b: &Var<B>) -> bool {
    a.value.shape().count() < b.value.shape().count() && b.axes().ends_with(a.axes())
}

/// As [`Tape::add`].
pub(super) fn add<B: Backend>(list: List<'_, B>, a: &Var<B>, b: &Var<B>) -> Result<Var<B>> {
    let (a, b) = if serves(a, b) { (b, a) } else { (a, b) };
    let value = p::add(&a.value, &b.value)?;
    let Some(list) = list_for(list, &[a, b]) else { return Ok(Var::constant(value)) };
    let (a, b, shape) = (a.slot, b.slot, b.value.shape().clone());
    Ok(list.push_one(value, move |dy, slots| {
        if b.is_some() {
            let whole = shape.count() == dy.shape().count();
            let db = if whole { dy.clone() } else { p::sum_rows(&dy, shape.count())? };
            slots.add(b, db.reshape(shape)?)?;
        }
        slots.add(a, dy)
    }))
}

/// As [`Tape::sub`].
pub(super) fn sub<B: Backend>(list: List<'_, B>, a: &Var<B>, b: &Var<B>) -> Result<Var<B>> {
    if serves(a, b) {
        return add(list, &scale(list, -1.0, b)?, a);
    }
    with_two(list, (a, b), p::sub, p::sub_backward)
}

/// As [`Tape::mul`].
pub(super) fn mul<B: Backend>(list: List<'_, B>, a: &Var<B>, b: &Var<B>) -> Result<Var<B>> {
    let pair = if serves(a, b) { (b, a) } else { (a, b) };
    with_two(list, pair, p::mul, p::mul_backward)
}

/// As [`Tape::div`].
pub(super) fn div<B: Backend>(list: List<'_, B>, a: &Var<B>, b: &Var<B>) -> Result<Var<B>> {
    if serves(a, b) {
        // Every row gets an `a` of its own.
        let rows = Tensor::zeros(b.value.device(), b.value.shape().clone(), b.value.dtype())?;
        return div(list, &add(list, &Var::constant(rows), a)?, b);
    }
    with_two(list, (a, b), p::div, p::div_backward)
}

/// A primitive of two arrays, and its gradients.
fn with_two<B: Backend>(
    list: List<'_, B>,
    (a, b): (&Var<B>, &Var<B>),
    forward: fn(&Tensor<B>, &Tensor<B>) -> hecate_core::Result<Tensor<B>>,
    backward: fn(&Tensor<B>, &Tensor<B>, &Tensor<B>) -> hecate_core::Result<Operands<Tensor<B>>>,
) -> Result<Var<B>> {
    let value = forward(&a.value, &b.value)?;
    let Some(list) = list_for(list, &[a, b]) else { return Ok(Var::constant(value)) };
    let (a, b) = (a.clone(), b.clone());
    Ok(list.push_one(value, move |dy, slots| {
        let grads = backward(&a.value, &b.value, &dy)?;
        slots.add(a.slot, grads.a)?;
        slots.add(b.slot, grads.b)
    }))
}

/// As [`Tape::scale`].
pub(super) fn scale<B: Backend>(list: List<'_, B>, factor: f32, x: &Var<B>) -> Result<Var<B>> {
    let value = p::scale(factor, &x.value)?;
    let Some(list) = list_for(list, &[x]) else { return Ok(Var::constant(value)) };
    let slot = x.slot;
    Ok(list.push_one(value, move |dy, slots| slots.add(slot, p::scale(factor, &dy)?)))
}

/// A row of one number that serves all rows of `x`. Made on the device, since a captured step does not hear from the host.
pub(super) fn number_for<B: Backend>(number: f32, x: &Var<B>) -> Result<Var<B>> {
    let (device, axes) = (x.value.device(), x.axes());
    let ones = p::map(Map::Exp, &Tensor::zeros(device, &axes[axes.len().saturating_sub(1)..], DType::F32)?)?;
    Ok(Var::constant(p::cast(x.value.dtype(), &p::scale(number, &ones)?)?))
}
