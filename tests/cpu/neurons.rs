//! Rule `lif` held to neurons of snnTorch and SpikingJelly: spikes, and gradients of currents.
//!
//! `neurons.json` is made by `tests/benches/peers/neurons.py`, and names the versions. Their equations share nothing with the
//! oracle of the suite, whose central differences know no surrogate.

use hecate_core::{DType, Inputs, Tensor, forward, rules::*};
use hecate_cpu::Cpu;
use serde_json::{Value, from_str, from_value};

/// Numbers of a list.
fn numbers(list: &Value) -> Vec<f32> {
    from_value(list.clone()).expect("a list of numbers")
}

/// Spikes, gradients of currents, and the sum of those of `log a`.
fn run(rule: Lif, file: &Value, case: &Value) -> hecate_core::Result<(Vec<f32>, Vec<f32>, f32)> {
    let device = Cpu::new();
    let [tokens, width] = ["tokens", "width"].map(|name| file[name].as_u64().expect("a count") as usize);
    let [a, theta] = ["a", "theta"].map(|name| case[name].as_f64().expect("a number") as f32);
    let filled = |x: f32| Tensor::from_f32(&device, [1, tokens, 1], vec![x; tokens]);
    // No keys: one row of neurons, which every token reaches and reads whole.
    let ones = Tensor::from_f32(&device, [1, tokens, 1, 1], vec![1.0; tokens])?;
    let rows = |name| Tensor::from_f32(&device, [1, tokens, 1, width], numbers(&file[name]));
    let inputs = Inputs {
        q: ones.clone(),
        k: ones,
        v: rows("currents")?,
        gates: WriteGates { log_a: filled(a.ln())?, theta: filled(theta)? },
        state: Matrix { m: Tensor::zeros(&device, [1, 1, 1, width], DType::F32)? },
        anchor: None,
    };
    let ran = forward(&device, rule, inputs)?;
    let spikes = ran.outputs.out.to_f32()?;
    let grads = ran.pass.backward_out(rows("weights")?)?;
    Ok((spikes, grads.v.to_f32()?, grads.gates.log_a.to_f32()?.iter().sum()))
}

#[test]
fn neurons_are_those_of_other_libraries() {
    let file: Value = from_str(include_str!("neurons.json")).expect("a file of vectors");
    let cases = file["cases"].as_array().expect("a list of cases");
    assert_eq!(cases.len(), 6, "a case of each library, reset and surrogate");
    for case in cases {
        let Ok(AnyRule::Lif(rule)) = from_value(case["rule"].clone()) else { panic!("no neuron: {}", case["rule"]) };
        let (spikes, dx, da) = run(rule, &file, case).expect("a call that is right");
        assert_eq!(spikes, numbers(&case["spikes"]), "spikes of {}", case["name"]);
        for (i, (found, truth)) in dx.iter().zip(numbers(&case["dx"])).enumerate() {
            // 32 bits here; snnTorch keeps constants in them too.
            assert!((found - truth).abs() < 2e-6, "gradient {i} of {}: {found} for {truth}", case["name"]);
        }
        // Theirs is by `a`, ours by its logarithm.
        if let Some(truth) = case["da"].as_f64() {
            let found = f64::from(da) / case["a"].as_f64().expect("a number");
            assert!((found - truth).abs() < 1e-5 * truth.abs(), "{}: {found} for {truth}", case["name"]);
        }
    }
}
