//! The Hebbian rule: write, never erase.

use crate::{
    NoSlots, Read, Rule,
    families::{
        Linear, LinearGate, LinearGates, LinearLogits, LinearMatrix, LinearRule, LinearSpec, LinearState, LowerGates,
        LowerState,
    },
    slots,
};

/// Linear attention with forgetting: `M_t = a_t M_{t−1} + θ_t k_tᵀ v_t`.
///
/// The linear recurrence ([equations](super)) with `w = θ`, `r = 0`, `η = 0`; `dθ = dw`.
/// Sources: MIRAS eq 8; Mamba-2; "simple GLA" of flash-linear-attention. Papers use `θ = 1`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(deny_unknown_fields, default))]
pub struct Hebbian {
    /// When a token reads.
    pub read: Read,
}

slots! {
    /// Gates of rules that write with one strength.
    pub struct WriteGates {
        /// `log a [B,T,H]` in `[−∞, 0]`: logarithm of what multiplies the old memory.
        log_a: Retention,
        /// `θ [B,T,H]`, finite: write strength (DeltaNet's β), the step size of a descent; under 0 it is an ascent.
        theta: Step,
    }
}

slots! {
    /// What layers form the gates of rules with one strength from.
    pub struct WriteLogits {
        /// Step size.
        b_proj,
    }
}

slots! {
    /// One matrix per sequence and head.
    pub struct Matrix {
        /// `M [N,H,K,V]`, row = key index.
        m,
    }
}

impl Rule for Hebbian {
    const NAME: &'static str = "hebbian";
    type Family = Linear;
    type Gates = WriteGates<()>;
    type State = Matrix<()>;
    type Anchor = NoSlots;
}

impl LinearRule for Hebbian {
    fn spec(self) -> LinearSpec {
        LinearSpec { read: self.read, ..LinearSpec::default() }
    }
}

impl LowerGates for WriteGates<()> {
    type Logits = WriteLogits<()>;

    fn lower<T>(WriteGates { log_a, theta }: WriteGates<T>) -> LinearGates<T> {
        LinearGates { log_a: Some(log_a), ..LinearGates::write(theta) }
    }

    fn try_lower_backward<T, E>(mut gate: impl FnMut(LinearGate) -> Result<T, E>) -> Result<WriteGates<T>, E> {
        Ok(WriteGates { log_a: gate(LinearGate::LogA)?, theta: gate(LinearGate::Theta)? })
    }

    fn logits<T>(WriteLogits { b_proj }: WriteLogits<T>) -> LinearLogits<T> {
        LinearLogits { write: b_proj, momentum: None, erase: None }
    }
}

impl LowerState for Matrix<()> {
    fn lower<T>(Matrix { m }: Matrix<T>) -> LinearState<T> {
        LinearState { m, s: None }
    }

    fn lower_backward<T>(mut matrix: impl FnMut(LinearMatrix) -> T) -> Matrix<T> {
        Matrix { m: matrix(LinearMatrix::M) }
    }
}
