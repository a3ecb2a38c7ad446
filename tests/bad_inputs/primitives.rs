//! Arguments of primitives that do not fit.

use super::{device, names};
use hecate_core::quantized::{BlockFormat, Quantized};
use hecate_core::{
    DType, Error, Result, Sequences, Tensor,
    primitives::{
        self, AdamW, AttentionInputs, AttentionOptions, BiasedBackward, Cache, Clip, ConvBackward, ConvInputs,
        ConvOptions, ConvOutputs, DeviceStep, Fp8, Fp8Factor, L2Norm, LayerNormBackward, LayerNormInputs, LossBackward,
        LossInputs, Losses, Map, Normed, Operands, PlacedUpdate, Prefix, RetentionBackward, RetentionInputs,
        RmsNormBackward, RmsNormInputs, RmsNormOptions, Slot, Transpose,
    },
};
use hecate_cpu::Cpu;

fn ones<const N: usize>(shape: [usize; N]) -> Tensor<Cpu> {
    Tensor::from_f32(&device(), shape, vec![1.0; shape.iter().product()]).expect("an upload")
}

fn ids<const N: usize>(shape: [usize; N], id: u32) -> Tensor<Cpu> {
    Tensor::from_u32(&device(), shape, vec![id; shape.iter().product()]).expect("an upload")
}

/// Whole rows, and the gate behind.
const RMS: RmsNormOptions = RmsNormOptions::new(1e-6);

fn rms_norm(x: &Tensor<Cpu>, weight: &Tensor<Cpu>, g: Option<&Tensor<Cpu>>) -> Result<Normed<Tensor<Cpu>>> {
    primitives::rms_norm(&RmsNormInputs { x, weight, g }, RMS)
}

fn retention(x: &Tensor<Cpu>, a_log: &Tensor<Cpu>, dt_bias: &Tensor<Cpu>) -> Result<Tensor<Cpu>> {
    primitives::retention(&RetentionInputs { x, a_log, dt_bias })
}

fn cross_entropy(classes: usize, logits: &Tensor<Cpu>, targets: &Tensor<Cpu>) -> Result<Losses<Tensor<Cpu>>> {
    primitives::cross_entropy(&LossInputs { classes, logits, targets })
}

fn conv(
    options: ConvOptions,
    sequences: &Sequences,
    x: &Tensor<Cpu>,
    weight: &Tensor<Cpu>,
    state: &Tensor<Cpu>,
) -> Result<ConvOutputs<Tensor<Cpu>>> {
    primitives::conv(options, sequences, &ConvInputs { x, weight, state })
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

/// Every primitive that takes floats refuses integers and arrays without elements.
#[test]
fn integers_and_nothing() {
    let attention = |q| {
        let (k, v) = (ones([1, 3, 1, 4]), ones([1, 3, 1, 4]));
        let inputs = AttentionInputs { q, k, v, cache: None, prefix: None };
        primitives::attention(AttentionOptions { window: 2, scale: 1.0 }, &Sequences::batch(1, 3), inputs)
    };
    let (weight, state) = (ones([4, 2]), ones([1, 1, 4]));
    let one = Sequences::batch(1, 3);
    let refused = |x: &dyn Fn() -> Tensor<Cpu>, x3: &dyn Fn() -> Tensor<Cpu>, x4: &dyn Fn() -> Tensor<Cpu>| {
        [
            names(primitives::matmul(&x(), &ones([4, 2]), Transpose::default()), &["matmul", "`a`"]),
            names(primitives::map(Map::Gelu, &x()), &["map", "`x`"]),
            names(primitives::add(&x(), &ones([4])), &["add", "`a`"]),
            names(primitives::mul(&x(), &ones([4])), &["mul", "`a`"]),
            names(primitives::scale(2.0, &x()), &["scale", "`x`"]),
            names(primitives::cast(DType::Bf16, &x()), &["cast", "`x`"]),
            names(rms_norm(&x(), &ones([4]), None), &["rms_norm", "`x`"]),
            names(rms_norm(&x(), &ones([4]), Some(&x())), &["rms_norm_gated", "`x`"]),
            names(primitives::l2_norm(&x(), 1e-6), &["l2_norm", "`x`"]),
            names(primitives::poly2(&x(), primitives::POLY2), &["poly2", "`x`"]),
            names(retention(&x(), &ones([4]), &ones([4])), &["retention", "`x`"]),
            names(primitives::sum(&x()), &["sum", "`x`"]),
            names(primitives::sum_squares(&x()), &["sum_squares", "`x`"]),
            names(primitives::sum_rows(&x(), 4), &["sum_rows", "`x`"]),
            names(primitives::embedding(&x(), &ids([2], 0)), &["embedding", "`table`"]),
            names(cross_entropy(1, &x(), &ids([2], 0)), &["cross_entropy", "`logits`"]),
            names(conv(ConvOptions::default(), &one, &x3(), &weight, &state), &["conv", "`x`"]),
            names(primitives::rotary(&x4(), &one, &[0], 1e4), &["rotary", "`x`"]),
            names(attention(x4()), &["attention", "`q`"]),
        ]
    };
    let integers = refused(&|| ids([2, 4], 0), &|| ids([1, 3, 4], 0), &|| ids([1, 3, 1, 4], 0));
    assert!(integers.iter().all(|error| matches!(error, Error::DType { found: DType::U32, .. })), "{integers:?}");
    let nothing = refused(&|| ones([0, 4]), &|| ones([1, 0, 4]), &|| ones([1, 0, 1, 4]));
    assert!(nothing.iter().all(|error| matches!(error, Error::Empty { .. })), "{nothing:?}");
}

#[test]
fn elementwise_and_sums() {
    assert!(matches!(names(primitives::map(Map::Silu, &ids([3], 0)), &["map", "`x`"]), Error::DType { .. }));
    let backward = primitives::map_backward(Map::Exp, &ones([3]), &ones([4]));
    assert!(matches!(names(backward, &["`dy`"]), Error::Shape { .. }));
    let (a, wrong) = (ones([2, 3]), ones([2]));
    assert!(matches!(names(primitives::add(&a, &wrong), &["add", "`b`"]), Error::Shape { .. }));
    assert!(matches!(names(primitives::mul(&a, &wrong), &["mul", "`b`"]), Error::Shape { .. }));
    assert!(matches!(names(primitives::add_backward(&a, &a, &wrong), &["add", "`dy`"]), Error::Shape { .. }));
    assert!(matches!(names(primitives::mul_backward(&a, &a, &wrong), &["mul", "`dy`"]), Error::Shape { .. }));
    assert!(matches!(names(primitives::biased(None, &a, &wrong), &["biased", "`b`"]), Error::Shape { .. }));
    let biased = primitives::biased_backward(Some(Map::Silu), &BiasedBackward { x: &a, b: &ones([3]), dy: &wrong });
    assert!(matches!(names(biased, &["biased", "`dy`"]), Error::Shape { .. }));
    assert!(matches!(names(primitives::mul(&a, &ones([0])), &["mul", "`b`"]), Error::Empty { .. }));
    assert!(matches!(names(primitives::cast(DType::U32, &ones([2])), &["cast", "u32"]), Error::DType { .. }));
    let several = primitives::cast_all(DType::F32, &[&ones([2]), &ids([2], 1)]);
    assert!(matches!(names(several, &["cast", "`x`", "u32"]), Error::DType { .. }));
    assert!(matches!(names(primitives::sum_rows(&ones([2, 3]), 4), &["sum_rows"]), Error::Shape { .. }));
    assert!(matches!(names(primitives::sum_rows(&ones([2, 3]), 0), &["sum_rows"]), Error::Shape { .. }));
}

#[test]
fn norms_and_gates() {
    let rms = rms_norm(&ones([2, 3]), &ones([4]), None);
    assert!(matches!(names(rms, &["rms_norm", "`weight`"]), Error::Shape { .. }));
    let (x, weight, right) = (ones([2, 3]), ones([3]), ones([2]));
    for (inverse, dy, slot) in [(ones([3]), ones([2, 3]), "`inverse`"), (right.clone(), ones([3, 2]), "`dy`")] {
        let inputs = RmsNormInputs { x: &x, weight: &weight, g: None };
        let rms = primitives::rms_norm_backward(&RmsNormBackward { options: RMS, inputs, inverse: &inverse, dy: &dy });
        assert!(matches!(names(rms, &["rms_norm", slot]), Error::Shape { .. }));
        let l2 = primitives::l2_norm_backward(&x, &inverse, &dy);
        assert!(matches!(names(l2, &["l2_norm", slot]), Error::Shape { .. }));
    }
    let gate = retention(&x, &ones([2]), &ones([2]));
    assert!(matches!(names(gate, &["retention", "`a_log`"]), Error::Shape { .. }));
    let inputs = RetentionInputs { x: &x, a_log: &weight, dt_bias: &weight };
    let gate = primitives::retention_backward(&RetentionBackward { inputs, dy: &ones([3, 2]) });
    assert!(matches!(names(gate, &["retention", "`dy`"]), Error::Shape { .. }));
    let onto = Operands { a: Some(ones([3, 2])), b: None };
    let product = primitives::matmul_backward_onto(&x, &ones([3, 4]), Transpose::default(), &ones([2, 4]), onto);
    assert!(matches!(names(product, &["matmul", "`da`"]), Error::Shape { .. }));
    let gated = rms_norm(&x, &weight, Some(&ones([3, 2])));
    assert!(matches!(names(gated, &["rms_norm_gated", "`g`"]), Error::Shape { .. }));
    let inputs = RmsNormInputs { x: &x, weight: &weight, g: Some(&x) };
    let gated =
        primitives::rms_norm_backward(&RmsNormBackward { options: RMS, inputs, inverse: &right, dy: &ones([3, 2]) });
    assert!(matches!(names(gated, &["rms_norm_gated", "`dy`"]), Error::Shape { .. }));
    let (inputs, other) = (RmsNormInputs { g: None, ..inputs }, ones([3, 2]));
    let added = primitives::add_rms_norm(&other, &inputs, RMS);
    assert!(matches!(names(added, &["rms_norm", "`residual`"]), Error::Shape { .. }));
    let call = RmsNormBackward { options: RMS, inputs, inverse: &right, dy: &x };
    let added = primitives::add_rms_norm_backward(&call, &other);
    assert!(matches!(names(added, &["rms_norm", "`dsum`"]), Error::Shape { .. }));
    let inputs = LayerNormInputs { x: &x, weight: &weight, bias: &weight };
    let added = primitives::add_layer_norm(&other, &inputs, 1e-6);
    assert!(matches!(names(added, &["layer_norm", "`residual`"]), Error::Shape { .. }));
    let call = LayerNormBackward { inputs, mean: &right, inverse: &right, dy: &x };
    let added = primitives::add_layer_norm_backward(&call, &other);
    assert!(matches!(names(added, &["layer_norm", "`dsum`"]), Error::Shape { .. }));
    let rounded = primitives::cast(DType::Bf16, &right).expect("a cast");
    let l2 = primitives::l2_norm_backward(&x, &rounded, &x);
    assert!(matches!(names(l2, &["l2_norm", "`inverse`", "f32"]), Error::DType { .. }));
    for groups in [0, 2, 4] {
        let inputs = RmsNormInputs { x: &x, weight: &weight, g: None };
        let rms = primitives::rms_norm(&inputs, RmsNormOptions { groups, ..RMS });
        assert!(matches!(names(rms, &["rms_norm", "`groups`", &groups.to_string()]), Error::Config { .. }));
    }
    // One number of `inverse` a group, not a row.
    let options = RmsNormOptions { groups: 3, ..RMS };
    let inputs = RmsNormInputs { x: &x, weight: &weight, g: None };
    let rms = primitives::rms_norm_backward(&RmsNormBackward { options, inputs, inverse: &right, dy: &x });
    assert!(matches!(names(rms, &["rms_norm", "`inverse`", "[6]"]), Error::Shape { .. }));
    for epsilon in [f32::NAN, -1.0, f32::INFINITY] {
        let rms = primitives::rms_norm(&inputs, RmsNormOptions { epsilon, ..RMS });
        assert!(matches!(names(rms, &["rms_norm", "`epsilon`"]), Error::Config { .. }));
        let l2 = primitives::l2_norm(&ones([2, 3]), epsilon);
        assert!(matches!(names(l2, &["l2_norm", "`epsilon`"]), Error::Config { .. }));
    }
}

#[test]
fn features() {
    let (x, one) = (ones([2, 3]), primitives::POLY2);
    let backward = primitives::poly2_backward(&x, one, &x);
    assert!(matches!(names(backward, &["poly2", "`dy`", "[2, 10]"]), Error::Shape { .. }));
    let rounded = primitives::cast(DType::Bf16, &ones([2, 10])).expect("a cast");
    assert!(matches!(names(primitives::poly2_backward(&x, one, &rounded), &["`dy`"]), Error::DType { .. }));
    let wide = primitives::poly2(&ones([1, 1025]), one);
    assert!(matches!(names(wide, &["poly2", "`width`", "1025"]), Error::Config { .. }));
    for wrong in [-1.0, f32::NAN, f32::INFINITY] {
        let refused = primitives::poly2(&x, [1.0, wrong, 1.0]);
        assert!(matches!(names(refused, &["poly2", "`coefficients`"]), Error::Config { .. }));
    }
    assert_eq!(primitives::poly2_width(usize::MAX), usize::MAX);
}

#[test]
fn products_by_heads() {
    let (x, m) = (ones([2, 3, 4]), ones([3, 4, 5]));
    let call = primitives::head_products;
    assert_eq!(call(&x, &m).expect("a valid call").shape().axes(), [2, 3, 5]);
    assert!(matches!(names(call(&x, &ones([2, 4, 5])), &["head_products", "`m`", "[3, 4, 5]"]), Error::Shape { .. }));
    assert!(matches!(names(call(&x, &ones([4, 5])), &["head_products", "`m`"]), Error::Rank { .. }));
    assert!(matches!(names(call(&ones([4]), &m), &["head_products", "`x`"]), Error::Rank { .. }));
    assert!(matches!(names(call(&ones([0, 3, 4]), &m), &["head_products", "`x`"]), Error::Empty { .. }));
    assert!(matches!(names(call(&ids([2, 3, 4], 0), &m), &["head_products", "`x`", "u32"]), Error::DType { .. }));
    let rounded = primitives::cast(DType::Bf16, &m).expect("a cast");
    assert!(matches!(names(call(&x, &rounded), &["head_products", "`m`", "f32"]), Error::DType { .. }));
    let backward = primitives::head_products_backward(&x, &m, &x);
    assert!(matches!(names(backward, &["head_products", "`dy`", "[2, 3, 5]"]), Error::Shape { .. }));
}

#[test]
fn products_of_8_bits() {
    let call = |a: &Tensor<Cpu>, b: &Tensor<Cpu>, formats: [Fp8; 2], maximum| {
        let [a, b] =
            [(a, formats[0]), (b, formats[1])].map(|(x, format)| Fp8Factor { x, format, scale: None, maximum });
        primitives::fp8_matmul(a, b, Transpose::default())
    };
    let (a, b, both) = (ones([16, 32]), ones([32, 48]), [Fp8::E4M3; 2]);
    assert!(matches!(names(call(&a, &b, both, None), &["cpu", "8-bit floats", "bf16"]), Error::Unsupported { .. }));
    assert!(matches!(names(call(&a, &a, both, None), &["fp8_matmul", "`b`", "[32, 32]"]), Error::Shape { .. }));
    assert!(matches!(names(call(&ones([32]), &b, both, None), &["fp8_matmul", "`a`"]), Error::Rank { .. }));
    assert!(matches!(names(call(&ids([16, 32], 0), &b, both, None), &["`a`", "u32"]), Error::DType { .. }));
    assert!(matches!(names(call(&ones([0, 32]), &b, both, None), &["fp8_matmul", "`a`"]), Error::Empty { .. }));
    for (a, b, size) in [([15, 32], [32, 48], "rows"), ([16, 40], [40, 48], "inner"), ([16, 32], [32, 4], "columns")] {
        let refused = call(&ones(a), &ones(b), both, None);
        assert!(matches!(names(refused, &["fp8_matmul", size, "multiple of 16"]), Error::Config { .. }));
    }
    assert!(matches!(names(call(&a, &b, [Fp8::E5M2; 2], None), &["e5m2", "e4m3"]), Error::Config { .. }));
    let (maxima, rounded) = (ones([2]), primitives::cast(DType::Bf16, &b).expect("a cast"));
    let refused = call(&a, &b, both, Some((&maxima, 2)));
    assert!(matches!(names(refused, &["fp8_matmul", "`maxima`", "element 2 of [2]"]), Error::Config { .. }));
    assert!(matches!(names(call(&a, &rounded, both, None), &["fp8_matmul", "`b`", "f32"]), Error::DType { .. }));
}

#[test]
fn quantized_products() {
    let weight = Quantized::zeros(&device(), BlockFormat::Q8_0, [3, 64]).expect("two blocks a row");
    let call = |x: &Tensor<Cpu>| primitives::quantized_matmul(x, &weight);
    assert_eq!(call(&ones([2, 5, 64])).expect("a valid call").shape().axes(), [2, 5, 3]);
    assert!(matches!(names(call(&ones([2, 32])), &["quantized_matmul", "`x`", "[2, 64]"]), Error::Shape { .. }));
    assert!(matches!(names(call(&ids([2, 64], 0)), &["quantized_matmul", "`x`", "u32"]), Error::DType { .. }));
    assert!(matches!(names(call(&ones([0, 64])), &["quantized_matmul", "`x`"]), Error::Empty { .. }));
    for format in BlockFormat::ALL {
        let made = |shape, bytes: usize| Quantized::new(&device(), format, shape, &vec![0; bytes]).map(|_| ());
        let known = format!("multiple of {}", format.block());
        let parts = made([1, format.block() + 1], 0);
        assert!(matches!(names(parts, &["quantized matrix", &known]), Error::Config { .. }));
        let few = made([2, format.block()], format.block_bytes());
        assert!(matches!(names(few, &["quantized matrix", "`bytes`", "2 rows"]), Error::Config { .. }));
        assert!(matches!(names(made([0, format.block()], 0), &["quantized matrix"]), Error::Empty { .. }));
    }
}

#[test]
fn convolution_and_rotation() {
    let (batch, plain) = (Sequences::batch(2, 3), ConvOptions::default());
    let call = |x: &Tensor<Cpu>, weight: &Tensor<Cpu>, state: &Tensor<Cpu>| conv(plain, &batch, x, weight, state);
    let (x, weight, state) = (ones([2, 3, 4]), ones([4, 3]), ones([2, 2, 4]));
    call(&x, &weight, &state).expect("a valid call");
    for (width, epsilon, option) in [(3, 0.1, "`l2_norm`"), (0, 0.1, "`l2_norm`"), (2, f32::NAN, "`epsilon`")] {
        let options = ConvOptions { l2_norm: Some(L2Norm { width, epsilon }), ..plain };
        let unit = conv(options, &batch, &x, &weight, &state);
        assert!(matches!(names(unit, &["conv", option]), Error::Config { .. }));
    }
    assert!(matches!(names(call(&ones([6, 4]), &weight, &state), &["conv", "`x`"]), Error::Rank { .. }));
    assert!(matches!(names(call(&x, &ones([4, 1]), &state), &["`width`"]), Error::Config { .. }));
    assert!(matches!(names(call(&x, &ones([5, 3]), &state), &["`weight`"]), Error::Shape { .. }));
    assert!(matches!(names(call(&x, &weight, &ones([2, 3, 4])), &["`state`"]), Error::Shape { .. }));
    assert!(matches!(names(call(&ones([2, 5, 4]), &weight, &state), &["`x`"]), Error::Shape { .. }));
    let inputs = ConvInputs { x: &x, weight: &weight, state: &state };
    let backward = |dy: &Tensor<Cpu>, end: &Tensor<Cpu>| {
        primitives::conv_backward(plain, &batch, &ConvBackward { inputs, dy, dfinal: Some(end) })
    };
    assert!(matches!(names(backward(&ones([2, 4, 3]), &state), &["conv", "`dy`"]), Error::Shape { .. }));
    assert!(matches!(names(backward(&x, &ones([1, 2, 4])), &["conv", "`dfinal`"]), Error::Shape { .. }));
    let rotary = |width, offsets: &[usize], base| primitives::rotary(&ones([2, 3, 1, width]), &batch, offsets, base);
    assert!(matches!(names(rotary(5, &[0, 0], 1e4), &["rotary", "`width`"]), Error::Config { .. }));
    assert!(matches!(names(rotary(4, &[0], 1e4), &["`offsets`"]), Error::Config { .. }));
    assert!(matches!(names(rotary(4, &[0, 0], 0.0), &["`base`"]), Error::Config { .. }));
    let flat = primitives::rotary(&ones([2, 3, 4]), &batch, &[0, 0], 1e4);
    assert!(matches!(names(flat, &["rotary", "`x`"]), Error::Rank { .. }));
    let longer = primitives::rotary_backward(&ones([2, 4, 1, 4]), &batch, &[0, 0], 1e4);
    assert!(matches!(names(longer, &["rotary", "`x`"]), Error::Shape { .. }));
    let counted = |positions| primitives::rotary_from(&ones([2, 3, 1, 4]), &batch, &positions, 1e4);
    assert!(matches!(names(counted(ids([3], 0)), &["rotary", "`positions`"]), Error::Shape { .. }));
    assert!(matches!(names(counted(ones([2])), &["rotary", "`positions`", "u32"]), Error::DType { .. }));
    assert!(matches!(names(primitives::advance(&ones([2]), 1), &["advance", "`positions`"]), Error::DType { .. }));
}

/// Packed lengths stand in one row of tokens; over several rows, sequences would straddle them.
#[test]
fn lengths_across_rows() {
    let accepted = |lengths: &[usize], batch| {
        let (sequences, tokens) = (Sequences::packed(lengths), 6 / batch);
        let (wide, narrow) = (ones([batch, tokens, 1, 4]), ones([batch, tokens, 4]));
        let state = ones([lengths.len(), 1, 4]);
        let inputs = AttentionInputs { q: wide.clone(), k: wide.clone(), v: wide.clone(), cache: None, prefix: None };
        let options = AttentionOptions { window: 2, scale: 1.0 };
        [
            conv(ConvOptions::default(), &sequences, &narrow, &ones([4, 2]), &state).map(|_| ()),
            primitives::rotary(&wide, &sequences, &vec![0; lengths.len()], 1e4).map(|_| ()),
            primitives::attention(options, &sequences, inputs.clone()).map(|_| ()),
        ]
    };
    accepted(&[2, 4], 1).into_iter().for_each(|result| result.expect("one row of tokens"));
    accepted(&[3, 3], 2).into_iter().for_each(|result| result.expect("two rows, two sequences of a row each"));
    for (lengths, slot) in accepted(&[2, 4], 2).into_iter().zip(["x", "x", "q"]) {
        let error = names(lengths, &[&format!("`{slot}`"), "expected [1, 6"]);
        assert!(matches!(error, Error::Shape { .. }), "{error}");
    }
    for wrong in accepted(&[usize::MAX, 6], 1) {
        assert!(matches!(names(wrong, &["shape [1, 6"]), Error::Shape { .. }));
    }
}

#[test]
fn ids_outside_the_table() {
    let table = ones([5, 3]);
    let error = names(primitives::embedding(&table, &ids([2], 5)), &["embedding", "`ids`"]);
    assert!(matches!(error, Error::Value { index: 0, .. }), "{error}");
    names(primitives::embedding_backward(5, &ids([2], 9), &ones([2, 3])), &["embedding", "`ids`"]);
    assert!(matches!(names(primitives::embedding(&table, &ones([2])), &["`ids`"]), Error::DType { .. }));
    assert!(matches!(names(primitives::embedding(&table, &ids([0], 0)), &["`ids`"]), Error::Empty { .. }));
    let error = names(cross_entropy(5, &ones([2, 5]), &ids([2], 7)), &["cross_entropy", "`targets`"]);
    assert!(matches!(error, Error::Value { index: 0, .. }), "{error}");
    assert!(matches!(names(cross_entropy(5, &ones([2, 5]), &ids([3], 1)), &["`targets`"]), Error::Shape { .. }));
    let backward = primitives::embedding_backward(5, &ids([2], 1), &ones([3, 3]));
    assert!(matches!(names(backward, &["embedding", "`dy`"]), Error::Shape { .. }));
    assert!(matches!(names(primitives::embedding(&ones([5]), &ids([2], 1)), &["`table`"]), Error::Rank { .. }));
    let (logits, targets) = (ones([2, 5]), ids([2], 1));
    let inputs = LossInputs { classes: 5, logits: &logits, targets: &targets };
    let backward = primitives::cross_entropy_backward(&LossBackward { inputs, lse: &ones([3]), factor: 1.0 });
    assert!(matches!(names(backward, &["cross_entropy", "`lse`"]), Error::Shape { .. }));
    for classes in [0, 6] {
        let error = names(cross_entropy(classes, &ones([2, 5]), &ids([2], 0)), &["cross_entropy", "`classes`"]);
        assert!(matches!(error, Error::Config { .. }), "{error}");
    }
    let floats = cross_entropy(5, &ones([2, 5]), &ones([2]));
    assert!(matches!(names(floats, &["`targets`"]), Error::DType { .. }));
}

#[test]
fn ranges_outside_the_axis() {
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
    let mixed = primitives::concat(&[&ones([2, 3]), &ids([2, 3], 0)], 0);
    assert!(matches!(names(mixed, &["concat", "`parts`"]), Error::DType { .. }));
    let backward = primitives::narrow_backward(&[2, 3].into(), 1, 0, 2, &ones([2, 3]));
    assert!(matches!(names(backward, &["narrow", "`dy`"]), Error::Shape { .. }));
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
    let call = |options, inputs| primitives::attention(options, &sequences, inputs);
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
    let backward =
        |dy, dcache: Option<&Cache<_>>| call(options, inputs()).expect("a valid call").pass.backward(&dy, dcache);
    let dy = backward(ones([1, 3, 4, 5]), None);
    assert!(matches!(names(dy, &["attention", "`dy`"]), Error::Shape { .. }));
    let dcache = Cache { k: ones([1, 3, 2, 5]), v: ones([1, 3, 2, 5]), valid: ones([1, 3]) };
    let dcache = backward(ones([1, 3, 4, 6]), Some(&dcache));
    assert!(matches!(names(dcache, &["attention", "`cache v`"]), Error::Shape { .. }));
    let values = AttentionInputs { v: ones([1, 4, 2, 6]), ..inputs() };
    let after = primitives::attention_cache(options, &sequences, &values);
    assert!(matches!(names(after, &["attention", "`v`"]), Error::Shape { .. }));
}

#[test]
fn optimiser() {
    let constants = AdamW { learning_rate: 1e-3, beta1: 0.9, beta2: 0.99, epsilon: 1e-8, weight_decay: 0.0, step: 1 };
    let slot = || Slot { value: ones([3]), mean: ones([3]), square: ones([3]) };
    let call = |constants: AdamW, grad| primitives::adamw(&constants, None, slot(), &grad);
    assert!(matches!(names(call(constants, ones([4])), &["adamw", "`grad`"]), Error::Shape { .. }));
    let mean = primitives::adamw(&constants, None, Slot { mean: ones([4]), ..slot() }, &ones([3]));
    assert!(matches!(names(mean, &["adamw", "`mean`"]), Error::Shape { .. }));
    let clip = Clip { max_norm: 1.0, norm_squared: &ones([2]) };
    let clipped = primitives::adamw(&constants, Some(&clip), slot(), &ones([3]));
    assert!(matches!(names(clipped, &["adamw", "`norm_squared`"]), Error::Shape { .. }));
    let half = primitives::cast(DType::Bf16, &ones([3])).expect("a cast");
    assert!(matches!(names(call(constants, half), &["adamw", "`grad`"]), Error::DType { .. }));
    let beta = call(AdamW { beta1: 1.0, ..constants }, ones([3]));
    assert!(matches!(names(beta, &["`beta1`"]), Error::Config { .. }));
    let step = call(AdamW { step: 0, ..constants }, ones([3]));
    assert!(matches!(names(step, &["`step`"]), Error::Config { .. }));
}

/// Numbers of a step that lie on the device; refused before anything moves.
#[test]
fn steps_of_the_device() {
    let constants = AdamW { learning_rate: 1e-3, beta1: 0.9, beta2: 0.99, epsilon: 1e-8, weight_decay: 0.0, step: 1 };
    let call = |rates: Tensor<Cpu>, finite: Tensor<Cpu>, square: Tensor<Cpu>| {
        let (mut value, mut mean, mut square, grad) = (ones([3]), ones([3]), square, ones([3]));
        let slot = Slot { value: &mut value, mean: &mut mean, square: &mut square };
        let given = DeviceStep { rates: &rates, finite: &finite };
        let called = primitives::adamw_placed(&constants, None, &given, vec![PlacedUpdate { slot, grad: &grad }]);
        let moved = value.to_f32().expect("values") != [1.0; 3];
        assert_eq!(moved, called.is_ok());
        called
    };
    let half = || primitives::cast(DType::Bf16, &ones([3])).expect("a cast");
    call(ones([3]), ones([2]), ones([3])).expect("a step");
    assert!(matches!(names(call(ones([2]), ones([2]), ones([3])), &["adamw", "`rates`"]), Error::Shape { .. }));
    assert!(matches!(names(call(half(), ones([2]), ones([3])), &["adamw", "`rates`"]), Error::DType { .. }));
    assert!(matches!(names(call(ones([3]), ones([2, 1]), ones([3])), &["adamw", "`finite`"]), Error::Shape { .. }));
    assert!(matches!(names(call(ones([3]), half(), ones([3])), &["adamw", "`finite`"]), Error::DType { .. }));
    assert!(matches!(names(call(ones([3]), ones([2]), ones([4])), &["adamw", "`square`"]), Error::Shape { .. }));
}
