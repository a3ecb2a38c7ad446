//! States of memories that have read nothing.

use crate::{DType, Device, Dims, Initial, Of, Result, Rule, Shape, Slots, Tensor, memory};
use std::f64::consts::TAU;

const WHAT: &str = "fresh_state";

/// The state of a memory that has read nothing, as [`Rule::initial`] says: what [`forward`](crate::forward) starts from.
///
/// The same seed gives the same state on every device.
///
/// ```
/// # use hecate_core::{Dims, Rule, rules::Delta};
/// let dims = Dims::new(1, 128, 4, 64, 64);
/// // On a device: `let state = hecate_core::fresh_state(&device, Delta::default(), &dims, 0)?;`
/// assert_eq!(Delta::default().state(&dims).m.axes(), [1, 4, 64, 64]);
/// ```
///
/// # Errors
/// The device's own failures.
pub fn fresh_state<D: Device, R: Rule>(device: &D, rule: R, dims: &Dims, seed: u64) -> Result<Of<R::State, Tensor<D>>> {
    let mut random = Random(seed);
    let mut initial = R::State::into_vec(rule.initial(dims)).into_iter();
    R::State::try_map(rule.state(dims), |_, shape| {
        fresh(device, shape, initial.next().unwrap_or(Initial::Zeros), &mut random)
    })
}

/// One slot.
fn fresh<D: Device>(device: &D, shape: Shape, initial: Initial, random: &mut Random) -> Result<Tensor<D>> {
    let count = shape.count();
    let values = match initial {
        Initial::Zeros => return Tensor::zeros(device, shape, DType::F32),
        Initial::Constant(value) => memory::filled(WHAT, count, value)?,
        Initial::Normal(deviation) => memory::collect(WHAT, (0..count).map(|_| deviation * random.normal() as f32))?,
        Initial::Unit => {
            let mut rows = memory::with_capacity(WHAT, count)?;
            // A row that has no element is drawn for nobody.
            let directions = if count == 0 { 0 } else { shape.rows() };
            (0..directions).for_each(|_| rows.extend(random.direction(shape.last())));
            rows
        }
    };
    Tensor::from_f32(device, shape, values)
}

/// SplitMix64 (Steele, Lea and Flood 2014): 64 good bits from any seed.
struct Random(u64);

impl Random {
    fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    /// In `(0, 1]`, of 53 bits: its logarithm is finite.
    fn uniform(&mut self) -> f64 {
        ((self.bits() >> 11) + 1) as f64 / (1u64 << 53) as f64
    }

    /// Mean 0, deviation 1, by the formula of Box and Muller.
    fn normal(&mut self) -> f64 {
        let radius = (-2.0 * self.uniform().ln()).sqrt();
        radius * (TAU * self.uniform()).cos()
    }

    /// A row of norm 1 and random direction.
    fn direction(&mut self, width: usize) -> Vec<f32> {
        let row: Vec<f64> = (0..width).map(|_| self.normal()).collect();
        let norm = row.iter().map(|x| x * x).sum::<f64>().sqrt();
        row.iter().map(|x| (x / norm) as f32).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn normal_numbers_have_mean_0_and_deviation_1() {
        let mut random = Random(3);
        let values: Vec<f64> = (0..100_000).map(|_| random.normal()).collect();
        let mean = values.iter().sum::<f64>() / 1e5;
        let square = values.iter().map(|x| x * x).sum::<f64>() / 1e5;
        // Standard errors are 0.003 and 0.0045.
        assert!(mean.abs() < 0.015 && (square - 1.0).abs() < 0.02, "{mean} {square}");
    }

    #[test]
    fn directions_have_norm_1() {
        let row = Random(5).direction(7);
        let norm = row.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>();
        assert!((norm - 1.0).abs() < 1e-6, "{norm}");
    }

    #[test]
    fn seeds_differ() {
        assert_ne!(Random(0).bits(), Random(1).bits());
        assert_eq!(Random(7).bits(), Random(7).bits());
    }
}
