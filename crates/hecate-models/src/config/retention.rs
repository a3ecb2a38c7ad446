//! Where memories go as they forget, and configurations from before that was asked.

use super::{Features, MemoryConfig, RuleConfig, rule::with_group};
use crate::{Error, Result, gates::GatedRule};
use hecate_core::{
    Dims, Rule, Slots, for_each_rule,
    rules::{Phi, RuleVisitor},
};
use serde::{Deserialize, Deserializer, Serialize};

/// Where what a memory forgets goes. With `a` the retention, `X` what it remembers and `B` what it starts from:
///
/// ```text
/// initial: B + a (X − B)      zero: a X
/// ```
///
/// `B` is learned (`initial.*`), one a head. A network that goes back to zero has neither output nor gradient in the
/// end; one that goes back to its start stays where it was trained, however long the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Retain {
    /// To the learned start.
    Initial,
    /// To zero; slots of [`Lattice`](hecate_core::rules::Lattice) nowhere, since they keep their norm.
    Zero,
}

impl Retain {
    /// Its name in a configuration.
    pub fn name(self) -> &'static str {
        match self {
            Self::Initial => "initial",
            Self::Zero => "zero",
        }
    }

    /// That of configurations from before there was a choice.
    pub(super) fn former() -> Self {
        Self::Zero
    }
}

/// Whether memories of this rule and these options have an anchor of their own, and go back to their start unless told not to.
pub(super) fn has_anchor<R: Rule>(rule: R) -> bool {
    // The smallest sizes: what is asked here depends on none.
    let dims = Dims { anchored: true, ..Dims::new(1, 1, 1, 1, 1) };
    !R::Anchor::NAMES.is_empty() && rule.check(&dims).is_ok()
}

/// [`has_anchor`] of any rule.
struct HasAnchor;

impl RuleVisitor for HasAnchor {
    type Output = bool;

    fn visit<R: Rule>(self, rule: R) -> bool {
        has_anchor(rule)
    }
}

/// Whether memories of this rule and these options can go back to their start: by an anchor, or as differences from it.
fn goes_back(rule: RuleConfig) -> bool {
    macro_rules! of_difference {
        ($($rule:ident),*) => {
            match rule { $(RuleConfig::$rule(rule) => rule.of_difference().is_some(),)* }
        };
    }
    rule.visit(HasAnchor) || for_each_rule!(of_difference)
}

impl<R> MemoryConfig<R> {
    /// What was chosen, or else what suits: going back to the start where the rule has an anchor and memories forget at all.
    pub(super) fn retain_where(&self, has_anchor: bool) -> Retain {
        let suits = if has_anchor && self.decay { Retain::Initial } else { Retain::Zero };
        self.retain.unwrap_or(suits)
    }
}

impl<R: Rule> MemoryConfig<R> {
    /// Whether its memories go back to their start.
    pub(crate) fn is_anchored(&self) -> bool {
        self.decay && self.retain_where(has_anchor(self.rule)) == Retain::Initial
    }
}

impl MemoryConfig {
    /// Where what its memories forget goes: as chosen, or what the rule has unless something is.
    pub fn retention(&self) -> Retain {
        self.retain_where(self.rule.visit(HasAnchor))
    }

    /// Whether layers run its memories as differences from what they go back to, for want of an anchor.
    pub(crate) fn is_difference(&self) -> bool {
        self.decay && self.retention() == Retain::Initial && !self.rule.visit(HasAnchor)
    }

    /// Whether its memories can go back to their start where so many tokens share a gradient point; 1 where none do.
    pub fn can_go_back(&self, group: usize) -> bool {
        goes_back(with_group(self.rule, group))
    }

    /// The same as a part of a composition, where `group` tokens share a gradient point (1: none do), unless somebody chose. A
    /// start to go back to serves it even more than a memory alone: it has one where its rule can go back.
    #[must_use]
    pub fn in_composition(self, group: usize) -> Self {
        let initial = self.retain.is_none() && self.can_go_back(group);
        Self { retain: if initial { Some(Retain::Initial) } else { self.retain }, ..self }.settled()
    }

    /// The same with [`MemoryConfig::retention`] written down: what later versions have where nothing is chosen may be another.
    #[must_use]
    pub fn settled(self) -> Self {
        Self { retain: Some(self.retention()), ..self }
    }

    /// Refuses to go back to the start where the rule cannot.
    pub(super) fn check_retain(&self, field: String) -> Result<()> {
        if self.retain != Some(Retain::Initial) || goes_back(self.rule) {
            return Ok(());
        }
        let expected = format!(
            "`zero`, or leave it out: {} cannot go back to its start so. Linear rules can, dgd without frozen groups; \
             networks, lattice and trellis, read after the write",
            self.rule.name()
        );
        Err(Error::config(field, "initial", expected))
    }

    /// Refuses memories that forget faster than their gates say, or not at all.
    pub(super) fn check_forgetting(&self, field: String) -> Result<()> {
        if self.forgetting > 0.0 && self.forgetting <= 1.0 {
            return Ok(());
        }
        Err(Error::config(field, self.forgetting, "above 0 and at most 1; `decay: false` is to forget nothing"))
    }
}

impl MemoryConfig {
    /// Refuses horizons that no retention has.
    pub(super) fn check_horizon(&self, field: String) -> Result<()> {
        let Some([shortest, longest]) = self.horizon else { return Ok(()) };
        let expected = match self.decay {
            false => "null: with `decay: false` nothing is forgotten",
            // Comparisons refuse NaN too.
            true if shortest >= 1.0 && longest >= shortest && longest.is_finite() => return Ok(()),
            true => "two finite numbers of tokens, the shortest at least 1 and the longest no less",
        };
        Err(Error::config(field, format!("{shortest} to {longest}"), expected))
    }
}

/// Scale of forgetting that networks had before they could go back to their start. Plain forgetting to zero would have
/// lost them within a text, since layers of zeros learn nothing.
const SLOW_FORGETTING: f32 = 1.0 / 1024.0;

/// Scale of forgetting where a configuration says neither that nor where it leads.
fn former_forgetting(rule: RuleConfig) -> f32 {
    let slow = match rule {
        RuleConfig::TitansMlp(_) | RuleConfig::Moneta(_) | RuleConfig::Yaad(_) | RuleConfig::YaadMomentum(_) => true,
        RuleConfig::Trellis(rule) => rule.phi != Phi::Identity,
        _ => false,
    };
    if slow { SLOW_FORGETTING } else { 1.0 }
}

/// A [`MemoryConfig`] in JSON. One without `retain` is from before there was such an option, and keeps its function.
#[derive(Deserialize)]
#[serde(default, deny_unknown_fields, rename = "MemoryConfig")]
struct Stored {
    rule: RuleConfig,
    heads: usize,
    key_dim: Option<usize>,
    value_dim: Option<usize>,
    conv: usize,
    gate: bool,
    decay: bool,
    /// Absent, null or a choice.
    #[serde(deserialize_with = "present")]
    retain: Option<Option<Retain>>,
    forgetting: Option<f32>,
    horizon: Option<[f32; 2]>,
    step: f32,
    momentum: f32,
    writes_per_token: usize,
    mean: bool,
    features: Features,
}

/// A field that is there, whatever it is.
fn present<'de, D: Deserializer<'de>>(field: D) -> std::result::Result<Option<Option<Retain>>, D::Error> {
    Option::deserialize(field).map(Some)
}

impl Default for Stored {
    fn default() -> Self {
        let MemoryConfig {
            rule,
            heads,
            key_dim,
            value_dim,
            conv,
            gate,
            decay,
            retain: _,
            forgetting: _,
            horizon,
            step,
            momentum,
            writes_per_token,
            mean,
            features,
        } = MemoryConfig::default();
        let (retain, forgetting) = (None, None);
        Self {
            rule,
            heads,
            key_dim,
            value_dim,
            conv,
            gate,
            decay,
            retain,
            forgetting,
            horizon,
            step,
            momentum,
            writes_per_token,
            mean,
            features,
        }
    }
}

impl From<Stored> for MemoryConfig {
    fn from(stored: Stored) -> Self {
        let Stored { rule, heads, key_dim, value_dim, conv, gate, decay, horizon, step, momentum, .. } = stored;
        let Stored { mean, writes_per_token, features, .. } = stored;
        let former = if stored.retain.is_none() { former_forgetting(rule) } else { 1.0 };
        let retain = stored.retain.unwrap_or(Some(Retain::former()));
        let forgetting = stored.forgetting.unwrap_or(former);
        Self {
            rule,
            heads,
            key_dim,
            value_dim,
            conv,
            gate,
            decay,
            retain,
            forgetting,
            horizon,
            step,
            momentum,
            writes_per_token,
            mean,
            features,
        }
    }
}

impl<'de> Deserialize<'de> for MemoryConfig {
    fn deserialize<D: Deserializer<'de>>(config: D) -> std::result::Result<Self, D::Error> {
        Stored::deserialize(config).map(Self::from)
    }
}
