//! Arguments of primitives that do not fit.

use super::{device, names};
use hecate_core::{
    DType, Error, Sequences, Tensor,
    primitives::{self, AdamW, AttentionInputs, AttentionOptions, Cache, Map, Prefix, Slot, Transpose},
};
use hecate_cpu::Cpu;

fn ones<const N: usize>(shape: [usize; N]) -> Tensor<Cpu> {
    Tensor::from_f32(&device(), shape, vec![1.0; shape.iter().product()]).expect("an upload")
}

fn ids<const N: usize>(shape: [usize; N], id: u32) -> Tensor<Cpu> {
    Tensor::from_u32(&device(), shape, vec![id; shape.iter().product()]).expect("an upload")
}

#[test]
fn matmul() {
    let plain = Transpose::default();
    let product = |a: &Tensor<Cpu>, b: &Tensor<Cpu>| primitives::matmul(a, b, plain);
    assert!(matches!(names(product(&ones([2, 3]), &ones([4, 5])), &["matmul", "`b`", "[3, 5]"]), Error::Shape { .. }));
    assert!(matches!(names(product(&ones([3]), &ones([3, 5])), &["`a`"]), Error::Rank { .. }));
    assert!(matches!(names(product(&ones([2, 2, 3]), &ones([3, 3, 5])), &["`b`"]), Error::Shape { .. }));
    assert!(matches!(names(product(&ones([0, 3]), &ones([3, 5])), &["`a`"]), Error::Empty { .. }));
    assert!(matches!(names(product(&ids([2, 3], 1), &ones([3, 5])), &["`a`"]), Error::DType { .. }));
    let half = primitives::cast(DType::Bf16, &ones([3, 5])).expect("a cast");
    assert!(matches!(names(product(&ones([2, 3]), &half), &["`b`", "bf16"]), Error::DType { .. }));
    let backward = primitives::matmul_backward(&ones([2, 3]), &ones([3, 5]), plain, &ones([5, 2]));
    assert!(matches!(names(backward, &["`dout`"]), Error::Shape { .. }));
}

#[test]
fn elementwise_and_sums() {
    assert!(matches!(names(primitives::map(Map::Silu, &ids([3], 0)), &["map", "`x`"]), Error::DType { .. }));
    let backward = primitives::map_backward(Map::Exp, &ones([3]), &ones([4]));
    assert!(matches!(names(backward, &["`dy`"]), Error::Shape { .. }));
    assert!(matches!(names(primitives::add(&ones([2, 3]), &ones([2])), &["add", "`b`"]), Error::Shape { .. }));
    assert!(matches!(names(primitives::mul(&ones([2, 3]), &ones([0])), &["mul", "`b`"]), Error::Empty { .. }));
    assert!(matches!(names(primitives::cast(DType::U32, &ones([2])), &["cast", "u32"]), Error::DType { .. }));
    assert!(matches!(names(primitives::scale(2.0, &ones([0])), &["scale", "`x`"]), Error::Empty { .. }));
    assert!(matches!(names(primitives::sum(&ids([2], 1)), &["sum", "`x`"]), Error::DType { .. }));
    assert!(matches!(names(primitives::sum_rows(&ones([2, 3]), 4), &["sum_rows"]), Error::Shape { .. }));
    assert!(matches!(names(primitives::sum_rows(&ones([2, 3]), 0), &["sum_rows"]), Error::Shape { .. }));
}

#[test]
fn norms() {
    let rms = primitives::rms_norm(&ones([2, 3]), &ones([4]), 1e-6);
    assert!(matches!(names(rms, &["rms_norm", "`weight`"]), Error::Shape { .. }));
    for epsilon in [f32::NAN, -1.0, f32::INFINITY] {
        let l2 = primitives::l2_norm(&ones([2, 3]), epsilon);
        assert!(matches!(names(l2, &["l2_norm", "`epsilon`"]), Error::Config { .. }));
    }
}

#[test]
fn convolution_and_rotation() {
    let batch = Sequences::batch(2, 3);
    let call = |x: &Tensor<Cpu>, weight: &Tensor<Cpu>, state: &Tensor<Cpu>| primitives::conv(x, weight, state, &batch);
    let (x, weight, state) = (ones([2, 3, 4]), ones([4, 3]), ones([2, 2, 4]));
    call(&x, &weight, &state).expect("a valid call");
    assert!(matches!(names(call(&ones([6, 4]), &weight, &state), &["conv", "`x`"]), Error::Rank { .. }));
    assert!(matches!(names(call(&x, &ones([4, 1]), &state), &["`width`"]), Error::Config { .. }));
    assert!(matches!(names(call(&x, &ones([5, 3]), &state), &["`weight`"]), Error::Shape { .. }));
    assert!(matches!(names(call(&x, &weight, &ones([2, 3, 4])), &["`state`"]), Error::Shape { .. }));
    assert!(matches!(names(call(&ones([2, 5, 4]), &weight, &state), &["`x`"]), Error::Shape { .. }));
    let rotary = |width, offsets: &[usize], base| primitives::rotary(&ones([2, 3, 1, width]), &batch, offsets, base);
    assert!(matches!(names(rotary(5, &[0, 0], 1e4), &["rotary", "`width`"]), Error::Config { .. }));
    assert!(matches!(names(rotary(4, &[0], 1e4), &["`offsets`"]), Error::Config { .. }));
    assert!(matches!(names(rotary(4, &[0, 0], 0.0), &["`base`"]), Error::Config { .. }));
}

#[test]
fn ids_outside_the_table() {
    let table = ones([5, 3]);
    let error = names(primitives::embedding(&table, &ids([2], 5)), &["embedding", "`ids`"]);
    assert!(matches!(error, Error::Value { index: 0, .. }), "{error}");
    names(primitives::embedding_backward(5, &ids([2], 9), &ones([2, 3])), &["embedding", "`ids`"]);
    assert!(matches!(names(primitives::embedding(&table, &ones([2])), &["`ids`"]), Error::DType { .. }));
    assert!(matches!(names(primitives::embedding(&table, &ids([0], 0)), &["`ids`"]), Error::Empty { .. }));
    let error = names(primitives::cross_entropy(&ones([2, 5]), &ids([2], 7)), &["cross_entropy", "`targets`"]);
    assert!(matches!(error, Error::Value { index: 0, .. }), "{error}");
    assert!(matches!(
        names(primitives::cross_entropy(&ones([2, 5]), &ids([3], 1)), &["`targets`"]),
        Error::Shape { .. }
    ));
    let floats = primitives::cross_entropy(&ones([2, 5]), &ones([2]));
    assert!(matches!(names(floats, &["`targets`"]), Error::DType { .. }));
}

#[test]
fn stretches_outside_the_axis() {
    for (axis, start, count) in [(2, 0, 1), (1, 3, 1), (1, 2, 2), (1, 0, 0), (0, usize::MAX, 2)] {
        assert!(matches!(
            names(primitives::narrow(&ones([2, 3]), axis, start, count), &["narrow"]),
            Error::Config { .. }
        ));
    }
    let nothing: &[&Tensor<Cpu>] = &[];
    assert!(matches!(names(primitives::concat(nothing, 0), &["concat", "`parts`"]), Error::Config { .. }));
    let uneven = primitives::concat(&[&ones([2, 3]), &ones([2, 4])], 0);
    assert!(matches!(names(uneven, &["concat", "`parts`"]), Error::Shape { .. }));
}

#[test]
fn attention() {
    let inputs = || AttentionInputs {
        q: ones([1, 3, 4, 5]),
        k: ones([1, 3, 2, 5]),
        v: ones([1, 3, 2, 6]),
        cache: None,
        prefix: None,
    };
    let options = AttentionOptions { window: 4, scale: 0.5 };
    let sequences = Sequences::batch(1, 3);
    let call = |options, inputs| primitives::attention(options, &sequences, &inputs);
    call(options, inputs()).expect("a valid call");
    let window = call(AttentionOptions { window: 1, ..options }, inputs());
    assert!(matches!(names(window, &["attention", "`window`"]), Error::Config { .. }));
    let scale = call(AttentionOptions { scale: f32::NAN, ..options }, inputs());
    assert!(matches!(names(scale, &["`scale`"]), Error::Config { .. }));
    let heads = call(options, AttentionInputs { q: ones([1, 3, 3, 5]), ..inputs() });
    assert!(matches!(names(heads, &["`query heads`"]), Error::Config { .. }));
    let keys = call(options, AttentionInputs { k: ones([1, 3, 2, 4]), ..inputs() });
    assert!(matches!(names(keys, &["`k`"]), Error::Shape { .. }));
    let cache = Cache { k: ones([1, 3, 2, 5]), v: ones([1, 3, 2, 6]), valid: ones([1, 4]) };
    let cache = call(options, AttentionInputs { cache: Some(cache), ..inputs() });
    assert!(matches!(names(cache, &["`cache valid`"]), Error::Shape { .. }));
    let prefix = Prefix { k: ones([2, 2, 5]), v: ones([2, 2, 5]) };
    let prefix = call(options, AttentionInputs { prefix: Some(prefix), ..inputs() });
    assert!(matches!(names(prefix, &["`prefix v`"]), Error::Shape { .. }));
}

#[test]
fn optimiser() {
    let constants = AdamW { learning_rate: 1e-3, beta1: 0.9, beta2: 0.99, epsilon: 1e-8, weight_decay: 0.0, step: 1 };
    let slot = || Slot { value: ones([3]), mean: ones([3]), square: ones([3]) };
    let call = |constants: AdamW, grad| primitives::adamw(&constants, None, slot(), &grad);
    assert!(matches!(names(call(constants, ones([4])), &["adamw", "`grad`"]), Error::Shape { .. }));
    let beta = call(AdamW { beta1: 1.0, ..constants }, ones([3]));
    assert!(matches!(names(beta, &["`beta1`"]), Error::Config { .. }));
    let step = call(AdamW { step: 0, ..constants }, ones([3]));
    assert!(matches!(names(step, &["`step`"]), Error::Config { .. }));
}
