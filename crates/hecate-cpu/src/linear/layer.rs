//! One memory of a chunk whose rows lie in arrays of their own, without gaps: what rules of several memories call.
//!
//! Networks have one for each layer, [`Trellis`](hecate_core::rules::Trellis) one for keys and one for values.

use super::{ChunkGrads, ChunkView, MemoryMut, chunk_backward};
use crate::product::Mat;
use hecate_core::families::LinearSpec;

/// Gradients that the linear engine gives back for one memory `[K,V]`.
pub(crate) struct LayerGrads {
    /// `[n,K]`.
    pub(crate) dq: Vec<f32>,
    /// As `dq`.
    pub(crate) dk: Vec<f32>,
    /// `[n,V]`.
    pub(crate) dv: Vec<f32>,
    /// Of `a` and `η`, `[n]` each; the second is empty without momentum.
    pub(crate) scalars: [Vec<f32>; 2],
}

/// Rows `[width]` of a matrix without gaps.
pub(crate) fn rows_of(x: &mut [f32], width: usize) -> Vec<&mut [f32]> {
    x.chunks_exact_mut(width).collect()
}

/// One call backward, whose forward is in the workspace; `dout [n,V]`, and `dmemory` goes from after the chunk to before it.
pub(crate) fn back(
    spec: LinearSpec,
    view: &ChunkView<'_>,
    work: &mut chunk_backward::Workspace,
    dout: &[f32],
    dmemory: MemoryMut<'_>,
) -> LayerGrads {
    let (n, k, v) = (view.tokens, view.k.columns, view.v.columns);
    let zeros = |width: usize| vec![0.0; n * width];
    let (mut dq, mut dk, mut dv) = (zeros(k), zeros(k), zeros(v));
    let (mut dw, mut da, mut deta) = (zeros(1), zeros(1), zeros(usize::from(spec.momentum)));
    // The engine writes rows; here they are those of arrays without gaps.
    let part = ChunkGrads {
        dq: &mut rows_of(&mut dq, k),
        dk: &mut rows_of(&mut dk, k),
        dv: &mut rows_of(&mut dv, v),
        dw: &mut dw,
        dr: &mut [],
        da: &mut da,
        deta: &mut deta,
    };
    chunk_backward::back(spec, view, work, &Mat::new(dout, n, v), dmemory, part);
    LayerGrads { dq, dk, dv, scalars: [da, deta] }
}
