//! Titans with a matrix memory: the delta rule with momentum.

use super::check_frozen;
use crate::{Dims, Read, Result, Rule, Shape, slots};

/// `S_t = η_t S_{t−1} − θ_t k_tᵀ (k_t M_{t−1} − v_t)`, `M_t = a_t M_{t−1} + S_t`.
///
/// The linear recurrence ([equations](super)) with `w = r = θ`; frozen: `r = 0`, `f = 1`. `dθ = dw + dr` (exact),
/// `dθ = dw` (frozen). After one write the memory receives `θ/(1−η)` in all, so a key met again is stable only while
/// `θ|k|²/(1−η) ≲ 2`: make `θ = (1−η) θ′` with `θ′ ∈ [0,1]`.
/// Source: Behrouz et al., "Titans", eqs 13–14 and 32–33 (their θ is half of ours: no ½ in their loss). The exact
/// recurrence, where the paper's parallel form is the frozen one (eqs 16–18).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Titans {
    /// When a token reads.
    pub read: Read,
    /// Groups of this many tokens share one gradient point.
    pub frozen: Option<u32>,
}

slots! {
    /// Gates of rules with momentum.
    pub struct MomentumGates {
        /// `log a [B,T,H]` in `[−∞, 0]`: logarithm of what multiplies the old memory.
        log_a,
        /// `log η [B,T,H]` in `[−∞, 0]`: logarithm of what multiplies the old momentum.
        log_eta,
        /// `θ [B,T,H]`, finite: step size of the descent; under 0 it is an ascent.
        theta,
    }
}

slots! {
    /// A matrix and its momentum per sequence and head.
    pub struct Momentum {
        /// `M [N,H,K,V]`.
        m,
        /// `S [N,H,K,V]`.
        s,
    }
}

impl Rule for Titans {
    const NAME: &'static str = "titans";
    type Gates = MomentumGates<()>;
    type State = Momentum<()>;

    fn gates(self, dims: &Dims) -> MomentumGates<Shape> {
        MomentumGates { log_a: dims.scalars(), log_eta: dims.scalars(), theta: dims.scalars() }
    }

    fn state(self, dims: &Dims) -> Momentum<Shape> {
        Momentum { m: dims.matrices(), s: dims.matrices() }
    }

    fn check(self, _: &Dims) -> Result<()> {
        check_frozen(Self::NAME, self.frozen)
    }
}
