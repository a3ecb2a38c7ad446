//! Deep memories in frozen groups, which go by products of whole groups.

use super::{Sizes, gpu::agree};
use hecate_conformance::{Array, Case};
use hecate_core::{
    Read,
    rules::{Activation, Huber, MatrixMemory, MlpMemory, MomentumForm, TitansMlp, Yaad, YaadMatrix, YaadMomentum},
};

const PLAIN: MlpMemory = MlpMemory { expansion: 2, activation: Activation::Gelu, residual: true, norm: false };

fn titans(group: u32) -> TitansMlp {
    TitansMlp { frozen: Some(group), ..TitansMlp::default() }
}

fn yaad(group: u32) -> Yaad {
    Yaad { frozen: Some(group), ..Yaad::default() }
}

/// Groups alone in an interval and several, whole and not, below and above what goes by products.
/// Sequences end inside one, or before others.
#[test]
fn groups_of_any_size() {
    for (seed, group) in (1..).zip([7, 8, 20, 33, 64, 65]) {
        agree(&Case::new(titans(group), Sizes::new(1, 83, 2, 9, 13), seed));
    }
    agree(&Case::new(yaad(21), Sizes::new(2, 70, 1, 35, 33), 8));
    agree(&Case::packed(titans(16), &[40, 1, 64, 17], 2, 9, 6, 9));
    agree(&Case::packed(yaad(64), &[70, 3, 128], 1, 6, 9, 10));
}

/// Matrices go as the second layer alone.
#[test]
fn matrices() {
    let rule = |group| YaadMatrix { frozen: Some(group), ..YaadMatrix::default() };
    let case = |group, sizes| Case::new(rule(group), sizes, 41);
    for group in [8, 20, 64] {
        agree(&case(group, Sizes::new(1, 83, 2, 9, 37)));
    }
    let sizes = Sizes::new(1, 40, 2, 12, 12);
    agree(&case(16, sizes).anchored(5).expect("an anchor"));
    agree(&Case::new(YaadMatrix { read: Read::Before, clip: Some(2.0), ..rule(16) }, sizes, 42));
    agree(&Case::new(YaadMatrix { bias: Huber::Norm, ..rule(10) }, sizes, 43));
    agree(&Case::packed(rule(16), &[40, 1, 64, 17], 2, 9, 6, 44));
}

/// Every option that these kernels have.
#[test]
fn options() {
    let sizes = Sizes::new(1, 40, 2, 12, 12);
    let ahead = TitansMlp { momentum: MomentumForm::LookAhead, ..titans(16) };
    let anchored = |case: Case<TitansMlp>| agree(&case.anchored(5).expect("an anchor"));
    anchored(Case::new(titans(10), sizes, 11));
    anchored(Case::new(ahead, sizes, 12));
    agree(&Case::new(TitansMlp { read: Read::Before, memory: PLAIN, ..ahead }, sizes, 13));
    agree(&Case::new(Yaad { clip: Some(2.0), ..yaad(32) }, sizes, 14));
    agree(&Case::new(Yaad { bias: Huber::Norm, memory: PLAIN, ..yaad(16) }, sizes, 15));
    agree(&Case::new(Yaad { bias: Huber::Mix, read: Read::Before, ..yaad(16) }, sizes, 16));
    let ahead = YaadMomentum { momentum: MomentumForm::LookAhead, frozen: Some(16), ..YaadMomentum::default() };
    agree(&Case::new(ahead, sizes, 17).anchored(5).expect("an anchor"));
}

/// A layer norm behind the last matrix, with every option, and values wider and narrower than a workgroup.
#[test]
fn layer_norms() {
    let memory = MlpMemory { norm: true, ..MlpMemory::default() };
    let residual = MlpMemory { residual: true, ..memory };
    let momentum = MomentumForm::LookAhead;
    agree(&Case::new(TitansMlp { memory, ..titans(16) }, Sizes::new(1, 83, 2, 9, 13), 51));
    agree(&Case::new(TitansMlp { memory: residual, momentum, ..titans(64) }, Sizes::new(1, 70, 1, 70, 70), 52));
    agree(&Case::packed(TitansMlp { memory, read: Read::Before, ..titans(16) }, &[40, 1, 64, 17], 2, 9, 6, 53));
    let sizes = Sizes::new(1, 40, 2, 12, 12);
    let clip = Some(2.0);
    agree(&Case::new(Yaad { memory, clip, ..yaad(32) }, sizes, 54).anchored(5).expect("an anchor"));
    for (seed, bias) in (55..).zip([Huber::Coordinate, Huber::Norm, Huber::Mix]) {
        agree(&Case::new(Yaad { memory: residual, bias, clip, ..yaad(16) }, sizes, seed));
    }
    let matrix = |memory| YaadMatrix { memory, frozen: Some(16), ..YaadMatrix::default() };
    agree(&Case::new(matrix(MatrixMemory { norm: true, residual: true }), sizes, 58).anchored(5).expect("an anchor"));
    agree(&Case::new(matrix(MatrixMemory { norm: true, residual: false }), Sizes::new(1, 43, 2, 5, 30), 59));
}

/// More memories than a buffer of 128 MiB has room for.
#[test]
fn turns() {
    let memory = MlpMemory { expansion: 40, ..MlpMemory::default() };
    agree(&Case::new(Yaad { memory, ..yaad(64) }, Sizes::new(8, 9, 8, 17, 3), 21));
}

/// Keys that say nothing and keys that all say the same, and memories that forget everything at once.
#[test]
fn extreme_tokens() {
    let plain = Case::new(titans(16), Sizes::new(1, 50, 1, 16, 16), 31);
    let changed = |name: &str, of: fn(usize, &[f64]) -> f64| {
        plain.clone().with(|slot, array| {
            let values = (0..array.values.len()).map(|i| of(i, &array.values)).collect();
            if slot == name { Array { values, ..array } } else { array }
        })
    };
    agree(&changed("k", |_, _| 0.0));
    agree(&changed("k", |i, all| all[i % 16]));
    agree(&changed("log_a", |t, all| if t % 9 == 4 { f64::NEG_INFINITY } else { 8.0 * all[t] }));
}
