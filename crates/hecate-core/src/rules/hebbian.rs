//! The Hebbian rule: write, never erase.

use crate::{Dims, Read, Rule, Shape, slots};

/// Linear attention with forgetting: `M_t = a_t M_{t−1} + θ_t k_tᵀ v_t`.
///
/// The linear recurrence ([equations](super)) with `w = θ`, `r = 0`, `η = 0`; `dθ = dw`.
/// Sources: MIRAS eq 8; Mamba-2; "simple GLA" of flash-linear-attention. Papers use `θ = 1`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Hebbian {
    /// When a token reads.
    pub read: Read,
}

slots! {
    /// Gates of rules that write with one strength.
    pub struct WriteGates {
        /// `log a [B,T,H]` in `[−∞, 0]`: logarithm of what multiplies the old memory.
        log_a,
        /// `θ [B,T,H]`, finite: write strength (DeltaNet's β), the step size of a descent; under 0 it is an ascent.
        theta,
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
    type Gates = WriteGates<()>;
    type State = Matrix<()>;

    fn gates(self, dims: &Dims) -> WriteGates<Shape> {
        WriteGates { log_a: dims.scalars(), theta: dims.scalars() }
    }

    fn state(self, dims: &Dims) -> Matrix<Shape> {
        Matrix { m: dims.matrices() }
    }
}
