//! One token's write into a memory with weights: equations (36), (37).
//!
//! Where the write leaves the weights, the token's read is part of the same pass over each matrix.
//! Where it does not, the weights must be made first, and the read comes apart.

use super::{
    DeepCell, Gates, Late, Record, Scratch,
    activation::activate,
    found::Found,
    late_softmax::LateWrite,
    lq::{LqMap, LqWrite},
    norm, retention, softmax,
};
use crate::{
    fused_gemv::{FusedUpdate, read},
    recurrent::{Decay, Token},
    rows::{axpy, scale},
    simd::ColumnKernel as _,
};
use hecate_core::{Read, rules::Retention};

/// A token's step from state to state, once its inner gradient is in the record.
pub(super) struct Advance<'a, 'r> {
    pub(super) token: Token<'a>,
    pub(super) gates: Gates,
    /// The state before the token.
    pub(super) old: &'a [f32],
    /// Where mapped states go as they forget; empty where that is zero, and where the engine finds states itself.
    pub(super) anchor: &'a [f32],
    /// Set: the state after the token.
    pub(super) new: &'a mut [f32],
    /// Set, but for what only the way back of an inner gradient reads.
    pub(super) record: &'a mut Record<&'r mut [f32]>,
    /// Set: what the query reads, `[V]`.
    pub(super) out: &'a mut [f32],
}

/// What becomes of a layer's weights, where they are not the state.
struct LayerWeights<'a> {
    /// Of the layer; empty where that is zero.
    anchor: &'a [f32],
    /// Of the token.
    decay: Decay,
    /// As large as the layer.
    weights: &'a mut [f32],
    /// Shifts and factors of a log-softmax that comes late; none where it does not.
    late: Option<[&'a mut [f32]; 2]>,
    /// `ν` of L_q.
    norm: &'a mut f32,
    /// What the weights are to be multiplied by.
    factor: &'a mut f32,
    /// A place for the query, and whether its mean is taken off, because a norm is behind the layer ([`softmax::centre`]).
    query: &'a mut [f32],
    centres: bool,
}

impl Late {
    /// Shifts and factors of both layers, of which the first has `d` columns; none where it is off.
    #[inline(always)]
    fn layers(&mut self, d: usize) -> [Option<[&mut [f32]; 2]>; 2] {
        if !self.on {
            return [None, None];
        }
        let ((shift, shift_high), (factor, factor_high)) = (self.shifts.split_at_mut(d), self.factors.split_at_mut(d));
        [Some([shift, factor]), Some([shift_high, factor_high])]
    }
}

impl DeepCell {
    /// The write and the read.
    #[inline(always)]
    pub(super) fn advance(&self, mut step: Advance<'_, '_>, scratch: &mut Scratch) {
        self.write(&mut step, scratch);
        let Advance { token, old, new, record, out, .. } = step;
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
    #[inline(always)]
    fn write(&self, step: &mut Advance<'_, '_>, scratch: &mut Scratch) {
        let Advance { token, gates: Gates { decay, momentum, theta, .. }, old, anchor, new, record, out } = step;
        let (decay, momentum, anchor) = (*decay, *momentum, *anchor);
        let a = decay.a;
        let ((first, all), before) = (self.sizes(), self.spec.read == Read::Before);
        let reads = self.reads_on_write();
        let ((old, old_s), (new, new_s)) = (old.split_at(all), new.split_at_mut(all));
        // A state is M of both layers, then S of both. Without momentum the second halves are empty.
        let cut = first.min(old_s.len());
        let ((old_s, old_s_high), (s, s_high)) = (old_s.split_at(cut), new_s.split_at_mut(cut));
        let ((old, old_high), (m, m_high)) = (old.split_at(first), new.split_at_mut(first));
        let Scratch { hidden, zeros, tiles, seen, late, query, .. } = scratch;
        let norms = self.spec.structure.norm();
        let (keeps, [late, mut late_high]) = (late.keeps || !late.on, late.layers(self.d()));
        let cut = first.min(seen.weights.len());
        let (mut weights, mut weights_high) = seen.weights.split_at_mut(cut);
        // Without a place for weights their passes store none.
        if !keeps {
            (weights, weights_high) = (&mut [], &mut []);
        }
        let ([norm, norm_high], [factor, factor_high]) = (&mut seen.norms, &mut seen.factors);
        let (anchor, anchor_high) = anchor.split_at(first.min(anchor.len()));
        let late = if self.hidden.is_some() { late } else { late_high.take() };
        let centres = norms && self.hidden.is_none();
        let made = LayerWeights { anchor, decay, weights, late, norm, factor, query: &mut *query, centres };
        // A query of zeros reads nothing: the passes have no branch for it.
        let q = if reads { token.q } else { &zeros[..self.key] };
        let (step, old) = (-*theta, [old, old_s]);
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
        let (anchor, weights, norm, factor) = (anchor_high, weights_high, norm_high, factor_high);
        let made = LayerWeights { anchor, decay, weights, late: late_high, norm, factor, query, centres: norms };
        self.write_layer(write, made, record.read_output, tiles);
    }

    /// The write of one layer `[rows, columns]`.
    /// With KL the log-softmax of (55) follows in the same pass, leaves the weights, and reads them.
    /// With L_q the weights and their norm are made in the same pass. `output` gets what was read, unless it is empty.
    #[inline(always)]
    fn write_layer(&self, write: FusedUpdate<'_>, made: LayerWeights<'_>, output: &mut [f32], tiles: &mut [f32]) {
        let LayerWeights { anchor, decay, weights, late, norm, factor, query, centres } = made;
        match self.spec.retention {
            Retention::Kl { scale } => {
                let FusedUpdate { step, x: y, y: z, old: [state, _], m: x, q, out, .. } = write;
                let found = Found { decay, state, anchor };
                let q = if centres { softmax::centred(q, query) } else { q };
                if let Some([shift, factors]) = late {
                    return LateWrite { found, shift, step, y, z, x, w: weights, factors, scale, q, out }.run();
                }
                softmax::KlWrite { found, step, y, z, x, w: weights, scale, q, out, tiles }.run();
            }
            Retention::Lq { q, map } if self.reads_on_write() => {
                let FusedUpdate { step, x, y, old: [state, _], m: new, q: query, out, .. } = write;
                let (map, found) = (LqMap { q, map }, Found { decay, state, anchor });
                // Only the next token's point asks for weights, where there is one.
                let kept = if self.shares() { &mut *weights } else { &mut [] };
                let write = LqWrite { map, found, step, x, y, new: &mut *new, weights: kept, query, out: &mut *out };
                (*norm, *factor) = match write.run() {
                    Some(norm) => (norm, map.factor(norm)),
                    // Powers beyond 32 bits: the weights are made of the state by themselves.
                    None => {
                        let norm = retention::to_weights(self.spec.retention, x.len(), new, weights);
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
