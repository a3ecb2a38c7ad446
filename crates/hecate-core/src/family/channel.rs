//! The channel family: linear memories that forget by key channel, and whose erase has keys of its own.
//!
//! Every rule of the family is the step (110)–(114) of [`rules::channel`](crate::rules::channel). A rule says in its
//! [`ChannelForm`] which gates it has and what they are; engines see gates in the order of [`ChannelForm::gates`].

use super::{Channel, RetentionAxis};
use crate::{Dims, NoSlots, Of, Rule, Shape, Slots};

/// A rule that the channel engine runs: a name, gates, one matrix `[N,H,K,V]`, and its form.
pub trait ChannelRule: Rule<Family = Channel, Anchor = NoSlots> {
    /// What its gates are. The slots of [`Rule::Gates`] are those of [`ChannelForm::gates`], in that order.
    const FORM: ChannelForm;

    /// What layers form the gates from, beside retention: a name for each of [`ChannelForm::gates`] but the first, in that
    /// order.
    type Logits: Slots;
}

/// Which terms the step of a rule has. The default is linear attention that forgets by head.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChannelForm {
    /// What one `log a` multiplies.
    pub retention: RetentionAxis,
    /// Whether there is a `θ [B,T,H]`, the size of all that a token writes; without, `θ = 1`.
    pub step: bool,
    /// The erase key `e`.
    pub erase: EraseKey,
    /// The key `b` under which what was erased is put back.
    pub rewrite: RewriteKey,
    /// Whether there is an `ω [B,T,H,V]`, a factor of each value; without, `ω = 1`.
    pub factors: bool,
    /// Whether the erase reads the memory before its decay.
    pub undecayed: bool,
}

/// With which key `e [K]` the erase reads the memory. Kernels number it in this order, from 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EraseKey {
    /// None: nothing is erased.
    #[default]
    Nothing,
    /// `e = k`.
    Key,
    /// `e = g k` with a gate `g [B,T,H]`.
    Scaled,
    /// `e = g ∘ k` with a gate `g [B,T,H,K]`.
    Gated,
    /// `e = g` with a gate `g [B,T,H,K]`.
    Own,
}

/// Under which key `b [K]` what the erase has read is added to the memory. Kernels number it in this order, from 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RewriteKey {
    /// `b = −k`: what is erased makes room for the value.
    #[default]
    Key,
    /// `b = −g ∘ e` with a gate `g [B,T,H,K]`.
    Erased,
    /// `b = g` with a gate `g [B,T,H,K]`.
    Own,
}

/// The gates that a rule of the family can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChannelGate {
    /// `log a`.
    LogA,
    /// `θ`.
    Theta,
    /// `g` of the erase key.
    Erase,
    /// `g` of the rewrite key.
    Rewrite,
    /// `ω`.
    Factors,
}

/// Elements of a gate, for a token and head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GateWidth {
    /// One, without an axis of its own.
    One,
    /// `K`.
    Key,
    /// `V`.
    Value,
}

impl EraseKey {
    /// The number that kernels know it by.
    pub const fn number(self) -> u32 {
        self as u32
    }

    /// The width of its gate, where it has one.
    const fn gate(self) -> Option<GateWidth> {
        match self {
            Self::Nothing | Self::Key => None,
            Self::Scaled => Some(GateWidth::One),
            Self::Gated | Self::Own => Some(GateWidth::Key),
        }
    }
}

impl RewriteKey {
    /// The number that kernels know it by.
    pub const fn number(self) -> u32 {
        self as u32
    }

    /// As [`EraseKey::gate`].
    const fn gate(self) -> Option<GateWidth> {
        match self {
            Self::Key => None,
            Self::Erased | Self::Own => Some(GateWidth::Key),
        }
    }
}

impl GateWidth {
    /// Elements at these sizes; none where the gate has no axis of its own.
    pub fn elements(self, key: usize, value: usize) -> Option<usize> {
        match self {
            Self::One => None,
            Self::Key => Some(key),
            Self::Value => Some(value),
        }
    }
}

impl ChannelForm {
    /// The gates with their widths, in the order in which kernels take them: at most four, of which `log a` is the first.
    pub fn gates(self) -> impl Iterator<Item = (ChannelGate, GateWidth)> {
        let retention = match self.retention {
            RetentionAxis::Head => GateWidth::One,
            RetentionAxis::Channel => GateWidth::Key,
        };
        let all = [
            (ChannelGate::LogA, Some(retention)),
            (ChannelGate::Theta, self.step.then_some(GateWidth::One)),
            (ChannelGate::Erase, self.erase.gate()),
            (ChannelGate::Rewrite, self.rewrite.gate()),
            (ChannelGate::Factors, self.factors.then_some(GateWidth::Value)),
        ];
        all.into_iter().filter_map(|(gate, width)| Some((gate, width?)))
    }

    /// Where a gate begins among a token's gates that lie one after another, at these sizes; none where it is absent.
    pub fn offset(self, gate: ChannelGate, key: usize, value: usize) -> Option<usize> {
        let mut at = 0;
        for (found, width) in self.gates() {
            if found == gate {
                return Some(at);
            }
            at += width.elements(key, value).unwrap_or(1);
        }
        None
    }

    /// Whether something is erased.
    pub fn erases(self) -> bool {
        self.erase != EraseKey::Nothing
    }

    /// Shapes of the gates, in their order.
    pub(crate) fn shapes(self, dims: &Dims) -> impl Iterator<Item = Shape> {
        let scalars = dims.scalars();
        self.gates().map(move |(_, width)| match width.elements(dims.key, dims.value) {
            None => scalars.clone(),
            Some(width) => [scalars.axes(), &[width]].concat().into(),
        })
    }
}

/// Shapes of the gates of a rule of this form: what [`Rule::gates`] of each is. Slots that the form lacks are one number a
/// token and head.
pub fn channel_gates<R: ChannelRule>(dims: &Dims) -> Of<R::Gates, Shape> {
    let mut shapes = R::FORM.shapes(dims);
    R::Gates::build(|_| shapes.next().unwrap_or_else(|| dims.scalars()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As `channel.cuh` and `channel.wgsl` number them.
    #[test]
    fn keys_are_numbered_as_in_kernels() {
        use EraseKey::{Gated, Nothing, Scaled};
        assert_eq!([Nothing, EraseKey::Key, Scaled, Gated, EraseKey::Own].map(EraseKey::number), [0, 1, 2, 3, 4]);
        assert_eq!([RewriteKey::Key, RewriteKey::Erased, RewriteKey::Own].map(RewriteKey::number), [0, 1, 2]);
    }

    #[test]
    fn gates_lie_one_after_another() {
        let form = ChannelForm {
            retention: RetentionAxis::Channel,
            step: true,
            erase: EraseKey::Gated,
            factors: true,
            ..ChannelForm::default()
        };
        let places = [ChannelGate::LogA, ChannelGate::Theta, ChannelGate::Erase, ChannelGate::Factors];
        assert_eq!(places.map(|gate| form.offset(gate, 8, 6)), [0, 8, 9, 17].map(Some));
        assert_eq!(form.offset(ChannelGate::Rewrite, 8, 6), None);
        let shapes: Vec<_> = form.shapes(&Dims::new(1, 2, 3, 8, 6)).map(|shape| shape.axes().to_vec()).collect();
        assert_eq!(shapes, [vec![1, 2, 3, 8], vec![1, 2, 3], vec![1, 2, 3, 8], vec![1, 2, 3, 6]]);
    }
}
