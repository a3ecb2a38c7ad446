//! What memories start from.

use super::GatedRule;
use crate::{Builder, Init, ParameterId, Parameters, Result, Tape, Var};
use hecate_core::{Backend, DType, Dims, Initial, Of, Rule, Shape, Slots, Tensor};

/// Added to the norms of rows.
const NORM_EPSILON: f32 = 1e-6;

/// Fresh memories of a rule, slot by slot: zeros, or learned, one a head and the same for every text.
#[derive(Clone, Debug)]
pub struct InitialState(Vec<Option<Learned>>);

#[derive(Clone, Copy, Debug)]
struct Learned {
    parameter: ParameterId,
    /// Whether rows are divided by their norms, which learning changes.
    unit: bool,
}

impl InitialState {
    /// A parameter `initial.<slot> [1,H,..]` for every slot that does not start from zeros; rows that start with norm 1
    /// keep it.
    ///
    /// # Errors
    /// The device's own failures.
    pub fn new<B: Backend, R: Rule>(build: &mut Builder<'_, B>, rule: R, dims: &Dims) -> Result<Self> {
        Self::where_zeros(build, rule, dims, |_| None)
    }

    /// As [`InitialState::new`], and a parameter that starts from zeros for the other slots of the memory; momentum alone is
    /// not learned.
    ///
    /// # Errors
    /// The device's own failures.
    pub fn all<B: Backend, R: GatedRule>(build: &mut Builder<'_, B>, rule: R, dims: &Dims) -> Result<Self> {
        Self::where_zeros(build, rule, dims, |name| (!R::MOMENTUM.contains(&name)).then_some(Init::Constant(0.0)))
    }

    fn where_zeros<B: Backend, R: Rule>(
        build: &mut Builder<'_, B>,
        rule: R,
        dims: &Dims,
        zeros: impl Fn(&str) -> Option<Init>,
    ) -> Result<Self> {
        let shapes = R::State::list(&rule.state(dims)).into_iter().map(|(_, shape)| shape.clone()).collect::<Vec<_>>();
        let initial = rule.initial(dims);
        let mut build = build.within("initial");
        let learned = |((name, &initial), shape): ((&str, &Initial), Shape)| {
            let init = match initial {
                Initial::Zeros => match zeros(name) {
                    Some(init) => init,
                    None => return Ok(None),
                },
                Initial::Constant(value) => Init::Constant(value),
                Initial::Normal(deviation) => Init::Spread(deviation),
                Initial::Unit => Init::Unit,
            };
            let mut axes = shape.axes().to_vec();
            axes[0] = 1;
            let unit = initial == Initial::Unit;
            Ok(Some(Learned { parameter: build.memory(name, axes, init)?, unit }))
        };
        Ok(Self(R::State::list(&initial).into_iter().zip(shapes).map(learned).collect::<Result<_>>()?))
    }

    /// Memories of as many sequences as `shapes` say, `[N,H,..]`, followed by the tape.
    ///
    /// # Errors
    /// The device's own failures.
    pub fn vars<B: Backend, S: Slots>(
        &self,
        tape: &Tape<'_, B>,
        device: &B,
        shapes: Of<S, Shape>,
    ) -> Result<Of<S, Var<B>>> {
        let mut arrays = self.arrays(tape, device, S::into_vec(shapes))?.into_iter();
        // One array for each shape, and one shape for each slot.
        Ok(S::build(|_| arrays.next().expect("as many arrays as slots")))
    }

    /// As [`InitialState::vars`], slot by slot.
    pub(super) fn arrays<B: Backend>(&self, tape: &Tape<'_, B>, device: &B, shapes: Vec<Shape>) -> Result<Vec<Var<B>>> {
        let array = |(learned, shape): (&Option<Learned>, Shape)| match learned {
            Some(Learned { parameter, unit }) => {
                let one = tape.parameter(*parameter)?;
                let one = if *unit { tape.l2_norm(&one, NORM_EPSILON)? } else { one };
                tape.repeat(&one, shape.axes()[0])
            }
            None => Ok(Var::constant(Tensor::zeros(device, shape, DType::F32)?)),
        };
        self.0.iter().zip(shapes).map(array).collect()
    }

    /// As [`InitialState::vars`], without a tape.
    ///
    /// # Errors
    /// The device's own failures.
    pub fn tensors<B: Backend, S: Slots>(
        &self,
        device: &B,
        parameters: &Parameters<B>,
        shapes: Of<S, Shape>,
    ) -> Result<Of<S, Tensor<B>>> {
        Ok(S::map(self.vars::<B, S>(&Tape::inert(parameters), device, shapes)?, |_, var| var.into_value()))
    }
}
