//! Memories that are functions with weights: `e = f(W; k) − v`, a step against `∂⟨f, ψ(e)⟩/∂W`, and what is kept.

use super::{Forgetting, Oracle, Token, Var};
use crate::Sizes;
use hecate_core::{
    Of, Read, Rule, Slots,
    rules::{
        Activation, Bias, Deep, DeepRule, Huber, LQ_EPSILON, Map, MatrixMemory, Memora, MemoraMatrix, MlpMemory,
        Moneta, MonetaMatrix, NORM_EPSILON, Retention, Structure, TitansMlp, Yaad, YaadMatrix, YaadMomentum,
    },
};

/// A memory's output at one input, and what its gradient needs.
struct Output {
    /// Input, pre-activation and activation of the hidden layer.
    x: Var,
    hidden: Option<(Var, Var)>,
    /// `x̂` and `s`.
    norm: Option<(Var, Var)>,
    out: Var,
}

/// `f(W; x)`.
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
    let norm = structure.norm().then(|| {
        let centred = &out - mean(&out);
        let deviation = mean(&centred.square()).shift(f64::from(NORM_EPSILON)).sqrt();
        (&centred * deviation.recip(), deviation)
    });
    if let Some((normed, _)) = &norm {
        out = normed.clone();
    }
    if structure.residual() {
        out = out + x;
    }
    Output { x: x.clone(), hidden, norm, out }
}

/// `∂⟨f(W; x), u⟩/∂W` for a constant `u`, matrix by matrix.
fn gradient(structure: Structure, weights: &[Var], at: &Output, u: &Var) -> Vec<Var> {
    let u = match &at.norm {
        None => u.clone(),
        Some((normed, deviation)) => (u - mean(u) - normed * mean(&(normed * u))) * deviation.recip(),
    };
    let (Structure::Mlp(memory), Some((pre, h))) = (structure, &at.hidden) else {
        return vec![at.x.t().dot(&u)];
    };
    let delta = u.dot(&weights[1].t()) * activation(memory.activation, pre).1;
    vec![at.x.t().dot(&delta), h.t().dot(&u)]
}

fn mean(x: &Var) -> Var {
    x.sum().scale(1.0 / x.shape().1 as f64)
}

/// `σ` and `σ′`.
fn activation(activation: Activation, x: &Var) -> (Var, Var) {
    match activation {
        Activation::Silu => {
            let s = x.scale(-1.0).exp().shift(1.0).recip();
            (x * &s, &s * (x * s.scale(-1.0).shift(1.0)).shift(1.0))
        }
        Activation::GeluTanh => {
            let (c, cubic) = ((2.0 / std::f64::consts::PI).sqrt(), 0.044715);
            let t = (x + x * x.square().scale(cubic)).scale(c).tanh();
            let slope = x.square().scale(3.0 * cubic).shift(1.0).scale(c);
            let half = t.shift(1.0).scale(0.5);
            let bend = x.scale(0.5) * t.square().scale(-1.0).shift(1.0) * slope;
            (x * &half, half + bend)
        }
        Activation::Gelu => {
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
fn teach(bias: Bias, e: &Var, delta: Option<&Var>) -> Var {
    match bias {
        Bias::L2 => e.clone(),
        Bias::Lp { p, epsilon, tanh } => {
            let (p, m) = (f64::from(p), e.square().shift(f64::from(epsilon)));
            match tanh {
                false => e * power(&m, (p - 2.0) / 2.0).scale(p),
                true => e.scale(10.0).tanh() * power(&m, (p - 1.0) / 2.0).scale(p),
            }
        }
        Bias::Huber(kind) => {
            let delta = delta.expect("a rule with Huber's error has the gate `delta`");
            huber(kind, e, delta)
        }
    }
}

fn huber(kind: Huber, e: &Var, delta: &Var) -> Var {
    let (limit, width) = (delta.value(), e.shape().1);
    let values = e.values();
    let signs = e.constant(1, width, values.iter().map(|e| if *e == 0.0 { 0.0 } else { e.signum() }).collect());
    let length = e.square().sum().sqrt();
    match kind {
        Huber::Coordinate => {
            let inside: Vec<f64> = values.iter().map(|e| f64::from(u8::from(e.abs() <= limit))).collect();
            let outside = inside.iter().map(|inside| 1.0 - inside).collect();
            e * e.constant(1, width, inside) + delta * (signs * e.constant(1, width, outside))
        }
        _ if length.value() <= limit => e.clone(),
        Huber::Norm => e * (delta * length.recip()),
        Huber::Mix => delta * signs,
    }
}

/// `m^power` for positive `m`.
fn power(m: &Var, power: f64) -> Var {
    m.ln().scale(power).exp()
}

/// Weights from the state of one matrix.
fn expose(retention: Retention, x: &Var) -> Var {
    match retention {
        Retention::Decay => x.clone(),
        Retention::Kl { scale } => x.exp().scale(f64::from(scale)),
        Retention::Lq { q, map } => {
            let q = f64::from(q);
            let norm = power(&x.square(), q / 2.0).sum().shift(f64::from(LQ_EPSILON));
            let factor = power(&norm, (2.0 - q) / q);
            match map {
                Map::Literal => x * factor,
                Map::Mirror => x * power(&x.square(), (q - 2.0) / 2.0) * factor,
            }
        }
    }
}

/// `x − log Σ eˣ`, column by column.
fn log_softmax(x: &Var) -> Var {
    let rows = x.shape().0;
    x - x.constant(1, rows, vec![1.0; rows]).dot(&x.exp()).ln()
}

/// One token of any of these rules.
fn step<R: DeepRule>(
    rule: R,
    token: &Token<R>,
    old: &Of<R::State, Var>,
    point: &Of<R::State, Var>,
) -> (Var, Of<R::State, Var>) {
    let Deep { structure, bias, retention, momentum, read, .. } = rule.deep();
    let gates = R::Gates::list(&token.gates);
    let gate = |name| gates.iter().find(|(slot, _)| *slot == name).map(|(_, gate)| *gate);
    let named = |name| gate(name).expect("a gate that the rule has");
    let vars = |state: &Of<R::State, Var>| -> Vec<Var> {
        R::State::into_vec(R::State::as_ref(state)).into_iter().cloned().collect()
    };
    let (old, point) = (vars(old), vars(point));
    let count = if let Structure::Matrix(_) = structure { 1 } else { 2 };
    let exposed = |state: &[Var]| -> Vec<Var> { state[..count].iter().map(|x| expose(retention, x)).collect() };

    let weights = exposed(&point);
    let at = apply(structure, &weights, &token.k);
    let u = teach(bias, &(&at.out - &token.v), gate("delta"));
    let (a, theta) = (named("log_a").exp(), named("theta"));
    let (mut new, mut velocities) = (Vec::new(), Vec::new());
    for (i, gradient) in gradient(structure, &weights, &at, &u).into_iter().enumerate() {
        let mut move_by = (theta * gradient).scale(-1.0);
        if momentum {
            move_by = named("log_eta").exp() * &old[count + i] + move_by;
            velocities.push(move_by.clone());
        }
        let kept = &a * &old[i] + move_by;
        new.push(if let Retention::Kl { .. } = retention { log_softmax(&kept) } else { kept });
    }
    let seen = exposed(if read == Read::After { &new } else { &old });
    let mut state = new.into_iter().chain(velocities);
    let state = R::State::build(|_| state.next().expect("as many matrices as slots"));
    (apply(structure, &seen, &token.q).out, state)
}

/// Two layers whose weights are powers of what is kept: after a reset they fall under the smallest 64-bit number.
fn falls_fast(deep: Deep) -> bool {
    matches!((deep.structure, deep.retention), (Structure::Mlp(_), Retention::Lq { .. }))
}

/// Keys as wide as values where inputs are added to outputs.
fn fit(structure: Structure, sizes: Sizes) -> Sizes {
    if structure.residual() { Sizes { value: sizes.key, ..sizes } } else { sizes }
}

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
                fit(self.deep().structure, sizes)
            }

            fn forgetting(self) -> Forgetting {
                match self.deep().structure {
                    structure if structure.norm() || falls_fast(self.deep()) => Forgetting::Little,
                    Structure::Mlp(_) => Forgetting::Sometimes,
                    Structure::Matrix(_) => Forgetting::Always,
                }
            }

            fn strength(self) -> f64 {
                let shared = if self.frozen.is_some() { 0.1 } else { 1.0 };
                let normed = if self.deep().structure.norm() { 0.5 } else { 1.0 };
                shared * normed * $strength
            }

            fn conditioning(self, slot: &str) -> f64 {
                // What forgetting does to a distribution is a small difference of its logarithms.
                if Self::NAME.starts_with("memora") && slot == "log_a" { 3.0 } else { 1.0 }
            }

            fn step(
                self,
                token: &Token<Self>,
                old: &Of<Self::State, Var>,
                point: &Of<Self::State, Var>,
            ) -> (Var, Of<Self::State, Var>) {
                step(self, token, old, point)
            }
        }
    )* };
}

const GELU: MlpMemory = MlpMemory { expansion: 1, activation: Activation::Gelu, residual: true, norm: true };
const PLAIN: MlpMemory = MlpMemory { expansion: 1, activation: Activation::Gelu, residual: true, norm: false };
const TANH: MlpMemory = MlpMemory { expansion: 3, activation: Activation::GeluTanh, residual: false, norm: false };
const NORM: MlpMemory = MlpMemory { expansion: 2, activation: Activation::Silu, residual: false, norm: true };
const WHOLE: MatrixMemory = MatrixMemory { residual: true, norm: true };

oracles! {
    TitansMlp: 0.2, [
        Self::default(),
        Self { memory: GELU, ..Self::default() },
        Self { memory: TANH, read: Read::Before, ..Self::default() },
        Self { frozen: Some(16), ..Self::default() },
        Self { memory: GELU, frozen: Some(70), ..Self::default() },
        Self { memory: NORM, read: Read::Before, frozen: Some(5) },
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
    ];
    MonetaMatrix: 0.03, [
        Self::default(),
        Self { p: 1.0, epsilon: 1e-2, q: 3.0, memory: WHOLE, frozen: Some(5), ..Self::default() },
    ];
    Yaad: 0.3, [
        Self::default(),
        Self { bias: Huber::Norm, memory: GELU, ..Self::default() },
        Self { bias: Huber::Mix, read: Read::Before, ..Self::default() },
        Self { frozen: Some(16), memory: TANH, ..Self::default() },
        Self { bias: Huber::Norm, frozen: Some(70), memory: NORM, read: Read::Before },
    ];
    YaadMatrix: 0.5, [
        Self::default(),
        Self { bias: Huber::Norm, memory: WHOLE, ..Self::default() },
        Self { bias: Huber::Mix, frozen: Some(5), ..Self::default() },
    ];
    YaadMomentum: 0.3, [
        Self::default(),
        Self { bias: Huber::Norm, frozen: Some(16), ..Self::default() },
    ];
    Memora: 0.05, [
        Self::default(),
        Self { scale: 2.0, memory: PLAIN, ..Self::default() },
        Self { read: Read::Before, ..Self::default() },
        Self { frozen: Some(16), ..Self::default() },
    ];
    MemoraMatrix: 0.5, [
        Self { scale: 3.0, ..Self::default() },
        Self { scale: 3.0, read: Read::Before, frozen: Some(5), ..Self::default() },
    ];
}
