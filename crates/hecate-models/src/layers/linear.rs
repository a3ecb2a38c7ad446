//! Linear maps.

use super::RmsNorm;
use crate::{Builder, Init, MatrixId, ParameterId, Result, Tape, Var, parameters::Adapter};
use hecate_core::{
    Backend, DType, GateLogit, Tensor,
    primitives::{ProjectionEnd, ProjectionInputs, Transpose},
};

/// How rows meet a `W [outputs, inputs]`.
const TIMES_WEIGHT: Transpose = Transpose { a: false, b: true };

/// `y = x Wᵀ + b`. Where `W` is frozen and has an adapter, `s (x Aᵀ) Bᵀ` more.
#[derive(Clone, Copy, Debug)]
pub struct Linear {
    weight: MatrixId,
    bias: Option<ParameterId>,
    /// Whether factors of its products may have 8 bits.
    narrow: bool,
}

impl Linear {
    /// `weight [outputs, inputs]` under `name.weight`, without bias.
    ///
    /// # Errors
    /// The device's own failures.
    pub fn new<B: Backend>(
        build: &mut Builder<'_, B>,
        name: &str,
        inputs: usize,
        outputs: usize,
        init: Init,
    ) -> Result<Self> {
        Ok(Self { weight: build.within(name).matrix("weight", [outputs, inputs], init)?, bias: None, narrow: true })
    }

    /// As [`Linear::new`], in 32 bits in quantized models too: what gates are made of has few rows, and decides how long memories
    /// remember.
    ///
    /// # Errors
    /// The device's own failures.
    pub(super) fn wide<B: Backend>(
        build: &mut Builder<'_, B>,
        name: &str,
        inputs: usize,
        outputs: usize,
        init: Init,
    ) -> Result<Self> {
        Ok(Self::tied(build.within(name).parameter("weight", [outputs, inputs], init)?))
    }

    /// As [`Linear::new`] in 32 bits, and a `bias [outputs]` that starts at zero.
    ///
    /// # Errors
    /// The device's own failures.
    pub fn with_bias<B: Backend>(
        build: &mut Builder<'_, B>,
        name: &str,
        inputs: usize,
        outputs: usize,
        init: Init,
    ) -> Result<Self> {
        let Self { weight, .. } = Self::wide(build, name, inputs, outputs, init)?;
        let bias = Some(build.within(name).parameter("bias", [outputs], Init::Constant(0.0))?);
        Ok(Self { weight, bias, narrow: false })
    }

    /// A map with a weight that belongs to another layer.
    pub fn tied(weight: ParameterId) -> Self {
        Self { weight: MatrixId::Learned(weight), bias: None, narrow: false }
    }

    /// `x [.., inputs]` to `[.., outputs]`.
    ///
    /// # Errors
    /// An `x` of another width; the device's own failures.
    pub fn forward<B: Backend>(&self, tape: &Tape<'_, B>, x: &Var<B>) -> Result<Var<B>> {
        let y = self.product(tape, x)?;
        match self.bias {
            Some(bias) => tape.add(&y, &tape.weight(bias)?),
            None => Ok(y),
        }
    }

    /// As [`Linear::forward`], the result in 32 bits whatever `x` has: what gates are made of.
    ///
    /// # Errors
    /// As [`Linear::forward`].
    pub fn forward_wide<B: Backend>(&self, tape: &Tape<'_, B>, x: &Var<B>) -> Result<Var<B>> {
        self.widened(tape, &self.product(tape, x)?)
    }

    /// `W [outputs, inputs]` for an `x [.., inputs]`, with rows of zeros appended until `multiple` divides their count, so that
    /// matrix units find every row of a product aligned.
    pub(crate) fn padded_weight<B: Backend>(&self, tape: &Tape<'_, B>, x: &Var<B>, multiple: usize) -> Result<Var<B>> {
        padded(tape, x, vec![self.weight(tape, x)?], multiple)
    }

    /// `W [outputs, inputs]` in 32 bits, where its gradients gather.
    pub(crate) fn parameter<B: Backend>(&self, tape: &Tape<'_, B>) -> Result<Var<B>> {
        tape.parameter(self.learned(tape)?)
    }

    /// The place of `W` among what is learned.
    ///
    /// # Errors
    /// [`Error::Config`](crate::Error::Config) where it is quantized.
    fn learned<B: Backend>(&self, tape: &Tape<'_, B>) -> Result<ParameterId> {
        match self.weight {
            MatrixId::Learned(id) => Ok(id),
            MatrixId::Quantized(id) => Err(tape.refuse_gradient(id)),
        }
    }

    /// Whether something is added to the product.
    pub(crate) fn has_bias(&self) -> bool {
        self.bias.is_some()
    }

    /// Whether `W` is quantized: there is no array of it then.
    pub(crate) fn is_quantized(&self) -> bool {
        matches!(self.weight, MatrixId::Quantized(_))
    }

    /// As [`Linear::forward`] without biases, of several maps of the same `x`: one product with
    /// [`Linear::padded_weight`]s.
    pub(super) fn together<B: Backend>(
        tape: &Tape<'_, B>,
        maps: &[Self],
        x: &Var<B>,
        multiple: usize,
    ) -> Result<Vec<Var<B>>> {
        let weights = maps.iter().map(|map| map.weight(tape, x)).collect::<Result<Vec<_>>>()?;
        let mut outputs: Vec<usize> = weights.iter().map(|weight| weight.axes()[0]).collect();
        let y = tape.matmul(x, &padded(tape, x, weights, multiple)?, TIMES_WEIGHT)?;
        let axis = y.axes().len() - 1;
        let padding = y.axes()[axis] - outputs.iter().sum::<usize>();
        if padding > 0 {
            outputs.push(padding);
        }
        let mut parts = tape.split(&y, axis, &outputs)?;
        parts.truncate(maps.len());
        maps.iter().zip(parts).map(|(map, y)| map.adapted(tape, x, y)).collect()
    }

    /// Whether rows of the map's outputs are aligned for matrix units. In 32 bits it does not matter.
    pub(super) fn suits<B: Backend>(&self, tape: &Tape<'_, B>, multiple: usize) -> bool {
        let aligned = |weight: Var<B>| weight.axes().first().is_some_and(|outputs| outputs.is_multiple_of(multiple));
        let MatrixId::Learned(weight) = self.weight else { return true };
        tape.activations() == DType::F32 || tape.parameter(weight).is_ok_and(aligned)
    }

    /// The product `[.., outputs]` cast to 32 bits, plus the bias.
    pub(super) fn widened<B: Backend>(&self, tape: &Tape<'_, B>, product: &Var<B>) -> Result<Var<B>> {
        let y = tape.cast(DType::F32, product)?;
        match self.bias {
            Some(bias) => tape.add(&y, &tape.parameter(bias)?),
            None => Ok(y),
        }
    }

    /// The map's logits `x [N,1,outputs]` with their bias beside them, for a fused decode; zeros of a map without bias.
    pub(super) fn signal<B: Backend>(&self, tape: &Tape<'_, B>, x: Var<B>) -> Result<GateLogit<Tensor<B>>> {
        let x = x.into_value();
        let bias = match self.bias {
            Some(bias) => tape.parameter(bias)?.into_value(),
            None => Tensor::zeros(x.device(), [x.shape().last()], DType::F32)?,
        };
        Ok(GateLogit { x, bias })
    }

    /// [`Linear::product`] of each of these maps with one `x`, on a tape that is inert: a device may start them together.
    pub(super) fn each<B: Backend>(tape: &Tape<'_, B>, maps: &[Self], x: &Var<B>) -> Result<Vec<Var<B>>> {
        let learned = maps.iter().filter(|map| !map.is_quantized()).map(|map| map.stored(tape, x));
        let mut products = tape.matmul_each(x, &learned.collect::<Result<Vec<_>>>()?)?.into_iter();
        let product = |map: &Self| match map.weight {
            MatrixId::Learned(_) => match products.next() {
                Some(y) => map.adapted(tape, x, y),
                None => map.product(tape, x),
            },
            MatrixId::Quantized(_) => map.product(tape, x),
        };
        maps.iter().map(product).collect()
    }

    /// [`Linear::product`] of each of these maps with one `x`, where the device starts them together; their gradients too. Frozen
    /// maps have none, and go one after another.
    pub(super) fn at_once<B: Backend>(tape: &Tape<'_, B>, maps: &[Self], x: &Var<B>) -> Result<Option<Vec<Var<B>>>> {
        if tape.is_inert() || maps.iter().any(|map| map.is_quantized() || map.is_frozen(tape)) {
            return Ok(None);
        }
        let weights = maps.iter().map(|map| map.weight(tape, x)).collect::<Result<Vec<_>>>()?;
        if tape.starts_together(x, &weights)? { tape.matmul_each(x, &weights).map(Some) } else { Ok(None) }
    }

    /// Whether [`Linear::projected`] of these maps is for `x [.., inputs]`: few rows, of which nothing is recorded.
    pub(crate) fn projects<B: Backend>(tape: &Tape<'_, B>, maps: &[Self], x: &Var<B>) -> bool {
        let wide = [tape.activations(), x.value().dtype()] == [DType::F32; 2];
        // Gates keep 32 bits, and come after the maps that others follow.
        let stored = || maps.first().and_then(|map| map.stored(tape, x).ok()).map(|weight| weight.value().dtype());
        let fuses = |weights| x.value().device().fuses_projections(x.value().shape().rows(), weights);
        let plain = |map: &Self| !map.is_quantized() && map.adapter(tape).is_none();
        wide && tape.is_inert() && maps.iter().all(plain) && stored().is_some_and(fuses)
    }

    /// [`Linear::product`] of each of these maps with `x`, or with rows of it after a norm, and what follows, in one call of
    /// the device: where [`Linear::projects`] says so.
    pub(crate) fn projected<B: Backend>(
        tape: &Tape<'_, B>,
        maps: &[Self],
        (x, norm): (&Var<B>, Option<&RmsNorm>),
        end: ProjectionEnd<'_, B>,
    ) -> Result<Vec<Var<B>>> {
        let weights = maps.iter().map(|map| map.stored(tape, x)).collect::<Result<Vec<_>>>()?;
        let weights: Vec<_> = weights.iter().map(Var::value).collect();
        let norm = norm.map(|norm| norm.parts(tape)).transpose()?;
        let norm = norm.as_ref().map(|(weight, epsilon)| (weight.value(), *epsilon));
        tape.project(&ProjectionInputs { x: x.value(), norm, weights: &weights, end })
    }

    /// `x Wᵀ`, `[.., inputs]` to `[.., outputs]`, and what an adapter adds; without the bias.
    pub(super) fn product<B: Backend>(&self, tape: &Tape<'_, B>, x: &Var<B>) -> Result<Var<B>> {
        let y = match self.weight {
            MatrixId::Learned(id) if tape.reads_stored(id)? => tape.matmul_each(x, &[self.stored(tape, x)?])?.remove(0),
            // Scales of 8-bit factors are those of what learns.
            MatrixId::Learned(id) if self.narrow && !tape.is_frozen(id) => {
                tape.linear(x, &self.weight(tape, x)?, id)?
            }
            MatrixId::Learned(_) => tape.matmul(x, &self.weight(tape, x)?, TIMES_WEIGHT)?,
            MatrixId::Quantized(id) => tape.quantized_matmul(x, id)?,
        };
        self.adapted(tape, x, y)
    }

    /// The product `y` of `x` with what an adapter of the matrix adds to it: `y + s (x Aᵀ) Bᵀ`.
    fn adapted<B: Backend>(&self, tape: &Tape<'_, B>, x: &Var<B>, y: Var<B>) -> Result<Var<B>> {
        let Some(Adapter { a, b, scale }) = self.adapter(tape) else { return Ok(y) };
        let inner = tape.scale(scale, &tape.matmul(x, &tape.weight(a)?, TIMES_WEIGHT)?)?;
        tape.add(&y, &tape.matmul(&inner, &tape.weight(b)?, TIMES_WEIGHT)?)
    }

    /// What is added to the matrix.
    fn adapter<B: Backend>(&self, tape: &Tape<'_, B>) -> Option<Adapter> {
        match self.weight {
            MatrixId::Learned(id) => tape.adapter(id),
            MatrixId::Quantized(_) => None,
        }
    }

    /// Whether the matrix learns no more, though it is one of 32 or 16 bits.
    pub(crate) fn is_frozen<B: Backend>(&self, tape: &Tape<'_, B>) -> bool {
        matches!(self.weight, MatrixId::Learned(id) if tape.is_frozen(id))
    }

    /// As [`Linear::weight`], in the type that it is stored in where that has fewer bits.
    fn stored<B: Backend>(&self, tape: &Tape<'_, B>, x: &Var<B>) -> Result<Var<B>> {
        let id = self.learned(tape)?;
        if !tape.reads_stored(id)? {
            return self.weight(tape, x);
        }
        let weight = tape.parameter(id)?;
        tape.check_width(id, weight.value().shape().last(), x)?;
        Ok(weight)
    }

    /// `W [outputs, inputs]`, for an `x [.., inputs]`.
    pub(super) fn weight<B: Backend>(&self, tape: &Tape<'_, B>, x: &Var<B>) -> Result<Var<B>> {
        let id = self.learned(tape)?;
        let weight = tape.weight(id)?;
        tape.check_width(id, weight.value().shape().last(), x)?;
        Ok(weight)
    }
}

/// The weights `[outputs_i, inputs]` of an `x [.., inputs]`, joined and padded with rows of zeros to a multiple of `multiple`.
fn padded<B: Backend>(tape: &Tape<'_, B>, x: &Var<B>, mut weights: Vec<Var<B>>, multiple: usize) -> Result<Var<B>> {
    let outputs: usize = weights.iter().map(|weight| weight.axes()[0]).sum();
    let more = outputs.next_multiple_of(multiple) - outputs;
    if more > 0 {
        let shape = [more, weights[0].axes()[1]];
        weights.push(Var::constant(Tensor::zeros(x.value().device(), shape, x.value().dtype())?));
    }
    match &weights[..] {
        [weight] => Ok(weight.clone()),
        weights => tape.concat(&weights.iter().collect::<Vec<_>>(), 0),
    }
}
