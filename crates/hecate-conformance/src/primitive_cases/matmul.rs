//! Products of matrices, stored either way, one or many.
//!
//! `a` is `[…,m,k]` or stored as `[…,k,m]`, `b` `[…,k,n]` or `[…,n,k]`, the product `[…,m,n]`. One `b` for all leading
//! axes is summed over in its gradient.

use super::{CaseResult, Output, PrimitiveCase, Slot};
use crate::{Random, oracle::Var};
use hecate_core::{
    DType, Result, Tensor,
    primitives::{self, Operands, Primitives, Transpose},
};

/// `a b`, `aᵀ b`, `a bᵀ`, `aᵀ bᵀ`, with leading axes, and with one `b` for all.
pub fn matmul<B: Primitives>() -> Vec<PrimitiveCase<B>> {
    // Leading axes, and whether one `b` serves them all.
    let sizes: [(&[usize], bool); 5] = [(&[], false), (&[3], false), (&[2, 2], false), (&[3], true), (&[2, 3], true)];
    let mut cases = Vec::new();
    for (lead, shared) in sizes {
        for (a, b) in [(false, false), (false, true), (true, false), (true, true)] {
            // A shared `b` goes with rows of `a` seen as one long matrix, which a transposed `a` is not.
            if !(shared && a) {
                cases.push(product(lead, shared, Transpose { a, b }, (5, 7, 3)));
            }
        }
    }
    // One element: every tile is mostly padding.
    cases.push(product(&[], false, Transpose::default(), (1, 1, 1)));
    // Longer than two tiles of 64, and as in a projection of few tokens.
    for sizes in [(130, 65, 70), (8, 132, 9)] {
        cases.push(product(&[], false, Transpose { a: false, b: true }, sizes));
    }
    // A matrix and a vector, which is the row of one operand or the column of the other.
    for sizes in [(1, 33, 7), (7, 33, 1)] {
        for (a, b) in [(false, false), (false, true), (true, false), (true, true)] {
            cases.push(product(&[], false, Transpose { a, b }, sizes));
        }
    }
    cases
}

/// Gradients added to what is there: `a` and `b` are results as well, whose gradients that is.
pub fn matmul_onto<B: Primitives>() -> Vec<PrimitiveCase<B>> {
    let calls: [(&[usize], bool, Transpose, _); 4] = [
        (&[], false, Transpose { a: false, b: true }, (130, 65, 70)),
        (&[], false, Transpose { a: true, b: false }, (2, 33, 40)),
        (&[3], false, Transpose { a: true, b: true }, (5, 7, 3)),
        (&[2, 3], true, Transpose::default(), (5, 7, 3)),
    ];
    let ways = |(lead, shared, transpose, sizes)| {
        let ways = [(true, false), (false, false), (false, true)];
        ways.map(|(held, wide)| onto(product(lead, shared, transpose, sizes), transpose, held, wide))
    };
    calls.into_iter().flat_map(ways).collect()
}

/// `held` by somebody else, they cannot be added to in place; `wide` they have 32 bits whatever the operands have.
fn onto<B: Primitives>(product: PrimitiveCase<B>, transpose: Transpose, held: bool, wide: bool) -> PrimitiveCase<B> {
    let random = &mut Random::new(23);
    // What the gradients are added to is drawn like a gradient of a result.
    let passed = product.slots.iter().map(|slot| Output::new(slot.name, random.normals(slot.leaf.array.shape.axes())));
    let passed: Vec<_> = passed.collect();
    let forward = product.forward;
    PrimitiveCase {
        name: "matmul_onto",
        options: format!("{} held {held} wide {wide}", product.options),
        outputs: product.outputs.into_iter().chain(passed).collect(),
        // Arguments passed through as results: their gradients join those of the product.
        forward: Box::new(move |x| [forward(x), x.to_vec()].concat()),
        device: Box::new(move |x, dy| {
            let out = primitives::matmul(&x[0], &x[1], transpose)?;
            // A scaled copy belongs to this call alone, so it may be written in place.
            let there = |dx: &Tensor<B>| {
                let dx = if held { dx.clone() } else { primitives::scale(1.0, dx)? };
                if wide { primitives::cast(DType::F32, &dx) } else { Ok(dx) }
            };
            let onto = Operands { a: Some(there(&dy[1])?), b: Some(there(&dy[2])?) };
            let values = || dy[1..].iter().map(Tensor::to_f32).collect::<Result<Vec<_>>>();
            // Read before and after: an accumulation in place must not show to whoever else holds the array.
            let before = values()?;
            let grads = primitives::matmul_backward_onto(&x[0], &x[1], transpose, &dy[0], onto)?;
            assert_eq!(values()?, before, "what somebody else holds");
            Ok(CaseResult { outputs: vec![out, x[0].clone(), x[1].clone()], grads: vec![Some(grads.a), Some(grads.b)] })
        }),
        slots: product.slots,
    }
}

/// Several tiles, rows of any length and of fours, sums in parts: too much for the equations, so one backend is held to
/// another.
pub fn matmul_in_tiles<B: Primitives>() -> Vec<PrimitiveCase<B>> {
    // Gradients are products in the other layouts.
    let [plain, transposed] = [false, true].map(|both| Transpose { a: both, b: both });
    vec![
        product(&[2], false, plain, (132, 36, 140)),
        product(&[], false, transposed, (132, 36, 140)),
        product(&[], false, plain, (135, 33, 70)),
        product(&[], false, plain, (40, 1030, 36)),
        product(&[], false, plain, (4, 1028, 8)),
    ]
}

fn product<B: Primitives>(
    lead: &[usize],
    shared: bool,
    transpose: Transpose,
    (m, k, n): (usize, usize, usize),
) -> PrimitiveCase<B> {
    // Another seed for another size.
    let random = &mut Random::new((m + lead.len()) as u64);
    let tile_a = if transpose.a { (k, m) } else { (m, k) };
    let tile_b = if transpose.b { (n, k) } else { (k, n) };
    let shape = |lead: &[usize], (r, c): (usize, usize)| lead.iter().copied().chain([r, c]).collect::<Vec<_>>();
    let a = random.normals(shape(lead, tile_a));
    let b = random.normals(shape(if shared { &[] } else { lead }, tile_b));
    let out = random.normals(shape(lead, (m, n)));
    PrimitiveCase {
        name: "matmul",
        options: format!("{}×{} {transpose:?}", a.shape, b.shape),
        slots: vec![Slot::tiles("a", a, tile_a), Slot::tiles("b", b, tile_b)],
        outputs: vec![Output::new("out", out)],
        forward: Box::new(move |x| {
            // As the product takes it, whichever way it is stored.
            let right = |x: &Var, yes| if yes { x.t() } else { x.clone() };
            let b = |i: usize| right(if shared { &x[1][0] } else { &x[1][i] }, transpose.b);
            vec![x[0].iter().enumerate().map(|(i, a)| right(a, transpose.a).dot(&b(i))).collect()]
        }),
        device: Box::new(move |x, dy| {
            let out = primitives::matmul(&x[0], &x[1], transpose)?;
            let grads = primitives::matmul_backward(&x[0], &x[1], transpose, &dy[0])?;
            Ok(CaseResult { outputs: vec![out], grads: vec![Some(grads.a), Some(grads.b)] })
        }),
    }
}
