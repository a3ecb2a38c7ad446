//! Exact tokens of MLP memories at the widths whose weights lie in registers.

use super::{Gpu, backends, gpu::agree, is_missing};
use hecate_conformance::{Case, Sizes, oracle::Oracle};
use hecate_core::{
    DType, Kernel, Read,
    rules::{Activation, Huber, Memora, MlpMemory, Moneta, TitansMlp, Yaad, YaadMomentum},
};

/// A memory with a hidden layer this many times as wide as keys.
fn memory(expansion: u32) -> MlpMemory {
    MlpMemory { expansion, ..MlpMemory::default() }
}

/// With every option of its structure that these kernels have.
fn residual(activation: Activation) -> MlpMemory {
    MlpMemory { activation, residual: true, ..memory(2) }
}

fn agree_anchored<R: Oracle>(case: Case<R>)
where
    Gpu: Kernel<R>,
{
    agree(&case.anchored(5).expect("an anchor"));
}

/// Every width, with sequences that end inside an interval of kept states, and at its end.
#[test]
fn widths() {
    for (seed, (width, expansion)) in
        (71..).zip([(32, 1), (32, 2), (32, 3), (32, 4), (64, 1), (64, 2), (64, 3), (64, 4)])
    {
        let memory = memory(expansion);
        agree(&Case::new(TitansMlp { memory, ..TitansMlp::default() }, Sizes::new(1, 70, 2, width, width), seed));
        agree(&Case::new(Yaad { memory, ..<Yaad>::default() }, Sizes::new(1, 64, 1, width, width), seed));
        agree(&Case::new(Moneta { memory, ..<Moneta>::default() }, Sizes::new(1, 66, 2, width, width), seed));
        agree(&Case::new(Memora { memory, ..<Memora>::default() }, Sizes::new(1, 66, 2, width, width), seed));
        agree(&Case::new(
            YaadMomentum { memory, ..<YaadMomentum>::default() },
            Sizes::new(1, 66, 1, width, width),
            seed,
        ));
    }
}

/// Several intervals, and sequences of different lengths.
#[test]
fn sequences() {
    agree(&Case::new(TitansMlp::default(), Sizes::new(2, 150, 1, 64, 64), 81));
    agree(&Case::packed(TitansMlp::default(), &[70, 1, 64, 131], 2, 32, 32, 82));
    agree(&Case::packed(<YaadMomentum>::default(), &[3, 129], 1, 64, 64, 83));
    agree(&Case::packed(<Moneta>::default(), &[3, 129], 1, 64, 64, 84));
    agree(&Case::packed(<Memora>::default(), &[3, 129], 1, 64, 64, 85));
    // More memories than blocks that run at once.
    agree(&Case::new(TitansMlp::default(), Sizes::new(40, 3, 16, 32, 32), 84));
}

/// More memories than half of a GPU's multiprocessors, so that each has one block. With 256 hidden units there are more than
/// clusters that are started, which then take several.
#[test]
fn many_memories() {
    if is_missing() {
        return;
    }
    let lengths: Vec<usize> = (0..56).map(|i| if i == 7 { 66 } else { 2 }).collect();
    agree(&Case::packed(TitansMlp::default(), &lengths, 2, 64, 64, 86));
    agree(&Case::packed(<Yaad>::default(), &lengths, 2, 64, 64, 87));
    agree(&Case::packed(<YaadMomentum>::default(), &lengths, 2, 64, 64, 88));
    agree(&Case::packed(<Moneta>::default(), &lengths, 2, 64, 64, 89));
    agree(&Case::packed(<Memora>::default(), &lengths, 2, 64, 64, 90));
    agree_anchored(Case::packed(TitansMlp::default(), &lengths, 2, 64, 64, 91));
    agree_anchored(Case::packed(<Memora>::default(), &lengths, 2, 64, 64, 92));
    let wide = TitansMlp { memory: memory(4), ..TitansMlp::default() };
    agree(&Case::new(wide, Sizes::new(40, 2, 8, 64, 64), 93));
}

/// Every option that these kernels have, of memories with hidden layers so many times as wide as keys.
fn agree_on_options(sizes: Sizes, expansion: u32) {
    if is_missing() {
        return;
    }
    let with = |activation| MlpMemory { expansion, ..residual(activation) };
    let titans = TitansMlp { memory: with(Activation::Gelu), ..TitansMlp::default() };
    agree(&Case::new(titans, sizes, 91));
    agree(&Case::new(TitansMlp { read: Read::Before, clip: Some(2.0), ..titans }, sizes, 92));
    let moneta = Moneta { memory: with(Activation::Silu), clip: Some(2.0), ..<Moneta>::default() };
    agree(&Case::new(moneta, sizes, 93));
    agree(&Case::new(Moneta { read: Read::Before, ..moneta }, sizes, 94));
    // Clipped, gradients of log_a are lost to rounding after more than 24 tokens, on a CPU as well.
    let memora = Memora { memory: with(Activation::Silu), ..<Memora>::default() };
    agree(&Case::new(memora, sizes, 93));
    agree(&Case::new(Memora { read: Read::Before, ..memora }, sizes, 94));
    let short = Sizes { tokens: sizes.tokens.min(24), ..sizes };
    agree(&Case::new(Memora { clip: Some(2.0), ..memora }, short, 95));
    agree(&Case::new(Memora { clip: Some(2.0), read: Read::Before, ..memora }, short, 96));
    for (seed, bias) in (93..).zip([Huber::Coordinate, Huber::Norm, Huber::Mix]) {
        let memory = with(Activation::GeluTanh);
        agree(&Case::new(Yaad { bias, ..<Yaad>::default() }, sizes, seed));
        agree(&Case::new(YaadMomentum { bias, memory, clip: Some(2.0), ..<YaadMomentum>::default() }, sizes, seed));
        agree(&Case::new(Yaad { bias, memory, read: Read::Before, ..<Yaad>::default() }, sizes, seed));
    }
}

/// One block a memory: of keys of 64 where there are so many.
#[test]
fn options() {
    agree_on_options(Sizes::new(1, 70, 2, 32, 32), 2);
    agree_on_options(Sizes::new(80, 4, 1, 64, 64), 2);
}

/// Two blocks a memory, with half and all of the hidden units that they have room for.
#[test]
fn options_of_pairs() {
    agree_on_options(Sizes::new(1, 70, 2, 64, 64), 2);
    agree_on_options(Sizes::new(1, 70, 2, 64, 64), 4);
}

/// Memories that go back to an anchor, over several intervals and sequences of different lengths.
#[test]
fn anchors() {
    let titans = TitansMlp { memory: residual(Activation::Gelu), clip: Some(2.0), ..TitansMlp::default() };
    agree_anchored(Case::new(titans, Sizes::new(1, 70, 2, 64, 64), 101));
    agree_anchored(Case::packed(TitansMlp::default(), &[70, 1, 64, 131], 2, 32, 32, 102));
    // More memories than blocks that run at once, heads with anchors of their own.
    agree_anchored(Case::new(TitansMlp::default(), Sizes::new(40, 3, 16, 32, 32), 103));
    agree_anchored(Case::new(
        TitansMlp { memory: memory(4), ..TitansMlp::default() },
        Sizes::new(1, 70, 2, 64, 64),
        104,
    ));
}

/// The same of the other rules.
#[test]
fn anchors_of_all_rules() {
    for (seed, width) in (111..).zip([32, 64]) {
        agree_anchored(Case::packed(<Yaad>::default(), &[3, 66], 2, width, width, seed));
        agree_anchored(Case::packed(<YaadMomentum>::default(), &[3, 66], 2, width, width, seed));
        agree_anchored(Case::packed(<Moneta>::default(), &[3, 66], 2, width, width, seed));
        agree_anchored(Case::packed(<Memora>::default(), &[3, 66], 2, width, width, seed));
    }
}

/// Keys that say nothing, keys that all say the same, and memories that forget nearly all of what they hold.
fn agree_extreme<R: Oracle>(plain: &Case<R>)
where
    Gpu: Kernel<R>,
{
    agree(&plain.clone().changed("k", |_, _| 0.0));
    agree(&plain.clone().changed("k", |i, all| all[i % 64]));
    agree(&plain.clone().changed("log_a", |t, all| if t % 9 == 4 { -3.0 } else { all[t] }));
}

#[test]
fn extreme_tokens() {
    let sizes = Sizes::new(1, 50, 1, 64, 64);
    agree_extreme(&Case::new(TitansMlp::default(), sizes, 121));
    agree_extreme(&Case::new(<Yaad>::default(), sizes, 122));
    agree_extreme(&Case::new(<YaadMomentum>::default(), sizes, 123));
    agree_extreme(&Case::new(<Moneta>::default(), sizes, 124));
    agree_extreme(&Case::new(<Memora>::default(), sizes, 125));
}

/// Norms of (54) and sums of exponentials of (55) are taken on the scale of the token before. Here they leave the range of 32 bits
/// there: by first states that are far from one, and by states that change by many powers of ten at once.
#[test]
fn sudden_changes() {
    for (seed, width) in (131..).zip([32, 64]) {
        let sizes = Sizes::new(1, 70, 1, width, width);
        let moneta = Case::new(<Moneta>::default(), sizes, seed);
        agree(&moneta.clone().changed("w0", |i, all| 1e-2 * all[i]).changed("w1", |i, all| 1e-5 * all[i]));
        // No writes: errors of so large a memory would change it beyond comparison.
        let clipped = Case::new(Moneta { clip: Some(2.0), ..<Moneta>::default() }, sizes, seed);
        let large = |i: usize, all: &[f64]| if i % width == 3 { 1e11 * all[i] } else { all[i] };
        agree(&clipped.changed("w1", large).changed("theta", |_, _| 0.0));
        let at_20 = |x: f64| move |t: usize, all: &[f64]| if t == 20 { x } else { all[t] };
        agree(&moneta.changed("log_a", at_20(-25.0)).changed("theta", at_20(0.0)));
        // One column of each layer, far below the others.
        let lower = |x: f64, wide: usize, i: usize| if i % wide == 3 { x - 120.0 } else { x };
        let lowered = Case::new(<Memora>::default(), Sizes::new(1, 24, 1, width, width), seed);
        let lowered = lowered.changed("w0", |i, all| lower(all[i], 2 * width, i));
        agree(&lowered.changed("w1", |i, all| lower(all[i], width, i)));
        let writes = Case::new(<Memora>::default(), sizes, seed).changed("theta", at_20(3000.0));
        agree(&writes);
        agree_anchored(writes);
    }
}

/// Two runs have the same bits, with arguments of either type, to zero and to an anchor.
#[test]
fn runs_repeat() {
    let case = || Case::new(TitansMlp::default(), Sizes::new(2, 100, 2, 64, 64), 99);
    for case in [case(), case().anchored(5).expect("an anchor")] {
        for (device, dtype) in backends().iter().flat_map(|gpu: &Gpu| [(gpu, DType::F32), (gpu, DType::Bf16)]) {
            let [first, second] = [(); 2].map(|()| case.run(device, dtype).unwrap());
            for ((slot, first), (_, second)) in first.list().into_iter().zip(second.list()) {
                assert_eq!(first.values, second.values, "{case} {slot}");
            }
        }
    }
}
