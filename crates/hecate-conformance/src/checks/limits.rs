//! Gates at the ends of their ranges, and beyond them.

use super::agrees;
use crate::{
    Array, Case, Random, Sizes,
    oracle::{Forgetting, Oracle},
};
use hecate_core::{DType, Error, Initial, Kernel, Slots};

/// More than a chunk of 64 tokens, so that a limit also meets the border between two.
const SIZES: Sizes = Sizes::new(1, 70, 2, 12, 9);

/// What one gate is at the tokens of a call.
type Setting = (&'static str, &'static str, fn(usize) -> f64);

/// Nothing is kept, nothing forgotten, nothing written, everything written, ascent instead of descent; always or now and
/// then.
const SETTINGS: [Setting; 15] = [
    // Logarithms: `a = 0` is minus infinity.
    ("a = 0", "log_a", |_| f64::NEG_INFINITY),
    ("a = 0 now and then", "log_a", |t| if t % 9 == 4 { f64::NEG_INFINITY } else { -0.05 }),
    ("a = 1", "log_a", |_| 0.0),
    // `e⁻²⁰` a token leaves the range of 32 bits within six tokens.
    ("strong decay", "log_a", |_| -20.0),
    ("strong decay now and then", "log_a", |t| if t % 7 == 3 { -20.0 } else { -0.01 }),
    ("eta = 0", "log_eta", |_| f64::NEG_INFINITY),
    ("eta = 0 now and then", "log_eta", |t| if t % 11 == 5 { f64::NEG_INFINITY } else { -0.2 }),
    ("theta = 0", "theta", |_| 0.0),
    ("theta = 1", "theta", |_| 1.0),
    ("beta = 0", "beta", |_| 0.0),
    ("theta < 0 now and then", "theta", |t| if t % 9 == 4 { -0.5 } else { 0.5 }),
    // Huber's threshold: nearly every error is outside, nearly none.
    ("small delta", "delta", |_| 1e-3),
    ("large delta", "delta", |_| 1e3),
    ("gamma = 0 now and then", "gamma", |t| if t % 9 == 4 { 0.0 } else { 0.2 }),
    ("beta < 0 now and then", "beta", |t| if t % 9 == 4 { -0.2 } else { 0.2 }),
];

/// Results and gradients are those of the equations, and finite, with each gate at its limits.
pub fn gates_at_limits<R: Oracle, B: Kernel<R>>(backends: &[B]) {
    for rule in R::all() {
        // Rules without the gate, and rules that cannot be compared after so much is forgotten, are left out.
        let fits = |(_, gate, value): &Setting| {
            R::Gates::NAMES.contains(gate) && rule.forgetting() >= forgetting(gate, *value)
        };
        for (name, gate, value) in SETTINGS.into_iter().filter(fits) {
            let case = Case::new(rule, SIZES, 19);
            // A write of full strength is stable alone; what momentum adds up to is not.
            let strength = if gate == "theta" { rule.strength() } else { 1.0 };
            let tokens = case.dims.tokens;
            let case = case.with(|slot, mut array| {
                if slot == gate {
                    // A token's elements of the gate: one a head, or a row a head.
                    let elements = array.values.len() / tokens;
                    array.values.iter_mut().enumerate().for_each(|(i, x)| *x = strength * value(i / elements));
                // Momentum would add up steps of full strength.
                } else if slot == "log_eta" && gate == "theta" {
                    array.values.fill(f64::NEG_INFINITY);
                }
                array
            });
            agrees(backends, &case, name);
        }
    }
}

/// Less than a group of 16, and more than one of 5.
const FEW: Sizes = Sizes::new(1, 9, 2, 5, 4);

/// Anchors get `1 − a` of the state's gradient, which next to `a = 1` is a small difference.
pub fn anchors_next_to_one<R: Oracle, B: Kernel<R>>(backends: &[B]) {
    for rule in R::all() {
        for exponent in 1..=9 {
            let log_a = f64::from(-(10f32.powi(-exponent)));
            let Some(case) = Case::new(rule, FEW, 33).anchored(34) else { continue };
            agrees(backends, &case.changed("log_a", |_, _| log_a), &format!("log a = -1e-{exponent}"));
        }
    }
}

/// How much a setting forgets.
fn forgetting(gate: &str, value: fn(usize) -> f64) -> Forgetting {
    // `a` under `e⁻¹` counts as forgetting; other gates never do.
    let lost = (0..SIZES.tokens).filter(|t| gate == "log_a" && value(*t) < -1.0).count();
    match lost {
        0 => Forgetting::Little,
        lost if lost < SIZES.tokens => Forgetting::Sometimes,
        _ => Forgetting::Always,
    }
}

/// Keys that all point nearly the same way: the worst conditioned chunks.
pub fn correlated_keys<R: Oracle, B: Kernel<R>>(backends: &[B]) {
    for rule in R::all() {
        // One direction for all tokens and heads.
        let common = Random::new(29).units([SIZES.key]);
        let group = rule.group();
        let case = Case::new(rule, SIZES, 23).with(|slot, mut array| {
            match slot {
                "q" | "k" => array.values.chunks_mut(SIZES.key).for_each(|row| lean(row, &common.values)),
                // Groups of tokens along one key act as one step with the sum of their strengths.
                "theta" if group.is_some() => array.values.iter_mut().for_each(|x| *x *= 0.3),
                _ => {}
            }
            array.rounded(DType::F32)
        });
        agrees(backends, &case, "correlated keys");
    }
}

/// The first tokens of a memory that has read nothing: zeros wherever the rule starts from such.
pub fn fresh_memory<R: Oracle, B: Kernel<R>>(backends: &[B]) {
    for rule in R::all() {
        // The very first token, and the first few, far from a full chunk.
        for tokens in [1, 6] {
            let case = Case::new(rule, Sizes { tokens, ..SIZES }, 27);
            let initial = R::State::into_vec(rule.initial(&case.dims));
            // Slots that start from unit rows stay random: zeros are no state of theirs.
            let zeros: Vec<_> = R::State::NAMES
                .iter()
                .zip(initial)
                .filter(|(_, x)| *x == Initial::Zeros)
                .map(|(name, _)| *name)
                .collect();
            let case = case.with(
                |slot, array| {
                    if zeros.contains(&slot) { Array::full(array.shape.clone(), 0.0) } else { array }
                },
            );
            agrees(backends, &case, "a fresh memory");
        }
    }
}

/// A row of length 1 that points nearly where `common` does.
pub(crate) fn lean(row: &mut [f64], common: &[f64]) {
    // The cosine to `common` is about `1/√1.04`.
    row.iter_mut().zip(common).for_each(|(x, c)| *x = 0.2 * *x + c);
    let norm = row.iter().map(|x| x * x).sum::<f64>().sqrt();
    row.iter_mut().for_each(|x| *x /= norm);
}

/// A gate that is not a number is refused by name, or seen in what its sequence and head reads; never hidden, and never
/// spread to others.
pub fn nan_is_seen<R: Oracle, B: Kernel<R>>(backends: &[B]) {
    for rule in R::all() {
        for gate in R::Gates::NAMES {
            // Head 1 of sequence 0, token 3 of 20.
            let case = Case::new(rule, Sizes::new(2, 20, 2, 5, 6), 31).with(|slot, mut array| {
                if slot == *gate {
                    // Elements of one token and head.
                    let elements = array.values.len() / (2 * 20 * 2);
                    array.values[(3 * 2 + 1) * elements] = f64::NAN;
                }
                array
            });
            for backend in backends {
                match case.infer(backend, DType::F32) {
                    // Refused before anything runs: as good as seen.
                    Err(Error::Value { slot, .. }) => assert_eq!(slot, *gate, "{case} on {backend:?}"),
                    Err(error) => panic!("{case} on {backend:?}: NaN in `{gate}` reported as {error}"),
                    Ok(outputs) => {
                        // Every other sequence and head must not have read it.
                        let (hurt, sound) = split(&outputs.out);
                        assert!(hurt.iter().any(|x| x.is_nan()), "{case} on {backend:?}: NaN in `{gate}` hidden");
                        assert!(sound.iter().all(|x| x.is_finite()), "{case} on {backend:?}: NaN in `{gate}` spread");
                    }
                }
            }
        }
    }
}

/// Outputs of head 1 of sequence 0, and all others; `[2,T,2,V]`.
fn split(out: &Array) -> (Vec<f64>, Vec<f64>) {
    let [_, tokens, heads, width] = out.shape.axes() else { unreachable!("outputs have four axes") };
    // Sequence and head of element `i`.
    let row = |i: usize| (i / width / heads / tokens, i / width % heads);
    let (mut hurt, mut sound) = (Vec::new(), Vec::new());
    for (i, &x) in out.values.iter().enumerate() {
        if row(i) == (0, 1) { hurt.push(x) } else { sound.push(x) }
    }
    (hurt, sound)
}
