//! What the gates of a rule are, said with their slots and not by their names.

use crate::{Error, Result, Slots};

/// What a gate does to a memory, and so which values it may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GateKind {
    /// Logarithm of what multiplies the old memory: −∞ to 0.
    Retention,
    /// Logarithm of what multiplies the old momentum: −∞ to 0.
    Momentum,
    /// Size of a step: finite. Layers divide it among tokens that share a gradient point.
    Step,
    /// Any other strength, or what is taught: finite.
    Strength,
    /// Where something is cut off: finite and at least 0.
    Threshold,
}

impl GateKind {
    /// Refuses values outside of the range, naming the first: NaN is in none. `what` and `slot` are the rule and the gate
    /// in the message.
    ///
    /// # Errors
    /// [`Error::Value`].
    pub fn check(self, what: &'static str, slot: &'static str, values: &[f32]) -> Result<()> {
        let (fits, expected): (fn(f32) -> bool, _) = match self {
            Self::Retention | Self::Momentum => (|x| x <= 0.0, "a logarithm of a factor in [0, 1]: −∞ to 0"),
            Self::Step | Self::Strength => (f32::is_finite, "a finite number"),
            Self::Threshold => (|x| x.is_finite() && x >= 0.0, "a finite number, at least 0"),
        };
        match values.iter().position(|&x| !fits(x)) {
            None => Ok(()),
            Some(index) => Err(Error::Value { what, slot, index, found: values[index].into(), expected }),
        }
    }
}

/// Slots that are gates. [`slots!`](crate::slots!) implements it where each slot has a kind.
pub trait GateSlots: Slots {
    /// What each slot is, in the order of [`Slots::NAMES`].
    const KINDS: &'static [GateKind];

    /// As [`Slots::try_map`], with the kind of each gate in place of its name.
    ///
    /// # Errors
    /// The first error of `f`.
    fn try_map_kinds<T, U, E>(
        gates: Self::Of<T>,
        mut f: impl FnMut(GateKind, T) -> Result<U, E>,
    ) -> Result<Self::Of<U>, E> {
        let mut kinds = Self::KINDS.iter();
        // `slots!` writes both lists from one.
        Self::try_map(gates, |_, gate| f(*kinds.next().expect("as many kinds as names"), gate))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Rule, rules::*};

    /// Kinds are those that these names stand for in the equations. A new name may be of any kind.
    #[test]
    fn rules_say_what_their_gates_are() {
        macro_rules! kinds {
            ($($rule:ident),*) => { [$((<$rule as Rule>::Gates::NAMES, <$rule as Rule>::Gates::KINDS)),*] };
        }
        for (names, kinds) in crate::for_each_rule!(kinds) {
            assert_eq!(names.len(), kinds.len(), "{names:?}");
            for (name, kind) in names.iter().zip(kinds) {
                let expected = match *name {
                    "log_a" => GateKind::Retention,
                    "log_eta" => GateKind::Momentum,
                    "theta" => GateKind::Step,
                    "delta" => GateKind::Threshold,
                    "beta" | "gamma" | "code" => GateKind::Strength,
                    _ => continue,
                };
                assert_eq!(*kind, expected, "{name}");
            }
        }
    }

    #[test]
    fn values_out_of_range_are_named() {
        let refused = |kind: GateKind, values: &[f32]| kind.check("delta", "gate", values).is_err();
        for (kind, fine, wrong) in [
            (GateKind::Retention, [f32::NEG_INFINITY, 0.0], 0.1),
            (GateKind::Momentum, [f32::NEG_INFINITY, 0.0], 0.1),
            (GateKind::Step, [-1.0, 2.0], f32::INFINITY),
            (GateKind::Strength, [-1.0, 2.0], f32::INFINITY),
            (GateKind::Threshold, [0.0, 2.0], -0.1),
        ] {
            assert!(!refused(kind, &fine), "{kind:?}");
            assert!(refused(kind, &[wrong]) && refused(kind, &[f32::NAN]), "{kind:?}");
        }
        let error = GateKind::Step.check("delta", "theta", &[0.0, f32::NAN]);
        assert!(matches!(error, Err(Error::Value { what: "delta", slot: "theta", index: 1, .. })), "{error:?}");
    }
}
