//! First values of parameters. One stream of random bits serves all of them, so a seed gives the same weights everywhere.

use crate::{
    Dropout, Error, MatrixId, ParameterId, Parameters, Random, Result,
    bounds::{LAYERS, product, within},
    parameters::refuse_learning,
};
use hecate_core::{
    Backend, DType, Shape, Tensor, memory,
    quantized::{BlockFormat, Quantized},
};
use std::{
    f64::consts::TAU,
    fmt,
    sync::{Mutex, PoisonError},
    thread,
};

/// How a parameter starts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Init {
    /// The same number everywhere.
    Constant(f32),
    /// Normal around 0 with the model's standard deviation.
    Normal,
    /// Normal around 0 with this standard deviation.
    Spread(f32),
    /// Rows of random directions and norm 1.
    Unit,
    /// As [`Init::Normal`], smaller by `√(2 × layers)`: projections that add to the residual stream.
    Residual,
    /// Uniform with zero mean and variance `1/taps`: taps of a convolution, each channel's sum about as large as one
    /// input.
    Taps(usize),
    /// `A_log = log A` of the forgetting gate (Mamba-2), `A` uniform in `[1, 16]`.
    LogSlope,
    /// `x` with `softplus(x)` log-uniform in `[0.001, 0.1]`: offsets of the forgetting gate. Together with
    /// [`Init::LogSlope`] memories start with horizons between one token and a thousand.
    Horizon,
    /// `x` with `1/softplus(x)` log-uniform between these: offsets of a forgetting gate of these first horizons.
    Horizons([f32; 2]),
}

/// Adds parameters under growing names, drawing their first values from one stream in the order of the calls: another
/// order gives other weights.
#[derive(Debug)]
pub struct Builder<'a, B: Backend> {
    device: &'a B,
    parameters: &'a mut Parameters<B>,
    values: Values<'a, B>,
    /// Precedes all names: empty, or ended by a dot.
    scope: String,
    /// Standard deviation of [`Init::Normal`].
    deviation: f64,
    /// Blocks of the model, which [`Init::Residual`] divides by.
    layers: usize,
    /// What layers drop.
    dropout: Dropout,
    /// How matrices are stored, if not in 32 bits.
    quantization: Option<BlockFormat>,
}

/// What parameters are made of.
enum Values<'a, B: Backend> {
    /// First values, as their kinds say.
    Drawn(&'a mut Random),
    /// Zeros, for values that come from elsewhere: drawing those of a large model takes seconds.
    Zeros,
    /// Nothing: elements are counted.
    Counted(&'a mut u128),
    /// What somebody has for their names.
    Given(Give<'a, B>),
}

/// What a parameter of this name and shape is; none where it is only told of, and what is built of its place must not run.
pub(crate) type Give<'a, B> = &'a mut dyn FnMut(&str, &Shape) -> Result<Option<Tensor<B>>>;

impl<B: Backend> fmt::Debug for Values<'_, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Drawn(_) => "drawn",
            Self::Zeros => "zeros",
            Self::Counted(_) => "counted",
            Self::Given(_) => "given",
        })
    }
}

impl<'a, B: Backend> Builder<'a, B> {
    /// Parameters with standard deviation `deviation` for a model of `layers` blocks.
    pub fn new(
        device: &'a B,
        parameters: &'a mut Parameters<B>,
        random: &'a mut Random,
        deviation: f32,
        layers: usize,
    ) -> Self {
        Self { deviation: deviation.into(), layers, ..Self::made_of(Values::Drawn(random), device, parameters) }
    }

    /// Parameters that are all 0, and of no random stream: for layers whose values are loaded right after
    /// ([`Parameters::load`]). Drawing those of a large model takes seconds.
    ///
    /// ```
    /// use hecate_cpu::Cpu;
    /// use hecate_models::{Builder, Init, Parameters, Random, layers::Linear};
    ///
    /// # fn main() -> hecate_models::Result<()> {
    /// let cpu = Cpu::new();
    /// let (mut learned, mut random) = (Parameters::new(), Random::new(7));
    /// Linear::new(&mut Builder::new(&cpu, &mut learned, &mut random, 0.02, 1), "map", 4, 3, Init::Normal)?;
    /// let file = std::env::temp_dir().join(format!("hecate-blank-{}.safetensors", std::process::id()));
    /// learned.save(&file)?;
    ///
    /// let mut loaded = Parameters::new();
    /// Linear::new(&mut Builder::blank(&cpu, &mut loaded), "map", 4, 3, Init::Normal)?;
    /// loaded.load(&file)?;
    /// std::fs::remove_file(&file).ok();
    /// let values = |parameters: &Parameters<Cpu>| parameters.iter().next().map(|map| map.value.to_f32());
    /// assert_eq!(values(&learned).transpose()?, values(&loaded).transpose()?);
    /// # Ok(())
    /// # }
    /// ```
    pub fn blank(device: &'a B, parameters: &'a mut Parameters<B>) -> Self {
        Self::made_of(Values::Zeros, device, parameters)
    }

    /// No parameters: their elements are added to `count`. What is built of their places must not run.
    pub(crate) fn counting(device: &'a B, parameters: &'a mut Parameters<B>, count: &'a mut u128) -> Self {
        Self::made_of(Values::Counted(count), device, parameters)
    }

    /// Parameters whose values `give` has.
    pub(crate) fn given(device: &'a B, parameters: &'a mut Parameters<B>, give: Give<'a, B>) -> Self {
        Self::made_of(Values::Given(give), device, parameters)
    }

    fn made_of(values: Values<'a, B>, device: &'a B, parameters: &'a mut Parameters<B>) -> Self {
        let (scope, dropout, quantization) = (String::new(), Dropout::default(), None);
        Self { device, parameters, values, scope, deviation: 0.0, layers: 1, dropout, quantization }
    }

    /// The same; layers made from here on drop so much, on tapes that drop anything
    /// ([`Tape::with_dropout`](crate::Tape::with_dropout)).
    ///
    /// # Errors
    /// As [`Dropout::check`].
    pub fn with_dropout(self, dropout: Dropout) -> Result<Self> {
        dropout.check()?;
        Ok(Self { dropout, ..self })
    }

    /// Stores matrices that are added from here on so ([`Builder::matrix`]).
    pub(crate) fn quantize(&mut self, quantization: Option<BlockFormat>) {
        self.quantization = quantization;
    }

    /// What layers drop.
    pub fn dropout(&self) -> Dropout {
        self.dropout
    }

    /// The same, with `name.` in front of all names.
    pub fn within(&mut self, name: &str) -> Builder<'_, B> {
        Builder {
            device: self.device,
            parameters: self.parameters,
            values: match &mut self.values {
                Values::Drawn(random) => Values::Drawn(random),
                Values::Zeros => Values::Zeros,
                Values::Counted(count) => Values::Counted(count),
                Values::Given(give) => Values::Given(*give),
            },
            scope: format!("{}{name}.", self.scope),
            deviation: self.deviation,
            layers: self.layers,
            dropout: self.dropout,
            quantization: self.quantization,
        }
    }

    /// Adds the matrix `[outputs, inputs]` of a linear map, as the model's matrices are stored: in a quantized model in its
    /// format where rows are whole blocks of that, else in `q8_0`, and in bfloat16 where they are no blocks of that either.
    ///
    /// # Errors
    /// As [`Builder::parameter`]; in a quantized model [`Error::Config`] for first values: no model begins quantized.
    pub fn matrix(&mut self, name: &str, [outputs, inputs]: [usize; 2], init: Init) -> Result<MatrixId> {
        let Some(format) = self.quantization else {
            let id = self.parameter(name, [outputs, inputs], init)?;
            self.parameters.mark_matrix(id);
            return Ok(MatrixId::Learned(id));
        };
        let (name, shape, device) = (format!("{}{name}", self.scope), [outputs, inputs], self.device);
        match &mut self.values {
            Values::Drawn(_) | Values::Given(_) => return Err(refuse_learning(format)),
            Values::Zeros => {}
            Values::Counted(count) => {
                **count = count.saturating_add(product(&shape));
                return Ok(self.parameters.next_matrix());
            }
        }
        // The blocks of `q8_0` are the shortest.
        let fitting = [format, BlockFormat::Q8_0].into_iter().find(|format| inputs.is_multiple_of(format.block()));
        let Some(format) = fitting else {
            let id = self.parameters.add(name, Tensor::zeros(device, shape, DType::Bf16)?, true);
            self.parameters.mark_matrix(id);
            return Ok(MatrixId::Learned(id));
        };
        Ok(self.parameters.add_quantized(name, Quantized::zeros(device, format, shape)?))
    }

    /// Adds a parameter; matrices (two axes or more) take part in weight decay unless they are [`Builder::table`]s.
    ///
    /// # Errors
    /// [`Error::Config`] for a model of no block or a standard deviation that is not finite; the device's own failures.
    pub fn parameter(&mut self, name: &str, shape: impl Into<Shape>, init: Init) -> Result<ParameterId> {
        let shape = shape.into();
        let decay = shape.rank() > 1;
        self.add(name, shape, init, decay)
    }

    /// Adds a table of embeddings, which weight decay leaves alone.
    ///
    /// # Errors
    /// The device's own failures.
    pub fn table(&mut self, name: &str, rows: usize, width: usize) -> Result<ParameterId> {
        let id = self.add(name, [rows, width].into(), Init::Normal, false)?;
        self.parameters.mark_matrix(id);
        Ok(id)
    }

    /// Adds what a memory starts from, which weight decay leaves alone.
    ///
    /// # Errors
    /// The device's own failures.
    pub fn memory(&mut self, name: &str, shape: impl Into<Shape>, init: Init) -> Result<ParameterId> {
        self.add(name, shape.into(), init, false)
    }

    /// Adds a parameter under `scope + name`.
    fn add(&mut self, name: &str, shape: Shape, init: Init, decay: bool) -> Result<ParameterId> {
        let Self { device, deviation, layers, .. } = *self;
        let value = match &mut self.values {
            Values::Drawn(random) => {
                within("layers", layers, 1..=LAYERS)?;
                if !deviation.is_finite() {
                    return Err(Error::config("deviation", deviation, "a finite number"));
                }
                Draw { random, deviation, layers, threads: device.host_threads() }.tensor(device, shape, init)?
            }
            Values::Zeros => Tensor::zeros(device, shape, DType::F32)?,
            Values::Counted(count) => {
                **count = count.saturating_add(product(shape.axes()));
                return Ok(self.parameters.next_id());
            }
            Values::Given(give) => match give(&format!("{}{name}", self.scope), &shape)? {
                Some(value) => value,
                None => return Ok(self.parameters.next_id()),
            },
        };
        Ok(self.parameters.add(format!("{}{name}", self.scope), value, decay))
    }
}

/// The name in messages.
const WHAT: &str = "parameters";

/// Elements that a thread draws at once: a tenth of a millisecond of logarithms and cosines.
const SHARE: usize = 1 << 12;

/// Draws first values.
struct Draw<'a> {
    random: &'a mut Random,
    deviation: f64,
    layers: usize,
    threads: usize,
}

impl Draw<'_> {
    /// A parameter of this shape, drawn in 64 bits and rounded to 32.
    fn tensor<B: Backend>(&mut self, device: &B, shape: Shape, init: Init) -> Result<Tensor<B>> {
        let count = shape.count();
        if init != Init::Unit {
            return Ok(Tensor::from_f32(device, shape, self.elements(count, init, |x| x as f32)?)?);
        }
        let mut values = self.elements(count, init, |x| x)?;
        values.chunks_mut(shape.last().max(1)).for_each(normalise);
        let values = memory::collect(WHAT, values.into_iter().map(|x| x as f32))?;
        Ok(Tensor::from_f32(device, shape, values)?)
    }

    /// So many elements, as `init` says; [`Init::Unit`] divides rows later.
    ///
    /// Each share begins where the stream is before its first element, so values do not depend on the number of threads.
    fn elements<T: Clone + Default + Send>(
        &mut self,
        count: usize,
        init: Init,
        rounded: impl Fn(f64) -> T + Sync,
    ) -> Result<Vec<T>> {
        let mut values = memory::collect(WHAT, (0..count).map(|_| T::default()))?;
        let (start, deviation, layers) = (self.random.clone(), self.deviation, self.layers);
        let shares = Mutex::new(values.chunks_mut(SHARE).enumerate());
        let next = || shares.lock().unwrap_or_else(PoisonError::into_inner).next();
        let draw = || {
            while let Some((i, share)) = next() {
                let mut random = start.after_units(i * SHARE * init.units());
                share.iter_mut().for_each(|value| *value = rounded(init.element(&mut random, deviation, layers)));
            }
        };
        thread::scope(|scope| {
            for _ in 1..self.threads.min(count.div_ceil(SHARE)) {
                // Where the system starts no thread, those that there are draw its shares.
                drop(thread::Builder::new().spawn_scoped(scope, draw));
            }
            draw();
        });
        *self.random = start.after_units(count * init.units());
        Ok(values)
    }
}

impl Init {
    /// Uniform numbers that an element is made of.
    fn units(self) -> usize {
        match self {
            Init::Constant(_) => 0,
            Init::Normal | Init::Spread(_) | Init::Unit | Init::Residual => 2,
            Init::Taps(_) | Init::LogSlope | Init::Horizon | Init::Horizons(_) => 1,
        }
    }

    /// One element of a model of this standard deviation and so many layers.
    fn element(self, random: &mut Random, deviation: f64, layers: usize) -> f64 {
        match self {
            Init::Constant(value) => f64::from(value),
            Init::Normal => deviation * normal(random),
            Init::Spread(deviation) => f64::from(deviation) * normal(random),
            Init::Unit => normal(random),
            Init::Residual => deviation * normal(random) / (2.0 * layers as f64).sqrt(),
            Init::Taps(taps) => uniform(random, -1.0, 1.0) * (3.0 / taps as f64).sqrt(),
            Init::LogSlope => uniform(random, 1.0, 16.0).ln(),
            Init::Horizon => unsoftplus(uniform(random, 0.001f64.ln(), 0.1f64.ln()).exp()),
            Init::Horizons([shortest, longest]) => {
                unsoftplus(uniform(random, f64::from(shortest).ln(), f64::from(longest).ln()).exp().recip())
            }
        }
    }
}

/// Uniform in `[low, high)`.
fn uniform(random: &mut Random, low: f64, high: f64) -> f64 {
    low + (high - low) * random.unit()
}

/// Standard normal (Box and Muller).
fn normal(random: &mut Random) -> f64 {
    let radius = (-2.0 * (1.0 - uniform(random, 0.0, 1.0)).ln()).sqrt();
    radius * uniform(random, 0.0, TAU).cos()
}

/// `x` with `softplus(x) = y`: `log(eʸ − 1)`.
fn unsoftplus(y: f64) -> f64 {
    y.exp_m1().ln()
}

/// Divides a row by its L2 norm.
fn normalise(row: &mut [f64]) {
    let norm = row.iter().map(|x| x * x).sum::<f64>().sqrt();
    row.iter_mut().for_each(|x| *x /= norm);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Weights of published runs depend on these.
    #[test]
    fn threads_draw_what_a_plain_loop_does() {
        let kinds = [
            Init::Constant(0.5),
            Init::Normal,
            Init::Spread(0.3),
            Init::Unit,
            Init::Residual,
            Init::Taps(4),
            Init::LogSlope,
            Init::Horizon,
            Init::Horizons([10.0, 1000.0]),
        ];
        let (mut random, deviation, layers) = (Random::new(5), 0.02, 3);
        // Whole shares, parts of one, and nothing.
        for (threads, count) in [(1, 0), (3, 1), (2, 3 * SHARE), (1, 2 * SHARE), (4, 5 * SHARE + 7)] {
            for init in kinds {
                let mut plain = random.clone();
                let expected: Vec<f64> = (0..count).map(|_| init.element(&mut plain, deviation, layers)).collect();
                let mut draw = Draw { random: &mut random, deviation, layers, threads };
                // Not `assert_eq`, which would write all of them.
                let same = draw.elements(count, init, |x| x).unwrap() == expected;
                assert!(same, "{count} of {init:?} by {threads}");
                assert_eq!(random, plain, "the stream after {count} of {init:?} by {threads}");
            }
        }
    }
}
