//! Operations that move elements and compute nothing: casts, shapes, rows, cuts and joins.

use super::{Slot, Tape, Var};
use crate::Result;
use hecate_core::{Backend, DType, Error, Shape, Tensor, memory, primitives as p};

impl<B: Backend> Tape<'_, B> {
    /// The elements rounded to another float type.
    ///
    /// # Errors
    /// As [`primitives::cast`](p::cast).
    pub fn cast(&self, dtype: DType, x: &Var<B>) -> Result<Var<B>> {
        if dtype == x.value.dtype() {
            return Ok(x.clone());
        }
        let (value, from) = (p::cast(dtype, &x.value)?, x.value.dtype());
        Ok(self.push_map(x, value, move |dy| p::cast(from, &dy)))
    }

    /// The same elements under another shape; no element moves.
    ///
    /// # Errors
    /// A shape of another count of elements.
    pub fn reshape(&self, x: &Var<B>, shape: impl Into<Shape>) -> Result<Var<B>> {
        let (value, from) = (x.value.reshape(shape)?, x.value.shape().clone());
        Ok(self.push_map(x, value, move |dy| dy.reshape(from)))
    }

    /// Rows `ids` of `table [V,D]`.
    ///
    /// # Errors
    /// As [`primitives::embedding`](p::embedding).
    pub fn embedding(&self, table: &Var<B>, ids: &Tensor<B>) -> Result<Var<B>> {
        let value = p::embedding(&table.value, ids)?;
        let (rows, ids) = (table.value.shape().rows(), ids.clone());
        Ok(self.push_map(table, value, move |dy| p::embedding_backward(rows, &ids, &dy)))
    }

    /// Rows `ids [..]` of `x [.., D]`, whose rows count from 0 over all axes but the last: `[ids.., D]`. Gradients of rows
    /// that were taken several times are added up.
    ///
    /// # Errors
    /// As [`primitives::embedding`](p::embedding).
    pub fn rows(&self, x: &Var<B>, ids: &Tensor<B>) -> Result<Var<B>> {
        let shape = x.value.shape();
        let table = self.reshape(x, [shape.rows(), shape.last()])?;
        self.embedding(&table, ids)
    }

    /// Indices `start .. start + count` of `axis`.
    ///
    /// # Errors
    /// As [`primitives::narrow`](p::narrow).
    pub fn narrow(&self, x: &Var<B>, axis: usize, start: usize, count: usize) -> Result<Var<B>> {
        let (value, shape) = (p::narrow(&x.value, axis, start, count)?, x.value.shape().clone());
        Ok(self.push_map(x, value, move |dy| p::narrow_backward(&shape, axis, start, count, &dy)))
    }

    /// Arrays joined along `axis`.
    ///
    /// # Errors
    /// As [`primitives::concat`](p::concat).
    pub fn concat(&self, parts: &[&Var<B>], axis: usize) -> Result<Var<B>> {
        let values: Vec<&Tensor<B>> = parts.iter().map(|part| &part.value).collect();
        let value = p::concat(&values, axis)?;
        if !self.follows(parts) {
            return Ok(Var::constant(value));
        }
        let parts: Vec<_> = parts.iter().map(|part| (part.slot, part.axes()[axis])).collect();
        Ok(self.push_one(value, move |dy, slots| {
            let mut start = 0;
            for (slot, count) in parts {
                if slot.is_some() {
                    slots.add(slot, p::narrow(&dy, axis, start, count)?)?;
                }
                start += count;
            }
            Ok(())
        }))
    }

    /// `x [1, ..]` repeated along axis 0: `[times, ..]`.
    ///
    /// # Errors
    /// As [`Tape::concat`].
    pub fn repeat(&self, x: &Var<B>, times: usize) -> Result<Var<B>> {
        if times == 1 { Ok(x.clone()) } else { self.concat(&memory::filled("repeat", times, x)?, 0) }
    }

    /// Each head of `x [.., H, D]` so many times, copies side by side: `[.., H · times, D]`. Gradients of the copies are added
    /// up in their order.
    ///
    /// # Errors
    /// An `x` without an axis of heads; as [`Tape::concat`].
    pub fn repeat_heads(&self, x: &Var<B>, times: usize) -> Result<Var<B>> {
        if times == 1 {
            return Ok(x.clone());
        }
        let [outer @ .., heads, width] = x.axes() else {
            return Err(crate::Error::config("heads that are repeated", format!("{:?}", x.axes()), "`[.., H, D]`"));
        };
        let shape = [outer, &[heads.saturating_mul(times), *width]].concat();
        let apart = self.reshape(x, [x.value.shape().rows(), 1, *width])?;
        let copies = self.concat(&memory::filled("repeat_heads", times, &apart)?, 1)?;
        self.reshape(&copies, shape)
    }

    /// Consecutive ranges of `axis`, `lengths` indices each: the inverse of [`Tape::concat`].
    ///
    /// # Errors
    /// Ranges that do not fill the axis: [`Error::Config`] or what [`primitives::narrow`](p::narrow) says.
    pub fn split(&self, x: &Var<B>, axis: usize, lengths: &[usize]) -> Result<Vec<Var<B>>> {
        let length = x.axes().get(axis).copied().unwrap_or(0);
        let sum = lengths.iter().try_fold(0, |sum: usize, &length| sum.checked_add(length));
        if sum != Some(length) {
            let expected = "ranges that fill the axis";
            return Err(
                Error::Config { what: "split", option: "lengths", found: format!("{lengths:?}"), expected }.into()
            );
        }
        let mut start = 0;
        let mut part = |&count: &usize| {
            let part = if count == length { Ok(x.value.clone()) } else { p::narrow(&x.value, axis, start, count) };
            start += count;
            part
        };
        let parts = lengths.iter().map(&mut part).collect::<Result<Vec<_>, _>>()?;
        if !self.follows(&[x]) {
            return Ok(parts.into_iter().map(Var::constant).collect());
        }
        let parts: Vec<Var<B>> = parts.into_iter().map(|part| self.result(part)).collect();
        let results: Vec<_> = parts.iter().map(|x| (x.slot, x.value.shape().clone(), x.value.dtype())).collect();
        // One backward for all parts: their gradients are joined, zeros where nothing arrived.
        let (slot, device) = (x.slot, x.value.device().clone());
        self.push(move |slots| {
            if !results.iter().any(|(slot, ..)| slots.holds(*slot)) {
                return Ok(());
            }
            let gradient = |(slot, shape, dtype): (Slot, Shape, DType)| match slots.take(slot) {
                Some(gradient) => Ok(gradient),
                None => Tensor::zeros(&device, shape, dtype),
            };
            let gradients = results.into_iter().map(gradient).collect::<Result<Vec<_>, _>>()?;
            let whole = p::concat(&gradients.iter().collect::<Vec<_>>(), axis)?;
            slots.add(slot, whole)
        });
        Ok(parts)
    }
}
