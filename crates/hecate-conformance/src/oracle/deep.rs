//! Memories that are functions with weights: `e = f(W; k) − v`, a step against `∂⟨f, ψ(e)⟩/∂W`, and what is kept.
//!
//! Source: Behrouz et al., "It's All Connected" (MIRAS). Numbers in parentheses are those of `hecate-core`'s
//! documentation of `rules::deep`, (33)–(38) and (47)–(55). Only the forward is written here: dfdx differentiates it.
//! The inner gradient is part of that forward, so it is spelt out by hand, and dfdx gives its second derivative.

use super::{Forgetting, Oracle, Token, Var};
use crate::Sizes;
use hecate_core::{
    Of, Read, Slots,
    families::{DeepRule, DeepSpec},
    rules::{
        Activation, AttentionalBias, COLUMN_EPSILON, Huber, LQ_EPSILON, Map, MatrixMemory, Memora, MemoraMatrix,
        MlpMemory, MomentumForm, Moneta, MonetaMatrix, NORM_EPSILON, Retention, Structure, TitansMlp, Yaad, YaadMatrix,
        YaadMomentum,
    },
};

/// A memory's output at one input, and what its gradient needs.
struct Output {
    /// Input, pre-activation and activation of the hidden layer.
    x: Var,
    /// `pre` and `h = σ(pre)`, each `[1,D]`; nothing in a memory of one matrix.
    hidden: Option<(Var, Var)>,
    /// `x̂` and `s`.
    /// Of the output before the norm, `[1,V]` and `[1,1]`; nothing without a norm.
    norm: Option<(Var, Var)>,
    /// `f(W; x)`, `[1,V]`.
    out: Var,
}

/// `f(W; x)`.
/// The memory as a function: weights `[K,V]`, or `[K,D]` and `[D,V]`, and one input `[1,K]`.
fn apply(structure: Structure, weights: &[Var], x: &Var) -> Output {
    let hidden = match structure {
        Structure::Matrix(_) => None,
        Structure::Mlp(memory) => {
            let pre = x.dot(&weights[0]);
            let h = activation(memory.activation, &pre).0;
            Some((pre, h))
        }
    };
    let mut out = hidden.as_ref().map_or_else(|| x.dot(&weights[0]), |(_, h)| h.dot(&weights[1]));
    // The norm has no parameters, so its only constant is the one under the root.
    let norm = structure.norm().then(|| {
        let centred = &out - mean(&out);
        // The variance of the population, not of a sample: divided by the width.
        let deviation = mean(&centred.square()).shift(f64::from(NORM_EPSILON)).sqrt();
        (&centred * deviation.recip(), deviation)
    });
    if let Some((normed, _)) = &norm {
        out = normed.clone();
    }
    // After the norm: what the norm takes off the layers is not taken off the input.
    if structure.residual() {
        out = out + x;
    }
    Output { x: x.clone(), hidden, norm, out }
}

/// `∂⟨f(W; x), u⟩/∂W` for a constant `u`, matrix by matrix.
fn gradient(structure: Structure, weights: &[Var], at: &Output, u: &Var) -> Vec<Var> {
    // `J u`: the Jacobian of a layer norm is symmetric, so this is its transpose too.
    let u = match &at.norm {
        None => u.clone(),
        Some((normed, deviation)) => (u - mean(u) - normed * mean(&(normed * u))) * deviation.recip(),
    };
    // (39) for one matrix, (40) for two.
    let (Structure::Mlp(memory), Some((pre, h))) = (structure, &at.hidden) else {
        return vec![at.x.t().dot(&u)];
    };
    let delta = u.dot(&weights[1].t()) * activation(memory.activation, pre).1;
    vec![at.x.t().dot(&delta), h.t().dot(&u)]
}

/// Mean of a row, `[1,1]`.
fn mean(x: &Var) -> Var {
    x.sum().scale(1.0 / x.shape().1 as f64)
}

/// `σ` and `σ′`.
fn activation(activation: Activation, x: &Var) -> (Var, Var) {
    match activation {
        // `σ(x) = 1/(1 + e⁻ˣ)`, whose own slope is `σ (1 − σ)`.
        Activation::Silu => {
            let s = x.scale(-1.0).exp().shift(1.0).recip();
            (x * &s, &s * (x * s.scale(-1.0).shift(1.0)).shift(1.0))
        }
        Activation::GeluTanh => {
            // Hendrycks and Gimpel, "Gaussian Error Linear Units": the approximation by a hyperbolic tangent.
            let (c, cubic) = ((2.0 / std::f64::consts::PI).sqrt(), 0.044715);
            let t = (x + x * x.square().scale(cubic)).scale(c).tanh();
            let slope = x.square().scale(3.0 * cubic).shift(1.0).scale(c);
            let half = t.shift(1.0).scale(0.5);
            let chained = x.scale(0.5) * t.square().scale(-1.0).shift(1.0) * slope;
            (x * &half, half + chained)
        }
        Activation::Gelu => {
            // Φ by its series and φ by definition: the slope is `Φ(x) + x φ(x)`.
            let density = x.square().scale(-0.5).exp().scale((2.0 * std::f64::consts::PI).sqrt().recip());
            let below = (x * &density * tail(x)).shift(0.5);
            (x * &below, below + x * density)
        }
    }
}

/// `1 + x²/3 (1 + x²/5 (1 + …))`: `Φ(x) = ½ + x φ(x)` times it. Enough terms for `|x| < 9`. (dfdx has a function for
/// `x Φ(x)`, whose gradient lacks a factor of `1/√2`.)
fn tail(x: &Var) -> Var {
    let square = x.square();
    (1..120).rev().fold(x.scale(0.0).shift(1.0), |sum, n| (&square * sum).scale(1.0 / f64::from(2 * n + 1)).shift(1.0))
}

/// `ψ(e)`.
/// The gradient of the attentional bias, (47)–(52). `e` is `[1,V]`, `delta` the gate `[1,1]` of the rules that have one.
fn inner_grad(bias: AttentionalBias, e: &Var, delta: Option<&Var>) -> Var {
    match bias {
        AttentionalBias::L2 => e.clone(),
        AttentionalBias::Lp { p, epsilon, tanh } => {
            // `e² + ε` is positive, so its powers are smooth through `e = 0`, and logarithms are defined.
            let (p, m) = (f64::from(p), e.square().shift(f64::from(epsilon)));
            match tanh {
                false => e * power(&m, (p - 2.0) / 2.0).scale(p),
                // Not the gradient of any error: the sign is smoothed, as MIRAS suggests, at a slope of 10.
                true => e.scale(10.0).tanh() * power(&m, (p - 1.0) / 2.0).scale(p),
            }
        }
        AttentionalBias::Huber(kind) => {
            let delta = delta.expect("a rule with Huber's error has the gate `delta`");
            huber(kind, e, delta)
        }
    }
}

/// (50)–(52): an error that grows linearly outside `δ`.
///
/// Which side an element is on is decided by its value and counts as constant, as in the adjoints of (50)–(52).
fn huber(kind: Huber, e: &Var, delta: &Var) -> Var {
    let (limit, width) = (delta.value(), e.shape().1);
    let values = e.values();
    // The sign of 0 is 0 here, where `signum` says 1.
    let signs = e.constant(1, width, values.iter().map(|e| if *e == 0.0 { 0.0 } else { e.signum() }).collect());
    let length = e.square().sum().sqrt();
    match kind {
        // Masks of 0 and 1 in place of branches: dfdx has none element by element.
        Huber::Coordinate => {
            let inside: Vec<f64> = values.iter().map(|e| f64::from(u8::from(e.abs() <= limit))).collect();
            let outside = inside.iter().map(|inside| 1.0 - inside).collect();
            e * e.constant(1, width, inside) + delta * (signs * e.constant(1, width, outside))
        }
        // The limit itself counts as inside, as in (51) and (52).
        _ if length.value() <= limit => e.clone(),
        Huber::Norm => e * (delta * length.recip()),
        Huber::Mix => delta * signs,
    }
}

/// `u / √(1 + |u|²/c²)`, (94); `u [1,V]` itself without a `c`.
fn clipped(u: Var, clip: Option<f32>) -> Var {
    let Some(c) = clip.map(f64::from) else { return u };
    let stretch = u.square().sum().scale(1.0 / (c * c)).shift(1.0).sqrt();
    u * stretch.recip()
}

/// `x √((|b|² + ε)/(|x|² + ε))` column by column, (95).
fn renormed(x: &Var, anchor: &Var) -> Var {
    let rows = x.shape().0;
    // A row of ones times the squares: the sum down each column, `[1,columns]`.
    let lengths = |x: &Var| x.constant(1, rows, vec![1.0; rows]).dot(&x.square()).shift(f64::from(COLUMN_EPSILON));
    x * (lengths(anchor) * lengths(x).recip()).sqrt()
}

/// `m^power` for positive `m`.
/// By way of the logarithm: a matrix of the oracle has no other real power.
fn power(m: &Var, power: f64) -> Var {
    m.ln().scale(power).exp()
}

/// Weights from the state of one matrix.
/// (53)–(55). `x` is one matrix of one head; the norm of `Lq` runs over all of it.
fn to_weights(retention: Retention, x: &Var) -> Var {
    match retention {
        Retention::Decay => x.clone(),
        Retention::Kl { scale } => x.exp().scale(f64::from(scale)),
        Retention::Lq { q, map } => {
            let q = f64::from(q);
            // `Σ|X|^q + ε`, without its root of order `q`: the exponent of the next line holds that.
            let norm = power(&x.square(), q / 2.0).sum().shift(f64::from(LQ_EPSILON));
            // `ν^{2−q}`. At `q = 2` it is 1 and the map is decay.
            let factor = power(&norm, (2.0 - q) / q);
            match map {
                Map::Literal => x * factor,
                // `|X|^{q−2} X`, with the absolute value as the root of a square.
                Map::Mirror => x * power(&x.square(), (q - 2.0) / 2.0) * factor,
            }
        }
    }
}

/// `x − log Σ eˣ`, column by column.
/// The retention of (55). In 64 bits `eˣ` holds up to `x = 700`, so no maximum is taken off.
fn log_softmax(x: &Var) -> Var {
    let rows = x.shape().0;
    x - x.constant(1, rows, vec![1.0; rows]).dot(&x.exp()).ln()
}

/// One token of any of these rules.
/// (33)–(38). States come as lists of matrices: weights first, then as many momenta where the rule has them.
fn step<R: DeepRule>(
    rule: R,
    token: &Token<R>,
    old: &Of<R::State, Var>,
    point: &Of<R::State, Var>,
) -> (Var, Of<R::State, Var>) {
    let DeepSpec { structure, bias, retention, read, clip, .. } = rule.spec();
    let gates = R::Gates::list(&token.gates);
    // Gates by name: which ones there are depends on the rule.
    let gate = |name| gates.iter().find(|(slot, _)| *slot == name).map(|(_, gate)| *gate);
    let named = |name| gate(name).expect("a gate that the rule has");
    let vars = |state: &Of<R::State, Var>| -> Vec<Var> {
        R::State::into_vec(R::State::as_ref(state)).into_iter().cloned().collect()
    };
    let (old, mut point) = (vars(old), vars(point));
    let count = if let Structure::Matrix(_) = structure { 1 } else { 2 };
    let ahead = rule.spec().looks_ahead();
    if ahead {
        // Gradients are taken where momentum leads.
        (0..count).for_each(|i| point[i] = &point[i] + &point[count + i]);
    }
    let weights_of = |state: &[Var]| -> Vec<Var> { state[..count].iter().map(|x| to_weights(retention, x)).collect() };

    // The inner gradient is taken at `point`, the group's start where frozen, as in (33).
    let weights = weights_of(&point);
    let at = apply(structure, &weights, &token.k);
    let u = clipped(inner_grad(bias, &(&at.out - &token.v), gate("delta")), clip);
    let (a, theta) = (named("log_a").exp(), named("theta"));
    // Retention and step act on the state `X`, not on the weights that are made from it.
    let (mut new, mut velocities) = (Vec::new(), Vec::new());
    for (i, gradient) in gradient(structure, &weights, &at, &u).into_iter().enumerate() {
        let mut move_by = (theta * gradient).scale(-1.0);
        if ahead {
            // `N = a N + z`, and the momentum what of it the memory does not have yet.
            let (next, eta) = (&a * (&old[i] + &old[count + i]) + move_by, named("log_eta").exp());
            let memory = &eta * (&a * &old[i]) + (&next - &eta * &next);
            velocities.push(&next - &memory);
            new.push(memory);
            continue;
        }
        if R::FORM.momentum() {
            move_by = named("log_eta").exp() * &old[count + i] + move_by;
            velocities.push(move_by.clone());
        }
        let kept = &a * &old[i] + move_by;
        // Normalised at every token, so that columns stay distributions: the `retain` of (36).
        new.push(if let Retention::Kl { .. } = retention { log_softmax(&kept) } else { kept });
    }
    // Reading always uses the token's own states, frozen or not: (38).
    let seen = weights_of(if read == Read::After { &new } else { &old });
    let mut state = new.into_iter().chain(velocities);
    let state = R::State::build(|_| state.next().expect("as many matrices as slots"));
    (apply(structure, &seen, &token.q).out, state)
}

/// Two layers whose weights are powers of what is kept: after a reset they fall under the smallest 64-bit number.
fn falls_fast(spec: DeepSpec) -> bool {
    matches!((spec.structure, spec.retention), (Structure::Mlp(_), Retention::Lq { .. }))
}

/// Keys as wide as values where inputs are added to outputs.
fn fit(structure: Structure, sizes: Sizes) -> Sizes {
    if structure.residual() { Sizes { value: sizes.key, ..sizes } } else { sizes }
}

/// `impl Oracle` for each rule: its step size as a number, and the combinations of options that are tested.
///
/// Combinations are picked by hand and not all taken: the equations take longer than most kernels.
macro_rules! oracles {
    ($($rule:ty: $strength:literal, [$($value:expr),* $(,)?];)*) => { $(
        impl Oracle for $rule {
            fn all() -> Vec<Self> {
                vec![$($value),*]
            }

            fn group(self) -> Option<usize> {
                self.frozen.map(|group| group as usize)
            }

            fn fit(self, sizes: Sizes) -> Sizes {
                fit(self.spec().structure, sizes)
            }

            fn forgetting(self) -> Forgetting {
                match self.spec().structure {
                    structure if structure.norm() || falls_fast(self.spec()) => Forgetting::Little,
                    Structure::Mlp(_) => Forgetting::Sometimes,
                    Structure::Matrix(_) => Forgetting::Always,
                }
            }

            fn opened(self, x: Var, anchor: &Var) -> Var {
                if self.spec().renorm { renormed(&x, anchor) } else { x }
            }

            fn momentum_forgets(self) -> bool {
                self.spec().looks_ahead()
            }

            fn strength(self) -> f64 {
                // Tokens of a group step from one point, so their steps add up before any of them is seen.
                let shared = if self.frozen.is_some() { 0.1 } else { 1.0 };
                // A norm's Jacobian has the output's deviation in its denominator: gradients are larger.
                let normed = if self.spec().structure.norm() { 0.5 } else { 1.0 };
                shared * normed * $strength
            }

            fn conditioning(self, slot: &str) -> f64 {
                // What forgetting does to a distribution is a small difference of its logarithms.
                let spread = matches!(self.spec().retention, Retention::Kl { .. });
                // After a norm outputs are told apart by a millionth of their mean. Predictions at keys are as alike, but the state
                // that a call begins with need be no distribution, so they are not centred: their rounding is in gradients of keys.
                match (slot, self.spec().structure.norm()) {
                    ("k", true) if spread => 20.0,
                    ("theta", true) if spread => 3.0,
                    ("out", true) if spread => 2.0,
                    ("log_a", _) if spread => 3.0,
                    _ => 1.0,
                }
            }

            fn step(self, token: &Token<Self>, old: &Of<Self::State, Var>, point: &Of<Self::State, Var>) -> (Var, Of<Self::State, Var>) {
                step(self, token, old, point)
            }
        }
    )* };
}

// Kinds of memories: every activation, expansions of 1 to 3, with residual and norm and without.
const GELU: MlpMemory = MlpMemory { expansion: 1, activation: Activation::Gelu, residual: true, norm: true };
const PLAIN: MlpMemory = MlpMemory { expansion: 1, activation: Activation::Gelu, residual: true, norm: false };
const TANH: MlpMemory = MlpMemory { expansion: 3, activation: Activation::GeluTanh, residual: false, norm: false };
const NORM: MlpMemory = MlpMemory { expansion: 2, activation: Activation::Silu, residual: false, norm: true };
const WHOLE: MatrixMemory = MatrixMemory { residual: true, norm: true };

oracles! {
    // Each kind of memory meets reading before the write, or a group of tokens.
    TitansMlp: 0.2, [
        Self::default(),
        Self { memory: GELU, ..Self::default() },
        Self { memory: TANH, read: Read::Before, ..Self::default() },
        Self { frozen: Some(16), ..Self::default() },
        Self { memory: GELU, frozen: Some(70), ..Self::default() },
        Self { memory: NORM, read: Read::Before, frozen: Some(5), ..Self::default() },
        Self { momentum: MomentumForm::LookAhead, ..Self::default() },
        Self { momentum: MomentumForm::LookAhead, memory: GELU, read: Read::Before, frozen: Some(5), ..Self::default() },
        // Values are longer than these lengths, and most errors with them.
        Self { clip: Some(1.0), ..Self::default() },
        Self { clip: Some(2.0), memory: NORM, frozen: Some(16), ..Self::default() },
        Self { clip: Some(2.0), momentum: MomentumForm::LookAhead, frozen: Some(5), ..Self::default() },
        Self { renorm: true, frozen: Some(1), ..Self::default() },
        Self { renorm: true, frozen: Some(16), memory: TANH, ..Self::default() },
        Self { renorm: true, frozen: Some(5), momentum: MomentumForm::LookAhead, ..Self::default() },
    ];
    // The cube of an error is steep: a step that a bounded error would allow runs away.
    Moneta: 0.03, [
        Self::default(),
        // At q = 4 a decaying dual variable makes the literal weights grow without bound; at 3 they keep their size.
        Self { map: Map::Literal, q: 3.0, memory: TANH, ..Self::default() },
        Self { p: 1.5, epsilon: 1e-4, q: 2.0, read: Read::Before, ..Self::default() },
        Self { tanh: true, q: 3.0, memory: PLAIN, ..Self::default() },
        // Cubed errors through a norm amplify rounding ten thousand times: the norm is tested with other errors.
        Self { frozen: Some(16), memory: PLAIN, ..Self::default() },
        Self { clip: Some(2.0), ..Self::default() },
        Self { clip: Some(2.0), frozen: Some(16), memory: PLAIN, ..Self::default() },
    ];
    MonetaMatrix: 0.03, [
        Self::default(),
        Self { p: 1.0, epsilon: 1e-2, q: 3.0, memory: WHOLE, frozen: Some(5), ..Self::default() },
    ];
    // A bounded error (50)–(52) bears ten times Moneta's step.
    Yaad: 0.3, [
        Self::default(),
        Self { bias: Huber::Norm, memory: GELU, ..Self::default() },
        Self { bias: Huber::Mix, read: Read::Before, ..Self::default() },
        Self { frozen: Some(16), memory: TANH, ..Self::default() },
        Self { bias: Huber::Norm, frozen: Some(70), memory: NORM, read: Read::Before, ..Self::default() },
        Self { clip: Some(1.0), memory: GELU, ..Self::default() },
        Self { clip: Some(1.0), bias: Huber::Mix, read: Read::Before, ..Self::default() },
        Self { clip: Some(1.0), bias: Huber::Norm, frozen: Some(16), ..Self::default() },
        Self { renorm: true, frozen: Some(5), ..Self::default() },
        Self { renorm: true, frozen: Some(70), memory: NORM, bias: Huber::Norm, ..Self::default() },
    ];
    YaadMatrix: 0.5, [
        Self::default(),
        Self { bias: Huber::Norm, memory: WHOLE, ..Self::default() },
        Self { bias: Huber::Mix, frozen: Some(5), ..Self::default() },
        Self { clip: Some(1.0), frozen: Some(5), ..Self::default() },
        Self { renorm: true, frozen: Some(16), ..Self::default() },
    ];
    YaadMomentum: 0.3, [
        Self::default(),
        Self { bias: Huber::Norm, frozen: Some(16), ..Self::default() },
        Self { momentum: MomentumForm::LookAhead, ..Self::default() },
        Self { momentum: MomentumForm::LookAhead, memory: TANH, frozen: Some(16), ..Self::default() },
        Self { clip: Some(1.0), ..Self::default() },
        Self { clip: Some(1.0), memory: NORM, frozen: Some(16), ..Self::default() },
        Self { renorm: true, frozen: Some(16), ..Self::default() },
    ];
    // A step moves logarithms here, so weights change by factors.
    Memora: 0.05, [
        Self::default(),
        Self { scale: 2.0, memory: PLAIN, ..Self::default() },
        Self { read: Read::Before, ..Self::default() },
        Self { frozen: Some(16), ..Self::default() },
        // Shorter errors move logarithms so little that it is lost in them, unless the weights are larger.
        Self { clip: Some(4.0), scale: 4.0, ..Self::default() },
        Self { clip: Some(4.0), scale: 4.0, frozen: Some(16), ..Self::default() },
    ];
    MemoraMatrix: 0.5, [
        Self { scale: 3.0, ..Self::default() },
        Self { scale: 3.0, read: Read::Before, frozen: Some(5), ..Self::default() },
    ];
}
