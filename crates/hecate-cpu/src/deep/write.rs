//! One token's write into a memory with weights: equations (36), (37).
//!
//! Where the write leaves the weights, the token's read is part of the same pass over each matrix.
//! Where it does not, the weights must be made first, and the read comes apart.

use super::{
    DeepCell, Gates, Record, Scratch,
    activation::activate,
    lq::{LqMap, LqWrite},
    norm, retention, softmax,
};
use crate::{
    fused_gemv::{FusedUpdate, read},
    recurrent::Token,
    rows::{axpy, scale},
    simd::ColumnKernel as _,
};
use hecate_core::{Read, rules::Retention};

/// What becomes of a layer's weights, where they are not the state.
struct LayerWeights<'a> {
    /// As large as the layer.
    weights: &'a mut [f32],
    /// `ν` of L_q.
    norm: &'a mut f32,
    /// What the weights are to be multiplied by.
    factor: &'a mut f32,
}

impl DeepCell {
    /// The write and the read, once the inner gradient is in the record.
    #[inline(always)]
    pub(super) fn advance(
        &self,
        token: Token<'_>,
        old: &[f32],
        new: &mut [f32],
        record: &mut Record<&mut [f32]>,
        scratch: &mut Scratch,
        out: &mut [f32],
    ) {
        self.write(token, &self.gates(token.gates), old, new, record, scratch, out);
        record.deviations[1] = if !self.reads_on_write() {
            let weights = if self.spec.read == Read::After { new } else { old };
            let weights = self.to_weights(weights, &mut scratch.seen, false);
            // Others than L_q need pre-activations for the second derivative alone, which a read does not have.
            let pre = if self.has_shared_norm() { &mut *record.read_pre } else { &mut scratch.hidden[..self.d()] };
            self.apply(weights, token.q, (pre, record.read_h, record.read_slope), record.read_output, out)
        } else if self.spec.structure.norm() {
            norm::normalise(out)
        } else {
            1.0
        };
        if self.spec.structure.norm() {
            record.read_normed.copy_from_slice(out);
        }
        if self.spec.structure.residual() {
            axpy(out, 1.0, token.q);
        }
        record.norms.iter_mut().skip(2).zip(scratch.seen.norms).for_each(|(norm, made)| *norm = made);
    }

    /// The state after the write: equations (36), (37).
    /// The token reads on the way, into `out [V]`, where [`Self::reads_on_write`] says so.
    #[expect(clippy::too_many_arguments, reason = "arguments, states, results")]
    #[inline(always)]
    fn write(
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
        let Scratch { hidden, zeros, tiles, seen, .. } = scratch;
        let cut = first.min(seen.weights.len());
        let (weights, weights_high) = seen.weights.split_at_mut(cut);
        let ([norm, norm_high], [factor, factor_high]) = (&mut seen.norms, &mut seen.factors);
        let made = LayerWeights { weights, norm, factor };
        // A query of zeros reads nothing: the passes have no branch for it.
        let q = if reads { token.q } else { &zeros[..self.key] };
        let (step, old) = (-theta, [old, old_s]);
        if self.hidden.is_none() {
            let write = FusedUpdate { a, momentum, step, x: token.k, y: record.u_o, old, m, s, q, before, out };
            self.write_layer(write, made, record.read_output, tiles);
            return;
        }
        let seen = &mut hidden[..self.d()];
        let write = FusedUpdate { a, momentum, step, x: token.k, y: record.delta, old, m, s, q, before, out: seen };
        self.write_layer(write, made, record.read_pre, tiles);
        if reads {
            activate(self.activation(), seen, record.read_h, record.read_slope);
        }
        let q = if reads { &*record.read_h } else { &zeros[..self.d()] };
        let (old, m, s) = ([old_high, old_s_high], m_high, s_high);
        let write = FusedUpdate { a, momentum, step, x: record.h, y: record.u_o, old, m, s, q, before, out };
        let made = LayerWeights { weights: weights_high, norm: norm_high, factor: factor_high };
        self.write_layer(write, made, record.read_output, tiles);
    }

    /// The write of one layer `[rows, columns]`.
    /// With KL the log-softmax of (55) follows in the same pass, leaves the weights, and reads them.
    /// With L_q the weights and their norm are made in the same pass. `output` gets what was read, unless it is empty.
    #[inline(always)]
    fn write_layer(&self, write: FusedUpdate<'_>, made: LayerWeights<'_>, output: &mut [f32], tiles: &mut [f32]) {
        let LayerWeights { weights, norm, factor } = made;
        match self.spec.retention {
            Retention::Kl { scale } => {
                let FusedUpdate { a, step, x: y, y: z, old: [old, _], m: x, q, out, .. } = write;
                softmax::KlWrite { a, step, y, z, old, x, w: weights, scale, q, out, tiles }.run();
            }
            Retention::Lq { q, map } if self.reads_on_write() => {
                let (map, FusedUpdate { a, step, x, y, old: [old, _], m: new, q: query, out, .. }) =
                    (LqMap { q, map }, write);
                (*norm, *factor) = match (LqWrite { map, a, step, x, y, old, new, weights, query, out }.run()) {
                    Some(norm) => (norm, map.factor(norm)),
                    // Powers beyond 32 bits: the weights are made of the state by themselves.
                    None => {
                        let norm = retention::to_weights(self.spec.retention, new, weights);
                        read(out, query, weights);
                        (norm, 1.0)
                    }
                };
                // One number for the matrix: it is taken into the read.
                scale(out, *factor);
                output.copy_from_slice(out);
            }
            _ => write.run(),
        }
    }
}
