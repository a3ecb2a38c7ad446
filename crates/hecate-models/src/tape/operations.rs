//! Products, elementwise functions, norms and convolutions on a tape: each pushes its own backward.

use super::{Tape, Var, check_width};
use crate::{Error, ParameterId, QuantizedMatrix, Result, parameters::refuse_learning};
use hecate_core::{
    Backend,
    primitives::{self as p, Map, Operands, RetentionInputs, RmsNormInputs, Transpose},
};

impl<'p, B: Backend> Tape<'p, B> {
    /// [`primitives::matmul`](p::matmul): `a [.., M, K]` times `b [K, N]`, either transposed.
    ///
    /// # Errors
    /// As the primitive.
    pub fn matmul(&self, a: &Var<B>, b: &Var<B>, transpose: Transpose) -> Result<Var<B>> {
        self.check()?;
        let value = p::matmul(&a.value, &b.value, transpose)?;
        if !self.follows(&[a, b]) {
            return Ok(Var::constant(value));
        }
        let (a, b) = (a.clone(), b.clone());
        if b.is_constant() && !transpose.a {
            // `dA = dout B'ᵀ`, and nobody wants the product that `dB` is.
            let back = Transpose { a: false, b: !transpose.b };
            return Ok(self.push_one(value, move |dy, slots| slots.add(a.slot, p::matmul(&dy, &b.value, back)?)));
        }
        Ok(self.push_one(value, move |dy, slots| {
            // Kernels accumulate onto what other uses of `a` and `b` gave already.
            let onto = Operands { a: slots.take_partial(a.slot), b: slots.take_partial(b.slot) };
            let grads = p::matmul_backward_onto(&a.value, &b.value, transpose, &dy, onto)?;
            slots.add(a.slot, grads.a)?;
            slots.add(b.slot, grads.b)
        }))
    }

    /// [`primitives::matmul_each`](p::matmul_each()); what is recorded of it takes the gradients of all products at once.
    ///
    /// # Errors
    /// As the primitive.
    pub(crate) fn matmul_each(&self, x: &Var<B>, weights: &[Var<B>]) -> Result<Vec<Var<B>>> {
        self.check()?;
        let values: Vec<_> = weights.iter().map(Var::value).collect();
        let products = p::matmul_each(&x.value, &values)?;
        if !self.follows(&weights.iter().chain([x]).collect::<Vec<_>>()) {
            return Ok(products.into_iter().map(Var::constant).collect());
        }
        let products: Vec<_> = products.into_iter().map(|product| self.result(product)).collect();
        let results: Vec<_> = products.iter().zip(weights).map(|(product, w)| (product.slot, w.clone())).collect();
        let x = x.clone();
        self.push(move |slots| {
            // Those that somebody made use of.
            let arrived = results.into_iter().filter_map(|(slot, weight)| Some((slots.take(slot)?, weight)));
            let arrived: Vec<_> = arrived.collect();
            if arrived.is_empty() {
                return Ok(());
            }
            let back = arrived.iter().map(|(dout, w)| p::EachBackward {
                weight: &w.value,
                dout,
                onto: slots.take_partial(w.slot),
            });
            let back = back.collect();
            let (dx, of_weights) = p::matmul_each_backward(&x.value, back, slots.take_partial(x.slot))?;
            slots.add(x.slot, dx)?;
            arrived.iter().zip(of_weights).try_for_each(|((_, weight), gradient)| slots.add(weight.slot, gradient))
        });
        Ok(products)
    }

    /// Whether [`Tape::matmul_each`] of these is better than one product after another.
    ///
    /// # Errors
    /// As the primitive.
    pub(crate) fn starts_together(&self, x: &Var<B>, weights: &[Var<B>]) -> Result<bool> {
        let values: Vec<_> = weights.iter().map(Var::value).collect();
        Ok(self.fp8.is_none() && p::starts_together(&x.value, &values)?)
    }

    /// [`primitives::project`](p::project()), of constants: nothing of it is recorded.
    ///
    /// # Errors
    /// As the primitive.
    pub(crate) fn project(&self, inputs: &p::ProjectionInputs<'_, B>) -> Result<Vec<Var<B>>> {
        self.check()?;
        Ok(p::project(inputs)?.into_iter().map(Var::constant).collect())
    }

    /// [`primitives::head_products`](p::head_products()): rows `x [.., H, K]` times the matrix of their head, `m [H, K, V]`.
    ///
    /// # Errors
    /// As the primitive.
    pub fn head_products(&self, x: &Var<B>, m: &Var<B>) -> Result<Var<B>> {
        self.check()?;
        let value = p::head_products(&x.value, &m.value)?;
        if !self.follows(&[x, m]) {
            return Ok(Var::constant(value));
        }
        let (x, m) = (x.clone(), m.clone());
        Ok(self.push_one(value, move |dy, slots| {
            let grads = p::head_products_backward(&x.value, &m.value, &dy)?;
            slots.add(x.slot, grads.a)?;
            slots.add(m.slot, grads.b)
        }))
    }

    /// [`primitives::quantized_matmul`](p::quantized_matmul()): `a [.., K]` times a quantized matrix `[N, K]`, transposed. On a tape
    /// that records it is refused: there is no gradient.
    ///
    /// # Errors
    /// [`Error::Config`] where a gradient is wanted; as the primitive.
    pub(crate) fn quantized_matmul(&self, x: &Var<B>, id: ParameterId) -> Result<Var<B>> {
        self.check()?;
        if self.record.is_some() {
            return Err(self.refuse_gradient(id));
        }
        let QuantizedMatrix { name, matrix } = self.parameters.get_quantized(id)?;
        let own = [matrix.rows(), matrix.columns()];
        check_width(name, own[1], &own.into(), x)?;
        Ok(Var::constant(p::quantized_matmul(&x.value, matrix)?))
    }

    /// The error of who wants a gradient through a quantized matrix.
    pub(crate) fn refuse_gradient(&self, id: ParameterId) -> Error {
        match self.parameters.get_quantized(id) {
            Ok(quantized) => refuse_learning(quantized.matrix.format()),
            Err(error) => error,
        }
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
        self.check()?;
        let value = p::gated(map, &x.value, &g.value)?;
        if !self.follows(&[x, g]) {
            return Ok(Var::constant(value));
        }
        let (x, g) = (x.clone(), g.clone());
        Ok(self.push_one(value, move |dy, slots| {
            let grads = p::gated_backward(map, &p::GatedBackward { x: &x.value, g: &g.value, dy: &dy })?;
            slots.add(x.slot, grads.x)?;
            slots.add(g.slot, grads.g)
        }))
    }

    /// [`primitives::rms_norm`](p::rms_norm).
    ///
    /// # Errors
    /// As the primitive.
    pub fn rms_norm(&self, x: &Var<B>, weight: &Var<B>, epsilon: f32) -> Result<Var<B>> {
        self.norm(x, weight, None, p::RmsNormOptions::new(epsilon))
    }

    /// [`primitives::rms_norm`](p::rms_norm) with a gate `g`.
    ///
    /// # Errors
    /// As the primitive.
    pub fn rms_norm_gated(&self, x: &Var<B>, weight: &Var<B>, g: &Var<B>, epsilon: f32) -> Result<Var<B>> {
        self.norm(x, weight, Some(g), p::RmsNormOptions::new(epsilon))
    }

    /// As [`Tape::rms_norm`], or with a gate as [`Tape::rms_norm_gated`], in any form that the primitive has.
    ///
    /// # Errors
    /// As the primitive.
    pub(crate) fn norm(
        &self,
        x: &Var<B>,
        weight: &Var<B>,
        g: Option<&Var<B>>,
        options: p::RmsNormOptions,
    ) -> Result<Var<B>> {
        self.check()?;
        let value = g.map(|g| &g.value);
        let inputs = RmsNormInputs { x: &x.value, weight: &weight.value, g: value };
        let p::Normed { y, inverse } = p::rms_norm(&inputs, options)?;
        if !self.follows(&[x, weight, g.unwrap_or(x)]) {
            return Ok(Var::constant(y));
        }
        let (x, weight, g) = (x.clone(), weight.clone(), g.cloned());
        Ok(self.push_one(y, move |dy, slots| {
            let inputs = RmsNormInputs { x: &x.value, weight: &weight.value, g: g.as_ref().map(|g| &g.value) };
            let call = p::RmsNormBackward { options, inputs, inverse: &inverse, dy: &dy };
            let grads = p::rms_norm_backward(&call)?;
            slots.add(x.slot, grads.x)?;
            slots.add(weight.slot, grads.weight)?;
            g.zip(grads.g).map_or(Ok(()), |(g, dg)| slots.add(g.slot, dg))
        }))
    }

    /// [`primitives::add_rms_norm`](p::add_rms_norm): `x + residual`, and that after a norm.
    ///
    /// # Errors
    /// As the primitive.
    pub fn add_rms_norm(&self, x: &Var<B>, residual: &Var<B>, weight: &Var<B>, epsilon: f32) -> Result<[Var<B>; 2]> {
        self.add_norm([x, residual], weight, p::RmsNormOptions::new(epsilon))
    }

    /// As [`Tape::add_rms_norm`], in any form that the primitive has without a gate.
    ///
    /// # Errors
    /// As the primitive.
    pub(crate) fn add_norm(
        &self,
        [x, residual]: [&Var<B>; 2],
        weight: &Var<B>,
        options: p::RmsNormOptions,
    ) -> Result<[Var<B>; 2]> {
        self.check()?;
        let inputs = RmsNormInputs { x: &x.value, weight: &weight.value, g: None };
        let p::AddedNorm { sum, normed } = p::add_rms_norm(&residual.value, &inputs, options)?;
        if !self.follows(&[x, residual, weight]) {
            return Ok([sum, normed.y].map(Var::constant));
        }
        let (sum, y) = (self.result(sum), self.result(normed.y));
        let (value, results) = (sum.value.clone(), [sum.slot, y.slot]);
        let (x, residual, weight) = (x.slot, residual.slot, weight.clone());
        self.push(move |slots| {
            let dx = match results.map(|slot| slots.take(slot)) {
                [None, None] => return Ok(()),
                [Some(dsum), None] => dsum,
                [dsum, Some(dy)] => {
                    let inputs = RmsNormInputs { x: &value, weight: &weight.value, g: None };
                    let call = p::RmsNormBackward { options, inputs, inverse: &normed.inverse, dy: &dy };
                    let grads = match dsum {
                        Some(dsum) => p::add_rms_norm_backward(&call, &dsum)?,
                        None => p::rms_norm_backward(&call)?,
                    };
                    slots.add(weight.slot, grads.weight)?;
                    grads.x
                }
            };
            slots.add(x, dx.clone())?;
            slots.add(residual, dx)
        });
        Ok([sum, y])
    }

    /// [`primitives::retention`](p::retention()).
    ///
    /// # Errors
    /// As the primitive.
    pub fn retention(&self, x: &Var<B>, a_log: &Var<B>, dt_bias: &Var<B>) -> Result<Var<B>> {
        let inputs = RetentionInputs { x: &x.value, a_log: &a_log.value, dt_bias: &dt_bias.value };
        let value = p::retention(&inputs)?;
        if !self.follows(&[x, a_log, dt_bias]) {
            return Ok(Var::constant(value));
        }
        let (x, a_log, dt_bias) = (x.clone(), a_log.clone(), dt_bias.clone());
        Ok(self.push_one(value, move |dy, slots| {
            let inputs = RetentionInputs { x: &x.value, a_log: &a_log.value, dt_bias: &dt_bias.value };
            let grads = p::retention_backward(&p::RetentionBackward { inputs, dy: &dy })?;
            slots.add(x.slot, grads.x)?;
            slots.add(a_log.slot, grads.a_log)?;
            slots.add(dt_bias.slot, grads.dt_bias)
        }))
    }

    /// [`primitives::l2_norm`](p::l2_norm).
    ///
    /// # Errors
    /// As the primitive.
    pub fn l2_norm(&self, x: &Var<B>, epsilon: f32) -> Result<Var<B>> {
        self.check()?;
        let p::Normed { y, inverse } = p::l2_norm(&x.value, epsilon)?;
        let kept = x.value.clone();
        Ok(self.push_map(x, y, move |dy| p::l2_norm_backward(&kept, &inverse, &dy)))
    }

    /// [`primitives::layer_norm`](p::layer_norm).
    ///
    /// # Errors
    /// As the primitive.
    pub fn layer_norm(&self, x: &Var<B>, weight: &Var<B>, bias: &Var<B>, epsilon: f32) -> Result<Var<B>> {
        self.check()?;
        let inputs = p::LayerNormInputs { x: &x.value, weight: &weight.value, bias: &bias.value };
        let p::LayerNormed { y, mean, inverse } = p::layer_norm(&inputs, epsilon)?;
        if !self.follows(&[x, weight, bias]) {
            return Ok(Var::constant(y));
        }
        let (x, weight, bias) = (x.clone(), weight.clone(), bias.clone());
        Ok(self.push_one(y, move |dy, slots| {
            let inputs = p::LayerNormInputs { x: &x.value, weight: &weight.value, bias: &bias.value };
            let call = p::LayerNormBackward { inputs, mean: &mean, inverse: &inverse, dy: &dy };
            let grads = p::layer_norm_backward(&call)?;
            slots.add(x.slot, grads.x)?;
            slots.add(weight.slot, grads.weight)?;
            slots.add(bias.slot, grads.bias)
        }))
    }

    /// [`primitives::add_layer_norm`](p::add_layer_norm): `x + residual`, and that after a layer norm.
    ///
    /// # Errors
    /// As the primitive.
    pub fn add_layer_norm(
        &self,
        [x, residual]: [&Var<B>; 2],
        [weight, bias]: [&Var<B>; 2],
        epsilon: f32,
    ) -> Result<[Var<B>; 2]> {
        self.check()?;
        let inputs = p::LayerNormInputs { x: &x.value, weight: &weight.value, bias: &bias.value };
        let p::AddedLayerNorm { sum, normed } = p::add_layer_norm(&residual.value, &inputs, epsilon)?;
        if !self.follows(&[x, residual, weight, bias]) {
            return Ok([sum, normed.y].map(Var::constant));
        }
        let (sum, y) = (self.result(sum), self.result(normed.y));
        let (value, results) = (sum.value.clone(), [sum.slot, y.slot]);
        let (summands, weight, bias) = ([x.slot, residual.slot], weight.clone(), bias.clone());
        let (mean, inverse) = (normed.mean, normed.inverse);
        self.push(move |slots| {
            let dx = match results.map(|slot| slots.take(slot)) {
                // Of the sum alone, or of neither.
                [dsum, None] => dsum,
                [dsum, Some(dy)] => {
                    let inputs = p::LayerNormInputs { x: &value, weight: &weight.value, bias: &bias.value };
                    let call = p::LayerNormBackward { inputs, mean: &mean, inverse: &inverse, dy: &dy };
                    let grads = match dsum {
                        Some(dsum) => p::add_layer_norm_backward(&call, &dsum)?,
                        None => p::layer_norm_backward(&call)?,
                    };
                    slots.add(weight.slot, grads.weight)?;
                    slots.add(bias.slot, grads.bias)?;
                    Some(grads.x)
                }
            };
            dx.map_or(Ok(()), |dx| summands.into_iter().try_for_each(|slot| slots.add(slot, dx.clone())))
        });
        Ok([sum, y])
    }

    /// [`primitives::softmax`](p::softmax).
    ///
    /// # Errors
    /// As the primitive.
    pub fn softmax(&self, x: &Var<B>) -> Result<Var<B>> {
        self.check()?;
        let y = p::softmax(&x.value)?;
        let kept = y.clone();
        Ok(self.push_map(x, y, move |dy| p::softmax_backward(&kept, &dy)))
    }

    /// [`primitives::poly2`](p::poly2).
    ///
    /// # Errors
    /// As the primitive.
    pub fn poly2(&self, x: &Var<B>, coefficients: [f32; 3]) -> Result<Var<B>> {
        self.check()?;
        let value = p::poly2(&x.value, coefficients)?;
        let kept = x.value.clone();
        Ok(self.push_map(x, value, move |dy| p::poly2_backward(&kept, coefficients, &dy)))
    }
}
