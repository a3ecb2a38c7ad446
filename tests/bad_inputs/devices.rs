//! Arrays of two devices.

use super::device;
use hecate_conformance::checks::{buffers, devices_apart};
use hecate_core::{Device, Error, Tensor, rules::*};
use hecate_cpu::{Algorithm, Cpu};
use std::{collections::BTreeSet, fs, path::Path};

#[test]
fn calls() {
    devices_apart::accepts_calls(&device());
    devices_apart::refuses_calls(&device(), &Cpu::new());
    // The same threads are not the same device: memory belongs to the value.
    devices_apart::refuses_calls(&device(), &Cpu::with_threads(1).expect("a thread"));
}

/// No method of a primitive that starts a kernel can be called past core's checks: each takes core's proof of them.
#[test]
fn primitives_take_a_proof() {
    // They look at numbers alone.
    let questions = ["has_l2_norm", "check_fp8", "starts_together", "fuses_projections"];
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/hecate-core/src/primitives");
    let mut proofs = 0;
    for file in fs::read_dir(source).expect("a folder") {
        let text = fs::read_to_string(file.expect("an entry").path()).expect("a file");
        let traits = text.split("\npub trait ").skip(1).map(|rest| rest.split("\n}").next().unwrap_or_default());
        for method in traits.flat_map(|body| body.split("\n    fn ").skip(1)) {
            let name = method.split(['(', '<']).next().unwrap_or_default();
            let arguments = method.split(')').next().unwrap_or_default();
            assert_ne!(arguments.contains("Checked<Self>"), questions.contains(&name), "{name}");
            proofs += usize::from(arguments.contains("Checked<Self>"));
        }
    }
    assert!(proofs >= 67, "{proofs} methods were found");
}

#[test]
fn rules() {
    let (here, there) = (device(), Cpu::new());
    macro_rules! rules {
        ($($rule:ident),*) => { $(
            devices_apart::refuses_inputs::<$rule, _>(&here, &there);
            devices_apart::refuses_grads::<$rule, _>(&here, &there);
        )* };
    }
    hecate_core::for_each_rule!(rules);
}

#[test]
fn moving() {
    devices_apart::moves(&device(), &Cpu::new());
}

/// An algorithm is a way to compute, not another device.
#[test]
fn options_are_no_identity() {
    let cpu = device();
    let scan = cpu.with_algorithm(Algorithm::Scan).expect("a form");
    assert_eq!(cpu.id(), cpu.clone().id());
    assert_eq!(cpu.id(), scan.id());
    let x = Tensor::from_f32(&cpu, [2], vec![1.0, 2.0]).expect("an upload");
    assert!(x.check_device(&scan, "this", "x").is_ok());
    let error = x.check_device(&Cpu::new(), "this", "x").expect_err("another device");
    assert!(matches!(error, Error::OtherDevice { what: "this", slot: "x", .. }), "{error}");
}

/// The list of calls is that of core's source: whoever adds one has to say how it is called.
#[test]
fn no_call_is_left_out() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/hecate-core/src");
    let mut files: Vec<_> =
        fs::read_dir(source.join("primitives")).expect("a folder").collect::<Result<_, _>>().unwrap();
    files.extend(fs::read_dir(&source).expect("a folder").map(|entry| entry.expect("an entry")));
    let texts = files.iter().filter(|file| file.path().is_file()).map(|file| fs::read_to_string(file.path()).unwrap());
    let names = |text: String| -> Vec<String> {
        let functions = text.lines().filter_map(|line| line.strip_prefix("pub fn ")?.split_once("<D: "));
        functions.map(|(name, _)| name.to_owned()).collect()
    };
    let mut found: BTreeSet<String> = texts.flat_map(names).collect();
    // What calls rules is checked rule by rule; a fresh state is made of no arrays; `check_memory` is the check itself.
    for name in ["forward", "forward_packed", "infer", "infer_packed", "fresh_state", "check_memory"] {
        assert!(found.remove(name), "`{name}` is not there any more");
    }
    let known = devices_apart::CALLS.iter().map(|name| (*name).to_owned()).collect();
    assert_eq!(found, known, "functions of core beside those that are called with an array astray");
}

/// Main memory is one: only what a buffer holds can be wrong.
#[test]
fn buffers_hold_what_they_claim() {
    buffers::holds_what_it_claims(&device());
}
