//! Memories that are functions with weights: equations (33)–(59), one step for every structure, bias and retention.

use crate::recurrent::Room;
use hecate_core::{
    Dims, Read,
    rules::{Activation, Bias, Deep, DeepRule, Huber, Map, Retention, Structure},
};

/// Sizes and options; `deep.cuh`'s structure of this name says what each is. The kind of bias and retention, and
/// whether there is momentum, are the kernel's own.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Options {
    key: u32,
    hidden: u32,
    value: u32,
    activation: u32,
    residual: u32,
    norm: u32,
    read_after: u32,
    huber: u32,
    tanh: u32,
    literal: u32,
    p: f32,
    epsilon: f32,
    q: f32,
    scale: f32,
}

/// The cell of a rule at these sizes.
pub(crate) fn options<R: DeepRule>(rule: R, dims: &Dims) -> Options {
    let Deep { structure, bias, retention, read, .. } = rule.deep();
    let activation = match structure {
        Structure::Matrix(_) => Activation::default(),
        Structure::Mlp(memory) => memory.activation,
    };
    let (p, epsilon, tanh) = match bias {
        Bias::Lp { p, epsilon, tanh } => (p, epsilon, tanh),
        _ => (2.0, 0.0, false),
    };
    let (q, literal) = match retention {
        Retention::Lq { q, map } => (q, map == Map::Literal),
        _ => (2.0, false),
    };
    Options {
        key: dims.key as u32,
        hidden: structure.hidden(dims.key).unwrap_or(0) as u32,
        value: dims.value as u32,
        activation: match activation {
            Activation::Silu => 0,
            Activation::GeluTanh => 1,
            Activation::Gelu => 2,
        },
        residual: structure.residual().into(),
        norm: structure.norm().into(),
        read_after: (read == Read::After).into(),
        huber: match bias {
            Bias::Huber(Huber::Norm) => 1,
            Bias::Huber(Huber::Mix) => 2,
            _ => 0,
        },
        tanh: tanh.into(),
        literal: literal.into(),
        p,
        epsilon,
        q,
        scale: if let Retention::Kl { scale } = retention { scale } else { 1.0 },
    }
}

/// Room of that cell: what `deep.cuh`'s `Record` and `Scratch` cut up.
pub(crate) fn room<R: DeepRule>(rule: R, dims: &Dims) -> Room {
    let deep = rule.deep();
    let hidden = deep.structure.hidden(dims.key);
    let (d, v) = (hidden.unwrap_or(0), dims.value);
    let weights = hidden.map_or(dims.key * v, |d| (dims.key + v) * d);
    let norm = if deep.structure.norm() { v } else { 0 };
    let mapped = if deep.retention == Retention::Decay { 0 } else { 2 * weights };
    Room { record: 7 * d + 3 * v + 2 * norm + 2, scratch: mapped + 5 * d + 6 * v + dims.key + d.max(v), in_place: true }
}

/// The cells of these rules; see [`crate::recurrent::cells!`].
macro_rules! cells {
    ($source:path { $($rule:ty: $module:ident $forward:literal $backward:literal),* $(,)? }) => {
        $(
            impl crate::recurrent::Recurrent for $rule {
                type Cell = crate::deep::Options;

                fn cell(self, dims: &hecate_core::Dims) -> crate::deep::Options {
                    crate::deep::options(self, dims)
                }

                fn room(self, dims: &hecate_core::Dims) -> crate::recurrent::Room {
                    crate::deep::room(self, dims)
                }

                fn frozen(self) -> Option<u32> {
                    self.frozen
                }
            }
        )*
        crate::recurrent::cells! { $source { $($rule: $module $forward $backward),* } }
    };
}
pub(crate) use cells;
