//! Rules in a configuration: their names and options.

use crate::{Error, Result, layers::GatedRule};
use hecate_core::{
    Read, Rule, for_each_rule,
    rules::{
        Activation, Atlas, Delta, Dgd, Erase, Hebbian, Huber, Lattice, Map, MatrixMemory, Memora, MemoraMatrix,
        MlpMemory, Moneta, MonetaMatrix, Objective, Phi, Titans, TitansMlp, Trellis, Variant, Yaad, YaadMatrix,
        YaadMomentum,
    },
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
    /// [`TitansMlp`].
    TitansMlp(#[serde(with = "TitansMlpOptions")] TitansMlp),
    /// [`Moneta`].
    Moneta(#[serde(with = "MonetaOptions")] Moneta),
    /// [`MonetaMatrix`].
    MonetaMatrix(#[serde(with = "MonetaMatrixOptions")] MonetaMatrix),
    /// [`Yaad`].
    Yaad(#[serde(with = "YaadOptions")] Yaad),
    /// [`YaadMatrix`].
    YaadMatrix(#[serde(with = "YaadMatrixOptions")] YaadMatrix),
    /// [`YaadMomentum`].
    YaadMomentum(#[serde(with = "YaadMomentumOptions")] YaadMomentum),
    /// [`Memora`].
    Memora(#[serde(with = "MemoraOptions")] Memora),
    /// [`MemoraMatrix`].
    MemoraMatrix(#[serde(with = "MemoraMatrixOptions")] MemoraMatrix),
    /// [`Lattice`].
    Lattice(#[serde(with = "LatticeOptions")] Lattice),
    /// [`Trellis`].
    Trellis(#[serde(with = "TrellisOptions")] Trellis),
    /// [`Atlas`].
    Atlas(#[serde(with = "AtlasOptions")] Atlas),
}

macro_rules! names {
    ($($rule:ident),*) => { [$(<$rule>::NAME),*] };
}

macro_rules! by_name {
    ($name:ident, $($rule:ident),*) => {
        match $name {
            $(_ if $name == <$rule>::NAME => Some(RuleConfig::$rule(<$rule>::default())),)*
            _ => None,
        }
    };
}

macro_rules! name_of {
    ($config:ident, $($rule:ident),*) => { match $config { $(RuleConfig::$rule(_) => <$rule>::NAME),* } };
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

macro_rules! group_of {
    ($config:ident, $($rule:ident),*) => { match $config { $(RuleConfig::$rule(rule) => rule.group()),* } };
}

macro_rules! with_group {
    ($config:ident, $tokens:ident, $($rule:ident),*) => {
        match $config { $(RuleConfig::$rule(rule) => RuleConfig::$rule(rule.with_group($tokens))),* }
    };
}

impl RuleConfig {
    /// Tokens that share a gradient point; 1 where the rule is exact.
    pub fn group(self) -> usize {
        for_each_rule!(group_of, self,)
    }

    /// The rule with one gradient point for each group of this many tokens, where its gradient sees the memory.
    pub(super) fn with_group(self, tokens: usize) -> Self {
        for_each_rule!(with_group, self, tokens,)
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

#[derive(Serialize, Deserialize)]
#[serde(remote = "Activation", rename_all = "snake_case")]
enum ActivationOption {
    Silu,
    GeluTanh,
    Gelu,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Huber", rename_all = "snake_case")]
enum HuberOption {
    Coordinate,
    Norm,
    Mix,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Map", rename_all = "snake_case")]
enum MapOption {
    Mirror,
    Literal,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "MatrixMemory", deny_unknown_fields)]
struct MatrixMemoryOptions {
    #[serde(default)]
    residual: bool,
    #[serde(default)]
    norm: bool,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "MlpMemory", deny_unknown_fields)]
struct MlpMemoryOptions {
    #[serde(default = "expansion")]
    expansion: u32,
    #[serde(with = "ActivationOption", default)]
    activation: Activation,
    #[serde(default)]
    residual: bool,
    #[serde(default)]
    norm: bool,
}

fn expansion() -> u32 {
    MlpMemory::default().expansion
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "TitansMlp", deny_unknown_fields)]
struct TitansMlpOptions {
    #[serde(with = "MlpMemoryOptions", default)]
    memory: MlpMemory,
    #[serde(with = "ReadOption", default)]
    read: Read,
    frozen: Option<u32>,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "YaadMomentum", deny_unknown_fields)]
struct YaadMomentumOptions {
    #[serde(with = "MlpMemoryOptions", default)]
    memory: MlpMemory,
    #[serde(with = "HuberOption", default)]
    bias: Huber,
    #[serde(with = "ReadOption", default)]
    read: Read,
    frozen: Option<u32>,
}

/// Constants of [`Moneta`] and [`Memora`] where a file is silent.
mod absent {
    use hecate_core::rules::{Memora, Moneta};

    type M = Moneta;

    pub(super) fn p() -> f32 {
        M::default().p
    }
    pub(super) fn epsilon() -> f32 {
        M::default().epsilon
    }
    pub(super) fn q() -> f32 {
        M::default().q
    }
    pub(super) fn scale() -> f32 {
        <Memora>::default().scale
    }
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Moneta<MlpMemory>", deny_unknown_fields)]
struct MonetaOptions {
    #[serde(with = "MlpMemoryOptions", default)]
    memory: MlpMemory,
    #[serde(default = "absent::p")]
    p: f32,
    #[serde(default = "absent::epsilon")]
    epsilon: f32,
    #[serde(default)]
    tanh: bool,
    #[serde(default = "absent::q")]
    q: f32,
    #[serde(with = "MapOption", default)]
    map: Map,
    #[serde(with = "ReadOption", default)]
    read: Read,
    frozen: Option<u32>,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Yaad<MlpMemory>", deny_unknown_fields)]
struct YaadOptions {
    #[serde(with = "MlpMemoryOptions", default)]
    memory: MlpMemory,
    #[serde(with = "HuberOption", default)]
    bias: Huber,
    #[serde(with = "ReadOption", default)]
    read: Read,
    frozen: Option<u32>,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Memora<MlpMemory>", deny_unknown_fields)]
struct MemoraOptions {
    #[serde(with = "MlpMemoryOptions", default)]
    memory: MlpMemory,
    #[serde(default = "absent::scale")]
    scale: f32,
    #[serde(with = "ReadOption", default)]
    read: Read,
    frozen: Option<u32>,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Moneta<MatrixMemory>", deny_unknown_fields)]
struct MonetaMatrixOptions {
    #[serde(with = "MatrixMemoryOptions", default)]
    memory: MatrixMemory,
    #[serde(default = "absent::p")]
    p: f32,
    #[serde(default = "absent::epsilon")]
    epsilon: f32,
    #[serde(default)]
    tanh: bool,
    #[serde(default = "absent::q")]
    q: f32,
    #[serde(with = "MapOption", default)]
    map: Map,
    #[serde(with = "ReadOption", default)]
    read: Read,
    frozen: Option<u32>,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Yaad<MatrixMemory>", deny_unknown_fields)]
struct YaadMatrixOptions {
    #[serde(with = "MatrixMemoryOptions", default)]
    memory: MatrixMemory,
    #[serde(with = "HuberOption", default)]
    bias: Huber,
    #[serde(with = "ReadOption", default)]
    read: Read,
    frozen: Option<u32>,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Memora<MatrixMemory>", deny_unknown_fields)]
struct MemoraMatrixOptions {
    #[serde(with = "MatrixMemoryOptions", default)]
    memory: MatrixMemory,
    #[serde(default = "absent::scale")]
    scale: f32,
    #[serde(with = "ReadOption", default)]
    read: Read,
    frozen: Option<u32>,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Variant", rename_all = "snake_case")]
enum VariantOption {
    Decode,
    Similarity,
    Encode,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Lattice", deny_unknown_fields)]
struct LatticeOptions {
    #[serde(with = "VariantOption", default)]
    variant: Variant,
    #[serde(with = "ReadOption", default)]
    read: Read,
    frozen: Option<u32>,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Phi", rename_all = "snake_case")]
enum PhiOption {
    L2Silu,
    LnSilu,
    Identity,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Trellis", deny_unknown_fields)]
struct TrellisOptions {
    #[serde(with = "PhiOption", default)]
    phi: Phi,
    #[serde(default = "slots")]
    slots: u32,
    frozen: Option<u32>,
}

fn slots() -> u32 {
    Trellis::default().slots
}

fn window() -> u32 {
    Atlas::default().window
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Atlas", deny_unknown_fields)]
struct AtlasOptions {
    #[serde(default = "window")]
    window: u32,
    #[serde(default)]
    newton_schulz: u32,
    #[serde(with = "ReadOption", default)]
    read: Read,
    frozen: Option<u32>,
}
