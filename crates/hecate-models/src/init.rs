//! First values of parameters. One stream of random bits serves all of them, so a seed gives the same weights everywhere.

use crate::{ParameterId, Parameters, Random, Result};
use hecate_core::{Backend, DType, Shape, Tensor};
use std::f64::consts::TAU;

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
    /// `log A` with `A` uniform in `[1, 16]`: slopes of the forgetting gate (Mamba-2).
    LogSlope,
    /// `x` with `softplus(x)` log-uniform in `[0.001, 0.1]`: offsets of the forgetting gate. Together with
    /// [`Init::LogSlope`] memories start with horizons between one token and a thousand.
    Horizon,
}

/// Adds parameters under growing names, drawing their first values from one stream in the order of the calls: another
/// order gives other weights.
#[derive(Debug)]
pub struct Builder<'a, B: Backend> {
    device: &'a B,
    parameters: &'a mut Parameters<B>,
    /// None where all values are 0.
    random: Option<&'a mut Random>,
    /// Precedes all names: empty, or ended by a dot.
    scope: String,
    /// Standard deviation of [`Init::Normal`].
    deviation: f64,
    /// Blocks of the model, which [`Init::Residual`] divides by.
    layers: usize,
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
        let (random, scope, deviation) = (Some(random), String::new(), f64::from(deviation));
        Self { device, parameters, random, scope, deviation, layers }
    }

    /// Parameters that are all 0, for values that come from elsewhere: drawing those of a large model takes seconds.
    pub(crate) fn blank(device: &'a B, parameters: &'a mut Parameters<B>) -> Self {
        Self { device, parameters, random: None, scope: String::new(), deviation: 0.0, layers: 1 }
    }

    /// The same, with `name.` in front of all names.
    pub fn within(&mut self, name: &str) -> Builder<'_, B> {
        Builder {
            device: self.device,
            parameters: self.parameters,
            random: self.random.as_deref_mut(),
            scope: format!("{}{name}.", self.scope),
            deviation: self.deviation,
            layers: self.layers,
        }
    }

    /// Adds a parameter; matrices (two axes or more) take part in weight decay unless they are [`Builder::table`]s.
    ///
    /// # Errors
    /// The device's own failures.
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
        self.add(name, [rows, width].into(), Init::Normal, false)
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
        let value = match &mut self.random {
            Some(random) => {
                Draw { random, deviation: self.deviation, layers: self.layers }.tensor(self.device, shape, init)?
            }
            None => Tensor::zeros(self.device, shape, DType::F32)?,
        };
        Ok(self.parameters.add(format!("{}{name}", self.scope), value, decay))
    }
}

/// Draws first values.
struct Draw<'a> {
    random: &'a mut Random,
    deviation: f64,
    layers: usize,
}

impl Draw<'_> {
    /// A parameter of this shape, drawn in 64 bits and rounded to 32.
    fn tensor<B: Backend>(&mut self, device: &B, shape: Shape, init: Init) -> Result<Tensor<B>> {
        let mut values: Vec<f64> = (0..shape.count()).map(|_| self.element(init)).collect();
        if init == Init::Unit {
            values.chunks_mut(shape.last().max(1)).for_each(normalise);
        }
        Ok(Tensor::from_f32(device, shape, values.into_iter().map(|x| x as f32).collect())?)
    }

    /// One element, as `init` says; [`Init::Unit`] divides rows later.
    fn element(&mut self, init: Init) -> f64 {
        match init {
            Init::Constant(value) => f64::from(value),
            Init::Normal => self.deviation * self.normal(),
            Init::Spread(deviation) => f64::from(deviation) * self.normal(),
            Init::Unit => self.normal(),
            Init::Residual => self.deviation * self.normal() / (2.0 * self.layers as f64).sqrt(),
            Init::Taps(taps) => self.uniform(-1.0, 1.0) * (3.0 / taps as f64).sqrt(),
            Init::LogSlope => self.uniform(1.0, 16.0).ln(),
            Init::Horizon => {
                let step = self.uniform(0.001f64.ln(), 0.1f64.ln()).exp();
                // The inverse of softplus: log(eˢ − 1).
                step.exp_m1().ln()
            }
        }
    }

    /// Uniform in `[low, high)`.
    fn uniform(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.random.unit()
    }

    /// Standard normal (Box and Muller).
    fn normal(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.uniform(0.0, 1.0)).ln()).sqrt();
        radius * self.uniform(0.0, TAU).cos()
    }
}

/// Divides a row by its L2 norm.
fn normalise(row: &mut [f64]) {
    let norm = row.iter().map(|x| x * x).sum::<f64>().sqrt();
    row.iter_mut().for_each(|x| *x /= norm);
}
