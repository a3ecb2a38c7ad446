//! One token's write into a memory with weights: equations (36), (37).
//!
//! Where the write leaves the weights, the token's read is part of the same pass over each matrix.
//! Where it does not, the weights must be made first, and the read comes apart.

use super::{DeepCell, Gates, Record, Scratch, activation::activate, softmax};
use crate::{fused_gemv::FusedUpdate, recurrent::Token, simd::ColumnKernel as _};
use hecate_core::{Read, rules::Retention};

impl DeepCell {
    /// The state after the write: equations (36), (37).
    /// The token reads on the way, into `out [V]`, where [`Self::reads_on_write`] says so.
    #[expect(clippy::too_many_arguments, reason = "arguments, states, results")]
    #[inline(always)]
    pub(super) fn write(
        &self,
        token: Token<'_>,
        &Gates { a, momentum, theta, .. }: &Gates,
        old: &[f32],
        new: &mut [f32],
        record: &mut Record<&mut [f32]>,
        scratch: &mut Scratch,
        out: &mut [f32],
    ) {
        let ((first, all), before) = (self.sizes(), self.spec.read == Read::Before);
        let reads = self.reads_on_write();
        let ((old, old_s), (new, new_s)) = (old.split_at(all), new.split_at_mut(all));
        // A state is M of both layers, then S of both. Without momentum the second halves are empty.
        let cut = first.min(old_s.len());
        let ((old_s, old_s_high), (s, s_high)) = (old_s.split_at(cut), new_s.split_at_mut(cut));
        let ((old, old_high), (m, m_high)) = (old.split_at(first), new.split_at_mut(first));
        let Scratch { hidden, zeros, tiles, seen: weights, .. } = scratch;
        let cut = first.min(weights.weights.len());
        let (weights, weights_high) = weights.weights.split_at_mut(cut);
        // A query of zeros reads nothing: the passes have no branch for it.
        let q = if reads { token.q } else { &zeros[..self.key] };
        let (step, old) = (-theta, [old, old_s]);
        if self.hidden.is_none() {
            let write = FusedUpdate { a, momentum, step, x: token.k, y: record.u_o, old, m, s, q, before, out };
            return self.write_layer(write, weights, tiles);
        }
        let seen = &mut hidden[..self.d()];
        let write = FusedUpdate { a, momentum, step, x: token.k, y: record.delta, old, m, s, q, before, out: seen };
        self.write_layer(write, weights, tiles);
        if reads {
            activate(self.activation(), seen, record.read_h, record.read_slope);
        }
        let q = if reads { &*record.read_h } else { &zeros[..self.d()] };
        let (old, m, s) = ([old_high, old_s_high], m_high, s_high);
        let write = FusedUpdate { a, momentum, step, x: record.h, y: record.u_o, old, m, s, q, before, out };
        self.write_layer(write, weights_high, tiles);
    }

    /// The write of one layer `[rows, columns]`.
    /// With KL the log-softmax of (55) follows in the same pass, leaves the weights, and reads them.
    #[inline(always)]
    fn write_layer(&self, write: FusedUpdate<'_>, weights: &mut [f32], tiles: &mut [f32]) {
        let Retention::Kl { scale } = self.spec.retention else { return write.run() };
        let FusedUpdate { a, step, x: y, y: z, old: [old, _], m: x, q, out, .. } = write;
        softmax::KlWrite { a, step, y, z, old, x, w: weights, scale, q, out, tiles }.run();
    }
}
