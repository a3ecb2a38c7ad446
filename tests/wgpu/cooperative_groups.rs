//! Frozen groups of deep memories whose products go by cooperative matrices, where the adapter has some: against the equations, at the
//! limits of other ways.

use super::{Gpu, Sizes, cooperative};
use hecate_conformance::{Case, checks, oracle::Oracle};
use hecate_core::{DType, Kernel, Read, rules::*};
use std::sync::OnceLock;

const WIDE: MlpMemory = MlpMemory { expansion: 4, activation: Activation::Gelu, residual: true, norm: true };
/// Every width is a multiple of 16.
const SIZES: Sizes = Sizes::new(1, 40, 2, 16, 32);

/// One device for all tests of this file, so that each kernel is compiled once.
fn opened() -> Option<Gpu> {
    static OPENED: OnceLock<Option<Gpu>> = OnceLock::new();
    OPENED.get_or_init(|| cooperative::opened().map(|(gpu, _)| gpu.with_small_cooperative_products())).clone()
}

/// Results and gradients are those of the equations.
fn agree<R: Oracle>(case: &Case<R>)
where
    Gpu: Kernel<R>,
{
    checks::agrees(opened().as_slice(), case, "cooperative matrices");
}

fn titans(group: u32) -> TitansMlp {
    TitansMlp { frozen: Some(group), ..TitansMlp::default() }
}

fn yaad(group: u32) -> Yaad {
    Yaad { frozen: Some(group), ..Yaad::default() }
}

/// Whole squares of one matrix and of several, parts of groups, and sequences of several lengths.
#[test]
fn widths_that_fit() {
    agree(&Case::new(titans(16), SIZES, 401));
    agree(&Case::new(titans(64), Sizes::new(1, 70, 1, 48, 64), 402));
    agree(&Case::new(yaad(32), Sizes::new(2, 66, 1, 32, 16), 403));
    agree(&Case::packed(titans(16), &[40, 1, 64, 17], 2, 16, 32, 404));
}

/// Hidden layers of 256, whose sums several subgroups have a part of each.
#[test]
fn sums_in_parts() {
    let memory = MlpMemory { norm: false, ..WIDE };
    agree(&Case::new(TitansMlp { memory, ..titans(16) }, Sizes::new(1, 20, 1, 64, 64), 405));
    agree(&Case::new(Yaad { memory, ..yaad(16) }, Sizes::new(1, 20, 1, 64, 32), 406));
}

/// Products that have an edge go another way, beside others that have none; of 24 columns squares of 8 have none.
#[test]
fn widths_that_do_not() {
    agree(&Case::new(titans(16), Sizes::new(1, 40, 2, 9, 13), 411));
    agree(&Case::new(titans(16), Sizes::new(1, 40, 2, 16, 13), 412));
    agree(&Case::new(yaad(20), Sizes::new(1, 43, 1, 32, 32), 413));
    agree(&Case::new(titans(24), Sizes::new(1, 50, 1, 24, 40), 414));
}

/// Anchors, momentum that leads, layer norms, other biases.
#[test]
fn options() {
    let ahead = TitansMlp { momentum: MomentumForm::LookAhead, ..titans(16) };
    agree(&Case::new(ahead, SIZES, 421).anchored(5).expect("an anchor"));
    agree(&Case::new(TitansMlp { read: Read::Before, memory: WIDE, ..ahead }, SIZES, 422));
    agree(&Case::new(Yaad { clip: Some(2.0), bias: Huber::Norm, memory: WIDE, ..yaad(16) }, SIZES, 423));
    agree(&Case::new(yaad(16), SIZES, 424).anchored(5).expect("an anchor"));
}

/// A matrix is the second layer alone.
#[test]
fn matrices() {
    let rule = YaadMatrix { frozen: Some(16), ..YaadMatrix::default() };
    agree(&Case::new(rule, Sizes::new(1, 40, 2, 32, 48), 431));
    agree(&Case::new(rule, SIZES, 432).anchored(5).expect("an anchor"));
    agree(&Case::new(YaadMatrix { read: Read::Before, clip: Some(2.0), ..rule }, SIZES, 433));
}

/// Weights that are an image of the state.
#[test]
fn images() {
    let memora: Memora = Memora { frozen: Some(16), ..Memora::default() };
    let moneta: Moneta = Moneta { frozen: Some(16), ..Moneta::default() };
    agree(&Case::new(memora, SIZES, 441));
    agree(&Case::new(moneta, SIZES, 442));
    agree(&Case::new(
        Memora { memory: MlpMemory { norm: false, ..WIDE }, ..memora },
        Sizes::new(1, 20, 1, 32, 16),
        443,
    ));
    agree(&Case::new(Moneta { memory: WIDE, ..moneta }, Sizes::new(1, 20, 1, 32, 16), 445));
    agree(&Case::new(MonetaMatrix { frozen: Some(16), ..MonetaMatrix::default() }, SIZES, 444));
}

/// Gradients far below the smallest half, and far above the largest.
#[test]
fn gradients_of_any_size() {
    for scale in [1e-7, 1e-12, 1e7] {
        let mut case = Case::new(titans(16), SIZES, 451);
        case.grads = case.grads.map(|_, mut array| {
            array.values.iter_mut().for_each(|x| *x *= scale);
            array
        });
        agree(&case);
    }
}

/// Keys that say nothing and keys that all say the same, tokens of all sizes, and memories that forget everything at once.
#[test]
fn extreme_tokens() {
    let plain = Case::new(titans(16), SIZES, 461);
    agree(&plain.clone().changed("k", |_, _| 0.0));
    agree(&plain.clone().changed("k", |i, all| all[i % 16]));
    agree(&plain.clone().changed("q", |i, all| all[i] * 10f64.powi(-((i / 32 % 7) as i32))));
    agree(&plain.changed("log_a", |t, all| if t % 9 == 4 { f64::NEG_INFINITY } else { 8.0 * all[t] }));
}

/// What is not a number is seen in the head that has it, and in no other.
#[test]
fn nan_is_seen() {
    let Some(gpu) = opened() else { return };
    for (slot, nan) in [("k", f64::NAN), ("v", f64::INFINITY), ("q", f64::NAN)] {
        // Head 1 of token 3, of two heads.
        let element = (3 * 2 + 1) * if slot == "v" { 32 } else { 16 };
        let case = Case::new(titans(16), SIZES, 471).changed(slot, |i, all| if i == element { nan } else { all[i] });
        let out = case.infer(&gpu, DType::F32).unwrap().out;
        let heads: [Vec<f64>; 2] = [0, 1].map(|head| {
            let own = |(i, _): &(usize, &f64)| i / 32 % 2 == head;
            out.values.iter().enumerate().filter(own).map(|(_, x)| *x).collect()
        });
        assert!(heads[0].iter().all(|x| x.is_finite()), "{nan} in {slot} of another head");
        assert!(heads[1].iter().any(|x| x.is_nan()), "{nan} in {slot} is hidden");
    }
}
