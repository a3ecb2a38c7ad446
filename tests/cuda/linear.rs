//! The linear rules in 16 bits, in segments, and in more sequences and heads than run at once.

use super::{gpu::agree, is_missing, with_algorithm};
use hecate_conformance::{Array, Case, Comparison, Sizes, assert_close, checks, error, oracle::Oracle};
use hecate_core::{
    DType, Kernel,
    families::LinearRule,
    rules::{Delta, Dgd, Hebbian, Lightning, Titans},
};
use hecate_cuda::{Algorithm, Cuda};

/// Sizes with 16-bit kernels of their own: tiles whole and not, columns in one block and several, and more chunks than have a
/// place in shared memory.
const NARROW: [Sizes; 10] = [
    Sizes::new(1, 130, 2, 64, 64),
    Sizes::new(1, 150, 1, 128, 72),
    Sizes::new(2, 65, 2, 24, 136),
    Sizes::new(1, 67, 46, 64, 128),
    Sizes::new(1, 66, 90, 72, 8),
    Sizes::new(1, 70, 1, 256, 40),
    Sizes::new(1, 130, 2, 200, 72),
    Sizes::new(1, 460, 1, 64, 64),
    Sizes::new(1, 400, 1, 128, 64),
    Sizes::new(1, 270, 1, 256, 32),
];

/// With 16-bit arguments, errors at these sizes are at most twice what rounding costs anyway: every option at the first,
/// one of them at the others, and sequences in one call.
fn rounds<R: Oracle>()
where
    Cuda: Kernel<R>,
{
    let devices = with_algorithm(Algorithm::Chunk(64));
    if devices.is_empty() {
        return;
    }
    for (seed, rule) in (81..).zip(R::all()) {
        checks::rounding_of(&devices, &Case::new(rule, NARROW[0], seed));
    }
    for (i, sizes) in NARROW.into_iter().enumerate() {
        let all = R::all();
        checks::rounding_of(&devices, &Case::new(all[i % all.len()], sizes, 91));
    }
    // Keys are all equal, or zero: one direction is written and erased over and over, or none.
    for sizes in [NARROW[0], NARROW[7], NARROW[8], NARROW[9]] {
        let case = || Case::new(R::all()[0], sizes, 93);
        checks::rounding_of(&devices, &case().changed("k", |i, drawn| drawn[i % (sizes.heads * sizes.key)]));
        rounds_states(&fading(case()));
    }
    for (seed, rule) in (95..).zip(R::all()) {
        checks::rounding_of(&devices, &Case::packed(rule, &[70, 1, 128, 63], 2, 32, 40, seed));
    }
}

/// Tokens that write nothing, before a memory forgets all, leave it no trace: with keys a hundred times as long the same bits.
fn leaves_no_trace<R: Oracle>()
where
    Cuda: Kernel<R>,
{
    for device in with_algorithm(Algorithm::Chunk(64)) {
        for sizes in [NARROW[0], NARROW[8]] {
            let (heads, key) = (sizes.heads, sizes.key);
            // Token 40 forgets; those before it write nothing.
            let gate = |i: usize, drawn: &[f64]| if i / heads == 40 { f64::NEG_INFINITY } else { drawn[i] };
            let strength = |i: usize, drawn: &[f64]| if i / heads < 40 { 0.0 } else { drawn[i] };
            let case = Case::new(R::all()[0], sizes, 97).changed("log_a", gate).changed("log_eta", gate);
            let case = case.changed("theta", strength).changed("beta", strength);
            let long = |i: usize, drawn: &[f64]| if i / (heads * key) < 40 { 100.0 * drawn[i] } else { drawn[i] };
            let longer = case.clone().changed("k", long);
            let [found, expected] = [&longer, &case].map(|case| case.run(&device, DType::Bf16).unwrap().outputs);
            for ((slot, found), (_, expected)) in found.list().into_iter().zip(expected.list()) {
                // Outputs before that read with those keys.
                if slot != "out" {
                    assert_eq!(error(&expected.values, &found.values), 0.0, "{case} {slot}");
                }
            }
        }
    }
}

#[test]
fn forgotten_tokens_leave_no_trace() {
    leaves_no_trace::<Delta>();
    leaves_no_trace::<Dgd>();
    leaves_no_trace::<Hebbian>();
    leaves_no_trace::<Titans>();
}

/// Heads do not know of each other: two of many, which lie in wide blocks, come out as they do alone, in narrow ones.
fn heads_are_separate<R: Oracle>(rule: R, heads: usize)
where
    Cuda: Kernel<R>,
{
    let range = heads - 2..heads;
    let two = |slot: &str, x: &Array| x.cut(if ["m", "s"].contains(&slot) { 1 } else { 2 }, range.clone());
    for device in with_algorithm(Algorithm::Chunk(64)) {
        let many = Case::new(rule, Sizes::new(1, 66, heads, 128, 128), 101);
        let few = Case::new(rule, Sizes::new(1, 66, 2, 128, 128), 101);
        let (inputs, grads) = (many.inputs.as_ref().map(two), many.grads.as_ref().map(two));
        let few = Case { inputs, grads, ..few };
        let (many, few) = (many.run(&device, DType::Bf16).unwrap(), few.run(&device, DType::Bf16).unwrap());
        for ((slot, many), (_, few)) in many.list().into_iter().zip(few.list()) {
            assert_eq!(error(&two(slot, many).values, &few.values), 0.0, "{rule:?} {slot}");
        }
    }
}

/// As many heads as blocks of 64 and of 128 columns are for.
#[test]
fn wide_blocks() {
    for heads in [46, 90] {
        heads_are_separate(Delta::default(), heads);
        heads_are_separate(Titans::default(), heads);
    }
}

/// Long sequences of few heads go in segments, with other kernels beside; the numbers are the same, to the bit. The first two
/// also go in segments beside each other, which the others are too short for or have too many heads.
fn segments_are_seamless<R: Oracle>(rule: R)
where
    Cuda: Kernel<R>,
{
    for device in with_algorithm(Algorithm::Chunk(64)) {
        let in_turn = device.with_kernels_in_turn().expect("another stream");
        for case in [
            Case::new(rule, Sizes::new(2, 6200, 1, 64, 64), 107),
            Case::packed(rule, &[4170, 65, 1, 6200], 1, 72, 40, 108),
            Case::new(rule, Sizes::new(2, 4200, 20, 64, 64), 109),
            Case::packed(rule, &[4170, 65, 1], 4, 72, 40, 110),
        ] {
            let (found, expected) = (case.run(&device, DType::Bf16).unwrap(), case.run(&in_turn, DType::Bf16).unwrap());
            for ((slot, found), (_, expected)) in found.list().into_iter().zip(expected.list()) {
                assert_eq!(error(&found.values, &expected.values), 0.0, "{rule:?} {slot}");
            }
        }
    }
}

#[test]
fn segments() {
    segments_are_seamless(Delta::default());
    segments_are_seamless(Titans::default());
}

/// Chunks in 16 bits are no further from 32 bits, token by token, than `limit` of the slot and of what rounding the arguments
/// costs; and give the same bits twice.
fn near<R: Oracle>(case: &Case<R>, limit: impl Fn(&str, f64) -> f64)
where
    Cuda: Kernel<R>,
{
    for (scan, chunked) in with_algorithm(Algorithm::Scan).iter().zip(&with_algorithm(Algorithm::Chunk(64))) {
        let run = |device: &Cuda, dtype| case.run(device, dtype).unwrap();
        let (exact, rounded) = (run(scan, DType::F32), run(scan, DType::Bf16));
        let (found, again) = (run(chunked, DType::Bf16), run(chunked, DType::Bf16));
        let compare = |(i, (slot, exact)): (usize, (&'static str, &Array))| {
            let [rounded, found, again] = [&rounded, &found, &again].map(|results| &results.list()[i].1.values);
            assert_eq!(error(found, again), 0.0, "{case} {slot}");
            let limit = limit(slot, error(&exact.values, rounded));
            Comparison { slot, error: error(&exact.values, found), limit }
        };
        let compared: Vec<Comparison> = exact.list().into_iter().enumerate().map(compare).collect();
        assert_close(&format!("{case} in 16 bits"), &compared);
    }
}

/// Token by token as the oracle has it; and in segments beside each other at most twice as far from 32 bits as rounding the
/// arguments leads, three times where a gradient is of a state and its gradient, which are both rounded.
fn adds_up<R: Oracle>(case: &Case<R>)
where
    Cuda: Kernel<R>,
{
    checks::rounding_of(&with_algorithm(Algorithm::Scan), case);
    near(case, |slot, rounding| if slot == "log_a" { 3.0 * rounding } else { 2.0 * rounding });
}

/// The case with nothing written: keys are zero. Retentions and momenta are a half now and then and else 1, so that something of
/// the states is left.
fn fading<R: Oracle>(case: Case<R>) -> Case<R> {
    let half = |i: usize, _: &[f64]| if i % 512 == 100 { 0.5_f64.ln() } else { 0.0 };
    case.changed("k", |_, _| 0.0).changed("log_a", half).changed("log_eta", half)
}

/// Where nothing is written, states alone are rounded, and their gradients, by up to 2⁻⁹ each; gates' gradients are of both.
fn rounds_states<R: Oracle>(case: &Case<R>)
where
    Cuda: Kernel<R>,
{
    let of_both = ["log_a", "log_eta"];
    near(case, |slot, rounding| (if of_both.contains(&slot) { 3.0 } else { 2.0 } * rounding).max(2.0 / 512.0));
}

/// Where keys are all equal and little is forgotten, the gradient of the memory is large but for the one direction that is erased
/// over and over. What comes from there feels its rounding as a factor: up to three times what rounding the arguments costs.
fn rounds_beside_large<R: Oracle>(case: &Case<R>)
where
    Cuda: Kernel<R>,
{
    let from_there = ["v", "theta", "beta", "log_a", "log_eta"];
    near(case, |slot, rounding| if from_there.contains(&slot) { 3.0 * rounding } else { 2.0 * rounding });
}

/// Rules that never erase go in segments from 32 chunks on, where few blocks run: 17, 17 and 15 chunks here. Retentions are those
/// of the case, or 1, or such that a segment leaves 0.6 of what was, or that two tokens in a row leave nothing.
#[test]
fn segments_of_sums() {
    if is_missing() {
        return;
    }
    let sizes = Sizes::new(1, 3100, 1, 72, 72);
    for (seed, rule) in (111..).zip(Hebbian::all()) {
        adds_up(&Case::new(rule, sizes, seed));
        for log_a in [0.0, -5e-4, -60.0] {
            adds_up(&Case::new(rule, sizes, seed).with(|slot, x| match slot {
                "log_a" => Array::full(x.shape, log_a),
                _ => x,
            }));
        }
    }
    adds_up(&Case::new(Lightning::default(), sizes, 117));
}

/// Segments end where their sequence does.
#[test]
fn segments_of_packed_sums() {
    if is_missing() {
        return;
    }
    adds_up(&Case::packed(Hebbian::default(), &[1100, 1, 2100, 70], 1, 80, 120, 118));
}

/// Of 32 bits as the oracle has it, and of 16 as above.
fn passes<R: Oracle>(case: &Case<R>)
where
    Cuda: Kernel<R>,
{
    agree(case);
    adds_up(case);
}

/// The case with so much of each token's forgetting that a whole segment does not leave nothing.
fn slowly<R: Oracle>(case: Case<R>) -> Case<R> {
    case.changed("log_a", |i, drawn| 0.01 * drawn[i])
}

/// Rules that erase go in segments beside each other from 80 chunks on: 94 here, the last of them not whole. Every exact form; then
/// nothing is forgotten, or almost all; keys are all equal, or zero.
fn states_are_passed<R: Oracle + LinearRule>()
where
    Cuda: Kernel<R>,
{
    if is_missing() {
        return;
    }
    let sizes = Sizes::new(1, 6003, 1, 64, 48);
    let exact: Vec<R> = R::all().into_iter().filter(|rule| rule.spec().frozen.is_none()).collect();
    for (seed, &rule) in (121..).zip(&exact) {
        passes(&slowly(Case::new(rule, sizes, seed)));
    }
    let case = || slowly(Case::new(exact[0], sizes, 131));
    passes(&case().changed("log_a", |_, _| 0.0));
    // What rounding costs says nothing where gradients vanish.
    agree(&case().changed("log_a", |_, _| -8.0));
    let alike = case().changed("k", |i, drawn| drawn[i % 64]);
    agree(&alike);
    rounds_beside_large(&alike);
    agree(&case().changed("k", |_, _| 0.0));
    rounds_states(&fading(case()));
    // Keys as wide as 32-bit kernels take, two heads; two sequences that are alike; segments that end where sequences do.
    passes(&slowly(Case::new(exact[0], Sizes::new(1, 5400, 2, 128, 72), 132)));
    passes(&slowly(Case::new(exact[0], Sizes::new(2, 5300, 1, 72, 40), 134)));
    passes(&slowly(Case::packed(exact[0], &[1100, 1, 6300, 5300, 70], 1, 80, 40, 133)));
}

#[test]
fn states_of_delta_are_passed() {
    states_are_passed::<Delta>();
}

/// Those of hebbian where its own kernels are not: in 32 bits, or with narrow values.
#[test]
fn states_of_hebbian_are_passed() {
    states_are_passed::<Hebbian>();
}

/// So long that other kernels go beside a segment's chain too: the same bits as in turn.
#[test]
fn long_segments() {
    for device in with_algorithm(Algorithm::Chunk(64)) {
        let in_turn = device.with_kernels_in_turn().expect("another stream");
        let case = slowly(Case::new(Delta::default(), Sizes::new(1, 65_600, 2, 64, 64), 135));
        let (found, expected) = (case.run(&device, DType::Bf16).unwrap(), case.run(&in_turn, DType::Bf16).unwrap());
        for ((slot, found), (_, expected)) in found.list().into_iter().zip(expected.list()) {
            assert_eq!(error(&found.values, &expected.values), 0.0, "{slot}");
        }
    }
}

#[test]
fn states_of_titans_are_passed() {
    states_are_passed::<Titans>();
}

#[test]
fn states_of_dgd_are_passed() {
    states_are_passed::<Dgd>();
}

macro_rules! rounding_tests {
    ($($name:ident $rule:ident),*) => {
        /// Each linear rule in 16 bits.
        mod rounds {
            $(
                #[test]
                fn $name() {
                    super::rounds::<hecate_core::rules::$rule>();
                }
            )*
        }
    };
}
hecate_core::for_each_linear_rule!(rounding_tests);

/// More checkpoint intervals than a device has room for at once: blocks go on to others.
#[test]
fn more_spans_than_blocks() {
    agree(&Case::new(Titans { frozen: Some(9), ..Titans::default() }, Sizes::new(9, 70, 16, 18, 2), 71));
    let lengths: Vec<usize> = (0..24).map(|i| 1 + 23 * i % 150).collect();
    agree(&Case::packed(Delta::default(), &lengths, 5, 17, 3, 73));
}

/// So many heads that blocks of columns are wide.
#[test]
fn many_heads() {
    let sizes = Sizes::new(1, 66, 101, 65, 5);
    let chunked = with_algorithm(Algorithm::Chunk(64));
    checks::agrees(&chunked, &Case::new(Delta::default(), sizes, 75), "many heads");
    checks::agrees(&chunked, &Case::new(Titans::default(), sizes, 76), "many heads");
}
