//! Deep memories in frozen groups, which go by products of whole groups.

use super::{backends, is_missing};
use hecate_conformance::{Case, Sizes, checks, error, oracle::Oracle};
use hecate_core::{
    DType, Kernel, Read,
    rules::{
        Activation, Huber, Map, MatrixMemory, Memora, MemoraMatrix, MlpMemory, MomentumForm, Moneta, MonetaMatrix,
        TitansMlp, Yaad, YaadMatrix, YaadMomentum,
    },
};
use hecate_cpu::Cpu;
use hecate_cuda::Cuda;

/// With 16-bit arguments, errors are at most twice what rounding costs anyway; with 32-bit ones they are those of the equations.
fn rounds<R: Oracle>(case: &Case<R>)
where
    Cuda: Kernel<R>,
{
    let devices = backends();
    if !devices.is_empty() {
        checks::rounding_of(&devices, case);
        checks::agrees(&devices, case, "in groups");
    }
}

/// The same of tokens by which rounding costs some slots little or nothing: there errors may be those of eight factors, 2⁻¹¹
/// each.
fn close<R: Oracle>(case: &Case<R>)
where
    Cuda: Kernel<R>,
    Cpu: Kernel<R>,
{
    within(case, DType::Bf16, 8.0 / 2048.0);
}

fn within<R: Oracle>(case: &Case<R>, dtype: DType, least: f64)
where
    Cuda: Kernel<R>,
    Cpu: Kernel<R>,
{
    backends().iter().for_each(|device| near_cpu(device, case, dtype, least));
}

/// Errors beside the CPU's are this at most, or twice what rounding costs there.
pub(super) fn near_cpu<R: Oracle>(device: &Cuda, case: &Case<R>, dtype: DType, least: f64)
where
    Cuda: Kernel<R>,
    Cpu: Kernel<R>,
{
    let [truth, rounded] = [DType::F32, dtype].map(|dtype| case.run(&Cpu::new(), dtype).unwrap());
    let found = case.run(device, dtype).unwrap();
    let slots = truth.list().into_iter().zip(rounded.list()).zip(found.list());
    for (((slot, truth), (_, rounded)), (_, found)) in slots {
        let [cost, error] = [rounded, found].map(|x| error(&truth.values, &x.values));
        assert!(error <= f64::max(2.0 * cost, least), "{case} {slot}: {error}, rounding costs {cost}");
    }
}

/// The same with memories that go back to an anchor.
fn rounds_anchored<R: Oracle>(case: Case<R>)
where
    Cuda: Kernel<R>,
{
    rounds(&case.anchored(5).expect("an anchor"));
}

const WIDE: MlpMemory = MlpMemory { expansion: 4, activation: Activation::Silu, residual: false, norm: false };
const PLAIN: MlpMemory = MlpMemory { expansion: 2, activation: Activation::Gelu, residual: true, norm: false };

fn titans(group: u32) -> TitansMlp {
    TitansMlp { frozen: Some(group), ..TitansMlp::default() }
}

fn yaad(group: u32) -> Yaad {
    Yaad { frozen: Some(group), ..Yaad::default() }
}

/// Groups alone in an interval and several, whole and not, and sequences that end inside one.
#[test]
fn groups_of_any_size() {
    for (seed, group) in (1..).zip([1, 4, 5, 16, 20, 33, 64, 65]) {
        rounds(&Case::new(titans(group), Sizes::new(1, 83, 2, 16, 24), seed));
        rounds(&Case::new(yaad(group), Sizes::new(1, 70, 2, 24, 16), seed));
    }
    rounds(&Case::packed(titans(16), &[40, 1, 64, 17], 2, 16, 24, 9));
    rounds(&Case::packed(yaad(64), &[70, 3, 128], 1, 16, 24, 9));
}

/// Every option that these kernels have.
#[test]
fn options() {
    let sizes = Sizes::new(1, 70, 2, 24, 24);
    let ahead = TitansMlp { momentum: MomentumForm::LookAhead, ..titans(16) };
    rounds_anchored(Case::new(titans(16), sizes, 11));
    rounds_anchored(Case::new(ahead, sizes, 12));
    rounds(&Case::new(TitansMlp { read: Read::Before, memory: PLAIN, ..ahead }, sizes, 13));
    rounds_anchored(Case::new(Yaad { clip: Some(2.0), ..yaad(32) }, sizes, 14));
    rounds(&Case::new(Yaad { bias: Huber::Norm, memory: PLAIN, ..yaad(16) }, sizes, 15));
    let form = MomentumForm::LookAhead;
    rounds_anchored(Case::new(YaadMomentum { momentum: form, frozen: Some(16), ..YaadMomentum::default() }, sizes, 16));
}

/// A layer norm behind the last matrix, with every option: MLPs and matrices, clusters and more memories than run at once.
#[test]
fn layer_norms() {
    let memory = MlpMemory { norm: true, ..MlpMemory::default() };
    let (residual, wide) = (MlpMemory { norm: true, ..PLAIN }, MlpMemory { norm: true, ..WIDE });
    for (seed, group) in (261..).zip([1, 5, 16, 20, 33, 64]) {
        rounds(&Case::new(TitansMlp { memory, ..titans(group) }, Sizes::new(1, 83, 2, 16, 24), seed));
    }
    rounds(&Case::packed(TitansMlp { memory, read: Read::Before, ..titans(16) }, &[40, 1, 64, 17], 2, 16, 24, 267));
    let (sizes, momentum, clip) = (Sizes::new(1, 70, 2, 24, 24), MomentumForm::LookAhead, Some(2.0));
    rounds_anchored(Case::new(TitansMlp { memory: residual, momentum, ..titans(64) }, sizes, 268));
    rounds_anchored(Case::new(Yaad { memory, clip, ..yaad(32) }, sizes, 269));
    for (seed, bias) in (270..).zip([Huber::Coordinate, Huber::Norm, Huber::Mix]) {
        rounds(&Case::new(Yaad { memory: residual, bias, clip, ..yaad(16) }, sizes, seed));
    }
    let matrix = |norm, residual| YaadMatrix { memory: MatrixMemory { norm, residual }, ..yaad_matrix(16) };
    rounds_anchored(Case::new(matrix(true, true), sizes, 273));
    rounds(&Case::new(matrix(true, false), Sizes::new(1, 83, 2, 16, 40), 274));
    rounds(&Case::new(TitansMlp { memory: wide, ..titans(64) }, Sizes::new(1, 70, 2, 64, 64), 275));
    rounds(&Case::new(Yaad { memory, ..yaad(16) }, Sizes::new(20, 17, 14, 8, 8), 276));
    repeats(&Case::new(TitansMlp { memory: wide, ..titans(64) }, Sizes::new(2, 130, 3, 64, 64), 277));
    let extreme = Case::new(TitansMlp { memory, ..titans(16) }, Sizes::new(1, 50, 1, 16, 16), 278);
    // Gradients of outputs go through two products more.
    alike_by(&extreme, 16, 10.0);
    checks::agrees(&backends(), &extreme.changed("log_a", forgets), "in groups");
}

/// The same by kernels with factors in shared memory.
#[test]
fn layer_norms_in_shared_memory() {
    let memory = MlpMemory { norm: true, ..MlpMemory::default() };
    let (residual, wide) = (MlpMemory { norm: true, ..PLAIN }, MlpMemory { norm: true, ..WIDE });
    for (seed, group) in (301..).zip([16, 20, 33, 64]) {
        rounds(&Case::new(TitansMlp { memory, ..titans(group) }, Sizes::new(1, 83, 2, 32, 64), seed));
    }
    rounds(&Case::packed(TitansMlp { memory, read: Read::Before, ..titans(16) }, &[40, 1, 64, 17], 2, 32, 32, 305));
    let (sizes, momentum, clip) = (Sizes::new(1, 70, 2, 64, 64), MomentumForm::LookAhead, Some(2.0));
    rounds_anchored(Case::new(TitansMlp { memory: residual, momentum, ..titans(64) }, sizes, 306));
    rounds_anchored(Case::new(Yaad { memory: residual, bias: Huber::Norm, clip, ..yaad(32) }, sizes, 307));
    // As many blocks as a cluster has, layers that share places, and more memories than run at once.
    rounds(&Case::new(TitansMlp { memory: wide, ..titans(64) }, Sizes::new(1, 70, 1, 128, 128), 308));
    let large = MlpMemory { norm: true, ..LARGE };
    rounds(&Case::new(TitansMlp { memory: large, ..titans(64) }, Sizes::new(1, 130, 1, 128, 128), 309));
    rounds(&Case::new(Yaad { memory, ..yaad(16) }, Sizes::new(20, 17, 14, 32, 32), 310));
    repeats(&Case::new(TitansMlp { memory: wide, ..titans(64) }, Sizes::new(2, 130, 3, 64, 64), 311));
    let extreme = Case::new(TitansMlp { memory, ..titans(16) }, Sizes::new(1, 50, 1, 32, 32), 312);
    alike(&extreme, 32);
}

/// Distributions that lie apart, whose outputs a norm can tell from each other.
fn apart<R: Oracle>(case: Case<R>) -> Case<R> {
    let lower = ["w0", "b0"].into_iter().fold(case, |case, slot| case.changed(slot, |i, all| 5.0 * all[i]));
    ["w1", "b1"].into_iter().fold(lower, |case, slot| case.changed(slot, |i, all| 12.0 * all[i]))
}

/// The same of memories whose weights are an image of the state.
#[test]
fn layer_norms_of_images() {
    let memory = MlpMemory { norm: true, ..MlpMemory::default() };
    let (residual, wide) = (MlpMemory { norm: true, ..PLAIN }, MlpMemory { norm: true, ..WIDE });
    for (seed, group) in (281..).zip([16, 33, 64]) {
        images(&Case::new(Memora { memory, ..memora(group) }, Sizes::new(1, 83, 2, 32, 64), seed));
        images(&Case::new(Moneta { memory, ..moneta(group) }, Sizes::new(1, 70, 2, 64, 32), seed));
    }
    let (sizes, read, clip) = (Sizes::new(1, 70, 2, 32, 32), Read::Before, Some(2.0));
    let anchored =
        Case::new(Memora { memory: residual, clip, ..memora(16) }, sizes, 284).anchored(5).expect("an anchor");
    images(&apart(anchored));
    images(&apart(Case::new(Memora { memory, ..memora(16) }, sizes, 295)));
    images(&Case::new(Memora { memory, read, ..memora(32) }, sizes, 285));
    images(&Case::new(Moneta { memory: residual, q: 3.0, map: Map::Literal, ..moneta(16) }, sizes, 286));
    images_anchored(Case::new(Moneta { memory, p: 1.5, epsilon: 1e-3, ..moneta(20) }, sizes, 287));
    images(&Case::new(Memora { memory: wide, ..memora(64) }, Sizes::new(1, 70, 2, 64, 64), 288));
    images(&Case::new(Moneta { memory: wide, ..moneta(64) }, Sizes::new(1, 70, 2, 64, 64), 289));
    let memory = MatrixMemory { norm: true, residual: true };
    images_anchored(Case::new(MemoraMatrix { memory, ..memora_matrix(16) }, sizes, 290));
    images(&Case::new(MonetaMatrix { memory, ..moneta_matrix(64) }, sizes, 291));
    images_anchored(Case::new(MonetaMatrix { memory, q: 3.0, ..moneta_matrix(20) }, sizes, 292));
    images(&Case::packed(MemoraMatrix { memory, read, ..memora_matrix(16) }, &[40, 1, 64, 17], 2, 32, 32, 293));
    let case = Case::new(Moneta { memory: wide, ..moneta(64) }, Sizes::new(2, 130, 3, 64, 64), 294);
    repeats(&case.anchored(5).expect("an anchor"));
}

/// Hidden layers that clusters share, and more memories than run at once.
#[test]
fn clusters() {
    rounds(&Case::new(TitansMlp { memory: WIDE, ..titans(64) }, Sizes::new(1, 70, 2, 64, 64), 21));
    rounds_anchored(Case::new(
        TitansMlp { memory: WIDE, momentum: MomentumForm::LookAhead, ..titans(16) },
        Sizes::new(1, 40, 1, 64, 32),
        22,
    ));
    rounds(&Case::new(Yaad { memory: WIDE, ..yaad(16) }, Sizes::new(1, 20, 1, 128, 128), 23));
    rounds(&Case::new(yaad(8), Sizes::new(20, 9, 14, 8, 8), 24));
}

/// Widths with which all factors fit shared memory, with every option that those kernels have.
#[test]
fn factors_in_shared_memory() {
    for (seed, group) in (51..).zip([16, 20, 33, 64]) {
        rounds(&Case::new(titans(group), Sizes::new(1, 83, 2, 32, 64), seed));
        rounds(&Case::new(yaad(group), Sizes::new(1, 70, 2, 64, 32), seed));
    }
    rounds(&Case::packed(titans(16), &[40, 1, 64, 17], 2, 32, 32, 56));
    rounds(&Case::packed(yaad(64), &[70, 3, 128], 1, 32, 64, 57));
    let (sizes, form) = (Sizes::new(1, 70, 2, 64, 64), MomentumForm::LookAhead);
    let ahead = TitansMlp { momentum: form, ..titans(16) };
    rounds(&Case::new(ahead, sizes, 61));
    rounds(&Case::new(TitansMlp { read: Read::Before, memory: PLAIN, ..ahead }, sizes, 62));
    rounds(&Case::new(Yaad { clip: Some(2.0), ..yaad(32) }, sizes, 63));
    rounds(&Case::new(Yaad { bias: Huber::Norm, memory: PLAIN, ..yaad(16) }, sizes, 64));
    rounds(&Case::new(YaadMomentum { momentum: form, frozen: Some(16), ..YaadMomentum::default() }, sizes, 65));
    // Memories that go back to an anchor.
    rounds_anchored(Case::new(titans(64), Sizes::new(1, 83, 2, 32, 64), 71));
    rounds_anchored(Case::new(yaad(20), Sizes::new(1, 70, 2, 64, 32), 72));
    rounds_anchored(Case::new(ahead, sizes, 73));
    rounds_anchored(Case::packed(titans(16), &[40, 1, 64, 17], 2, 32, 32, 74));
    // As many blocks as a cluster has, and more memories than run at once.
    rounds(&Case::new(TitansMlp { memory: WIDE, ..titans(64) }, Sizes::new(1, 70, 1, 128, 128), 66));
    rounds_anchored(Case::new(TitansMlp { memory: WIDE, ..titans(64) }, Sizes::new(1, 70, 1, 64, 64), 75));
    rounds(&Case::new(titans(16), Sizes::new(20, 17, 14, 32, 32), 67));
}

/// Columns by which a block's planes are so large that both layers share places.
const LARGE: MlpMemory = MlpMemory { expansion: 8, ..WIDE };

/// States kept as halves and with 32 bits, in places that layers share.
#[test]
fn shared_places() {
    let (sizes, memory) = (Sizes::new(1, 130, 1, 128, 128), LARGE);
    let large = TitansMlp { memory, ..titans(64) };
    rounds(&Case::new(large, sizes, 131));
    rounds(&Case::new(TitansMlp { frozen: Some(32), ..large }, sizes, 132));
    let ahead = TitansMlp { momentum: MomentumForm::LookAhead, ..large };
    rounds(&Case::new(
        TitansMlp { read: Read::Before, memory: MlpMemory { residual: true, ..LARGE }, ..ahead },
        sizes,
        133,
    ));
    rounds_anchored(Case::new(Yaad { memory, ..yaad(64) }, sizes, 134));
    // More memories than run at once.
    rounds(&Case::new(titans(33), Sizes::new(53, 40, 10, 32, 32), 135));
}

/// More memories than clusters of four blocks may run at once, and than four blocks each: these meet by counters.
#[test]
fn blocks_without_clusters() {
    if is_missing() {
        return;
    }
    let wide = TitansMlp { memory: WIDE, ..titans(64) };
    let case = Case::new(wide, Sizes::new(2, 130, 16, 128, 128), 141);
    within(&case, DType::Bf16, 1e-4);
    repeats(&case);
    let rounds_of_blocks = Case::new(Yaad { memory: WIDE, ..yaad(33) }, Sizes::new(4, 40, 17, 128, 128), 142);
    within(&rounds_of_blocks, DType::Bf16, 1e-4);
    repeats(&rounds_of_blocks);
    // Behind a norm they meet once more.
    let memory = MlpMemory { norm: true, ..WIDE };
    let normed = Case::new(TitansMlp { memory, ..titans(64) }, Sizes::new(2, 130, 16, 128, 128), 143);
    within(&normed, DType::Bf16, 1e-4);
    repeats(&normed);
}

fn memora(group: u32) -> Memora {
    Memora { frozen: Some(group), ..Memora::default() }
}

fn moneta(group: u32) -> Moneta {
    Moneta { frozen: Some(group), ..Moneta::default() }
}

/// At most twice what rounding costs, or what results of 32 bits may have: rounding moves some slots less than those do.
fn images<R: Oracle>(case: &Case<R>)
where
    Cuda: Kernel<R>,
    Cpu: Kernel<R>,
{
    within(case, DType::Bf16, 1e-4);
    checks::agrees(&backends(), case, "in groups");
}

/// Halves, which are finer than what factors of 16 bits are for.
#[test]
fn halves() {
    let sizes = Sizes::new(1, 70, 2, 32, 64);
    within(&Case::new(titans(16), sizes, 121), DType::F16, 1e-4);
    within(&Case::new(yaad(64), sizes, 122).anchored(5).expect("an anchor"), DType::F16, 1e-4);
    within(&Case::new(memora(16), sizes, 123), DType::F16, 1e-4);
    within(&Case::new(moneta(64), sizes, 124), DType::F16, 1e-4);
}

/// Memories whose weights are an image of the state, which goes token by token inside a group: groups of any size.
#[test]
fn images_of_states() {
    for (seed, group) in (81..).zip([1, 5, 16, 20, 33, 64]) {
        images(&Case::new(memora(group), Sizes::new(1, 83, 2, 32, 64), seed));
        images(&Case::new(moneta(group), Sizes::new(1, 70, 2, 64, 32), seed));
    }
    images(&Case::packed(memora(16), &[40, 1, 64, 17], 2, 32, 32, 88));
    images(&Case::packed(moneta(64), &[70, 3, 128], 1, 32, 64, 89));
    // More memories than run at once, and hidden layers that clusters share.
    images(&Case::new(memora(16), Sizes::new(20, 17, 14, 32, 32), 90));
    images(&Case::new(Memora { memory: WIDE, ..memora(64) }, Sizes::new(1, 70, 2, 64, 64), 91));
    images(&Case::new(Moneta { memory: WIDE, ..moneta(64) }, Sizes::new(1, 70, 2, 64, 64), 92));
    images(&Case::new(Moneta { memory: WIDE, ..moneta(16) }, Sizes::new(1, 20, 1, 128, 128), 93));
}

/// Their options, with kernels for groups and without.
#[test]
fn options_of_images() {
    let sizes = Sizes::new(1, 70, 2, 32, 32);
    images(&Case::new(Memora { scale: 3.0, clip: Some(2.0), ..memora(32) }, sizes, 101));
    images(&Case::new(Memora { memory: PLAIN, ..memora(16) }, sizes, 102));
    images(&Case::new(Memora { read: Read::Before, ..memora(16) }, sizes, 103));
    images(&Case::new(Moneta { clip: Some(2.0), memory: PLAIN, ..moneta(32) }, sizes, 104));
    images(&Case::new(Moneta { tanh: true, ..moneta(16) }, sizes, 105));
    images(&Case::new(Moneta { p: 1.5, epsilon: 1e-3, ..moneta(16) }, sizes, 106));
    images(&Case::new(Moneta { q: 3.0, ..moneta(16) }, sizes, 107));
    images(&Case::new(Moneta { map: Map::Literal, ..moneta(16) }, sizes, 108));
}

/// Other norms than the fourth, and the literal map: groups of any size.
#[test]
fn other_norms() {
    let map = Map::Literal;
    for (seed, (group, q)) in (231..).zip([(1, 2.0), (5, 3.0), (16, 2.5), (20, 4.5), (33, 6.0)]) {
        images(&Case::new(Moneta { q, ..moneta(group) }, Sizes::new(1, 70, 2, 64, 32), seed));
        images(&Case::new(Moneta { q, map, ..moneta(group) }, Sizes::new(1, 83, 2, 32, 64), seed));
        images_anchored(Case::new(MonetaMatrix { q, ..moneta_matrix(group) }, Sizes::new(1, 83, 2, 32, 64), seed));
        images(&Case::new(MonetaMatrix { q, map, ..moneta_matrix(group) }, Sizes::new(1, 70, 2, 64, 32), seed));
    }
    let sizes = Sizes::new(1, 70, 2, 32, 32);
    // By tokens.
    images(&Case::new(Moneta { q: 2.01, ..moneta(16) }, sizes, 236));
    images(&Case::new(Moneta { q: 8.0, ..moneta(64) }, sizes, 239));
}

/// Their anchors, reads before the write, packed sequences, hidden layers that clusters share, and more memories than run at once.
#[test]
fn options_of_other_norms() {
    let (sizes, map, q, read) = (Sizes::new(1, 70, 2, 32, 32), Map::Literal, 3.0, Read::Before);
    images(&Case::new(Moneta { map, ..moneta(16) }, sizes, 241));
    images_anchored(Case::new(Moneta { q, map, ..moneta(64) }, sizes, 243));
    images(&Case::new(Moneta { q, read, ..moneta(16) }, sizes, 244));
    images(&Case::new(Moneta { q, map, read, ..moneta(16) }, sizes, 245));
    images(&Case::packed(Moneta { q, map, ..moneta(16) }, &[40, 1, 64, 17], 2, 32, 32, 246));
    let wide = Sizes::new(1, 70, 2, 64, 64);
    images(&Case::new(Moneta { q, memory: WIDE, ..moneta(64) }, wide, 247));
    images(&Case::new(Moneta { q: 2.5, map, memory: WIDE, ..moneta(16) }, wide, 248));
    images(&Case::new(Moneta { q, map, ..moneta(16) }, Sizes::new(20, 17, 14, 32, 32), 249));
    repeats(&Case::new(Moneta { q: 2.5, map, memory: WIDE, ..moneta(64) }, Sizes::new(2, 130, 3, 64, 64), 253));
}

/// Keys that say nothing, or all the same; tokens that forget all; states that are large.
#[test]
fn extremes_of_other_norms() {
    let (sizes, map, q) = (Sizes::new(1, 50, 1, 32, 32), Map::Literal, 3.0);
    alike(&Case::new(Moneta { q, map, ..moneta(16) }, sizes, 250), 32);
    for (seed, plain) in (251..).zip([Moneta { q, ..moneta(16) }, Moneta { q, map, ..moneta(16) }]) {
        let slow = Case::new(plain, sizes, seed).changed("theta", |i, all| 0.05 * all[i]);
        close(&slow.clone().changed("log_a", forgets));
        close(&slow.changed("w0", |i, all| 1e3 * all[i]).changed("theta", |i, all| 0.02 * all[i]));
    }
}

/// Images of states that go back to an anchor, all the way where a token says so.
#[test]
fn anchored_images() {
    for (seed, group) in (151..).zip([16, 20, 33, 64]) {
        images_anchored(Case::new(memora(group), Sizes::new(1, 83, 2, 32, 64), seed));
        images_anchored(Case::new(moneta(group), Sizes::new(1, 70, 2, 64, 32), seed));
    }
    images_anchored(Case::packed(memora(16), &[40, 1, 64, 17], 2, 32, 32, 158));
    images_anchored(Case::packed(moneta(64), &[70, 3, 128], 1, 32, 64, 159));
    // Wide ones, whose forgetting moves outputs so little that 32 bits leave four digits of its gradient.
    let wide = Case::new(Memora { memory: WIDE, ..memora(64) }, Sizes::new(1, 70, 2, 64, 64), 161);
    within(&wide.anchored(5).expect("an anchor"), DType::Bf16, 1e-4);
    let wide = Case::new(Moneta { memory: WIDE, ..moneta(16) }, Sizes::new(1, 40, 2, 64, 64), 162);
    within(&wide.anchored(5).expect("an anchor"), DType::Bf16, 1e-3);
    // More memories than run at once.
    images_anchored(Case::new(memora(16), Sizes::new(20, 17, 14, 32, 32), 163));
    // Anchors whose columns are no distributions, and far from every state.
    let far = Case::new(memora(16), Sizes::new(1, 50, 2, 32, 32), 164).anchored(5).expect("an anchor");
    images(&far.changed("b0", |i, all| 20.0 * all[i]));
    let wild = Case::new(memora(16), Sizes::new(1, 50, 1, 32, 32), 166).anchored(5).expect("an anchor");
    close(&wild.changed("theta", |i, all| 100.0 * all[i]));
    let large = Case::new(moneta(16), Sizes::new(1, 50, 2, 32, 32), 165).anchored(5).expect("an anchor");
    close(&large.changed("b1", |i, all| 30.0 * all[i]));
}

/// Reads before the write, by which no token sees the last state.
#[test]
fn images_read_before_the_write() {
    let read = Read::Before;
    for (seed, group) in (211..).zip([16, 20, 33, 64]) {
        images(&Case::new(Memora { read, ..memora(group) }, Sizes::new(1, 83, 2, 32, 64), seed));
        images(&Case::new(Moneta { read, ..moneta(group) }, Sizes::new(1, 70, 2, 64, 32), seed));
        images(&Case::new(MemoraMatrix { read, ..memora_matrix(group) }, Sizes::new(1, 83, 2, 32, 64), seed));
        images(&Case::new(MonetaMatrix { read, ..moneta_matrix(group) }, Sizes::new(1, 70, 2, 64, 32), seed));
    }
    images(&Case::packed(Memora { read, ..memora(16) }, &[40, 1, 64, 17], 2, 32, 32, 218));
    images(&Case::packed(Moneta { read, ..moneta(64) }, &[70, 3, 128], 1, 32, 64, 219));
    images(&Case::new(Memora { read, memory: WIDE, ..memora(64) }, Sizes::new(1, 128, 2, 64, 64), 221));
    images(&Case::new(Moneta { read, memory: WIDE, ..moneta(16) }, Sizes::new(1, 40, 2, 64, 64), 222));
    let sizes = Sizes::new(1, 50, 1, 32, 32);
    close(&Case::new(Memora { read, ..memora(16) }, sizes, 223).changed("log_a", forgets));
    close(&Case::new(Memora { read, ..memora(64) }, sizes, 224).changed("theta", |i, all| 100.0 * all[i]));
    alike(&Case::new(Moneta { read, ..moneta(64) }, sizes, 225), 32);
}

fn images_anchored<R: Oracle>(case: Case<R>)
where
    Cuda: Kernel<R>,
    Cpu: Kernel<R>,
{
    images(&case.anchored(5).expect("an anchor"));
}

fn yaad_matrix(group: u32) -> YaadMatrix {
    YaadMatrix { frozen: Some(group), ..YaadMatrix::default() }
}

fn memora_matrix(group: u32) -> MemoraMatrix {
    MemoraMatrix { frozen: Some(group), ..MemoraMatrix::default() }
}

fn moneta_matrix(group: u32) -> MonetaMatrix {
    MonetaMatrix { frozen: Some(group), ..MonetaMatrix::default() }
}

/// Memories without a hidden layer, by the same kernels: groups of any size, to zero and to an anchor.
#[test]
fn matrices() {
    for (seed, group) in (171..).zip([1, 5, 16, 20, 33, 64, 65]) {
        rounds(&Case::new(yaad_matrix(group), Sizes::new(1, 83, 2, 16, 24), seed));
        rounds_anchored(Case::new(yaad_matrix(group), Sizes::new(1, 70, 2, 64, 32), seed));
        images(&Case::new(memora_matrix(group), Sizes::new(1, 83, 2, 32, 64), seed));
        images_anchored(Case::new(memora_matrix(group), Sizes::new(1, 70, 2, 64, 32), seed));
        images(&Case::new(moneta_matrix(group), Sizes::new(1, 70, 2, 64, 32), seed));
        images_anchored(Case::new(moneta_matrix(group), Sizes::new(1, 83, 2, 32, 64), seed));
    }
    rounds(&Case::packed(yaad_matrix(16), &[40, 1, 64, 17], 2, 16, 24, 181));
    images_anchored(Case::packed(memora_matrix(16), &[40, 1, 64, 17], 2, 32, 32, 182));
    images(&Case::packed(moneta_matrix(64), &[70, 3, 128], 1, 32, 64, 183));
    // Wide ones, and more than run at once.
    rounds(&Case::new(yaad_matrix(64), Sizes::new(1, 70, 1, 256, 128), 184));
    images(&Case::new(memora_matrix(64), Sizes::new(1, 70, 1, 128, 256), 185));
    images(&Case::new(moneta_matrix(16), Sizes::new(20, 17, 14, 32, 32), 186));
}

/// What else matrices have: residuals, both ways to read, bounds of errors, extreme tokens.
#[test]
fn options_of_matrices() {
    let (sizes, memory) = (Sizes::new(1, 70, 2, 32, 32), MatrixMemory { residual: true, ..MatrixMemory::default() });
    rounds(&Case::new(YaadMatrix { read: Read::Before, memory, ..yaad_matrix(16) }, sizes, 191));
    rounds(&Case::new(YaadMatrix { bias: Huber::Norm, clip: Some(2.0), ..yaad_matrix(32) }, sizes, 192));
    rounds_anchored(Case::new(YaadMatrix { bias: Huber::Mix, memory, ..yaad_matrix(64) }, sizes, 193));
    images_anchored(Case::new(MemoraMatrix { memory, scale: 3.0, ..memora_matrix(16) }, sizes, 194));
    images(&Case::new(MemoraMatrix { read: Read::Before, ..memora_matrix(16) }, sizes, 195));
    images(&Case::new(MonetaMatrix { memory, clip: Some(2.0), ..moneta_matrix(16) }, sizes, 196));
    let sizes = Sizes::new(1, 50, 1, 32, 32);
    alike(&Case::new(yaad_matrix(64), sizes, 197), 32);
    alike(&Case::new(memora_matrix(16), sizes, 198), 32);
    alike(&Case::new(moneta_matrix(16), sizes, 199), 32);
    close(&Case::new(yaad_matrix(16), sizes, 200).changed("log_a", forgets));
    close(&Case::new(memora_matrix(16), sizes, 201).changed("log_a", forgets));
    repeats(&Case::new(memora_matrix(64), Sizes::new(2, 130, 3, 64, 64), 202).anchored(5).expect("an anchor"));
    repeats(&Case::new(yaad_matrix(16), Sizes::new(2, 130, 3, 64, 64), 203));
}

/// What a memory keeps at a token: nothing at every ninth, and little at others.
fn forgets(t: usize, all: &[f64]) -> f64 {
    if t % 9 == 4 { f64::NEG_INFINITY } else { 8.0 * all[t] }
}

/// The same of images: all is forgotten at once, states are large, and exponentials pass the range of 32 bits.
#[test]
fn extreme_images() {
    let sizes = Sizes::new(1, 50, 1, 32, 32);
    close(&Case::new(memora(16), sizes, 111).changed("log_a", forgets));
    let slow = Case::new(moneta(16), sizes, 112).changed("theta", |i, all| 0.05 * all[i]);
    close(&slow.clone().changed("log_a", forgets));
    close(&slow.changed("w0", |i, all| 1e3 * all[i]));
    close(&Case::new(memora(16), sizes, 113).changed("theta", |i, all| 100.0 * all[i]));
    alike(&Case::new(memora(64), sizes, 114), 32);
    alike(&Case::new(moneta(16), sizes, 115), 32);
}

/// Keys of `width` that say nothing, and keys that all say the same.
fn alike<R: Oracle>(plain: &Case<R>, width: usize)
where
    Cuda: Kernel<R>,
    Cpu: Kernel<R>,
{
    alike_by(plain, width, 8.0);
}

/// With errors of so many factors.
fn alike_by<R: Oracle>(plain: &Case<R>, width: usize, factors: f64)
where
    Cuda: Kernel<R>,
    Cpu: Kernel<R>,
{
    for case in [plain.clone().changed("k", |_, _| 0.0), plain.clone().changed("k", |i, all| all[i % width])] {
        within(&case, DType::Bf16, factors / 2048.0);
        checks::agrees(&backends(), &case, "in groups");
    }
}

/// The same, and memories that forget everything at once, by kernels that take any width and by those with factors in shared memory.
#[test]
fn extreme_tokens() {
    for (seed, width) in (31..).zip([16, 64]) {
        let sizes = Sizes::new(1, 83, 1, width, width);
        for group in [16, 64] {
            let case = Case::new(titans(group), sizes, seed);
            alike(&case, width);
            close(&case.changed("log_a", forgets));
            let case = Case::new(yaad(group), sizes, seed);
            alike(&case, width);
            close(&case.changed("log_a", forgets));
        }
    }
}

/// The same call gives the same bits, whatever is in memory before it.
#[test]
fn bits_repeat() {
    let sizes = Sizes::new(2, 130, 3, 64, 64);
    repeats(&Case::new(TitansMlp { memory: WIDE, ..titans(16) }, sizes, 41));
    repeats(&Case::new(TitansMlp { memory: WIDE, ..titans(64) }, sizes, 44));
    repeats(&Case::new(TitansMlp { memory: LARGE, ..titans(64) }, Sizes::new(1, 130, 1, 128, 128), 45));
    repeats(&Case::new(Memora { memory: WIDE, ..memora(16) }, sizes, 42));
    repeats(&Case::new(Moneta { memory: WIDE, ..moneta(64) }, sizes, 43));
    repeats(&Case::new(Moneta { memory: WIDE, ..moneta(64) }, sizes, 46).anchored(5).expect("an anchor"));
}

fn repeats<R: Oracle>(case: &Case<R>)
where
    Cuda: Kernel<R>,
{
    for device in backends() {
        let [first, second] = [0, 1].map(|_| case.run(&device, DType::Bf16).unwrap());
        for ((slot, first), (_, second)) in first.list().into_iter().zip(second.list()) {
            assert_eq!(error(&first.values, &second.values), 0.0, "{slot}");
        }
        // Without a gradient nothing is kept, and nothing else is different.
        let outputs = case.infer(&device, DType::Bf16).unwrap();
        assert_eq!(error(&first.outputs.out.values, &outputs.out.values), 0.0);
    }
}
