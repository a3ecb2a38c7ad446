//! Projections of few rows: a norm, products, and a gate or a residual.
//!
//! `x` is `[…,k]`, the norm's weight `[k]`, matrices `[n_i,k]`; a residual is like the result, `[…,n]`.

use super::{CaseResult, Output, PrimitiveCase, Slot};
use crate::{Array, Random, oracle::Var};
use hecate_core::{
    DType, Result, Tensor,
    primitives::{self, Primitives, ProjectionEnd, ProjectionInputs},
};

/// What follows the products.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// A result a matrix.
    Each,
    /// SwiGLU.
    Gated,
    /// Onto a residual.
    Added,
}

/// Sizes and options of a case.
#[derive(Clone, Copy, Debug)]
struct Call {
    lead: &'static [usize],
    inner: usize,
    columns: &'static [usize],
    /// `ε` of the norm, if there is one.
    norm: Option<f32>,
    end: End,
    /// Whether every other matrix, or both of a gate, have 16 bits.
    rounded: bool,
}

/// `norm(x) Wᵀ` with several `W`; two that make a gate; one that is added to a residual.
pub fn project<B: Primitives>() -> Vec<PrimitiveCase<B>> {
    use End::{Added, Each, Gated};
    // One row, several, and as many as a tile has or more; sums that are split over blocks or not, and lengths that no run
    // divides. A norm whose ε is seen, one without, and none.
    let calls: [(&[usize], usize, &[usize], Option<f32>, End); 19] = [
        (&[1], 768, &[40, 3, 700], Some(0.5), Each),
        (&[1], 33, &[5, 2], Some(0.0), Each),
        (&[2, 3], 40, &[9, 1, 20], Some(3.0), Each),
        (&[8], 2056, &[4, 6], Some(0.0), Each),
        (&[1], 64, &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10], Some(0.0), Each),
        // On tensor cores, beside narrow matrices.
        (&[64, 1], 96, &[130, 12, 70, 5], Some(3.0), Each),
        (&[17], 1056, &[65, 9], None, Each),
        (&[33], 32, &[17000], Some(0.0), Each),
        (&[70], 72, &[70, 8], Some(0.0), Each),
        // Widths that fill no tile, and more tiles than blocks run at once.
        (&[1], 768, &[50, 50], Some(0.5), Gated),
        (&[5], 48, &[33, 33], None, Gated),
        (&[64], 768, &[70, 70], Some(3.0), Gated),
        (&[9], 32, &[4500, 4500], Some(0.0), Gated),
        (&[3, 30], 64, &[40, 40], Some(0.0), Gated),
        (&[1], 2048, &[30], None, Added),
        (&[2, 2], 36, &[30], Some(0.5), Added),
        (&[64], 2048, &[130], None, Added),
        (&[10], 160, &[70], Some(0.0), Added),
        (&[66], 32, &[20], None, Added),
    ];
    // Each with 32 bits and with 16.
    let call = |(lead, inner, columns, norm, end)| {
        [false, true].map(|rounded| case(Call { lead, inner, columns, norm, end, rounded }))
    };
    calls.into_iter().flat_map(call).collect()
}

/// Numbers are eighths and rows are of one magnitude, a power of two, so that rounding changes none, before the norm or after.
fn case<B: Primitives>(call: Call) -> PrimitiveCase<B> {
    let Call { lead, inner, columns, norm, end, rounded } = call;
    let (random, rows) = (&mut Random::new(inner as u64), lead.iter().product::<usize>());
    let eighths = |mut array: Array| {
        array.values.iter_mut().for_each(|x| *x = (8.0 * *x).round() / 8.0);
        array
    };
    let mut x = eighths(random.normals([lead, &[inner]].concat()));
    // With other rows a norm's factor is no power of two: then no matrix has 16 bits.
    if rounded && norm.is_some() {
        let sizes = if norm == Some(0.0) { [0.5, 1.0, 4.0] } else { [1.0; 3] };
        let signs = x.values.chunks_mut(inner).zip(sizes.iter().cycle());
        signs.for_each(|(row, size)| row.iter_mut().for_each(|x| *x = if *x > 0.0 { *size } else { -size }));
    }
    let weight = eighths(random.uniforms([inner], 0.5, 1.5));
    let matrices: Vec<_> = columns.iter().map(|&n| (n, eighths(random.normals([n, inner])))).collect();
    let result = |n| [lead, &[n]].concat();
    // Results are like rows of `x`, as wide as a matrix has rows.
    let residual = (end == End::Added).then(|| eighths(random.normals(result(columns[0]))));
    let results = if end == End::Each { columns } else { &columns[..1] };
    // `x`, what the call has of a norm and a residual, and the matrices.
    let slots = [Slot::tiles("x", x, (rows, inner)), Slot::rows("norm", weight)].into_iter();
    let residual = residual.map(|residual| Slot::tiles("residual", residual, (rows, columns[0])));
    let matrices = matrices.into_iter().map(|(n, matrix)| Slot::tiles("w", matrix, (n, inner)));
    let slots = slots.chain(residual).chain(matrices).map(|slot| Slot { wide: true, ..slot });
    PrimitiveCase {
        name: "project",
        options: format!("{lead:?} {inner} {columns:?} {norm:?} {end:?} rounded {rounded}"),
        slots: slots.collect(),
        outputs: results.iter().map(|&n| Output::wide("y", random.normals(result(n)))).collect(),
        forward: Box::new(move |x| equation(call, x)),
        device: Box::new(move |x, _| Ok(CaseResult { outputs: answer(call, x)?, grads: vec![] })),
    }
}

/// `x [rows,k]`, the norm's weight `[1,k]`, a residual where there is one, then the matrices.
fn equation(Call { inner, norm, end, .. }: Call, slots: &[Vec<Var>]) -> Vec<Vec<Var>> {
    let (x, weight) = (&slots[0][0], &slots[1][0]);
    let (rows, ones) = (x.shape().0, |rows, columns| x.constant(rows, columns, vec![1.0; rows * columns]));
    let rows = norm.map_or_else(
        || x.clone(),
        |epsilon| {
            // Sums over rows and copies along them are products with ones.
            let mean = x.square().dot(&ones(inner, 1)).scale(1.0 / inner as f64);
            let factor = mean.shift(f64::from(epsilon)).sqrt().recip();
            &(x * &factor.dot(&ones(1, inner))) * &ones(rows, 1).dot(weight)
        },
    );
    // Matrices come last.
    let first = if end == End::Added { 3 } else { 2 };
    let products: Vec<Var> = slots[first..].iter().map(|matrix| rows.dot(&matrix[0].t())).collect();
    match end {
        End::Each => products.into_iter().map(|product| vec![product]).collect(),
        End::Gated => {
            // SiLU of the second.
            let sigmoid = products[1].scale(-1.0).exp().shift(1.0).recip();
            vec![vec![&products[0] * &(&products[1] * &sigmoid)]]
        }
        End::Added => vec![vec![&products[0] + &slots[2][0]]],
    }
}

/// The same of a device.
fn answer<B: Primitives>(call: Call, x: &[Tensor<B>]) -> Result<Vec<Tensor<B>>> {
    let first = if call.end == End::Added { 3 } else { 2 };
    // Types in turn, so that runs of one type are short; a gate's matrices are alike.
    let stored = |(i, weight): (usize, &Tensor<B>)| {
        let narrow = call.rounded && (i % 2 == 0 || call.end == End::Gated);
        if narrow { primitives::cast(DType::Bf16, weight) } else { Ok(weight.clone()) }
    };
    let weights = x[first..].iter().enumerate().map(stored).collect::<Result<Vec<_>>>()?;
    let end = match call.end {
        End::Each => ProjectionEnd::Each,
        End::Gated => ProjectionEnd::Gated,
        End::Added => ProjectionEnd::Added(&x[2]),
    };
    // The norm's weight is drawn whether there is a norm or not.
    let (norm, weights) = (call.norm.map(|epsilon| (&x[1], epsilon)), weights.iter().collect::<Vec<_>>());
    primitives::project(&ProjectionInputs { x: &x[0], norm, weights: &weights, end })
}
