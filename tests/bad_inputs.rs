//! Whatever a caller gets wrong is a typed error that names the slot or option, and never a panic.

use hecate_conformance::{Array, Case, Sizes, oracle::Oracle};
use hecate_core::{
    DType, Dims, Error, Inputs, Outputs, Result, Rule, Sequences, Shape, Slots, Tensor, forward, forward_packed, infer,
    infer_packed, rules::*,
};
use hecate_cpu::Cpu;
use std::sync::LazyLock;

/// The one device of these tests: arrays of two are refused.
fn device() -> Cpu {
    static CPU: LazyLock<Cpu> = LazyLock::new(Cpu::new);
    CPU.clone()
}

/// Inputs of a rule for shapes that need not make sense.
fn inputs<R: Rule>(rule: R, dims: &Dims) -> Inputs<R, Tensor<Cpu>> {
    let zeros = |shape: Shape| Tensor::zeros(&device(), shape, DType::F32).expect("zeros");
    Inputs {
        q: zeros(dims.keys()),
        k: zeros(dims.keys()),
        v: zeros(dims.values()),
        gates: R::Gates::map(rule.gates(dims), |_, shape| zeros(shape)),
        state: R::State::map(rule.state(dims), |_, shape| zeros(shape)),
        anchor: None,
    }
}

fn dims(batch: usize, tokens: usize, heads: usize, key: usize, value: usize) -> Dims {
    Dims { batch, tokens, heads, key, value, sequences: Sequences::batch(batch, tokens), anchored: false }
}

/// The message of an error, which must name all of `words`.
#[track_caller]
fn names<T>(result: Result<T>, words: &[&str]) -> Error {
    let Err(error) = result else { panic!("accepted, where an error should name {words:?}") };
    let message = error.to_string();
    words.iter().for_each(|word| assert!(message.contains(word), "`{message}` does not name `{word}`"));
    error
}

#[test]
fn empty_axes() {
    for (b, t, h, k, v) in [(0, 3, 2, 4, 5), (2, 0, 2, 4, 5), (2, 3, 0, 4, 5), (2, 3, 2, 0, 5)] {
        let error = names(
            infer(&device(), Delta::default(), &inputs(Delta::default(), &dims(b, t, h, k, v))),
            &["delta", "`q`"],
        );
        assert!(matches!(error, Error::Empty { .. }), "{error}");
    }
    let no_values = inputs(Titans::default(), &dims(2, 3, 2, 4, 0));
    assert!(matches!(names(forward(&device(), Titans::default(), no_values), &["titans", "`v`"]), Error::Empty { .. }));
}

#[test]
fn packed_lengths() {
    let rule = Hebbian::default();
    let call = |lengths: &[usize]| {
        let dims = Dims { sequences: Sequences::packed(lengths), ..dims(1, 6, 2, 3, 4) };
        let packed = infer_packed(&device(), rule, lengths, &inputs(rule, &dims)).map(|_| ());
        let kept = forward_packed(&device(), rule, lengths, inputs(rule, &dims)).map(|_| ());
        assert_eq!(format!("{packed:?}"), format!("{kept:?}"));
        packed
    };
    call(&[2, 4]).expect("lengths that add up");
    assert!(matches!(names(call(&[2, 0, 4]), &["sequence lengths", "[2, 0, 4]"]), Error::Empty { .. }));
    assert!(matches!(names(call(&[]), &["sequence lengths"]), Error::Empty { .. }));
    for wrong in [&[2, 3][..], &[2, 5], &[7]] {
        assert!(matches!(names(call(wrong), &["hebbian", "`q`"]), Error::Shape { .. }));
    }
    assert!(matches!(names(call(&[usize::MAX, 2]), &["hebbian", "`q`"]), Error::Shape { .. }));
    let batch = inputs(rule, &dims(2, 3, 2, 3, 4));
    assert!(matches!(names(infer_packed(&device(), rule, &[2, 4], &batch), &["`q`"]), Error::Shape { .. }));
}

#[test]
fn options() {
    fn call<R: Rule>(rule: R) -> Result<Outputs<R, Tensor<Cpu>>>
    where
        Cpu: hecate_core::Kernel<R>,
    {
        infer(&device(), rule, &inputs(rule, &dims(1, 3, 1, 2, 2)))
    }
    let errors = [
        names(call(Delta { frozen: Some(0), ..Delta::default() }), &["delta", "`frozen`", "0"]),
        names(call(Titans { frozen: Some(0), ..Titans::default() }), &["titans", "`frozen`"]),
        names(call(Atlas { window: 0, ..Atlas::default() }), &["atlas", "`window`", "0"]),
        names(call(Atlas { window: 1025, ..Atlas::default() }), &["atlas", "`window`", "1025"]),
        names(call(Atlas { newton_schulz: 11, ..Atlas::default() }), &["atlas", "`newton_schulz`", "11"]),
        names(call(Atlas { frozen: Some(0), ..Atlas::default() }), &["atlas", "`frozen`"]),
        names(call(Dgd { frozen: Some(0), ..Dgd::default() }), &["dgd", "`frozen`"]),
        names(call(Dgd { frozen: Some(4), objective: Objective::Dot, ..Dgd::default() }), &["dgd", "`frozen`", "4"]),
        names(call(Delta { frozen: Some(4), erase: Erase::Decayed, ..Delta::default() }), &["delta", "`frozen`"]),
        names(call(TitansMlp { clip: Some(0.0), ..TitansMlp::default() }), &["titans_mlp", "`clip`", "0", "over 0"]),
        names(call(YaadMatrix { clip: Some(-1.0), ..YaadMatrix::default() }), &["yaad_matrix", "`clip`", "-1"]),
        names(call(TitansMlp { renorm: true, ..TitansMlp::default() }), &["titans_mlp", "`renorm`", "`frozen`"]),
        names(
            call(YaadMatrix { renorm: true, frozen: Some(4), ..YaadMatrix::default() }),
            &["yaad_matrix", "`renorm`", "anchor"],
        ),
        names(call(MonetaMatrix { clip: Some(f32::NAN), ..MonetaMatrix::default() }), &["`clip`", "NaN"]),
        names(call(MemoraMatrix { clip: Some(f32::INFINITY), ..MemoraMatrix::default() }), &["`clip`", "inf"]),
    ];
    assert!(errors.iter().all(|error| matches!(error, Error::Config { .. })), "{errors:?}");
}

/// Every gate of every rule: not a number, infinite, and, where it is a logarithm, of a factor over 1.
#[test]
fn gates_outside_their_range() {
    fn call<R: Oracle>(rule: R)
    where
        Cpu: hecate_core::Kernel<R>,
    {
        for gate in R::Gates::NAMES {
            let over = if gate.starts_with("log_") { 0.1 } else { f64::INFINITY };
            for value in [f64::NAN, f64::INFINITY, over] {
                let case = Case::new(rule, Sizes::new(2, 3, 2, 4, 3), 1).with(|slot, mut array| {
                    if slot == *gate {
                        array.values[7] = value;
                    }
                    array
                });
                let error = names(case.infer(&device(), DType::F32), &[R::NAME, &format!("`{gate}`"), "index 7"]);
                assert!(matches!(error, Error::Value { index: 7, .. }), "{error}");
                names(case.run(&device(), DType::F32), &[R::NAME, gate]);
            }
        }
    }
    macro_rules! rules {
        ($($rule:ident),*) => { $(call(<$rule>::default());)* };
    }
    hecate_core::for_each_rule!(rules);
}

#[test]
fn element_types() {
    let case = Case::new(Titans::default(), Sizes::new(1, 4, 1, 3, 3), 2);
    for spoiled in ["k", "v", "log_a", "log_eta", "theta", "m", "s"] {
        let wrong = case
            .inputs
            .clone()
            .try_map(|slot, array| array.upload(&device(), if slot == spoiled { DType::F16 } else { DType::F32 }));
        let error =
            names(infer(&device(), case.rule, &wrong.expect("an upload")), &["titans", &format!("`{spoiled}`")]);
        assert!(matches!(error, Error::DType { found: DType::F16, .. }), "{error}");
    }
}

#[test]
fn host_values_that_do_not_fill_their_shape() {
    let error = names(Tensor::from_f32(&device(), [2, 3], vec![0.0; 5]), &["upload", "5 values", "[2, 3]", "6"]);
    assert!(matches!(error, Error::Length { found: 5, .. }));
    let tensor = Array::full([2, 3], 1.0).upload(&device(), DType::F32).expect("an upload");
    assert!(matches!(names(tensor.reshape([7]), &["reshape", "[2, 3]", "[7]"]), Error::Shape { .. }));
}

/// 2⁶⁴ elements are not none.
#[test]
fn shapes_too_large_to_count() {
    let shape = [1 << 32, 1 << 32];
    assert_eq!(Shape::from(shape).count(), usize::MAX);
    assert_eq!(Shape::from([1 << 32, 1 << 32, 3]).rows(), usize::MAX);
    assert_eq!(Shape::from([1 << 32, 1 << 32, 0]).count(), 0);
    let uploaded = Tensor::from_f32(&device(), shape, vec![]);
    assert!(matches!(names(uploaded, &["upload", "0 values"]), Error::Length { found: 0, .. }));
    let zeros = Tensor::zeros(&device(), shape, DType::F32);
    assert!(matches!(names(zeros, &["zeros", "`shape`"]), Error::Config { .. }));
    let nothing = Tensor::from_f32(&device(), [0], vec![]).expect("an upload");
    assert!(matches!(names(nothing.reshape(shape), &["reshape"]), Error::Shape { .. }));
    // Not a panic on the way to finding that there is nothing.
    let q = Tensor::from_f32(&device(), [1 << 32, 1 << 32, 1, 0], vec![]).expect("an upload");
    let rule = Hebbian::default();
    let inputs = Inputs { q, ..inputs(rule, &dims(1, 3, 1, 2, 2)) };
    assert!(matches!(names(infer(&device(), rule, &inputs), &["hebbian", "`q`"]), Error::Empty { .. }));
}

#[path = "bad_inputs/decode.rs"]
mod decode;

#[path = "bad_inputs/primitives.rs"]
mod primitives;

#[path = "bad_inputs/devices.rs"]
mod devices;
