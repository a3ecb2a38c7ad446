//! A rule of one's own runs on every device of this machine, and its gradient is held to differences.

use hecate::{
    NoSlots,
    families::{EraseStrength, Linear, LinearRule, LinearSpec},
    prelude::*,
};

/// Titans' momentum with the erase of Gated DeltaNet: `S ← η S − θ kᵀ (a k M − v)`, `M ← a M + S`.
#[derive(Clone, Copy, Debug, PartialEq)]
struct GatedTitans;

impl Rule for GatedTitans {
    const NAME: &'static str = "gated_titans";
    type Family = Linear;
    type Gates = MomentumGates<()>;
    type State = Momentum<()>;
    type Anchor = NoSlots;
}

impl LinearRule for GatedTitans {
    fn spec(self) -> LinearSpec {
        LinearSpec { momentum: true, erase: EraseStrength::Decayed, ..LinearSpec::default() }
    }
}

/// Numbers between −0.5 and 0.5, the same at every run.
fn number(seed: usize, i: usize) -> f32 {
    ((seed * 1009 + i) as f32 * 0.618_034).fract() - 0.5
}

/// All arguments at a point, moved by `step` along a direction in which each of their elements changes.
fn inputs<B: Backend>(device: &B, step: f32) -> hecate::Result<Inputs<GatedTitans, Tensor<B>>> {
    // Batch, tokens, heads, width of a key, width of a value.
    let dims = Dims::new(2, 9, 3, 8, 5);
    let shapes = Inputs::try_build(GatedTitans, &dims, DType::F32, |shape, _| Ok::<Shape, hecate::Error>(shape))?;
    let mut seed = 0;
    shapes.try_map(|slot, shape| {
        seed += 2;
        // Logarithms of factors, far enough under 0 for a step; all other slots take numbers of either sign.
        let point = |i| if slot.starts_with("log_") { (number(seed, i) - 0.6) / 2.0 } else { number(seed, i) };
        let values = (0..shape.count()).map(|i| point(i) + step * number(seed + 1, i)).collect();
        Tensor::from_f32(device, shape, values)
    })
}

/// Work for any device: how far the slope of a loss is from a difference quotient, as a share of it.
struct CheckGradient;

impl Job for CheckGradient {
    type Output = hecate::Result<f64>;

    fn run<B: Backend>(self, device: &B) -> Self::Output {
        // Half the squared norm of what is read, so its gradient is what is read.
        let loss = |step: f32| -> hecate::Result<f64> {
            let out = infer(device, GatedTitans, &inputs(device, step)?)?.out.to_f32()?;
            Ok(out.iter().map(|&x| f64::from(x).powi(2) / 2.0).sum())
        };
        let Forward { outputs, pass } = forward(device, GatedTitans, inputs(device, 0.0)?)?;
        let grads = pass.backward_out(outputs.out)?;
        let mut slope = 0.0;
        for (seed, (_, gradient)) in (2..).step_by(2).zip(grads.list()) {
            let terms = gradient.to_f32()?.into_iter().enumerate();
            slope += terms.map(|(i, x)| f64::from(x) * f64::from(number(seed + 1, i))).sum::<f64>();
        }
        // Halving the step and extrapolating leaves an error of its fourth power.
        let quotient = |step: f32| Ok::<f64, hecate::Error>((loss(step)? - loss(-step)?) / (2.0 * f64::from(step)));
        let difference = (4.0 * quotient(0.01)? - quotient(0.02)?) / 3.0;
        Ok((slope - difference).abs() / difference.abs())
    }
}

fn main() -> hecate::Result<()> {
    let found = devices();
    for device in &found.found {
        let selected = select(&found, &Choose::Named(device.id.to_string()))?;
        let off = selected.run(CheckGradient)??;
        println!("{} on {}: the gradient is off by {off:.1e}", GatedTitans::NAME, device.id);
        // Losses of 32-bit arithmetic have seven digits, of which the difference quotient keeps four.
        assert!(off < 1e-3, "the gradient is wrong");
    }
    Ok(())
}
