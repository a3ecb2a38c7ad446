//! The linear rules at sizes that one invocation, workgroup or chunk does not hold, and at odd ones between.

use super::gpu::agree;
use hecate_conformance::{Array, Case, Sizes, checks};
use hecate_core::{
    Error,
    rules::{Delta, Titans},
};

/// Columns that fill their invocations, and tiles, to the last; more of them without a remainder.
const WHOLE: [Sizes; 3] = [Sizes::new(2, 10, 1, 32, 64), Sizes::new(1, 9, 1, 200, 3), Sizes::new(1, 4, 1, 256, 2)];

/// So many chunks that not all have room at once, of which a GPU with memory of its own has more; sequences of very
/// different length.
#[test]
fn more_chunks_than_room() {
    for wgpu in super::backends() {
        let batch = if wgpu.adapter().kind == "discrete GPU" { 36 } else { 9 };
        checks::agrees(&[wgpu], &Case::new(Titans::default(), Sizes::new(batch, 70, 48, 6, 3), 71), "many chunks");
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
