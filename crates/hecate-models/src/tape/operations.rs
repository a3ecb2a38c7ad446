//! What can be done on a tape: the primitives' forward and backward, and memories.

use super::{Slot, Tape, Var};
use crate::{
    Probe, Result,
    probe::{Sight, first},
};
use hecate_core::{
    Backend, DType, Error, Inputs, Kernel, Outputs, Rule, Sequences, Shape, Slots as _, Tensor, forward,
    forward_packed, infer, infer_packed,
    primitives::{self as p, AttentionInputs, AttentionOptions, ConvOptions, Map, Transpose},
};

impl<'p, B: Backend> Tape<'p, B> {
    /// [`primitives::matmul`](p::matmul).
    ///
    /// # Errors
    /// As the primitive.
    pub fn matmul(&self, a: &Var<B>, b: &Var<B>, transpose: Transpose) -> Result<Var<B>> {
        let value = p::matmul(&a.value, &b.value, transpose)?;
        if !self.follows(&[a, b]) {
            return Ok(Var::constant(value));
        }
        let (a, b) = (a.clone(), b.clone());
        Ok(self.push_one(value, move |dy, slots| {
            let onto = [a.slot, b.slot].map(|slot| slots.lend(slot));
            let (da, db) = p::matmul_backward_onto(&a.value, &b.value, transpose, &dy, onto)?;
            slots.add(a.slot, da)?;
            slots.add(b.slot, db)
        }))
    }

    /// [`primitives::add`](p::add): `b` may serve all rows of `a`.
    ///
    /// # Errors
    /// As the primitive.
    pub fn add(&self, a: &Var<B>, b: &Var<B>) -> Result<Var<B>> {
        let value = p::add(&a.value, &b.value)?;
        if !self.follows(&[a, b]) {
            return Ok(Var::constant(value));
        }
        let (a, b, shape) = (a.slot, b.slot, b.value.shape().clone());
        Ok(self.push_one(value, move |dy, slots| {
            if b.is_some() {
                let whole = shape.count() == dy.shape().count();
                let db = if whole { dy.clone() } else { p::sum_rows(&dy, shape.count())? };
                slots.add(b, db.reshape(shape)?)?;
            }
            slots.add(a, dy)
        }))
    }

    /// [`primitives::mul`](p::mul): `b` may serve all rows of `a`.
    ///
    /// # Errors
    /// As the primitive.
    pub fn mul(&self, a: &Var<B>, b: &Var<B>) -> Result<Var<B>> {
        let value = p::mul(&a.value, &b.value)?;
        if !self.follows(&[a, b]) {
            return Ok(Var::constant(value));
        }
        let (a, b) = (a.clone(), b.clone());
        Ok(self.push_one(value, move |dy, slots| {
            let (da, db) = p::mul_backward(&a.value, &b.value, &dy)?;
            slots.add(a.slot, da)?;
            slots.add(b.slot, db)
        }))
    }

    /// `factor x`.
    ///
    /// # Errors
    /// As [`primitives::scale`](p::scale).
    pub fn scale(&self, factor: f32, x: &Var<B>) -> Result<Var<B>> {
        let value = p::scale(factor, &x.value)?;
        Ok(self.push_map(x, value, move |dy| p::scale(factor, &dy)))
    }

    /// [`primitives::map`](p::map()).
    ///
    /// # Errors
    /// As the primitive.
    pub fn map(&self, map: Map, x: &Var<B>) -> Result<Var<B>> {
        let value = p::map(map, &x.value)?;
        let kept = x.value.clone();
        Ok(self.push_map(x, value, move |dy| p::map_backward(map, &kept, &dy)))
    }

    /// [`primitives::gated`](p::gated): `x map(g)`.
    ///
    /// # Errors
    /// As the primitive.
    pub fn gated(&self, map: Map, x: &Var<B>, g: &Var<B>) -> Result<Var<B>> {
        let value = p::gated(map, &x.value, &g.value)?;
        if !self.follows(&[x, g]) {
            return Ok(Var::constant(value));
        }
        let (x, g) = (x.clone(), g.clone());
        Ok(self.push_one(value, move |dy, slots| {
            let (dx, dg) = p::gated_backward(map, &x.value, &g.value, &dy)?;
            slots.add(x.slot, dx)?;
            slots.add(g.slot, dg)
        }))
    }

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

    /// The same elements under another shape.
    ///
    /// # Errors
    /// A shape of another number of elements.
    pub fn reshape(&self, x: &Var<B>, shape: impl Into<Shape>) -> Result<Var<B>> {
        let (value, from) = (x.value.reshape(shape)?, x.value.shape().clone());
        Ok(self.push_map(x, value, move |dy| dy.reshape(from)))
    }

    /// [`primitives::rms_norm`](p::rms_norm).
    ///
    /// # Errors
    /// As the primitive.
    pub fn rms_norm(&self, x: &Var<B>, weight: &Var<B>, epsilon: f32) -> Result<Var<B>> {
        let (value, inverse) = p::rms_norm(&x.value, &weight.value, epsilon)?;
        if !self.follows(&[x, weight]) {
            return Ok(Var::constant(value));
        }
        let (x, weight) = (x.clone(), weight.clone());
        Ok(self.push_one(value, move |dy, slots| {
            let (dx, dweight) = p::rms_norm_backward(&x.value, &weight.value, &inverse, &dy)?;
            slots.add(x.slot, dx)?;
            slots.add(weight.slot, dweight)
        }))
    }

    /// [`primitives::rms_norm_gated`](p::rms_norm_gated).
    ///
    /// # Errors
    /// As the primitive.
    pub fn rms_norm_gated(&self, x: &Var<B>, weight: &Var<B>, g: &Var<B>, epsilon: f32) -> Result<Var<B>> {
        let (value, inverse) = p::rms_norm_gated(&x.value, &weight.value, &g.value, epsilon)?;
        if !self.follows(&[x, weight, g]) {
            return Ok(Var::constant(value));
        }
        let (x, weight, g) = (x.clone(), weight.clone(), g.clone());
        Ok(self.push_one(value, move |dy, slots| {
            let (dx, dweight, dg) = p::rms_norm_gated_backward(&x.value, &weight.value, &g.value, &inverse, &dy)?;
            slots.add(x.slot, dx)?;
            slots.add(weight.slot, dweight)?;
            slots.add(g.slot, dg)
        }))
    }

    /// [`primitives::retention`](p::retention()).
    ///
    /// # Errors
    /// As the primitive.
    pub fn retention(&self, x: &Var<B>, slope: &Var<B>, offset: &Var<B>) -> Result<Var<B>> {
        let value = p::retention(&x.value, &slope.value, &offset.value)?;
        if !self.follows(&[x, slope, offset]) {
            return Ok(Var::constant(value));
        }
        let (x, slope, offset) = (x.clone(), slope.clone(), offset.clone());
        Ok(self.push_one(value, move |dy, slots| {
            let (dx, dslope, doffset) = p::retention_backward(&x.value, &slope.value, &offset.value, &dy)?;
            slots.add(x.slot, dx)?;
            slots.add(slope.slot, dslope)?;
            slots.add(offset.slot, doffset)
        }))
    }

    /// [`primitives::l2_norm`](p::l2_norm).
    ///
    /// # Errors
    /// As the primitive.
    pub fn l2_norm(&self, x: &Var<B>, epsilon: f32) -> Result<Var<B>> {
        let (value, inverse) = p::l2_norm(&x.value, epsilon)?;
        let kept = x.value.clone();
        Ok(self.push_map(x, value, move |dy| p::l2_norm_backward(&kept, &inverse, &dy)))
    }

    /// [`primitives::poly2`](p::poly2).
    ///
    /// # Errors
    /// As the primitive.
    pub fn poly2(&self, x: &Var<B>, coefficients: [f32; 3]) -> Result<Var<B>> {
        let value = p::poly2(&x.value, coefficients)?;
        let kept = x.value.clone();
        Ok(self.push_map(x, value, move |dy| p::poly2_backward(&kept, coefficients, &dy)))
    }

    /// [`primitives::conv`](p::conv): `(y, final state)`.
    ///
    /// # Errors
    /// As the primitive.
    pub fn conv(
        &self,
        x: &Var<B>,
        weight: &Var<B>,
        state: &Var<B>,
        sequences: &Sequences,
        options: ConvOptions,
    ) -> Result<(Var<B>, Var<B>)> {
        let (y, last) = p::conv(&x.value, &weight.value, &state.value, sequences, options)?;
        if !self.follows(&[x, weight, state]) {
            return Ok((Var::constant(y), Var::constant(last)));
        }
        let (y, last) = (self.result(y), self.result(last));
        let (results, sequences) = ((y.slot, last.slot), sequences.clone());
        let (x, weight, state) = (x.clone(), weight.clone(), state.clone());
        self.push(move |slots| {
            let (dy, dlast) = (slots.take(results.0), slots.take(results.1));
            let dy = match (dy, &dlast) {
                (Some(dy), _) => dy,
                (None, Some(_)) => Tensor::zeros(x.value.device(), x.value.shape().clone(), x.value.dtype())?,
                (None, None) => return Ok(()),
            };
            let (dx, dweight, dstate) =
                p::conv_backward(&x.value, &weight.value, &state.value, &sequences, options, &dy, dlast.as_ref())?;
            slots.add(x.slot, dx)?;
            slots.add(weight.slot, dweight)?;
            slots.add(state.slot, dstate)
        });
        Ok((y, last))
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

    /// `x [1, ..]` as many times, one behind another.
    ///
    /// # Errors
    /// As [`Tape::concat`].
    pub fn repeat(&self, x: &Var<B>, times: usize) -> Result<Var<B>> {
        if times == 1 { Ok(x.clone()) } else { self.concat(&vec![x; times], 0) }
    }

    /// Consecutive stretches of `axis`, `lengths` indices each: [`Tape::concat`] turned around.
    ///
    /// # Errors
    /// Stretches that do not fill the axis: [`Error::Config`] or what [`primitives::narrow`](p::narrow) says.
    pub fn split(&self, x: &Var<B>, axis: usize, lengths: &[usize]) -> Result<Vec<Var<B>>> {
        let length = x.axes().get(axis).copied().unwrap_or(0);
        if lengths.iter().sum::<usize>() != length {
            let expected = "stretches that fill the axis";
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

    /// Rotary positions; the first token of every sequence stands at `position`.
    ///
    /// # Errors
    /// As [`primitives::rotary`](p::rotary).
    pub fn rotary(&self, x: &Var<B>, sequences: &Sequences, position: usize, base: f32) -> Result<Var<B>> {
        let offsets = vec![position; sequences.count()];
        let value = p::rotary(&x.value, sequences, &offsets, base)?;
        let sequences = sequences.clone();
        Ok(self.push_map(x, value, move |dy| p::rotary_backward(&dy, &sequences, &offsets, base)))
    }

    /// Sliding-window attention.
    ///
    /// # Errors
    /// As [`primitives::attention`](p::attention()).
    pub fn attention(
        &self,
        options: AttentionOptions,
        sequences: &Sequences,
        inputs: AttentionInputs<Var<B>>,
    ) -> Result<Var<B>> {
        let followed = self.record.is_some() && inputs.iter().any(|var| var.slot.is_some());
        let arguments: Vec<Slot> = inputs.iter().map(|var| var.slot).collect();
        let inputs = inputs.map(|var| var.value);
        self.show("attention", [("q", &inputs.q), ("k", &inputs.k), ("v", &inputs.v)], 2)?;
        let (y, lse) = p::attention(options, sequences, &inputs)?;
        self.show("attention", [("out", &y)], 2)?;
        if !followed {
            return Ok(Var::constant(y));
        }
        let (sequences, kept) = (sequences.clone(), y.clone());
        Ok(self.push_one(y, move |dy, slots| {
            let grads = p::attention_backward(options, &sequences, &inputs, (&kept, &lse), &dy, None)?;
            arguments.into_iter().zip(grads.iter()).try_for_each(|(slot, grad)| slots.add(slot, grad.clone()))
        }))
    }

    /// Runs a rule over `sequences`, a plain batch or packed into one row: what was read, and the states behind the last
    /// tokens.
    ///
    /// # Errors
    /// As [`hecate_core::forward_packed`].
    pub fn memory<R: Rule>(
        &self,
        rule: R,
        sequences: &Sequences,
        inputs: Inputs<R, Var<B>>,
    ) -> Result<Outputs<R, Var<B>>>
    where
        B: Kernel<R>,
    {
        let device = inputs.q.value.device().clone();
        let lengths = packed(sequences, inputs.q.axes());
        let arguments: Vec<Slot> = inputs.list().iter().map(|(_, var)| var.slot).collect();
        let followed = self.record.is_some() && arguments.iter().any(Option::is_some);
        let inputs = inputs.try_map(|_, var| Ok::<_, Error>(var.value))?;
        self.show_rule::<R>("", inputs.list())?;
        if !followed {
            let outputs = match &lengths {
                Some(lengths) => infer_packed(&device, rule, lengths, &inputs)?,
                None => infer(&device, rule, &inputs)?,
            };
            self.show_rule::<R>("", outputs.list())?;
            return Ok(outputs.try_map(|_, value| Ok::<_, Error>(Var::constant(value)))?);
        }
        let (outputs, pass) = match &lengths {
            Some(lengths) => forward_packed(&device, rule, lengths, inputs)?,
            None => forward(&device, rule, inputs)?,
        };
        self.show_rule::<R>("", outputs.list())?;
        let watching = self.probe.map(|probe| (probe, probe.layer()));
        let outputs = outputs.try_map(|_, value| Ok::<_, Error>(self.result(value)))?;
        // Of the results, the backward needs the shapes alone.
        let results =
            outputs.clone().try_map(|_, x| Ok::<_, Error>((x.slot, x.value.shape().clone(), x.value.dtype())))?;
        self.push(move |slots| {
            if !results.list().iter().any(|(_, (slot, ..))| slots.holds(*slot)) {
                return Ok(());
            }
            let grads = results.try_map(|_, (slot, shape, dtype)| match slots.take(slot) {
                Some(gradient) => Ok(gradient),
                None => Tensor::zeros(&device, shape, dtype),
            })?;
            let sound = watching.is_none() || all_finite(&grads)?;
            let gradients = pass.backward(grads)?;
            if let (Some((probe, layer)), true) = (watching, sound) {
                show_rule::<R, B>(probe, layer, "the gradient of ", gradients.list())?;
            }
            let mut arguments = arguments.into_iter();
            let add = |_, gradient| slots.add(arguments.next().flatten(), gradient);
            gradients.try_map(add)?;
            Ok(())
        });
        Ok(outputs)
    }

    /// Shows arrays of an operation with heads along axis `heads` to the probe, if there is one.
    fn show<const N: usize>(&self, of: &str, arrays: [(&str, &Tensor<B>); N], heads: usize) -> Result<()> {
        let Some(probe) = self.probe else { return Ok(()) };
        let sight = |slot| Sight { kind: "", slot, of, layer: probe.layer(), heads: Some(heads) };
        arrays.into_iter().try_for_each(|(slot, array)| probe.look(sight(slot), array))
    }

    /// As [`Tape::show`] for arguments or results of a rule.
    fn show_rule<R: Rule>(&self, kind: &str, arrays: Vec<(&'static str, &Tensor<B>)>) -> Result<()> {
        self.probe.map_or(Ok(()), |probe| show_rule::<R, B>(probe, probe.layer(), kind, arrays))
    }
}

/// Shows arrays of tokens `[B,T,H,..]`, then those of the state `[N,H,..]`.
fn show_rule<R: Rule, B: Backend>(
    probe: &Probe,
    layer: Option<usize>,
    kind: &str,
    arrays: Vec<(&'static str, &Tensor<B>)>,
) -> Result<()> {
    let tokens = arrays.len() - R::State::NAMES.len();
    for (i, (slot, array)) in arrays.into_iter().enumerate() {
        let heads = Some(if i < tokens { 2 } else { 1 });
        probe.look(Sight { kind, slot, of: R::NAME, layer, heads }, array)?;
    }
    Ok(())
}

/// Whether gradients are all numbers.
fn all_finite<R: Rule, B: Backend>(grads: &Outputs<R, Tensor<B>>) -> Result<bool> {
    for (_, array) in grads.list() {
        if first(array, false)?.is_some() {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Lengths of sequences that are not the plain batch of arrays `[B,T,..]`.
fn packed(sequences: &Sequences, axes: &[usize]) -> Option<Vec<usize>> {
    let plain = matches!(*axes, [batch, tokens, ..] if *sequences == Sequences::batch(batch, tokens));
    (!plain).then(|| sequences.ranges().map(|rows| rows.len()).collect())
}
