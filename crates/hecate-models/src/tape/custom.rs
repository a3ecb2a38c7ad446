//! Operations of the caller's own on a tape.

use super::{Slot, Tape, Var};
use crate::{Error, Result};
use hecate_core::{Backend, DType, DeviceId, Shape, Tensor};

impl<'p, B: Backend> Tape<'p, B> {
    /// An operation of the caller's own with one result. `value` is what it makes of `arguments`, by whatever means; `backward`
    /// takes the gradient of the result, and returns those of the arguments, in their order. `None` stands for zeros.
    ///
    /// `backward` runs once, in the way back, and not at all where no gradient arrives or is wanted: on a tape that does not
    /// record, and where all arguments are constants ([`Var::is_constant`]). What it needs of the forward it owns; a clone of a
    /// tensor shares its memory. Copies to the host wait for the device, and cannot be part of a captured step: trainers then go
    /// call by call.
    ///
    /// The sine, which no primitive computes, on the host:
    ///
    /// ```
    /// use hecate_core::{Backend, Tensor, primitives::mul};
    /// use hecate_cpu::Cpu;
    /// use hecate_models::{Parameters, Result, Tape, Var};
    ///
    /// /// `f` of every element of `x`.
    /// fn map<B: Backend>(x: &Tensor<B>, f: fn(f32) -> f32) -> hecate_core::Result<Tensor<B>> {
    ///     Tensor::from_f32(x.device(), x.shape().clone(), x.to_f32()?.into_iter().map(f).collect())
    /// }
    ///
    /// fn sine<B: Backend>(tape: &Tape<'_, B>, x: &Var<B>) -> Result<Var<B>> {
    ///     let kept = x.value().clone();
    ///     let y = map(&kept, f32::sin)?;
    ///     tape.custom([x], y, move |dy| Ok([Some(mul(&map(&kept, f32::cos)?, &dy)?)]))
    /// }
    ///
    /// # fn main() -> Result<()> {
    /// let (cpu, mut parameters) = (Cpu::new(), Parameters::new());
    /// let x = parameters.add("x", Tensor::from_f32(&cpu, [2], vec![0.5, 2.0])?, false);
    /// let tape = Tape::recording(&parameters);
    /// let loss = tape.sum(&sine(&tape, &tape.parameter(x)?)?)?;
    /// let gradients = tape.backward(&loss)?;
    /// let dx = gradients.get(x).expect("a gradient").to_f32()?;
    /// assert_eq!(dx, [0.5_f32.cos(), 2.0_f32.cos()]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Of this call: a `value` on another device than the arguments. Of the way back: gradients of other shapes, types or
    /// devices than the arguments, and what `backward` returns.
    pub fn custom<const N: usize>(
        &self,
        arguments: [&Var<B>; N],
        value: Tensor<B>,
        backward: impl FnOnce(Tensor<B>) -> hecate_core::Result<[Option<Tensor<B>>; N]> + 'p,
    ) -> Result<Var<B>> {
        let [result] = self.custom_each(arguments, [value], move |[dy]| {
            // It is called where a gradient arrived, and there is but one.
            dy.map_or_else(|| Ok([const { None }; N]), backward)
        })?;
        Ok(result)
    }

    /// As [`Tape::custom`], with several results. `backward` gets `None` for one that nothing was made of.
    ///
    /// # Errors
    /// As [`Tape::custom`].
    pub fn custom_each<const N: usize, const M: usize>(
        &self,
        arguments: [&Var<B>; N],
        values: [Tensor<B>; M],
        backward: impl FnOnce([Option<Tensor<B>>; M]) -> hecate_core::Result<[Option<Tensor<B>>; N]> + 'p,
    ) -> Result<[Var<B>; M]> {
        self.check()?;
        if let Some(first) = arguments.first() {
            values.iter().try_for_each(|value| value.check_device(first.value.device(), "custom", "value"))?;
        }
        if !self.follows(&arguments) {
            return Ok(values.map(Var::constant));
        }
        let results = values.map(|value| self.result(value));
        let (places, arguments) = (results.each_ref().map(|result| result.slot), arguments.map(Argument::new));
        self.push(move |slots| {
            if !places.iter().any(|&slot| slots.holds(slot)) {
                return Ok(());
            }
            let gradients = backward(places.map(|slot| slots.take(slot)))?;
            for (number, (argument, gradient)) in (1..).zip(arguments.into_iter().zip(gradients)) {
                let Some(gradient) = gradient else { continue };
                argument.check(number, &gradient)?;
                slots.add(argument.slot, gradient)?;
            }
            Ok(())
        });
        Ok(results)
    }
}

/// What the gradient of an argument has to be like, and where it goes.
struct Argument {
    slot: Slot,
    device: DeviceId,
    shape: Shape,
    dtype: DType,
}

impl Argument {
    fn new<B: Backend>(var: &Var<B>) -> Self {
        let Var { value, slot, .. } = var;
        Self { slot: *slot, device: value.device().id().clone(), shape: value.shape().clone(), dtype: value.dtype() }
    }

    /// Refuses a gradient unlike the argument of this number, from 1.
    fn check<B: Backend>(&self, number: usize, gradient: &Tensor<B>) -> Result<()> {
        let Self { device, shape, dtype, .. } = self;
        let own = gradient.device().id();
        if own == device && gradient.shape() == shape && gradient.dtype() == *dtype {
            return Ok(());
        }
        let field = format!("gradient of argument {number} of a custom operation");
        let found = format!("{} of {} on {own}", gradient.shape(), gradient.dtype());
        Err(Error::config(field, found, format!("{shape} of {dtype} on {device}, as the argument is")))
    }
}
