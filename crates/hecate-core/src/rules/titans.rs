//! Titans with a matrix memory: the delta rule with momentum.

use crate::{
    Dims, Error, NoSlots, Read, Result, Rule,
    families::{
        EraseStrength, Linear, LinearGate, LinearGates, LinearLogits, LinearMatrix, LinearRule, LinearSpec,
        LinearState, LowerGates, LowerState,
    },
    family::MomentumForm,
    rule::check_frozen,
    slots,
};

/// `S_t = η_t S_{t−1} − θ_t k_tᵀ (k_t M_{t−1} − v_t)`, `M_t = a_t M_{t−1} + S_t`, or with momentum that looks ahead
/// ([`MomentumForm`]).
///
/// The linear recurrence ([equations](super)) with `w = r = θ`; frozen: `r = 0`, `f = 1`. `dθ = dw + dr` (exact),
/// `dθ = dw` (frozen). After one write the memory receives `θ/(1−η)` in all, so a key met again is stable only while
/// `θ|k|²/(1−η) ≲ 2`: make `θ = (1−η) θ′` with `θ′ ∈ [0,1]`. Where momentum looks ahead, `θ|k|² ≤ 1 + a` is enough.
/// Source: Behrouz et al., "Titans", eqs 13–14 and 32–33 (their θ is half of ours: no ½ in their loss). The exact
/// recurrence, where the paper's parallel form is the frozen one (eqs 16–18).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(deny_unknown_fields, default))]
pub struct Titans {
    /// When a token reads.
    pub read: Read,
    /// Groups of this many tokens share one gradient point (not where momentum looks ahead).
    pub frozen: Option<u32>,
    /// Which momentum.
    pub momentum: MomentumForm,
}

slots! {
    /// Gates of rules with momentum.
    pub struct MomentumGates {
        /// `log a [B,T,H]` in `[−∞, 0]`: logarithm of what multiplies the old memory.
        log_a: Retention,
        /// `log η [B,T,H]` in `[−∞, 0]`: logarithm of what multiplies the old momentum.
        log_eta: Momentum,
        /// `θ [B,T,H]`, finite: step size of the descent; under 0 it is an ascent.
        theta: Step,
    }
}

slots! {
    /// What layers form the gates of rules with momentum from.
    pub struct MomentumLogits {
        /// Step size.
        b_proj,
        /// Momentum.
        eta_proj,
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
    type Family = Linear;
    type Gates = MomentumGates<()>;
    type State = Momentum<()>;
    type Anchor = NoSlots;

    fn frozen_option(&mut self) -> Option<&mut Option<u32>> {
        Some(&mut self.frozen)
    }

    fn check(self, _: &Dims) -> Result<()> {
        if let (MomentumForm::LookAhead, Some(group)) = (self.momentum, self.frozen) {
            let expected = "no frozen groups where momentum looks ahead: leave one of the two out";
            return Err(Error::Config { what: Self::NAME, option: "frozen", found: group.to_string(), expected });
        }
        check_frozen(Self::NAME, self.frozen)
    }
}

impl LinearRule for Titans {
    fn spec(self) -> LinearSpec {
        let erase = if self.frozen.is_some() { EraseStrength::Nothing } else { EraseStrength::Theta };
        let look_ahead = self.momentum == MomentumForm::LookAhead;
        LinearSpec { read: self.read, frozen: self.frozen, momentum: true, look_ahead, erase, ..LinearSpec::default() }
    }
}

impl LowerGates for MomentumGates<()> {
    type Logits = MomentumLogits<()>;

    fn lower<T>(MomentumGates { log_a, log_eta, theta }: MomentumGates<T>) -> LinearGates<T> {
        LinearGates { log_a: Some(log_a), log_eta: Some(log_eta), ..LinearGates::write(theta) }
    }

    fn try_lower_backward<T, E>(mut gate: impl FnMut(LinearGate) -> Result<T, E>) -> Result<MomentumGates<T>, E> {
        Ok(MomentumGates {
            log_a: gate(LinearGate::LogA)?,
            log_eta: gate(LinearGate::LogEta)?,
            theta: gate(LinearGate::Theta)?,
        })
    }

    fn logits<T>(MomentumLogits { b_proj, eta_proj }: MomentumLogits<T>) -> LinearLogits<T> {
        LinearLogits { write: b_proj, momentum: Some(eta_proj), erase: None }
    }
}

impl LowerState for Momentum<()> {
    const MOMENTUM: &'static [&'static str] = &["s"];

    fn lower<T>(Momentum { m, s }: Momentum<T>) -> LinearState<T> {
        LinearState { m, s: Some(s) }
    }

    fn lower_backward<T>(mut matrix: impl FnMut(LinearMatrix) -> T) -> Momentum<T> {
        Momentum { m: matrix(LinearMatrix::M), s: matrix(LinearMatrix::S) }
    }
}
