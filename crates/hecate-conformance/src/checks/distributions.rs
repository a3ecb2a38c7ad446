//! Memories whose columns are distributions, (55), where 32 bits come off worst: columns that one element has nearly all of, and
//! columns that are much the same behind a norm.

use super::agrees;
use crate::{Case, Sizes, oracle::Oracle};
use hecate_core::{
    DType, Kernel, Slots,
    rules::{Activation, MatrixMemory, Memora, MemoraMatrix, MlpMemory},
};

/// Twelve tokens more than are computed again at once, of two heads.
const SIZES: Sizes = Sizes::new(1, 76, 2, 32, 32);

/// A layer norm behind the last matrix.
const NORM: MlpMemory = MlpMemory { norm: true, ..DEFAULT };
const DEFAULT: MlpMemory = MlpMemory { expansion: 2, activation: Activation::Silu, residual: false, norm: false };

/// States and anchors of deviation 2, `log a` of all tokens by their numbers.
///
/// Columns are far from even then: one element has nearly all of some. States are log-softmaxes, as every token leaves them.
fn uneven<R: Oracle>(case: Case<R>, log_a: impl Fn(usize, f64) -> f64) -> Case<R> {
    let heads = case.dims.heads;
    case.with(|slot, mut array| {
        let is_state = R::State::NAMES.contains(&slot);
        if is_state || R::Anchor::NAMES.contains(&slot) {
            let [rows, columns] = [2, 1].map(|from_end| array.shape.axes()[array.shape.rank() - from_end]);
            // They were drawn with the root of the number of rows below 1.
            array.values.iter_mut().for_each(|x| *x *= 2.0 * (rows as f64).sqrt());
            if is_state {
                array.values.chunks_mut(rows * columns).for_each(|matrix| normalise(matrix, columns));
            }
        }
        if slot == "log_a" {
            array.values.iter_mut().enumerate().for_each(|(i, x)| *x = log_a(i / heads, *x));
        }
        array.rounded(DType::F32)
    })
}

/// The log-softmax of each column, in place.
fn normalise(matrix: &mut [f64], columns: usize) {
    for j in 0..columns {
        let log = matrix.iter().skip(j).step_by(columns).map(|x| x.exp()).sum::<f64>().ln();
        matrix.iter_mut().skip(j).step_by(columns).for_each(|x| *x -= log);
    }
}

/// Results and gradients of uneven columns, which some tokens forget nearly or wholly, to zero and to an anchor.
pub fn uneven_distributions<B: Kernel<Memora<MlpMemory>> + Kernel<MemoraMatrix>>(backends: &[B]) {
    fn of<R: Oracle, B: Kernel<R>>(backends: &[B], rule: R) {
        for often in [None, Some(-6.0), Some(-30.0), Some(f64::NEG_INFINITY)] {
            let forgets = move |t: usize, drawn: f64| often.filter(|_| t % 5 == 3).unwrap_or(drawn);
            let case = Case::new(rule, SIZES, 401);
            if let Some(anchored) = case.clone().anchored(402) {
                agrees(backends, &uneven(anchored, forgets), "uneven columns, anchored");
            }
            if often.is_none_or(f64::is_finite) {
                agrees(backends, &uneven(case, forgets), "uneven columns");
            }
        }
    }
    for frozen in [None, Some(16)] {
        of(backends, Memora::<MlpMemory> { frozen, ..Memora::default() });
        of(backends, MemoraMatrix { frozen, ..MemoraMatrix::default() });
    }
}

/// Results and gradients behind a norm, of networks whose outputs are much the same, in groups.
pub fn normed_distributions<B: Kernel<Memora<MlpMemory>> + Kernel<MemoraMatrix>>(backends: &[B]) {
    let rule = Memora::<MlpMemory> { memory: NORM, frozen: Some(16), ..Memora::default() };
    let sizes = [Sizes::new(1, 141, 3, 32, 32), Sizes::new(1, 81, 1, 64, 64)];
    let mut cases: Vec<_> = sizes.into_iter().map(|sizes| Case::new(rule, sizes, 403)).collect();
    cases.push(Case::packed(rule, &[1, 49, 1, 65, 3], 1, 32, 32, 404));
    for case in cases {
        agrees(backends, &case, "much the same behind a norm");
        if let Some(anchored) = case.anchored(406) {
            agrees(backends, &anchored, "much the same behind a norm, anchored");
        }
    }
    let memory = MatrixMemory { norm: true, residual: false };
    let matrix: MemoraMatrix = MemoraMatrix { memory, frozen: Some(16), ..MemoraMatrix::default() };
    agrees(backends, &Case::new(matrix, Sizes::new(1, 81, 2, 32, 32), 407), "much the same behind a norm");
}
