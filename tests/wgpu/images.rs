//! Frozen groups of memories whose weights are an image of the state: products for what they are taught, sweeps for what they read.

use super::{Sizes, gpu::agree};
use hecate_conformance::{Array, Case};
use hecate_core::{
    Read,
    rules::{Activation, Map, MatrixMemory, Memora, MemoraMatrix, MlpMemory, Moneta, MonetaMatrix},
};

const PLAIN: MlpMemory = MlpMemory { expansion: 2, activation: Activation::Gelu, residual: true, norm: false };
const WIDE: MlpMemory = MlpMemory { expansion: 4, activation: Activation::Silu, residual: false, norm: false };

fn memora(group: u32) -> Memora {
    Memora { frozen: Some(group), ..Memora::default() }
}

fn moneta(group: u32) -> Moneta {
    Moneta { frozen: Some(group), ..Moneta::default() }
}

fn memora_matrix(group: u32) -> MemoraMatrix {
    MemoraMatrix { frozen: Some(group), ..MemoraMatrix::default() }
}

fn moneta_matrix(group: u32) -> MonetaMatrix {
    MonetaMatrix { frozen: Some(group), ..MonetaMatrix::default() }
}

/// Groups alone in an interval and several, whole and not; columns that fill no workgroup, and rows of all three tilings.
#[test]
fn groups_of_any_size() {
    for (seed, group) in (301..).zip([8, 20, 33, 64]) {
        agree(&Case::new(memora(group), Sizes::new(1, 83, 2, 9, 13), seed));
        agree(&Case::new(moneta(group), Sizes::new(1, 70, 2, 13, 9), seed));
    }
    agree(&Case::packed(memora(16), &[40, 1, 64, 17], 2, 9, 6, 311));
    agree(&Case::packed(moneta(64), &[70, 3, 128], 1, 6, 9, 312));
    agree(&Case::new(Memora { memory: WIDE, ..memora(16) }, Sizes::new(1, 20, 1, 65, 30), 313));
    agree(&Case::new(Moneta { memory: WIDE, ..moneta(16) }, Sizes::new(1, 20, 1, 65, 30), 314));
    // Tiles without a rest load without asking.
    agree(&Case::new(Memora { memory: WIDE, ..memora(16) }, Sizes::new(1, 20, 1, 64, 32), 317));
    agree(&Case::new(Moneta { memory: WIDE, ..moneta(16) }, Sizes::new(1, 20, 1, 64, 32), 318));
    agree(&Case::new(memora_matrix(20), Sizes::new(1, 43, 2, 12, 35), 315));
    agree(&Case::new(moneta_matrix(20), Sizes::new(1, 43, 2, 70, 5), 316));
}

/// Every option that these kernels have.
#[test]
fn options() {
    let sizes = Sizes::new(1, 40, 2, 12, 12);
    let matrix = MatrixMemory { norm: false, residual: true };
    agree(&Case::new(memora(10), sizes, 321).anchored(5).expect("an anchor"));
    agree(&Case::new(moneta(16), sizes, 322).anchored(5).expect("an anchor"));
    agree(&Case::new(MemoraMatrix { memory: matrix, scale: 3.0, ..memora_matrix(16) }, sizes, 323));
    agree(&Case::new(moneta_matrix(16), sizes, 324).anchored(5).expect("an anchor"));
    agree(&Case::new(Memora { memory: PLAIN, scale: 3.0, clip: Some(2.0), ..memora(32) }, sizes, 325));
    agree(&Case::new(Moneta { memory: PLAIN, clip: Some(2.0), ..moneta(32) }, sizes, 326));
    let read = Read::Before;
    agree(&Case::new(Memora { read, ..memora(16) }, sizes, 327));
    agree(&Case::new(Moneta { read, ..moneta(16) }, sizes, 328));
    agree(&Case::packed(MemoraMatrix { read, ..memora_matrix(16) }, &[40, 1, 33], 2, 9, 6, 329));
    agree(&Case::new(Moneta { tanh: true, ..moneta(16) }, sizes, 330));
    agree(&Case::new(Moneta { p: 1.5, epsilon: 1e-3, ..moneta(16) }, sizes, 331));
    agree(&Case::new(Moneta { q: 3.0, ..moneta(16) }, sizes, 332));
    agree(&Case::new(Moneta { q: 2.5, map: Map::Literal, ..moneta(16) }, sizes, 333));
}

/// A layer norm behind the last matrix.
#[test]
fn layer_norms() {
    let (sizes, memory) = (Sizes::new(1, 40, 2, 12, 12), MlpMemory { norm: true, ..PLAIN });
    let (plain, read) = (MlpMemory { residual: false, ..memory }, Read::Before);
    agree(&Case::new(Memora { memory, clip: Some(2.0), ..memora(16) }, sizes, 351));
    // Columns that are much the same, and columns that lie apart.
    let before = Case::new(Memora { memory: plain, read, ..memora(32) }, Sizes::new(1, 40, 2, 9, 13), 352);
    agree(&before);
    agree(&before.changed("w1", |i, all| 6.0 * all[i]));
    agree(&Case::new(Moneta { memory, ..moneta(16) }, sizes, 353).anchored(5).expect("an anchor"));
    agree(&Case::packed(Moneta { memory: plain, read, ..moneta(16) }, &[40, 1, 33], 2, 9, 6, 354));
    let matrix = MatrixMemory { norm: true, residual: false };
    agree(&Case::new(MemoraMatrix { memory: matrix, ..memora_matrix(16) }, sizes, 355));
    agree(&Case::new(MonetaMatrix { memory: matrix, ..moneta_matrix(16) }, sizes, 356));
}

/// Memories that forget everything at once, large states, keys that say nothing or the same, and steps that are far too long.
#[test]
fn extreme_tokens() {
    let sizes = Sizes::new(1, 50, 1, 16, 16);
    agree(&changed(&Case::new(memora(16), sizes, 341), "log_a", |t, all| {
        // Nothing is left at every ninth token, and little at others.
        if t % 9 == 4 { f64::NEG_INFINITY } else { 8.0 * all[t] }
    }));
    agree(&changed(&Case::new(moneta(16), sizes, 342), "log_a", |t, all| if t % 9 == 8 { -3.0 } else { all[t] }));
    let slow = changed(&Case::new(moneta(16), sizes, 346), "theta", |t, all| 1e-6 * all[t]);
    agree(&changed(&slow, "w0", |i, all| 1e3 * all[i]));
    let values: [fn(usize, &[f64]) -> f64; 2] = [|_, _| 0.0, |i, all| all[i % 16]];
    for keys in values {
        agree(&changed(&Case::new(memora(16), sizes, 344), "k", keys));
        agree(&changed(&Case::new(moneta(16), sizes, 345), "k", keys));
    }
    agree(&changed(&Case::new(memora(16), sizes, 343), "theta", |t, all| 100.0 * all[t]));
}

/// A case with other values in one slot.
fn changed<R: hecate_conformance::oracle::Oracle>(case: &Case<R>, name: &str, of: fn(usize, &[f64]) -> f64) -> Case<R> {
    case.clone().with(|slot, array| {
        let values = (0..array.values.len()).map(|i| of(i, &array.values)).collect();
        if slot == name { Array { values, ..array } } else { array }
    })
}
