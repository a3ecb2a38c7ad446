//! Rules in a configuration: the core's [`AnyRule`] and what a layer asks of it.

use crate::{Error, Result, bounds::product, gates::frozen};
pub use hecate_core::rules::AnyRule as RuleConfig;
use hecate_core::{
    Dims, Rule, Slots, for_each_rule,
    rules::{RuleVisitor, *},
};
use std::any::Any;

/// The rule of this name with its default options.
///
/// # Errors
/// [`Error::Config`] listing the known names.
pub(super) fn named(name: &str) -> Result<RuleConfig> {
    let expected = || format!("one of {}", RuleConfig::NAMES.join(", "));
    RuleConfig::named(name).map_err(|_| Error::config("rule", format!("`{name}`"), expected()))
}

/// Tokens of a group of a network, unless a configuration says otherwise: they share a gradient point.
pub const GROUP: u32 = 16;

/// A network's rule in groups of [`GROUP`] tokens, which train faster and cost it no quality; other rules as they are.
///
/// Memora is not among them: it learned to 2.66 bits a byte in groups of 16 tokens where it had 2.24 token by token.
pub fn in_groups(rule: RuleConfig) -> RuleConfig {
    use RuleConfig::{Moneta, MonetaMatrix, TitansMlp, Yaad, YaadMatrix, YaadMomentum};
    match rule {
        TitansMlp(_) | Moneta(_) | MonetaMatrix(_) | Yaad(_) | YaadMatrix(_) | YaadMomentum(_) => {
            rule.with_frozen(Some(GROUP))
        }
        _ => rule,
    }
}

/// Largest momentum of a heavy ball, unless a configuration says otherwise: with 1, as in the papers, memories ran away in two of
/// twelve runs.
pub const MOMENTUM: f32 = 0.9;

/// Largest momentum of a layer with this rule, of whichever type, unless a configuration says otherwise.
pub(super) fn momentum(rule: &dyn Any) -> f32 {
    use RuleConfig::{Titans as Matrix, TitansMlp as Network, YaadMomentum as Bounded};
    let form = match known(rule) {
        Some(Matrix(rule)) => rule.momentum,
        Some(Network(rule)) => rule.momentum,
        Some(Bounded(rule)) => rule.momentum,
        // Without momentum, or with one that layers do not know.
        _ => return 1.0,
    };
    if form == MomentumForm::HeavyBall { MOMENTUM } else { 1.0 }
}

/// A rule of any type as one of the list; none that the list does not have.
pub(super) fn known(rule: &dyn Any) -> Option<RuleConfig> {
    macro_rules! find {
        ($($known:ident),*) => {
            [rule.downcast_ref().copied(), $(rule.downcast_ref::<$known>().map(|&rule| RuleConfig::from(rule))),*]
        };
    }
    for_each_rule!(find).into_iter().flatten().next()
}

/// Refuses a rule beside a configuration that names another.
pub(crate) fn check_same<R: Rule>(rule: R, named: RuleConfig) -> Result<()> {
    match known(&rule) {
        Some(rule) if rule != named => {
            let expected = format!("{rule:?}, the rule that the layer is made with");
            Err(Error::config("memory.rule", format!("{named:?}"), expected))
        }
        _ => Ok(()),
    }
}

/// Tokens that share a gradient point; 1 where the rule is exact.
pub(super) fn group(rule: RuleConfig) -> usize {
    rule.frozen().map_or(1, |group| group as usize)
}

/// The rule with one gradient point for each group of this many tokens, where its gradient sees the memory.
pub(super) fn with_group(rule: RuleConfig, tokens: usize) -> RuleConfig {
    rule.with_frozen(frozen(tokens))
}

/// Elements that a rule has for one text and one token.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Elements {
    /// Of a state.
    pub(crate) state: u128,
    /// Of the gates of a token.
    pub(crate) gates: u128,
}

impl Elements {
    /// Of a rule at these sizes, of one text and one token.
    pub(crate) fn of(rule: RuleConfig, dims: &Dims) -> Self {
        rule.visit(Count(dims))
    }
}

struct Count<'a>(&'a Dims);

impl RuleVisitor for Count<'_> {
    type Output = Elements;

    fn visit<R: Rule>(self, rule: R) -> Elements {
        let state = R::State::into_vec(rule.state(self.0)).iter().map(|shape| product(shape.axes())).sum();
        let gates = R::Gates::into_vec(rule.gates(self.0)).iter().map(|shape| product(shape.axes())).sum();
        Elements { state, gates }
    }
}
