//! What memories start from.

use super::GatedRule;
use crate::{Builder, Init, ParameterId, Result, Tape, Var, gates::NORM_EPSILON};
use hecate_core::{Backend, DType, Dims, Initial, Rule, Shape, Slots, Tensor};

/// Fresh memories of a rule, slot by slot: zeros, or learned, one a head and the same for every text.
#[derive(Clone, Debug)]
pub struct InitialState(Vec<Option<Learned>>);

#[derive(Clone, Copy, Debug)]
struct Learned {
    parameter: ParameterId,
    /// Whether rows are divided by their norms, which learning changes.
    unit: bool,
}

impl Learned {
    /// The parameter of one slot; none where it starts from zeros and `zeros` does not say how they are learned.
    fn new<B: Backend>(
        build: &mut Builder<'_, B>,
        name: &str,
        initial: Initial,
        zeros: Option<Init>,
        shape: &Shape,
    ) -> Result<Option<Self>> {
        let init = match (initial, zeros) {
            (Initial::Zeros, None) => return Ok(None),
            (Initial::Zeros, Some(init)) => init,
            (Initial::Constant(value), _) => Init::Constant(value),
            (Initial::Normal(deviation), _) => Init::Spread(deviation),
            (Initial::Unit, _) => Init::Unit,
        };
        let mut axes = shape.axes().to_vec();
        axes[0] = 1;
        Ok(Some(Self { parameter: build.memory(name, axes, init)?, unit: initial == Initial::Unit }))
    }

    /// The memory of one text, `[1,H,..]`.
    fn one<B: Backend>(self, tape: &Tape<'_, B>) -> Result<Var<B>> {
        let one = tape.parameter(self.parameter)?;
        if self.unit { tape.l2_norm(&one, NORM_EPSILON) } else { Ok(one) }
    }
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

    /// As [`InitialState::all`] where memories go back to it, else as [`InitialState::new`].
    pub(super) fn where_retained<B: Backend, R: GatedRule>(
        build: &mut Builder<'_, B>,
        rule: R,
        dims: &Dims,
        anchored: bool,
    ) -> Result<Self> {
        if anchored { Self::all(build, rule, dims) } else { Self::new(build, rule, dims) }
    }

    /// `zeros` says of a slot that starts from zeros how it is learned, where it is.
    fn where_zeros<B: Backend, R: Rule>(
        build: &mut Builder<'_, B>,
        rule: R,
        dims: &Dims,
        zeros: impl Fn(&str) -> Option<Init>,
    ) -> Result<Self> {
        let (shapes, initial) = (R::State::into_vec(rule.state(dims)), R::State::into_vec(rule.initial(dims)));
        let mut build = build.within("initial");
        let slots = R::State::NAMES.iter().zip(initial).zip(shapes);
        let learned =
            slots.map(|((name, initial), shape)| Learned::new(&mut build, name, initial, zeros(name), &shape));
        Ok(Self(learned.collect::<Result<_>>()?))
    }

    /// What memories go back to, `[H,..]`, in the order of the rule's anchor: what the first `slots` slots start from. For
    /// states that [`InitialState::all`] made.
    pub(super) fn anchor<B: Backend>(&self, tape: &Tape<'_, B>, slots: usize) -> Result<Vec<Var<B>>> {
        let head = |learned: &Learned| {
            let one = learned.one(tape)?;
            tape.reshape(&one, one.axes()[1..].to_vec())
        };
        self.0.iter().flatten().take(slots).map(head).collect()
    }

    /// Memories of as many sequences as `shapes` say, one a slot, `[N,H,..]`: followed by the tape.
    pub(super) fn arrays<B: Backend>(&self, tape: &Tape<'_, B>, device: &B, shapes: Vec<Shape>) -> Result<Vec<Var<B>>> {
        let array = |(learned, shape): (&Option<Learned>, Shape)| match learned {
            Some(learned) => tape.repeat(&learned.one(tape)?, shape.axes()[0]),
            None => Ok(Var::constant(Tensor::zeros(device, shape, DType::F32)?)),
        };
        self.0.iter().zip(shapes).map(array).collect()
    }
}
