//! Memories that are functions with weights: equations (33)–(59), one step for every structure, bias and retention.

use crate::{
    launch::Source,
    recurrent::{self, Cell, NO_PRODUCTS, Room, SILU},
};
use hecate_core::{
    Dims, Read,
    rules::{Activation, Bias, Deep, DeepRule, Huber, Map, MlpMemory, Retention, Structure},
};

/// `deep.wgsl`'s constant of this name: numbers of a token.
const KNOWN: usize = 14;

/// The kernels of all these rules.
pub(crate) const SOURCES: [&Source; 2] = recurrent::sources! {
    "deep",
    [
        NO_PRODUCTS,
        SILU,
        include_str!("activation.wgsl"),
        include_str!("bias.wgsl"),
        include_str!("retention.wgsl"),
        include_str!("deep.wgsl"),
    ],
    [include_str!("deep_forward.wgsl")],
    [
        include_str!("deep_backward.wgsl"),
        include_str!("deep_read_back.wgsl"),
        include_str!("deep_write_back.wgsl"),
        include_str!("deep_teach_back.wgsl"),
    ],
};

/// The rule's `Cell` at these sizes; `deep.wgsl` says what each word is. The kind of bias and retention, and whether there
/// is momentum, are constants.
pub(crate) fn cell<R: DeepRule>(rule: R, dims: &Dims) -> Cell {
    let Deep { structure, bias, retention, read, .. } = rule.deep();
    let activation = match structure {
        Structure::Matrix(_) | Structure::Mlp(MlpMemory { activation: Activation::Silu, .. }) => 0,
        Structure::Mlp(MlpMemory { activation: Activation::GeluTanh, .. }) => 1,
        Structure::Mlp(MlpMemory { activation: Activation::Gelu, .. }) => 2,
    };
    let huber = match bias {
        Bias::Huber(Huber::Norm) => 1,
        Bias::Huber(Huber::Mix) => 2,
        _ => 0,
    };
    let (p, epsilon, tanh) = match bias {
        Bias::Lp { p, epsilon, tanh } => (p, epsilon, tanh),
        _ => (2.0, 0.0, false),
    };
    let (q, literal, scale) = match retention {
        Retention::Decay => (2.0, false, 1.0),
        Retention::Lq { q, map } => (q, map == Map::Literal, 1.0),
        Retention::Kl { scale } => (2.0, false, scale),
    };
    recurrent::cell(&[
        structure.hidden(dims.key).unwrap_or(0) as u32,
        activation,
        structure.residual().into(),
        structure.norm().into(),
        (read == Read::After).into(),
        huber,
        tanh.into(),
        literal.into(),
        p.to_bits(),
        epsilon.to_bits(),
        q.to_bits(),
        scale.to_bits(),
    ])
}

/// Room of that cell: what `deep.wgsl`'s `Record` and `Scratch` cut up.
pub(crate) fn room<R: DeepRule>(rule: R, dims: &Dims) -> Room {
    let deep = rule.deep();
    let hidden = deep.structure.hidden(dims.key);
    let (d, v) = (hidden.unwrap_or(0), dims.value);
    let weights = hidden.map_or(dims.key * v, |d| (dims.key + v) * d);
    let norm = if deep.structure.norm() { v } else { 0 };
    let matrices = if deep.retention == Retention::Decay { 0 } else { 2 * weights };
    Room { record: 7 * d + 3 * v + 2 * norm + 2, scratch: 4 * d + 6 * v + dims.key + d.max(v) + KNOWN, matrices }
}

/// The cells of these rules: bias, retention and momentum as `bias.wgsl`, `retention.wgsl` and `deep.wgsl` number them,
/// then the rules.
macro_rules! cells {
    ($bias:literal $retention:literal $momentum:literal: $($rule:ty),* $(,)?) => {
        $(
            impl $crate::recurrent::Recurrent for $rule {
                const SOURCES: [&'static $crate::launch::Source; 2] = $crate::deep::SOURCES;
                const CONSTANTS: &'static [(&'static str, u32)] =
                    &[("BIAS", $bias), ("RETENTION", $retention), ("MOMENTUM", $momentum)];

                fn cell(self, dims: &hecate_core::Dims) -> $crate::recurrent::Cell {
                    $crate::deep::cell(self, dims)
                }

                fn room(self, dims: &hecate_core::Dims) -> $crate::recurrent::Room {
                    $crate::deep::room(self, dims)
                }

                fn frozen(self) -> Option<u32> {
                    self.frozen
                }
            }
        )*
        $crate::recurrent::cells! { $($rule),* }
    };
}
pub(crate) use cells;
