//! A rule chosen at run time: by its name, or with its options as JSON.

use super::*;
use crate::{Dims, Error, Result, Rule, for_each_rule};
use std::sync::LazyLock;

/// What is done with a rule once its type is known: [`AnyRule::visit`].
pub trait RuleVisitor {
    /// What comes of it.
    type Output;

    /// Is given the rule.
    fn visit<R: Rule>(self, rule: R) -> Self::Output;
}

/// The same expression over the rule inside, whichever it is.
macro_rules! over {
    ($any:expr, $rule:ident => $body:expr, $($variant:ident),*) => {
        match $any { $(AnyRule::$variant($rule) => $body,)* }
    };
}

macro_rules! declare_any {
    ($($rule:ident),*) => {
        /// A rule with its options, of whichever type. The variants are the rules, by their types' names.
        ///
        /// With the feature `serde` it is an object with the rule's name and options, of which those left out have their
        /// defaults: `{"name": "delta", "erase": "decayed"}`.
        #[derive(Clone, Copy, Debug, PartialEq)]
        #[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
        #[cfg_attr(feature = "serde", serde(tag = "name", rename_all = "snake_case"))]
        pub enum AnyRule {
            $(#[doc = concat!("[`", stringify!($rule), "`].")] $rule($rule),)*
        }

        impl AnyRule {
            /// Names of all rules, in the order of the table.
            pub const NAMES: [&'static str; [$(<$rule as Rule>::NAME),*].len()] = [$(<$rule as Rule>::NAME),*];

            /// The rule of this name with its default options.
            ///
            /// # Errors
            /// [`Error::Config`] listing the known names.
            pub fn named(name: &str) -> Result<Self> {
                static EXPECTED: LazyLock<String> = LazyLock::new(|| format!("one of {}", AnyRule::NAMES.join(", ")));
                $(if name == <$rule as Rule>::NAME {
                    return Ok(Self::$rule(<$rule>::default()));
                })*
                Err(Error::Config { what: "rule", option: "name", found: format!("`{name}`"), expected: &EXPECTED })
            }
        }

        $(impl From<$rule> for AnyRule {
            fn from(rule: $rule) -> Self {
                Self::$rule(rule)
            }
        })*
    };
}
for_each_rule!(declare_any);

impl AnyRule {
    /// What `visitor` makes of the rule.
    pub fn visit<V: RuleVisitor>(self, visitor: V) -> V::Output {
        for_each_rule!(over, self, rule => visitor.visit(rule),)
    }

    /// The rule's name.
    pub fn name(self) -> &'static str {
        struct Name;
        impl RuleVisitor for Name {
            type Output = &'static str;
            fn visit<R: Rule>(self, _: R) -> &'static str {
                R::NAME
            }
        }
        self.visit(Name)
    }

    /// As [`Rule::frozen`].
    pub fn frozen(self) -> Option<u32> {
        for_each_rule!(over, self, rule => Rule::frozen(rule),)
    }

    /// As [`Rule::with_frozen`].
    #[must_use]
    pub fn with_frozen(self, frozen: Option<u32>) -> Self {
        for_each_rule!(over, self, rule => rule.with_frozen(frozen).into(),)
    }

    /// As [`Rule::needs_anchor`].
    pub fn needs_anchor(self) -> bool {
        for_each_rule!(over, self, rule => Rule::needs_anchor(rule),)
    }

    /// As [`Rule::check`].
    ///
    /// # Errors
    /// [`Error::Config`] naming the option.
    pub fn check(self, dims: &Dims) -> Result<()> {
        for_each_rule!(over, self, rule => rule.check(dims),)
    }
}

/// The delta rule.
impl Default for AnyRule {
    fn default() -> Self {
        Self::Delta(Delta::default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lead_to_their_rules() {
        for name in AnyRule::NAMES {
            assert_eq!(AnyRule::named(name).map(AnyRule::name).ok(), Some(name));
        }
        let error = AnyRule::named("hebian").map(AnyRule::name).err().map(|error| error.to_string());
        assert!(error.is_some_and(|text| text.contains("`hebian`") && text.contains("one of hebbian, delta")));
    }

    #[test]
    fn groups_are_those_of_the_rule() {
        assert_eq!(AnyRule::default().with_frozen(Some(4)).frozen(), Some(4));
        assert_eq!(AnyRule::from(Hebbian::default()).with_frozen(Some(4)).frozen(), None);
        let dot = Dgd { objective: Objective::Dot, ..Dgd::default() };
        assert_eq!(AnyRule::from(dot).with_frozen(Some(4)).frozen(), None);
    }
}
