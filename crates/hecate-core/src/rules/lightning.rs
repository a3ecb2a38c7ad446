//! Lightning attention: the Hebbian rule with one constant retention a head.

use super::{Matrix, WriteLogits};
use crate::{
    Dims, Error, NoSlots, Read, Result, Rule,
    families::{Linear, LinearGate, LinearGates, LinearLogits, LinearRule, LinearSpec, LowerGates},
    slots,
};

/// Linear attention whose head `h` of `H` forgets at its own constant rate: `M_t = a_h M_{t−1} + θ_t k_tᵀ v_t` with
/// `log a_h = −rate 2^{−8(h+1)/H}`.
///
/// The linear recurrence ([equations](super)) with `w = θ`, `r = 0`, `η = 0`; `dθ = dw`. Papers use `θ = 1`.
/// Sources: Qin et al., "Lightning Attention-2", with the slopes of Press et al., "Train Short, Test Long" (ALiBi);
/// Sun et al., "Retentive Network", has other constants.
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(deny_unknown_fields, default))]
pub struct Lightning {
    /// When a token reads.
    pub read: Read,
    /// Factor of all slopes, at least 0; at 0 nothing is forgotten.
    pub rate: f32,
}

impl Default for Lightning {
    fn default() -> Self {
        Self { read: Read::default(), rate: 1.0 }
    }
}

slots! {
    /// Gates of rules that are told a write strength alone.
    pub struct StrengthGates {
        /// `θ [B,T,H]`, finite: write strength; under 0 it takes away.
        theta: Step,
    }
}

impl Rule for Lightning {
    const NAME: &'static str = "lightning";
    type Family = Linear;
    type Gates = StrengthGates<()>;
    type State = Matrix<()>;
    type Anchor = NoSlots;

    fn check(self, _: &Dims) -> Result<()> {
        if self.rate.is_finite() && self.rate >= 0.0 {
            return Ok(());
        }
        let (option, found) = ("rate", self.rate.to_string());
        Err(Error::Config { what: Self::NAME, option, found, expected: "a finite number, at least 0" })
    }
}

impl LinearRule for Lightning {
    fn spec(self) -> LinearSpec {
        LinearSpec { read: self.read, ..LinearSpec::default() }
    }

    fn head_log_a(self, head: usize, heads: usize) -> f32 {
        -self.rate * (-8.0 * (head as f32 + 1.0) / heads as f32).exp2()
    }

    fn without_retention(self) -> Self {
        Self { rate: 0.0, ..self }
    }
}

impl LowerGates for StrengthGates<()> {
    type Logits = WriteLogits<()>;

    fn lower<T>(StrengthGates { theta }: StrengthGates<T>) -> LinearGates<T> {
        LinearGates::write(theta)
    }

    fn try_lower_backward<T, E>(mut gate: impl FnMut(LinearGate) -> Result<T, E>) -> Result<StrengthGates<T>, E> {
        Ok(StrengthGates { theta: gate(LinearGate::Theta)? })
    }

    fn logits<T>(WriteLogits { b_proj }: WriteLogits<T>) -> LinearLogits<T> {
        LinearLogits { write: b_proj, momentum: None, erase: None }
    }
}
