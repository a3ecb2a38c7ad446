//! A memory as one operation of a dfdx network: gradients flow through it to the layers before.

use dfdx::{prelude::*, tensor::Cpu as Dfdx};
use hecate::{
    Inputs,
    models::bridge,
    prelude::{Delta, Matrix, WriteGates},
};

/// Tokens of the one sequence.
const TOKENS: usize = 6;
/// Memories side by side.
const HEADS: usize = 2;
/// Width of keys and values: K = V.
const WIDTH: usize = 4;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (host, backend) = (Dfdx::seed_from_u64(1), hecate::cpu::Cpu::new());
    // Weights of a linear map before the memory, and what it maps.
    let weight = host.sample_normal::<Rank2<8, { HEADS * WIDTH }>>();
    let x = host.sample_normal::<Rank2<TOKENS, 8>>();
    let array = || host.sample_normal::<Rank4<1, TOKENS, HEADS, WIDTH>>();
    let gate = |value: f32| host.zeros::<Rank3<1, TOKENS, HEADS>>() + value;

    // Queries carry the tape; the memory takes it and puts it on what was read.
    let q = x.leaky_trace().matmul(weight.clone()).reshape::<Rank4<1, TOKENS, HEADS, WIDTH>>();
    let (q, tape) = q.split_tape();
    let inputs = Inputs {
        q: q.into(),
        k: (array() * 0.5).into(),
        v: array().into(),
        gates: WriteGates { log_a: gate(-0.01).into(), theta: gate(0.5).into() },
        state: Matrix { m: host.zeros::<Rank4<1, HEADS, WIDTH, WIDTH>>().into() },
        anchor: None,
    };
    let (out, _state) = bridge::memory(&backend, Delta::default(), inputs, tape)?;

    let gradients = out.square().sum().backward();
    let dweight = gradients.get(&weight).as_vec();
    let norm = dweight.iter().map(|x| x * x).sum::<f32>().sqrt();
    println!("gradient of the weights before the memory: norm {norm:.4}");
    assert!(norm.is_finite() && norm > 0.0);
    Ok(())
}
