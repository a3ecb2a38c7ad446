//! Rules in a configuration: their names and options.

use crate::{Error, Result};
use hecate_core::{
    Read, Rule, for_each_rule,
    rules::{Delta, Dgd, Erase, Hebbian, Objective, Titans},
};
use serde::{Deserialize, Serialize};

/// A rule with its options, by its name: `{"name": "delta", "erase": "decayed"}`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "name", rename_all = "snake_case")]
pub enum RuleConfig {
    /// [`Hebbian`].
    Hebbian(#[serde(with = "HebbianOptions")] Hebbian),
    /// [`Delta`].
    Delta(#[serde(with = "DeltaOptions")] Delta),
    /// [`Titans`].
    Titans(#[serde(with = "TitansOptions")] Titans),
    /// [`Dgd`].
    Dgd(#[serde(with = "DgdOptions")] Dgd),
}

macro_rules! names {
    ($($rule:ident),*) => { [$($rule::NAME),*] };
}

macro_rules! by_name {
    ($name:ident, $($rule:ident),*) => {
        match $name {
            $($rule::NAME => Some(RuleConfig::$rule($rule::default())),)*
            _ => None,
        }
    };
}

macro_rules! name_of {
    ($config:ident, $($rule:ident),*) => { match $config { $(RuleConfig::$rule(_) => $rule::NAME),* } };
}

impl RuleConfig {
    /// Names of all rules.
    pub const NAMES: [&'static str; for_each_rule!(names).len()] = for_each_rule!(names);

    /// The rule of this name with its default options.
    ///
    /// # Errors
    /// [`Error::Config`] listing the known names.
    pub fn named(name: &str) -> Result<Self> {
        for_each_rule!(by_name, name,)
            .ok_or_else(|| Error::config("rule", format!("`{name}`"), format!("one of {}", Self::NAMES.join(", "))))
    }

    /// The rule's name.
    pub fn name(&self) -> &'static str {
        for_each_rule!(name_of, self,)
    }
}

impl Default for RuleConfig {
    fn default() -> Self {
        Self::Delta(Delta::default())
    }
}

// The core does without serde, so its options are mirrored here; the compiler compares the fields.

#[derive(Serialize, Deserialize)]
#[serde(remote = "Read", rename_all = "snake_case")]
enum ReadOption {
    After,
    Before,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Erase", rename_all = "snake_case")]
enum EraseOption {
    Undecayed,
    Decayed,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Objective", rename_all = "snake_case")]
enum ObjectiveOption {
    L2,
    Dot,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Hebbian", deny_unknown_fields)]
struct HebbianOptions {
    #[serde(with = "ReadOption", default)]
    read: Read,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Delta", deny_unknown_fields)]
struct DeltaOptions {
    #[serde(with = "EraseOption", default)]
    erase: Erase,
    #[serde(with = "ReadOption", default)]
    read: Read,
    frozen: Option<u32>,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Titans", deny_unknown_fields)]
struct TitansOptions {
    #[serde(with = "ReadOption", default)]
    read: Read,
    frozen: Option<u32>,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Dgd", deny_unknown_fields)]
struct DgdOptions {
    #[serde(with = "ObjectiveOption", default)]
    objective: Objective,
    #[serde(with = "ReadOption", default)]
    read: Read,
    frozen: Option<u32>,
}
