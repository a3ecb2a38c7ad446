//! AdamW as a whole: moments, constants, and the count of steps.

use super::{Constants, Moments, norm_squared};
use hecate_core::Backend;
use hecate_models::{At, Error, Gradients, NonFinite, Parameters, Place, Result};

/// An optimiser that counts its steps, clips, and refuses what would spoil the weights.
///
/// ```
/// use hecate_core::{Backend, Tensor, primitives::Transpose};
/// use hecate_cpu::Cpu;
/// use hecate_models::{Parameters, Result, Tape, Var};
/// use hecate_train::optimizer::{AdamW, Constants};
///
/// # fn main() -> Result<()> {
/// let cpu = Cpu::new();
/// let mut parameters = Parameters::new();
/// let weight = parameters.add("weight", Tensor::from_f32(&cpu, [2, 1], vec![0.5, 0.5])?, true);
/// let mut adamw = AdamW::new(&cpu, &parameters, Constants::default())?;
/// let x = Var::constant(Tensor::from_f32(&cpu, [1, 1], vec![2.0])?);
/// let target = Tensor::from_u32(&cpu, [1], vec![1])?;
/// for _ in 0..3 {
///     let tape = Tape::recording(&parameters);
///     let logits = tape.matmul(&x, &tape.weight(weight)?, Transpose { a: false, b: true })?;
///     let loss = tape.cross_entropy(&logits, &target)?;
///     let gradients = tape.backward(&loss)?;
///     adamw.step(&mut parameters, gradients, 0.1)?;
/// }
/// assert_eq!(adamw.steps(), 3);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct AdamW<B: Backend> {
    device: B,
    constants: Constants,
    moments: Moments<B>,
    steps: u32,
}

impl<B: Backend> AdamW<B> {
    /// For these parameters, which lie on `device`; no step done.
    ///
    /// # Errors
    /// As [`Constants::check`]; the device's own failures.
    pub fn new(device: &B, parameters: &Parameters<B>, constants: Constants) -> Result<Self> {
        constants.check()?;
        Ok(Self { device: device.clone(), constants, moments: Moments::new(device, parameters)?, steps: 0 })
    }

    /// Moves the parameters by one step of this learning rate; the norm of all gradients together, before clipping. Waits
    /// for the device, since a step from gradients that are not finite must not be made.
    ///
    /// # Errors
    /// [`Error::NonFinite`] names the first gradient that is not finite. [`Error::Config`]: a rate that is no finite number
    /// of at least 0, or gradients of other parameters. Arrays of another device. Parameters and moments are then as
    /// they were. The device's own failures.
    pub fn step(&mut self, parameters: &mut Parameters<B>, gradients: Gradients<B>, rate: f32) -> Result<f64> {
        let step = self.steps.checked_add(1).ok_or_else(|| Error::config("steps", self.steps, "under 2^32"))?;
        if gradients.iter().all(Option::is_none) {
            return Err(Error::config("gradients", "none", "that of at least one parameter"));
        }
        let squared = norm_squared(&self.device, &gradients)?;
        let norm = squared.to_f32()?.first().map_or(f64::NAN, |&x| f64::from(x).sqrt());
        if !norm.is_finite() {
            return Err(refusal(parameters, &gradients, norm, step));
        }
        self.moments.update(parameters, &gradients, &squared, &self.constants, (step, rate))?;
        self.steps = step;
        Ok(norm)
    }

    /// Steps done.
    pub fn steps(&self) -> u32 {
        self.steps
    }

    /// First and second moments.
    pub fn moments(&self) -> &Moments<B> {
        &self.moments
    }

    /// What stays the same from step to step.
    pub fn constants(&self) -> &Constants {
        &self.constants
    }
}

/// The error of gradients whose norm is not finite.
fn refusal<B: Backend>(parameters: &Parameters<B>, gradients: &Gradients<B>, norm: f64, step: u32) -> Error {
    // Squares of finite numbers may leave the range of 32 bits.
    let whole = NonFinite { what: "the norm of the gradients".to_owned(), place: Place::default(), found: norm };
    match NonFinite::in_gradients(parameters, gradients) {
        Ok(first) => {
            let NonFinite { what, place, found } = first.unwrap_or(whole);
            let way_out = "the weights are as they were; go on with a lower learning rate, or look for its cause on a \
                           tape that is watched by a `Probe`";
            Error::NonFinite { what, place, found, at: At::Step(step.into()), way_out }
        }
        Err(error) => error,
    }
}
