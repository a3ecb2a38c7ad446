//! A Titans memory reads a batch of sequences; then gradients go back through all of it.

use hecate::prelude::*;

fn main() -> hecate::Result<()> {
    let cpu = Cpu::new();
    // Batch, tokens, heads, width of a key, width of a value.
    let (b, t, h, k, v) = (2, 100, 4, 16, 16);
    // Some numbers between -0.5 and 0.5, the same at every run.
    let array = |axes: &[usize], seed: f32| {
        let count = axes.iter().product::<usize>();
        let values = (0..count).map(|i| ((i as f32 + seed) * 0.618).fract() - 0.5).collect();
        Tensor::from_f32(&cpu, axes, values)
    };
    let gate = |value: f32| Tensor::from_f32(&cpu, [b, t, h], vec![value; b * t * h]);
    let inputs = Inputs {
        q: array(&[b, t, h, k], 1.0)?,
        k: array(&[b, t, h, k], 2.0)?,
        v: array(&[b, t, h, v], 3.0)?,
        // Retention and momentum cross the interface as logarithms: 0.99 and 0.9 here.
        gates: MomentumGates { log_a: gate(0.99f32.ln())?, log_eta: gate(0.9f32.ln())?, theta: gate(0.1)? },
        // A memory that has read nothing, and no momentum.
        state: Momentum {
            m: Tensor::zeros(&cpu, [b, h, k, v], DType::F32)?,
            s: Tensor::zeros(&cpu, [b, h, k, v], DType::F32)?,
        },
        anchor: None,
    };
    let Forward { outputs, pass } = forward(&cpu, Titans::default(), inputs)?;
    println!("read: {:?}, memory: {:?}", outputs.out, outputs.state.m);

    // The gradient of half the squared norm of what was read; `backward_out` consumes the pass.
    let grads = pass.backward_out(outputs.out.clone())?;
    for (name, gradient) in grads.list() {
        let norm = gradient.to_f32()?.iter().map(|x| x * x).sum::<f32>().sqrt();
        println!("d{name}: {:?}, norm {norm:.4}", gradient.shape());
        assert!(norm.is_finite() && norm > 0.0);
    }
    Ok(())
}
