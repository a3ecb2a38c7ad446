//! What 16-bit arguments cost over thousands of tokens, and what a backend adds to it.
//!
//! Truth are the equations in 64 bits. They are solved twice: for the arguments as they were drawn, and for the same
//! rounded to bfloat16, the results rounded likewise. How far these two are apart is what rounding costs anybody; a
//! backend that is given the rounded arguments may be twice as far away from the first.

use crate::{
    Array, Case, Random, Sizes,
    checks::{lean, stored, stored_case},
    error,
    oracle::{Oracle, solve_in_segments},
};
use hecate_core::{DType, Kernel, Result};
use std::fmt;

/// What the tokens are like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Setting {
    /// Keys in all directions, gates in their usual ranges.
    Ordinary,
    /// `a` between `e⁻²⁰` and `e⁻¹`.
    Decay,
    /// Queries and keys nearly along one direction.
    Correlated,
    /// The same, and nothing is forgotten.
    Accumulated,
    /// Each gate in turn is 0 at every eighth token.
    Zeros,
    /// `a = 1`; at every eighth token everything is written (`θ = 1`, `η = β = 0`), and at others `η = 1`.
    Ones,
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ordinary => "ordinary",
            Self::Decay => "strong decay",
            Self::Correlated => "correlated keys",
            Self::Accumulated => "correlated keys, a = 1",
            Self::Zeros => "gates of 0",
            Self::Ones => "gates of 1",
        })
    }
}

impl Setting {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Ordinary, Self::Decay, Self::Correlated, Self::Accumulated, Self::Zeros, Self::Ones];

    /// Random arguments of this kind, of one head.
    pub fn case<R: Oracle>(self, rule: R, tokens: usize, width: usize) -> Case<R> {
        let common = Random::new(41).units([width]).values;
        let decays = Random::new(43).uniforms([tokens], -20.0, -1.0).values;
        Case::new(rule, Sizes::new(1, tokens, 1, width, width), 47).with(|slot, mut array| {
            match slot {
                "q" | "k" if matches!(self, Self::Correlated | Self::Accumulated) => {
                    array.values.chunks_mut(width).for_each(|row| lean(row, &common));
                }
                "log_a" if self == Self::Decay => array.values.copy_from_slice(&decays),
                "log_a" | "log_eta" | "theta" | "beta" => {
                    array.values.iter_mut().enumerate().for_each(|(t, x)| *x = self.gate(slot, t, *x));
                }
                _ => {}
            }
            array.rounded(DType::F32)
        })
    }

    /// A gate of token `t` where it would be `usual`.
    fn gate(self, slot: &str, t: usize, usual: f64) -> f64 {
        let zero = f64::NEG_INFINITY;
        match (self, slot, t % 8) {
            (Self::Accumulated | Self::Ones, "log_a", _) | (Self::Ones, "log_eta", 5) => 0.0,
            (Self::Zeros, "log_a", 1) | (Self::Zeros, "log_eta", 3) | (Self::Ones, "log_eta", 1) => zero,
            (Self::Zeros, "theta", 5) | (Self::Zeros, "beta", 7) | (Self::Ones, "beta", 1) => 0.0,
            (Self::Ones, "theta", 1) => 1.0,
            _ => usual,
        }
    }
}

/// Errors of one slot, each relative to the truth ([`error`]).
#[derive(Clone, Copy, Debug)]
pub struct Figure {
    /// Slot.
    pub slot: &'static str,
    /// Whether it is the gradient of the slot.
    pub gradient: bool,
    /// What rounding arguments and result costs.
    pub cost: f64,
    /// How far the backend is from the truth.
    pub error: f64,
    /// How far the backend is from the truth of the rounded arguments: what it adds itself.
    pub own: f64,
}

impl Figure {
    /// Whether the backend is at most twice as far off as rounding anyway; NaN is not.
    pub fn passed(&self) -> bool {
        self.error <= 2.0 * self.cost
    }

    /// How often what rounding costs the error is; 1 where nothing is lost and nothing could be.
    pub fn ratio(&self) -> f64 {
        if self.error == self.cost { 1.0 } else { self.error / self.cost }
    }
}

/// Tokens whose equations are held at a time.
const SEGMENT: usize = 128;

/// Figures of all results, then of all gradients.
///
/// # Errors
/// What the device reports.
pub fn figures<R: Oracle, B: Kernel<R>>(backend: &B, case: &Case<R>) -> Result<Vec<Figure>> {
    let found = case.run(backend, DType::Bf16)?;
    let (exact, rounded) = (solve_in_segments(case, SEGMENT), solve_in_segments(&stored_case(case), SEGMENT));
    // Results come first in a list, then gradients.
    // Both truths have them in the same order.
    let results = exact.outputs.list().len();
    let slots = exact.list().into_iter().zip(rounded.list()).zip(found.list()).enumerate();
    let figure =
        |(i, (((slot, exact), (_, rounded)), (_, found))): (usize, (((_, &Array), (_, &Array)), (_, &Array)))| {
            let rounded = stored(slot, rounded);
            let [cost, error, own] = [(exact, &rounded), (exact, found), (&rounded, found)]
                .map(|(truth, found)| error(&truth.values, &found.values));
            Figure { slot, gradient: i >= results, cost, error, own }
        };
    Ok(slots.map(figure).collect())
}
