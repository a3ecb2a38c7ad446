//! What one chunk of a head tile is given and gives back: the arguments that all forms of the engine share.

use super::tables::Factors;
use crate::product::Mat;

/// The memory while a head tile runs, or its gradient. Each matrix is `[K, columns]` without gaps.
pub(crate) struct Memory {
    /// `M`.
    pub(crate) m: Vec<f32>,
    /// The momentum `S`; empty for rules without.
    pub(crate) s: Vec<f32>,
    /// `M_c`, the memory at the start of the frozen group; empty for rules that are not frozen.
    pub(crate) group: Vec<f32>,
}

/// A [`Memory`] that lies elsewhere, to be changed.
///
/// Slots that a rule does not have are empty here too.
pub(crate) struct MemoryMut<'a> {
    pub(crate) m: &'a mut [f32],
    pub(crate) s: &'a mut [f32],
    pub(crate) group: &'a mut [f32],
}

impl Memory {
    /// As the start of a chunk.
    pub(crate) fn start(&self) -> ChunkStart<'_> {
        ChunkStart { m: &self.m, s: &self.s, group: &self.group }
    }

    /// To be changed.
    pub(crate) fn view(&mut self) -> MemoryMut<'_> {
        MemoryMut { m: &mut self.m, s: &mut self.s, group: &mut self.group }
    }

    /// The gradient of `M_c` joins that of `M`, which it is at the group's first token. Equation (12).
    pub(super) fn leave_group(&mut self) {
        let Self { m, group, .. } = self;
        m.iter_mut().zip(group).for_each(|(m, group)| *m += std::mem::take(group));
    }

    /// Copies `M` and `S`, `width` columns each, to rows of the call's arrays.
    pub(super) fn store(&self, to: [Vec<&mut [f32]>; 2], width: usize) {
        for (own, to) in [&self.m, &self.s].into_iter().zip(to) {
            own.chunks_exact(width).zip(to).for_each(|(own, to)| to.copy_from_slice(own));
        }
    }
}

/// State at the start of a chunk, and `M` at the start of its group: `[K, columns]` each.
#[derive(Clone, Copy)]
pub(crate) struct ChunkStart<'a> {
    pub(crate) m: &'a [f32],
    /// Empty without momentum.
    pub(crate) s: &'a [f32],
    /// Read only by frozen rules.
    pub(crate) group: &'a [f32],
}

/// A chunk's inputs: rows of the whole arrays, `H` rows apart, and contiguous scalars of one head.
#[derive(Clone, Copy)]
pub(crate) struct ChunkView<'a> {
    /// `n`.
    pub(crate) tokens: usize,
    /// `[n,K]`.
    pub(crate) q: Mat<'a>,
    /// `[n,K]`.
    pub(crate) k: Mat<'a>,
    /// `[n, columns]`: the tile's columns of the values.
    pub(crate) v: Mat<'a>,
    /// Write strength `[n]`.
    pub(crate) w: &'a [f32],
    /// Erase strength `[n]`; empty for rules that never erase.
    pub(crate) r: &'a [f32],
    /// Retention `[n]`.
    pub(crate) a: &'a [f32],
    /// Momentum `[n]`; empty without.
    pub(crate) eta: &'a [f32],
}

impl ChunkView<'_> {
    /// What the chunk's tables are made of.
    pub(crate) fn factors(&self) -> Factors<'_> {
        Factors { a: self.a, eta: self.eta, emission: &[] }
    }
}

/// A chunk's part of a head tile's gradients, to be overwritten.
///
/// Rows lie in the call's arrays, where this tile owns them; other tiles own those between.
pub(crate) struct ChunkGrads<'a, 'o> {
    /// `n` rows `[K]`, in the array of the tile's column block.
    pub(crate) dq: &'a mut [&'o mut [f32]],
    /// As `dq`.
    pub(crate) dk: &'a mut [&'o mut [f32]],
    /// `n` rows `[columns]`.
    pub(crate) dv: &'a mut [&'o mut [f32]],
    /// `[n]` each; empty where the view's are.
    pub(crate) dw: &'a mut [f32],
    pub(crate) dr: &'a mut [f32],
    pub(crate) da: &'a mut [f32],
    pub(crate) deta: &'a mut [f32],
}
