//! The reference: token by token, and without vector instructions whatever the processor has.
#![cfg(feature = "cpu")]

use hecate::prelude::*;
use std::{env, process::Command};

/// Before what the child prints.
const MARK: &str = "bits: ";

/// Bits of everything that a Titans memory gives, forward and backward, on this device.
fn bits(cpu: &Cpu) -> String {
    // More tokens than a chunk has, and widths that fill no vector.
    let (b, t, h, k, v) = (2, 70, 2, 19, 21);
    // The golden ratio's multiples are spread evenly in -0.3..0.3.
    let array = |axes: &[usize], seed: usize| {
        let count = axes.iter().product::<usize>();
        let values = (0..count).map(|i| ((i + 77 * seed) as f32 * 0.618).fract() * 0.6 - 0.3).collect();
        Tensor::from_f32(cpu, axes, values).expect("an array")
    };
    let gate = |value: f32| Tensor::from_f32(cpu, [b, t, h], vec![value; b * t * h]).expect("a gate");
    let inputs = Inputs {
        q: array(&[b, t, h, k], 1),
        k: array(&[b, t, h, k], 2),
        v: array(&[b, t, h, v], 3),
        gates: MomentumGates { log_a: gate(-0.02), log_eta: gate(-0.3), theta: gate(0.4) },
        state: Momentum { m: array(&[b, h, k, v], 4), s: array(&[b, h, k, v], 5) },
        anchor: None,
    };
    let Forward { outputs, pass } = forward(cpu, Titans::default(), inputs).expect("a forward");
    let out = outputs.out.clone();
    let grads = pass.backward_out(out).expect("a backward");
    let all = outputs.list().into_iter().chain(grads.list());
    let words = all.flat_map(|(_, x)| x.to_f32().expect("elements")).map(|x| format!("{:08x}", x.to_bits()));
    words.collect()
}

/// What a device says that it is.
struct Name;

impl Job for Name {
    type Output = &'static str;

    fn run<B: Backend>(self, _device: &B) -> &'static str {
        B::NAME
    }
}

/// A form is kept to, or refused by a name that leads on: it is never passed over.
#[test]
fn forms_are_kept_to_or_refused() {
    let found = hecate::devices_of(&[hecate::BackendKind::Cpu]);
    let run = |algorithm| {
        let reference = select(&found, &Choose::Reference).expect("the processor").with_threads(1);
        reference.with_algorithm(algorithm).run(Name)
    };
    for algorithm in [Algorithm::Auto, Algorithm::Scan] {
        assert_eq!(run(algorithm).expect("the scan"), "cpu");
    }
    let error = run(Algorithm::Chunk(16)).expect_err("it goes token by token");
    assert!(matches!(error, hecate::Error::Unsupported { .. }), "{error:?}");
    let text = error.to_string();
    for part in ["the reference", "chunks", "`scan`", "`cpu`"] {
        assert!(text.contains(part), "`{part}` is not in: {text}");
    }
    assert!(matches!(run(Algorithm::Chunk(0)), Err(hecate::Error::Config { option: "algorithm", .. })));
    // Each form rounds in its own way, so equal bits would be one form under two names.
    let forms = [Algorithm::Scan, Algorithm::Chunk(4), Algorithm::Chunk(64)];
    let bits = forms.map(|form| bits(&Cpu::new().with_algorithm(form).expect("a form")));
    assert!(bits[0] != bits[1] && bits[0] != bits[2] && bits[1] != bits[2], "a form was passed over");
}

/// The child's part: the scan in a program where vector instructions are forbidden.
#[test]
fn scan_in_this_program() {
    let scan = Cpu::with_threads(2).and_then(|cpu| cpu.with_algorithm(Algorithm::Scan)).expect("a device");
    println!("{MARK}{}", bits(&scan));
}

/// The same bits whatever the number of threads, and other ones than those of the fastest form.
#[test]
fn the_reference_is_the_scan_without_vector_instructions() {
    let mut child = Command::new(env::current_exe().expect("this program"));
    child.args(["--exact", "scan_in_this_program", "--nocapture"]).env("HECATE_CPU_SIMD", "scalar");
    let answer = child.output().expect("a run of it");
    let text = String::from_utf8_lossy(&answer.stdout);
    let wanted = text.split(MARK).nth(1).and_then(|rest| rest.split_whitespace().next()).expect("bits");
    for threads in [1, 3] {
        let reference = Cpu::reference(threads).expect("a pool");
        assert!(bits(&reference) == wanted, "{threads} threads: not to the bit");
    }
    // The option is the device's and not the program's: others go on as fast as they can.
    let auto = bits(&Cpu::new());
    assert_eq!(auto.len(), wanted.len());
    #[cfg(target_arch = "x86_64")]
    assert_eq!(auto == wanted, !is_x86_feature_detected!("fma"), "fused products round otherwise");
}
