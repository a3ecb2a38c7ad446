//! The delta rule: write the difference between value and prediction.

use super::{Matrix, WriteGates};
use crate::{
    Dims, Error, NoSlots, Read, Result, Rule,
    families::{EraseStrength, Linear, LinearRule, LinearSpec},
    rule::check_frozen,
};

/// What the erasing half of the rule sees.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
pub enum Erase {
    /// The memory before forgetting, `r = θ`: `M_t = a M_{t−1} − θ kᵀ (k M_{t−1} − v)` (Titans eq 34).
    #[default]
    Undecayed,
    /// The memory after forgetting, `r = θ a`: `M_t = a M_{t−1} − θ kᵀ (a k M_{t−1} − v)` (Gated DeltaNet, and what
    /// flash-linear-attention computes). A full reset (`a = 0`) leaves exactly `θ kᵀ v`.
    Decayed,
}

/// The gated delta rule: one step of gradient descent on `½|k M − v|²` per token, with forgetting.
///
/// The linear recurrence ([equations](super)) with `w = θ`, `η = 0` and `r` as [`Erase`] says; frozen: `r = 0`,
/// `f = 1`. `dθ = dw + dr` (undecayed), `dθ = dw + a dr` and `dlog a += θ a dr` (decayed), `dθ = dw` (frozen).
/// Stable while `θ|k|² ≤ 1 + a` (undecayed), `≤ 1 + 1/a` (decayed).
/// Sources: Schlag et al. 2021; Titans eq 34; Yang et al., "Gated Delta Networks", eq 10.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(deny_unknown_fields, default))]
pub struct Delta {
    /// What is erased.
    pub erase: Erase,
    /// When a token reads.
    pub read: Read,
    /// Groups of this many tokens share one gradient point (undecayed only).
    pub frozen: Option<u32>,
}

impl Rule for Delta {
    const NAME: &'static str = "delta";
    type Family = Linear;
    type Gates = WriteGates<()>;
    type State = Matrix<()>;
    type Anchor = NoSlots;

    fn frozen_option(&mut self) -> Option<&mut Option<u32>> {
        Some(&mut self.frozen)
    }

    fn check(self, _: &Dims) -> Result<()> {
        if let (Erase::Decayed, Some(group)) = (self.erase, self.frozen) {
            let expected = "no frozen groups with a decayed erase: the frozen target is not decayed";
            return Err(Error::Config { what: Self::NAME, option: "frozen", found: group.to_string(), expected });
        }
        check_frozen(Self::NAME, self.frozen)
    }
}

impl LinearRule for Delta {
    fn spec(self) -> LinearSpec {
        let erase = match (self.frozen, self.erase) {
            (Some(_), _) => EraseStrength::Nothing,
            (None, Erase::Undecayed) => EraseStrength::Theta,
            (None, Erase::Decayed) => EraseStrength::Decayed,
        };
        LinearSpec { read: self.read, frozen: self.frozen, erase, ..LinearSpec::default() }
    }
}
