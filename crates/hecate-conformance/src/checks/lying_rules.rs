//! Rules whose answers change from question to question, and whose slots are not those of their family.
//!
//! Each call of one is an error or has a result. It never panics, and no kernel leaves its arrays; a checker of memory sees the
//! latter.
//!
//! A rule may be safe code of somebody else. So kernels must not trust that it answers alike twice, or that what was
//! checked is what is computed.

use hecate_core::{
    Backend, ConvInput, DType, Decode, Device, Dims, GateForm, GateLogit, Inputs, Kernel, NoSlots, Of, Outputs, Read,
    Rule, Shape, Slots, Tensor, TokenGates, decode,
    families::{
        Channel, ChannelForm, ChannelRule, DeepForm, DeepMatrix, DeepRule, DeepSpec, EraseKey, EraseStrength, Linear,
        LinearMatrix, LinearRule, LinearSpec, LinearState, LowerState, LowerWeights, RetentionAxis, RewriteKey,
    },
    forward, forward_packed, infer,
    rules::{AttentionalBias, Huber, Map, MatrixMemory, MlpMemory, MomentumForm, MomentumGates, Retention, Structure},
};
use std::cell::Cell;

thread_local! {
    /// Questions that were answered since the last call began.
    static ASKED: Cell<u32> = const { Cell::new(0) };
}

/// Whether this question comes after so many others.
/// It counts this one too. One count serves all answers, since a call asks for options, states and slots in turn.
fn is_late(after: u32) -> bool {
    ASKED.replace(ASKED.get() + 1) >= after
}

/// What a rule says first, and what it says later.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Lie<S> {
    /// The answer to the first `after` questions.
    first: S,
    /// The answer to all others.
    later: S,
    /// Questions until then.
    after: u32,
}

impl<S> Lie<S> {
    /// Counts as a question, whichever answer it is.
    fn answer(self) -> S {
        if is_late(self.after) { self.later } else { self.first }
    }
}

/// Two matrices, of which one is gone when somebody asks late.
/// They are a list, whose length no type holds; kernels expect `[sequences, heads, key, value]` of each.
#[derive(Debug)]
struct Vanishing;

impl Slots for Vanishing {
    type Of<T> = Vec<T>;
    const NAMES: &'static [&'static str] = &["m", "s"];

    fn try_build<T, E>(make: impl FnMut(&'static str) -> Result<T, E>) -> Result<Vec<T>, E> {
        Self::NAMES.iter().copied().map(make).collect()
    }

    // One matrix where two are promised: whoever counts slots by their names is out by one.
    fn into_vec<T>(slots: Vec<T>) -> Vec<T> {
        slots.into_iter().take(if is_late(12) { 1 } else { 2 }).collect()
    }

    // Both, always: whoever looks finds more than whoever takes.
    fn as_ref<T>(slots: &Vec<T>) -> Vec<&T> {
        slots.iter().collect()
    }

    fn list<T>(slots: &Vec<T>) -> Vec<(&'static str, &T)> {
        Self::NAMES.iter().copied().zip(slots).take(if is_late(12) { 1 } else { 2 }).collect()
    }

    fn try_map<T, U, E>(slots: Vec<T>, mut f: impl FnMut(&'static str, T) -> Result<U, E>) -> Result<Vec<U>, E> {
        Self::NAMES.iter().zip(slots).map(|(name, x)| f(name, x)).collect()
    }

    fn map<T, U>(slots: Vec<T>, mut f: impl FnMut(&'static str, T) -> U) -> Vec<U> {
        Self::NAMES.iter().zip(slots).map(|(name, x)| f(name, x)).collect()
    }

    fn zip<T, U>(a: Vec<T>, b: Vec<U>) -> Vec<(T, U)> {
        a.into_iter().zip(b).collect()
    }
}

impl LowerState for Vanishing {
    // Late, a rule with momentum has no momentum to start from.
    fn lower<T>(slots: Vec<T>) -> LinearState<T> {
        let mut slots = slots.into_iter();
        let m = slots.next().expect("two were made");
        LinearState { m, s: if is_late(9) { None } else { slots.next() } }
    }

    // Late, one gradient is asked for twice, and the other by nobody.
    fn lower_backward<T>(mut matrix: impl FnMut(LinearMatrix) -> T) -> Vec<T> {
        let second = if is_late(9) { LinearMatrix::M } else { LinearMatrix::S };
        vec![matrix(LinearMatrix::M), matrix(second)]
    }
}

impl LowerWeights for Vanishing {
    // Late, the second is a weight of a second layer, which a memory of one matrix lacks.
    fn lower_backward<T>(mut matrix: impl FnMut(DeepMatrix) -> T) -> Vec<T> {
        let second = if is_late(9) { DeepMatrix::W1 } else { DeepMatrix::S0 };
        vec![matrix(DeepMatrix::W0), matrix(second)]
    }
}

/// A linear rule with a lie about its options.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Linearly(Lie<LinearSpec>);

impl Rule for Linearly {
    const NAME: &'static str = "lying_linear";
    type Family = Linear;
    type Gates = MomentumGates<()>;
    type State = Vanishing;
    type Anchor = NoSlots;

    // Late, the second matrix is a column: kernels that trust its shape would read past its end.
    fn state(self, dims: &Dims) -> Vec<Shape> {
        let later = Shape::from([dims.sequences.count(), dims.heads, dims.key, 1]);
        vec![dims.matrices(), if is_late(self.0.after) { later } else { dims.matrices() }]
    }
}

impl LinearRule for Linearly {
    fn spec(self) -> LinearSpec {
        self.0.answer()
    }
}

/// A deep rule with one.
/// The number beside it stands where a rule keeps how many tokens share a gradient.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Deeply(Lie<DeepSpec>, Option<u32>);

impl DeepRule for Deeply {
    const NAME: &'static str = "lying_deep";
    const FORM: DeepForm = DeepForm::L2Momentum;
    type Gates = MomentumGates<()>;
    type State = Vanishing;
    type Anchor = NoSlots;

    fn spec(self) -> DeepSpec {
        self.0.answer()
    }

    // Whoever reads the option changes it.
    fn frozen_option(&mut self) -> &mut Option<u32> {
        self.1 = is_late(7).then_some(5);
        &mut self.1
    }
}

/// One matrix, which is gone when somebody asks late.
#[derive(Debug)]
struct Fleeting;

impl Slots for Fleeting {
    type Of<T> = Vec<T>;
    const NAMES: &'static [&'static str] = &["m"];

    fn try_build<T, E>(mut make: impl FnMut(&'static str) -> Result<T, E>) -> Result<Vec<T>, E> {
        Ok(vec![make("m")?])
    }

    // Late, there is nothing where one array was promised.
    fn into_vec<T>(slots: Vec<T>) -> Vec<T> {
        slots.into_iter().take(usize::from(!is_late(5))).collect()
    }

    fn as_ref<T>(slots: &Vec<T>) -> Vec<&T> {
        slots.iter().collect()
    }

    fn list<T>(slots: &Vec<T>) -> Vec<(&'static str, &T)> {
        slots.iter().map(|x| ("m", x)).take(usize::from(!is_late(6))).collect()
    }

    fn try_map<T, U, E>(slots: Vec<T>, mut f: impl FnMut(&'static str, T) -> Result<U, E>) -> Result<Vec<U>, E> {
        slots.into_iter().map(|x| f("m", x)).collect()
    }

    fn map<T, U>(slots: Vec<T>, mut f: impl FnMut(&'static str, T) -> U) -> Vec<U> {
        slots.into_iter().map(|x| f("m", x)).collect()
    }

    fn zip<T, U>(a: Vec<T>, b: Vec<U>) -> Vec<(T, U)> {
        a.into_iter().zip(b).collect()
    }
}

/// A rule of the channel family whose matrix is a column when somebody asks late.
///
/// `WIDE` is whether its form has gates of `K`, which its slots say are numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Channelly<const WIDE: bool>(u32);

impl<const WIDE: bool> Rule for Channelly<WIDE> {
    const NAME: &'static str = "lying_channel";
    type Family = Channel;
    type Gates = MomentumGates<()>;
    type State = Fleeting;
    type Anchor = NoSlots;

    fn state(self, dims: &Dims) -> Vec<Shape> {
        let later = Shape::from([dims.sequences.count(), dims.heads, dims.key, 1]);
        vec![if is_late(self.0) { later } else { dims.matrices() }]
    }
}

impl<const WIDE: bool> ChannelRule for Channelly<WIDE> {
    const FORM: ChannelForm = ChannelForm {
        retention: if WIDE { RetentionAxis::Channel } else { RetentionAxis::Head },
        step: true,
        erase: if WIDE { EraseKey::Gated } else { EraseKey::Scaled },
        rewrite: RewriteKey::Key,
        factors: false,
        undecayed: false,
    };
    type Logits = NoSlots;
}

/// Every way to call one.
fn call_channel<D: Backend, const WIDE: bool>(device: &D, rule: Channelly<WIDE>) {
    let [batch, tokens, heads, key, value] = DIMS;
    let dims = Dims::new(batch, tokens, heads, key, value);
    let zeros = |shape: Shape| Tensor::zeros(device, shape, DType::F32).expect("zeros");
    let gate = || zeros(dims.scalars());
    let inputs = || Inputs::<Channelly<WIDE>, Tensor<D>> {
        q: zeros(dims.keys()),
        k: zeros(dims.keys()),
        v: zeros(dims.values()),
        gates: MomentumGates { log_a: gate(), log_eta: gate(), theta: gate() },
        state: vec![zeros(dims.matrices())],
        anchor: None,
    };
    ASKED.set(0);
    _ = infer(device, rule, &inputs());
    for _ in 0..2 {
        let back = forward(device, rule, inputs());
        ASKED.set(0);
        let Ok(made) = back else { continue };
        _ = made.pass.backward(Outputs { out: made.outputs.out, state: vec![zeros(dims.matrices())] });
    }
    device.synchronize().unwrap_or_else(|error| panic!("after {rule:?}: {error}"));
}

/// Sequences of 70 tokens: more than an interval of kept states.
/// `[batch, tokens, heads, key, value]`, and small, for there are hundreds of calls.
const DIMS: [usize; 5] = [2, 70, 1, 4, 4];

/// Every way to call a rule.
/// The arguments are honest and zero, so that whatever goes wrong is the rule's doing. Errors are as good as results:
/// most lies deserve one.
fn call<D: Kernel<R> + Backend, R: Rule<Gates = MomentumGates<()>, State = Vanishing>>(device: &D, rule: R) {
    let [batch, tokens, heads, key, value] = DIMS;
    let dims = Dims::new(batch, tokens, heads, key, value);
    let zeros = |shape: Shape| Tensor::zeros(device, shape, DType::F32).expect("zeros");
    // Honest arguments.
    let matrices = || vec![zeros(dims.matrices()), zeros(dims.matrices())];
    let inputs = || Inputs::<R, Tensor<D>> {
        q: zeros(dims.keys()),
        k: zeros(dims.keys()),
        v: zeros(dims.values()),
        gates: MomentumGates {
            log_a: zeros(dims.scalars()),
            log_eta: zeros(dims.scalars()),
            theta: zeros(dims.scalars()),
        },
        state: matrices(),
        anchor: None,
    };
    ASKED.set(0);
    _ = infer(device, rule, &inputs());
    // The count begins anew for each pass, so that a lie may come in the forward or in the backward.
    for back in [forward(device, rule, inputs()), forward_packed(device, rule, &[tokens; 2], inputs())] {
        ASKED.set(0);
        let Ok(made) = back else { continue };
        _ = made.pass.backward(Outputs { out: made.outputs.out, state: matrices() });
    }
    ASKED.set(0);
    if let Ok(made) = forward(device, rule, inputs()) {
        _ = made.pass.backward_out(made.outputs.out);
    }
    ASKED.set(0);
    _ = decode(rule, [heads, key, value], &token::<D, R>(device));
    device.synchronize().unwrap_or_else(|error| panic!("after {rule:?}: {error}"));
}

/// One token of a layer.
/// Gates are `[batch, 1, heads]`, and q, k and v `[batch, 1, heads · width]`, as projections leave them.
fn token<D: Device, R: Rule<State = Vanishing>>(device: &D) -> Decode<R, Tensor<D>> {
    let [batch, _, heads, key, value] = DIMS;
    let zeros = |axes: &[usize]| Tensor::zeros(device, axes, DType::F32).expect("zeros");
    let logit = || GateLogit { x: zeros(&[batch, 1, heads]), bias: zeros(&[heads]) };
    let map = |width: usize| ConvInput { x: zeros(&[batch, 1, heads * width]), conv: None };
    let state: Of<R::State, Tensor<D>> = vec![zeros(&[batch, heads, key, value]), zeros(&[batch, heads, key, value])];
    Decode {
        q: map(key),
        k: map(key),
        v: map(value),
        norm_epsilon: 1e-6,
        gates: TokenGates {
            retention: Some((logit(), zeros(&[heads]))),
            write: logit(),
            strengths: GateForm::Momentum(logit()),
        },
        state,
        weight: zeros(&[value]),
        epsilon: 1e-6,
        gate: None,
    }
}

/// No rule makes a call panic or leave its arrays, whatever it answers, and the device goes on.
///
/// # Panics
/// Where one does.
pub fn bears_lying_rules<D: Backend>(device: &D) {
    let honest = LinearSpec { momentum: true, erase: EraseStrength::Theta, ..LinearSpec::default() };
    // Each needs other gates, other states or another kernel than the honest one.
    let linear = [
        honest,
        LinearSpec { momentum: false, ..honest },
        LinearSpec { frozen: Some(3), erase: EraseStrength::Nothing, ..honest },
        LinearSpec { frozen: Some(0), ..honest },
        LinearSpec { frozen: Some(u32::MAX), ..honest },
        LinearSpec { erase: EraseStrength::Beta, ..honest },
        LinearSpec { look_ahead: true, ..honest },
        LinearSpec { look_ahead: true, momentum: false, ..honest },
        LinearSpec { read: Read::Before, ..honest },
    ];
    let plain = DeepSpec::new(Structure::Matrix(MatrixMemory::default()), Read::After, None);
    // Among them what no rule may have: sizes that overflow, an exponent that is no number, a negative scale.
    let deep = [
        plain,
        DeepSpec { structure: Structure::Mlp(MlpMemory::default()), ..plain },
        DeepSpec { structure: Structure::Mlp(MlpMemory { expansion: u32::MAX, ..MlpMemory::default() }), ..plain },
        DeepSpec { structure: Structure::Matrix(MatrixMemory { residual: true, norm: true }), ..plain },
        DeepSpec { frozen: Some(4), ..plain },
        DeepSpec { frozen: Some(0), ..plain },
        DeepSpec { bias: AttentionalBias::Huber(Huber::Norm), ..plain },
        DeepSpec { bias: AttentionalBias::Lp { p: f32::NAN, epsilon: 0.0, tanh: true }, ..plain },
        DeepSpec { retention: Retention::Lq { q: 4.0, map: Map::Mirror }, ..plain },
        DeepSpec { retention: Retention::Kl { scale: -1.0 }, ..plain },
        DeepSpec { momentum: MomentumForm::LookAhead, ..plain },
        DeepSpec { renorm: true, frozen: Some(4), ..plain },
    ];
    // Never, at once, and at every question on the way.
    for after in [u32::MAX, 0, 1, 2, 4, 7] {
        call_channel(device, Channelly::<false>(after));
        call_channel(device, Channelly::<true>(after));
        for later in linear {
            // Both ways round: the lie is what was checked, or what is computed.
            call(device, Linearly(Lie { first: honest, later, after }));
            call(device, Linearly(Lie { first: later, later: honest, after }));
        }
        for later in deep {
            call(device, Deeply(Lie { first: plain, later, after }, None));
            call(device, Deeply(Lie { first: later, later: plain, after }, None));
        }
    }
}
