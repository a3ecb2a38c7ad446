//! Rules that forget by channel: what holds of channels that forget apart.

use super::{accepted, agrees};
use crate::{Array, Case, Sizes, error, oracle::Oracle};
use hecate_core::{
    DType, Kernel,
    rules::{Delta, Erase, Kda},
};

/// More than two intervals of kept states, keys that are no multiple of a vector.
const SIZES: Sizes = Sizes::new(1, 130, 2, 12, 9);

/// Channels that keep nothing at all, always or now and then, beside others that keep nearly all or lose most.
///
/// # Panics
/// Where results or gradients are not those of the equations.
pub fn forgotten_channels<R: Oracle, B: Kernel<R>>(backends: &[B]) {
    let settings: [(&str, fn(usize) -> f64); 3] = [
        ("a channel of zeros", |i| if i % SIZES.key == 5 { f64::NEG_INFINITY } else { -0.1 }),
        ("zeros now and then", |i| if i % 19 == 4 { f64::NEG_INFINITY } else { -0.05 * (i % SIZES.key) as f64 }),
        // The bound of gates that are kept away from zero, over all of a chunk, and gates from 10⁻⁴ to 30.
        ("gates far apart", |i| {
            if i / (2 * SIZES.key) < 64 { -5.0 } else { -(10f64.powf(-4.0 + 5.5 * ((i * 7) % 23) as f64 / 22.0)) }
        }),
    ];
    for rule in R::all() {
        for (name, of) in settings {
            let case = Case::new(rule, SIZES, 41).changed("log_a", |i, _| f64::from(of(i) as f32));
            agrees(backends, &case, name);
        }
    }
}

/// Calls of one token, and of lengths around those of chunks and their parts.
///
/// # Panics
/// Where results or gradients are not those of the equations.
pub fn lengths_around_chunks<R: Oracle, B: Kernel<R>>(backends: &[B]) {
    for rule in R::all() {
        for tokens in [1, 15, 16, 17, 63, 64, 65] {
            agrees(backends, &Case::new(rule, Sizes { tokens, ..SIZES }, 43), "lengths around chunks");
        }
    }
}

/// What later tokens bring, gates too, changes no bit of what earlier ones read.
///
/// # Panics
/// Where it does, or where it does not change what they read themselves.
pub fn later_gates_leave_earlier_tokens<R: Oracle, B: Kernel<R>>(backends: &[B]) {
    let changed = 70;
    for rule in R::all() {
        let case = Case::new(rule, SIZES, 47);
        let other = Case::new(rule, SIZES, 48);
        let mut arrays = other.inputs.list().into_iter();
        let mixed = case.clone().with(|_, mut array| {
            let (_, other) = arrays.next().expect("the same slots");
            // A token's elements, of what has tokens.
            let row = array.values.len() / SIZES.tokens;
            if array.shape.axes()[1] == SIZES.tokens {
                array.values[changed * row..].copy_from_slice(&other.values[changed * row..]);
            }
            array
        });
        for backend in backends {
            let read = |case: &Case<R>| accepted(backend, case, case.infer(backend, DType::F32)).out;
            let (before, after) = (read(&case), read(&mixed));
            let cut = changed * before.values.len() / SIZES.tokens;
            let same = |range: std::ops::Range<usize>| {
                before.values[range.clone()].iter().zip(&after.values[range]).all(|(x, y)| x.to_bits() == y.to_bits())
            };
            assert!(same(0..cut), "{case} on {backend:?}: later tokens changed what earlier ones read");
            assert!(!same(cut..before.values.len()), "{case} on {backend:?}: the change was not seen");
        }
    }
}

/// Where all channels of a head keep the same, Kimi delta attention is the gated delta rule, and the gradient of its gates adds
/// up to that of the one gate.
///
/// # Panics
/// Where it is not.
pub fn equal_channels_are_the_delta_rule<B: Kernel<Kda> + Kernel<Delta>>(backends: &[B]) {
    let delta = Case::new(Delta { erase: Erase::Decayed, ..Delta::default() }, SIZES, 51);
    let mut kda = Case::new(Kda::default(), SIZES, 51);
    let gates = &delta.inputs.gates;
    kda.inputs.gates.log_a.values = gates.log_a.values.iter().flat_map(|&x| [x; SIZES.key]).collect();
    kda.inputs.gates.theta = gates.theta.clone();
    (kda.inputs.q, kda.inputs.k, kda.inputs.v) =
        (delta.inputs.q.clone(), delta.inputs.k.clone(), delta.inputs.v.clone());
    kda.inputs.state = delta.inputs.state.clone();
    kda.grads.out = delta.grads.out.clone();
    kda.grads.state = delta.grads.state.clone();
    for backend in backends {
        let (one, all) = (delta.run(backend, DType::F32), kda.run(backend, DType::F32));
        let (one, all) = (accepted(backend, &delta, one), accepted(backend, &kda, all));
        let sums = |x: &Array| x.values.chunks(SIZES.key).map(|row| row.iter().sum::<f64>()).collect::<Vec<_>>();
        let (dall, done) = (&all.grads, &one.grads);
        let pairs = [
            ("out", one.outputs.out.values.clone(), all.outputs.out.values.clone(), 1e-6),
            ("m", one.outputs.state.m.values.clone(), all.outputs.state.m.values.clone(), 1e-6),
            ("dq", done.q.values.clone(), dall.q.values.clone(), 1e-5),
            ("dk", done.k.values.clone(), dall.k.values.clone(), 1e-5),
            ("dv", done.v.values.clone(), dall.v.values.clone(), 1e-5),
            ("dtheta", done.gates.theta.values.clone(), dall.gates.theta.values.clone(), 1e-5),
            ("dlog_a", done.gates.log_a.values.clone(), sums(&dall.gates.log_a), 1e-5),
        ];
        for (slot, truth, found, limit) in pairs {
            let error = error(&truth, &found);
            assert!(error < limit, "{slot} of {kda} on {backend:?}: {error:e}");
        }
    }
}
