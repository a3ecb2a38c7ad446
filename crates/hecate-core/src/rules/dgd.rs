//! Delta gradient descent: erase and write with separate strengths.

use super::Matrix;
use crate::{
    Dims, Error, NoSlots, Read, Result, Rule,
    families::{EraseStrength, Linear, LinearGate, LinearGates, LinearLogits, LinearRule, LinearSpec, LowerGates},
    rule::check_frozen,
    slots,
};

/// What is descended on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
pub enum Objective {
    /// `½|k M − v|²`, gradient `kᵀ (k M − v)`.
    #[default]
    L2,
    /// `−(k M)·v`, gradient `−kᵀ v`.
    Dot,
}

/// `M_t = a_t M_{t−1} − β_t k_tᵀ (k_t M_{t−1}) − θ_t grad`.
///
/// The linear recurrence ([equations](super)) with `w = θ`, `η = 0` and
///
/// | objective | r | f | gradients |
/// |---|---|---|---|
/// | L2 | `θ + β` | 0 | `dθ = dw + dr`, `dβ = dr` |
/// | Dot | `β` | 0 | `dθ = dw`, `dβ = dr` |
/// | L2, frozen | `β` | 1 | `dθ = dw`, `dβ = dr` |
///
/// HOPE ties `β = θ`; pass the same tensor to do so. Dot with `β = θ` is the delta rule; L2 with `β = θ`, `a = 1` has
/// the fixed point `k M = v/2`: erasing is twice the writing.
/// Source: Behrouz et al., "Nested Learning" (HOPE), eqs 57, 88, 92–93.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(deny_unknown_fields, default))]
pub struct Dgd {
    /// What is descended on.
    pub objective: Objective,
    /// When a token reads.
    pub read: Read,
    /// Groups of this many tokens share one gradient point (L2 only).
    pub frozen: Option<u32>,
}

slots! {
    /// Gates of [`Dgd`].
    pub struct DgdGates {
        /// `log a [B,T,H]` in `[−∞, 0]`: logarithm of what multiplies the old memory.
        log_a: Retention,
        /// `θ [B,T,H]`, finite: step size of the descent; under 0 it is an ascent.
        theta: Step,
        /// `β [B,T,H]`, finite: extra erase strength; under 0 it keeps more.
        beta: Strength,
    }
}

slots! {
    /// What layers form the gates of rules that erase with a strength of its own from.
    pub struct EraseLogits {
        /// Step size.
        b_proj,
        /// Extra erase strength.
        erase_proj,
    }
}

impl Rule for Dgd {
    const NAME: &'static str = "dgd";
    type Family = Linear;
    type Gates = DgdGates<()>;
    type State = Matrix<()>;
    type Anchor = NoSlots;

    fn frozen_option(&mut self) -> Option<&mut Option<u32>> {
        Some(&mut self.frozen)
    }

    fn with_frozen(self, frozen: Option<u32>) -> Self {
        match self.objective {
            Objective::L2 => Self { frozen, ..self },
            Objective::Dot => self,
        }
    }

    fn check(self, _: &Dims) -> Result<()> {
        if let (Objective::Dot, Some(group)) = (self.objective, self.frozen) {
            let expected = "no frozen groups with the dot objective: its gradient does not see the memory";
            return Err(Error::Config { what: Self::NAME, option: "frozen", found: group.to_string(), expected });
        }
        check_frozen(Self::NAME, self.frozen)
    }
}

impl LinearRule for Dgd {
    fn spec(self) -> LinearSpec {
        let erase = match (self.objective, self.frozen) {
            (Objective::L2, None) => EraseStrength::ThetaAndBeta,
            _ => EraseStrength::Beta,
        };
        LinearSpec { read: self.read, frozen: self.frozen, erase, ..LinearSpec::default() }
    }

    fn with_beta_alone(self) -> Option<Self> {
        // The target of a frozen group sees the memory by the strength `θ`.
        self.frozen.is_none().then_some(Self { objective: Objective::Dot, ..self })
    }

    fn shares_erase(self) -> bool {
        self.objective == Objective::L2
    }
}

impl LowerGates for DgdGates<()> {
    type Logits = EraseLogits<()>;

    fn lower<T>(DgdGates { log_a, theta, beta }: DgdGates<T>) -> LinearGates<T> {
        LinearGates { log_a: Some(log_a), beta: Some(beta), ..LinearGates::write(theta) }
    }

    fn try_lower_backward<T, E>(mut gate: impl FnMut(LinearGate) -> Result<T, E>) -> Result<DgdGates<T>, E> {
        Ok(DgdGates { log_a: gate(LinearGate::LogA)?, theta: gate(LinearGate::Theta)?, beta: gate(LinearGate::Beta)? })
    }

    fn logits<T>(EraseLogits { b_proj, erase_proj }: EraseLogits<T>) -> LinearLogits<T> {
        LinearLogits { write: b_proj, momentum: None, erase: Some(erase_proj) }
    }
}
