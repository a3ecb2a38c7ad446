//! Leaky integrate-and-fire neurons: a memory of membrane potentials that answers in spikes.
//!
//! Per sequence and head, neurons `u [K,V]` take in what a token writes, leak, and fire where they reach a threshold `ϑ`.
//! `Θ(x)` is 1 for `x ≥ 0`, 0 for less, and NaN for NaN.
//!
//! ```text
//! h = a u + θ kᵀ v                          charge                                            (100)
//! s = Θ(h − ϑ)                              fire                                              (101)
//! u ← h − r ∘ s,  r = h  (Zero)  or  δ  (Subtract)      reset                                 (102)
//! y = q s                                   read                                              (103)
//! ```
//!
//! With `K = 1` and queries and keys of ones these are the neurons of spiking networks: `v` is their current and `y` are
//! their spikes. With wider keys a current goes to all rows by its key, and a query adds up rows of spikes.
//!
//! Backward, in reverse time, with `du` starting at the gradient of the final state. The derivative of `Θ` is zero wherever
//! it exists, so a *surrogate* `σ′` of slope `α` stands for it:
//!
//! ```text
//! σ′(x) = α/2 / (1 + (π/2 α x)²)            Arctan
//!         1 / (1 + α|x|)²                   FastSigmoid
//!         max(0, α − α² |x|)                Triangle                                          (104)
//! dq = s dyᵀ,  ds = qᵀ dy − r ∘ du          the last term not with a detached reset           (105)
//! dh = c ∘ du + σ′(h − ϑ) ∘ ds,  c = 1 − s  (Zero)  or  1  (Subtract)                         (106)
//! dlog a = a ⟨dh, u⟩,  dθ = k dh vᵀ,  dk = θ v dhᵀ,  dv = θ k dh,  du ← a dh                  (107)
//! ```

use super::{Matrix, WriteGates};
use crate::{Dims, Error, NoSlots, Result, Rule, families::Own};

/// Leaky integrate-and-fire neurons: (100)–(107).
///
/// A state is the potentials after the reset. Other libraries' neurons are settings of it, values and gradients alike, with
/// `K = 1` and queries and keys of ones:
///
/// - snnTorch's `Leaky(beta, threshold)`: `log a = ln β`, `θ = 1`, `detach_reset`. It resets a step late, before the leak's
///   sum but after the leak, so for `subtract` the `drop` is `ϑ/β`; with `reset_delay=False` it is `ϑ` and not detached.
///   Its `mem` is `h`. Its `fast_sigmoid(slope)` and `atan(alpha)` are `FastSigmoid` and `Arctan` of that slope.
/// - SpikingJelly's `LIFNode(tau)`: `a = 1 − 1/τ`, `θ = 1/τ`, or 1 with `decay_input=False`; `v_reset=None` is `Subtract`. Another
///   `v_reset` than 0 only shifts the potentials: take it from threshold and state. Its `ATan`, `SoftSign` of `α = 2` and
///   `PiecewiseQuadratic` are the three surrogates.
///
/// Source: Neftci, Mostafa and Zenke, "Surrogate Gradient Learning in Spiking Neural Networks".
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(deny_unknown_fields, default))]
pub struct Lif {
    /// What stands for the derivative of a spike.
    pub surrogate: Surrogate,
    /// `α`, its slope: finite and above 0.
    pub slope: f32,
    /// `ϑ`, the potential from which a neuron fires: finite and above 0.
    pub threshold: f32,
    /// What a spike does to the potential.
    pub reset: Reset,
    /// `δ`, what a reset by subtraction takes away, finite; none: the threshold.
    pub drop: Option<f32>,
    /// Whether no gradient goes through the reset.
    pub detach_reset: bool,
}

impl Default for Lif {
    fn default() -> Self {
        Self {
            surrogate: Surrogate::default(),
            slope: 2.0,
            threshold: 1.0,
            reset: Reset::default(),
            drop: None,
            detach_reset: false,
        }
    }
}

/// What stands for the derivative of a spike of [`Lif`]: (104). Kernels number it in this order, from 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
pub enum Surrogate {
    /// That of an arc tangent: long tails.
    #[default]
    Arctan,
    /// That of `x/(1 + α|x|)`: 1 at the threshold whatever the slope.
    FastSigmoid,
    /// A triangle of area 1: nothing further away than `1/α`.
    Triangle,
}

/// What a spike of [`Lif`] does to the potential: (102). Kernels number it in this order, from 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
pub enum Reset {
    /// It is zero afterwards.
    #[default]
    Zero,
    /// It falls by [`Lif::drop`].
    Subtract,
}

impl Lif {
    /// `δ`.
    pub fn taken(self) -> f32 {
        self.drop.unwrap_or(self.threshold)
    }
}

impl Rule for Lif {
    const NAME: &'static str = "lif";
    type Family = Own;
    type Gates = WriteGates<()>;
    type State = Matrix<()>;
    type Anchor = NoSlots;

    fn check(self, _: &Dims) -> Result<()> {
        let positive = |x: f32| x.is_finite() && x > 0.0;
        let (above, finite) = ("a finite number above 0", "a finite number");
        for (option, found, fits, expected) in [
            ("slope", self.slope, positive(self.slope), above),
            ("threshold", self.threshold, positive(self.threshold), above),
            ("drop", self.taken(), self.taken().is_finite(), finite),
        ] {
            if !fits {
                return Err(Error::Config { what: Self::NAME, option, found: found.to_string(), expected });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_without_sense_are_refused_by_name() {
        let dims = Dims::new(1, 1, 1, 1, 1);
        assert!(Lif::default().check(&dims).is_ok());
        for (option, rule) in [
            ("slope", Lif { slope: 0.0, ..Lif::default() }),
            ("slope", Lif { slope: f32::NAN, ..Lif::default() }),
            ("threshold", Lif { threshold: -1.0, ..Lif::default() }),
            ("threshold", Lif { threshold: f32::INFINITY, ..Lif::default() }),
            ("drop", Lif { drop: Some(f32::NAN), ..Lif::default() }),
        ] {
            let error = rule.check(&dims);
            assert!(
                matches!(error, Err(Error::Config { option: found, .. }) if found == option),
                "{rule:?}: {error:?}"
            );
        }
    }
}
