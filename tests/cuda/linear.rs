//! The linear rules at sizes for which the device has kernels of their own, and at odd ones between and beyond.

use super::{agree, agree_on};
use hecate_core::{
    DType, Kernel,
    rules::{Delta, Dgd, Erase, Hebbian, Objective, Titans},
};
use hecate_cuda::{Algorithm, Cuda};
use hecate_tests::{Array, Case, Sizes, checks, error, oracle::Oracle};

/// Every range of `K` that has a kernel, its edges, and more than any of them; blocks of columns whole and not.
const SIZES: [Sizes; 8] = [
    Sizes::new(1, 20, 2, 17, 33),
    Sizes::new(2, 10, 1, 32, 64),
    Sizes::new(1, 80, 1, 65, 5),
    Sizes::new(1, 12, 1, 128, 40),
    Sizes::new(1, 9, 1, 200, 3),
    Sizes::new(1, 4, 1, 256, 2),
    Sizes::new(1, 11, 2, 300, 9),
    Sizes::new(2, 130, 2, 70, 33),
];

/// Results and gradients at every size are those of the equations, token by token and, where that form exists, 64 at once.
fn agrees<R: Oracle>(rule: R)
where
    Cuda: Kernel<R>,
{
    let algorithms = [Algorithm::Auto, Algorithm::Chunk];
    let devices = || -> Vec<Cuda> {
        let each = |cuda: Cuda| algorithms.map(|algorithm| cuda.with_algorithm(algorithm).expect("another stream"));
        super::backends().into_iter().flat_map(each).collect()
    };
    (61..).zip(SIZES).for_each(|(seed, sizes)| agree_on(devices(), &Case::new(rule, sizes, seed)));
}

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
    let devices = chunked();
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
    for (seed, rule) in (95..).zip(R::all()) {
        checks::rounding_of(&devices, &Case::packed(rule, &[70, 1, 128, 63], 2, 32, 40, seed));
    }
}

/// Heads do not know of each other: two of many, which lie in wide blocks, come out as they do alone, in narrow ones.
fn heads_are_separate<R: Oracle>(rule: R, heads: usize)
where
    Cuda: Kernel<R>,
{
    let range = heads - 2..heads;
    let two = |slot: &str, x: &Array| x.cut(if ["m", "s"].contains(&slot) { 1 } else { 2 }, range.clone());
    for device in chunked() {
        let many = Case::new(rule, Sizes::new(1, 66, heads, 128, 128), 101);
        let few = Case::new(rule, Sizes::new(1, 66, 2, 128, 128), 101);
        let mut few =
            few.with(|slot, _| many.inputs.list().into_iter().find(|x| x.0 == slot).map(|x| two(slot, x.1)).unwrap());
        few.grads = many.grads.clone().try_map(|slot, x| Ok::<_, ()>(two(slot, &x))).unwrap();
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

/// Long sequences of few heads go in segments, with other kernels beside; the numbers are the same, to the bit.
fn segments_are_seamless<R: Oracle>(rule: R)
where
    Cuda: Kernel<R>,
{
    for device in chunked() {
        let in_turn = device.with_kernels_in_turn().expect("another stream");
        for case in [
            Case::new(rule, Sizes::new(2, 4200, 1, 64, 64), 107),
            Case::packed(rule, &[4170, 65, 1, 6200], 1, 72, 40, 108),
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

#[test]
fn rounds_hebbian() {
    rounds::<Hebbian>();
}

#[test]
fn rounds_delta() {
    rounds::<Delta>();
}

#[test]
fn rounds_titans() {
    rounds::<Titans>();
}

#[test]
fn rounds_dgd() {
    rounds::<Dgd>();
}

fn chunked() -> Vec<Cuda> {
    super::backends().iter().map(|cuda| cuda.with_algorithm(Algorithm::Chunk).expect("another stream")).collect()
}

/// More stretches of sequences than a device has room for at once: blocks go on to others.
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
    agree_on(chunked(), &Case::new(Delta::default(), sizes, 75));
    agree_on(chunked(), &Case::new(Titans::default(), sizes, 76));
}

#[test]
fn hebbian() {
    agrees(Hebbian::default());
}

#[test]
fn delta() {
    agrees(Delta { erase: Erase::Decayed, ..Delta::default() });
    agrees(Delta { frozen: Some(3), ..Delta::default() });
}

#[test]
fn titans() {
    agrees(Titans::default());
    agrees(Titans { frozen: Some(7), ..Titans::default() });
}

#[test]
fn dgd() {
    agrees(Dgd { objective: Objective::L2, frozen: Some(70), ..Dgd::default() });
}
