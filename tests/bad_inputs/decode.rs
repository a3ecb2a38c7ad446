//! A whole layer's token.

use super::{device, dims, names};
use hecate_core::{
    ConvInput, DType, Decode, Decoded, Error, GateForm, GateLogit, Kernel, Result, Rule, Slots, Tensor, TokenGates,
    decode, rules::*,
};
use hecate_cpu::Cpu;

type Array = Tensor<Cpu>;

/// 2 heads of keys 4 and values 5, 3 taps; two texts.
const WIDTHS: [usize; 3] = [2, 4, 5];

fn zeros(axes: &[usize]) -> Array {
    Tensor::zeros(&device(), axes, DType::F32).expect("zeros")
}

fn signal() -> GateLogit<Array> {
    GateLogit { x: zeros(&[2, 1, 2]), bias: zeros(&[2]) }
}

fn right<R: Rule>(rule: R, strengths: GateForm<Array>) -> Decode<R, Array> {
    let project =
        |width| ConvInput { x: zeros(&[2, 1, width]), conv: Some((zeros(&[width, 3]), zeros(&[2, 2, width]))) };
    Decode {
        q: project(8),
        k: project(8),
        v: project(10),
        norm_epsilon: 1e-6,
        gates: TokenGates { retention: Some((signal(), zeros(&[2]))), write: signal(), strengths },
        state: R::State::map(rule.state(&dims(2, 1, 2, 4, 5)), |_, shape| zeros(shape.axes())),
        weight: zeros(&[5]),
        epsilon: 1e-6,
        gate: Some(zeros(&[2, 1, 10])),
    }
}

fn changed(change: impl Fn(&mut Decode<Titans, Array>)) -> Result<Decoded<Titans, Array>> {
    let mut inputs = right(Titans::default(), GateForm::Momentum(signal()));
    change(&mut inputs);
    decode(Titans::default(), WIDTHS, &inputs)
}

#[test]
fn shapes_and_types() {
    let wrong: [(&str, &dyn Fn(&mut Decode<Titans, Array>)); 9] = [
        ("`q`", &|x| x.q.x = zeros(&[2, 1, 9])),
        ("`k`", &|x| x.k.conv = Some((zeros(&[8, 3]), zeros(&[2, 3, 8])))),
        ("`v`", &|x| x.v.x = zeros(&[2, 2, 10])),
        ("`retention`", &|x| x.gates.retention = Some((GateLogit { x: zeros(&[2, 1, 3]), ..signal() }, zeros(&[2])))),
        ("`a_log`", &|x| x.gates.retention = Some((signal(), zeros(&[3])))),
        ("`write`", &|x| x.gates.write.bias = zeros(&[1])),
        ("`s`", &|x| x.state.s = zeros(&[2, 2, 4, 4])),
        ("`weight`", &|x| x.weight = zeros(&[10])),
        ("`gate`", &|x| x.gate = Some(zeros(&[2, 1, 5]))),
    ];
    for (slot, change) in wrong {
        assert!(matches!(names(changed(change), &["decode", slot]), Error::Shape { .. }), "{slot}");
    }
    let half = Tensor::zeros(&device(), [5], DType::Bf16).expect("zeros");
    assert!(matches!(names(changed(|x| x.weight = half.clone()), &["`weight`", "f32"]), Error::DType { .. }));
    let one_tap = |x: &mut Decode<Titans, Array>| x.q.conv = Some((zeros(&[8, 1]), zeros(&[2, 0, 8])));
    assert!(matches!(names(changed(one_tap), &["width", "at least 2 taps"]), Error::Config { .. }));
    assert!(matches!(names(changed(|x| x.q.x = zeros(&[0, 1, 8])), &["`q`"]), Error::Empty { .. }));
}

#[test]
fn strengths_of_other_rules() {
    let call = decode(Delta::default(), WIDTHS, &right(Delta::default(), GateForm::Momentum(signal())));
    assert!(matches!(names(call, &["delta", "strengths", "log_eta"]), Error::Config { .. }));
    let call = decode(Dgd::default(), WIDTHS, &right(Dgd::default(), GateForm::Write(1.0)));
    assert!(matches!(names(call, &["dgd", "strengths"]), Error::Config { .. }));
}

#[test]
fn devices_without_a_kernel() {
    assert!(!device().has_fused_decode(Titans::default(), &dims(2, 1, 2, 4, 5)));
    assert!(matches!(names(changed(|_| ()), &["cpu", "titans", "parts"]), Error::Unsupported { .. }));
}
