//! The linear rules at sizes that one invocation, workgroup or chunk does not hold, and at odd ones between.

use super::{agree, agree_on};
use hecate_core::{
    Error, Kernel,
    rules::{Delta, Dgd, Erase, Hebbian, Objective, Titans},
};
use hecate_tests::{Array, Case, Sizes, oracle::Oracle};
use hecate_wgpu::Wgpu;

/// Columns of one and several invocations, whole and not; keys and values of multiples of four numbers and of others;
/// more columns than a workgroup has.
const SIZES: [Sizes; 5] = [
    Sizes::new(1, 20, 2, 17, 33),
    Sizes::new(1, 80, 1, 65, 21),
    Sizes::new(1, 12, 1, 128, 40),
    Sizes::new(1, 11, 2, 300, 9),
    Sizes::new(2, 130, 2, 70, 33),
];

/// Columns that fill their invocations, and tiles, to the last; more of them without a remainder.
const WHOLE: [Sizes; 3] = [Sizes::new(2, 10, 1, 32, 64), Sizes::new(1, 9, 1, 200, 3), Sizes::new(1, 4, 1, 256, 2)];

/// Results and gradients at every size are those of the equations.
fn agrees<R: Oracle>(rule: R)
where
    Wgpu: Kernel<R>,
{
    (61..).zip(SIZES).for_each(|(seed, sizes)| agree(&Case::new(rule, sizes, seed)));
}

/// So many chunks that not all have room at once, of which a GPU with memory of its own has more; sequences of very
/// different length.
#[test]
fn more_chunks_than_room() {
    for wgpu in super::backends() {
        let batch = if wgpu.adapter().kind == "discrete GPU" { 36 } else { 9 };
        agree_on(&[wgpu], &Case::new(Titans::default(), Sizes::new(batch, 70, 48, 6, 3), 71));
    }
    let lengths: Vec<usize> = (0..24).map(|i| 1 + 23 * i % 150).collect();
    agree(&Case::packed(Delta::default(), &lengths, 5, 17, 19, 73));
}

/// A column that many invocations share, and one that is too long for a workgroup.
#[test]
fn long_keys() {
    agree(&Case::new(Titans::default(), Sizes::new(1, 3, 1, 2100, 2), 77));
    for wgpu in super::backends() {
        let sizes = Sizes::new(1, 1, 1, 8196, 1);
        let found = Case::new(Delta::default(), sizes, 79).infer(&wgpu, hecate_core::DType::F32);
        let Err(Error::Unsupported { why, .. }) = &found else { panic!("{}: {:?}", wgpu.adapter(), found.map(|_| ())) };
        assert!(why.contains("8196") && why.contains("8192"), "{why}");
    }
}

/// No token writes, and none remembers: zeros and not what was in memory before.
#[test]
fn nothing_written() {
    let case = Case::new(Titans::default(), Sizes::new(1, 66, 1, 36, 20), 81);
    agree(&case.with(|slot, array| match slot {
        "theta" => Array::full(array.shape.clone(), 0.0),
        "log_a" | "log_eta" => Array::full(array.shape.clone(), f64::NEG_INFINITY),
        _ => array,
    }));
}

#[test]
fn whole_columns() {
    (91..).zip(WHOLE).for_each(|(seed, sizes)| agree(&Case::new(Titans::default(), sizes, seed)));
    (91..).zip(WHOLE).for_each(|(seed, sizes)| agree(&Case::new(Delta::default(), sizes, seed)));
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
    agrees(Dgd { objective: Objective::L2, frozen: Some(20), ..Dgd::default() });
}
