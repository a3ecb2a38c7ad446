//! Products of matrices, stored either way, one or many.
//!
//! `a` is `[…,m,k]` or stored as `[…,k,m]`, `b` `[…,k,n]` or `[…,n,k]`, the product `[…,m,n]`. One `b` for all leading
//! axes is summed over in its gradient.

use super::{CaseResult, Output, PrimitiveCase, Slot};
use crate::{Random, oracle::Var};
use hecate_core::{
    DType, Result, Tensor,
    primitives::{self, EachBackward, Operands, Primitives, Transpose},
};

/// `a b`, `aᵀ b`, `a bᵀ`, `aᵀ bᵀ`, with leading axes, and with one `b` for all.
pub fn matmul<B: Primitives>() -> Vec<PrimitiveCase<B>> {
    // Leading axes, and whether one `b` serves them all.
    // All four ways to store the operands go with each.
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
    // Few rows by more columns than meet at once, in sums that nothing divides: up to what goes as a vector does, and more.
    for ((lead, sizes), b) in
        [(&[][..], (1, 301, 67)), (&[], (3, 131, 37)), (&[2], (4, 66, 35)), (&[], (8, 70, 33)), (&[], (9, 70, 33))]
            .into_iter()
            .flat_map(|size| [(size, false), (size, true)])
    {
        cases.push(product(lead, false, Transpose { a: false, b }, sizes));
    }
    // Few rows by a larger matrix: parts of a tile of rows, and an inner axis of some whole runs and a part.
    for (lead, sizes) in [(&[][..], (7, 301, 131)), (&[], (4, 1061, 66)), (&[2], (3, 256, 65)), (&[], (34, 512, 70))] {
        cases.push(product(lead, false, Transpose { a: false, b: true }, sizes));
    }
    cases
}

/// `x Wᵀ` with several `W`, every other of 16 bits where `x` has 32. Numbers are eighths, so that rounding changes none.
pub fn matmul_each<B: Primitives>() -> Vec<PrimitiveCase<B>> {
    // Rows of `x`, its columns, and rows of each matrix: few and many, runs of all sizes, more matrices than a launch has.
    let few = [(&[1][..], 768, &[40, 3, 700][..]), (&[1], 33, &[5]), (&[2, 3], 36, &[9, 1, 20]), (&[8], 2056, &[4, 6])];
    let many = [(&[9][..], 40, &[33, 8][..]), (&[70], 72, &[70]), (&[1], 16, &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10])];
    // Rows of texts side by side: all of a tile and a part of one, sums that are split over blocks or not, narrow matrices.
    let side = [(&[64][..], 96, &[130, 12][..]), (&[17, 1], 1056, &[65, 5, 9]), (&[33], 32, &[40, 24, 7000])];
    few.into_iter().chain(many).chain(side).map(|(lead, inner, columns)| each(lead, inner, columns)).collect()
}

fn each<B: Primitives>(lead: &[usize], inner: usize, columns: &'static [usize]) -> PrimitiveCase<B> {
    let random = &mut Random::new(inner as u64);
    // Leading axes are rows of one matrix.
    // The device has to reshape what it gives back to them.
    let rows = lead.iter().product();
    // In 16 bits as they are, up to 16 on either side of zero.
    let mut eighths = |shape: Vec<usize>| {
        let mut array = random.normals(shape);
        array.values.iter_mut().for_each(|x| *x = (8.0 * *x).round() / 8.0);
        array
    };
    let x = eighths([lead, &[inner]].concat());
    // `x` first, then the matrices; the equations cut none of them.
    let slots = columns.iter().map(|&columns| Slot::tiles("w", eighths(vec![columns, inner]), (columns, inner)));
    let slots: Vec<_> = [Slot::tiles("x", x, (rows, inner))].into_iter().chain(slots).collect();
    let product = |&columns: &usize| Output::new("y", random.normals([lead, &[columns]].concat()));
    PrimitiveCase {
        name: "matmul_each",
        options: format!("{lead:?} {inner} {columns:?}"),
        outputs: columns.iter().map(product).collect(),
        slots,
        // One matrix `x` of all rows, whatever its leading axes.
        forward: Box::new(|x| x[1..].iter().map(|weight| vec![x[0][0].dot(&weight[0].t())]).collect()),
        device: Box::new(|x, _| {
            // Types in turn, so that runs of one type are short.
            let stored = |(i, weight): (usize, &Tensor<B>)| {
                if i % 2 == 0 { primitives::cast(DType::Bf16, weight) } else { Ok(weight.clone()) }
            };
            // In the type of `x` where that has 16 bits already.
            let weights = x[1..].iter().enumerate().map(stored).collect::<Result<Vec<_>>>()?;
            let outputs = primitives::matmul_each(&x[0], &weights.iter().collect::<Vec<_>>())?;
            Ok(CaseResult { outputs, grads: vec![] })
        }),
    }
}

/// `x Wᵀ` with several `W` of its type, and all gradients at once: alone, or added to what is there, which somebody else holds
/// or nobody does.
pub fn matmul_each_backward<B: Primitives>() -> Vec<PrimitiveCase<B>> {
    let added = [None, Some(false), Some(true)];
    // Rows of a tile and of parts of several, sums longer than what is under way at once, and columns of several tiles.
    let tiles = [(&[70][..], 72, &[32, 8, 40][..]), (&[3, 50], 40, &[136, 24]), (&[65], 264, &[16, 8])];
    // What matrix units cannot take: odd sizes, fours where they want eights, a row; and more matrices than a launch has.
    let others = [(&[2, 3][..], 5, &[3, 7][..]), (&[70], 36, &[12, 4]), (&[1], 8, &[8]), (&[65], 8, &[8; 9])];
    let calls = tiles.into_iter().chain(others);
    calls.flat_map(|(lead, inner, columns)| added.map(|held| back(lead, inner, columns, held))).collect()
}

/// With `held`, arguments are results as well, as in [`matmul_onto`].
fn back<B: Primitives>(
    lead: &[usize],
    inner: usize,
    columns: &'static [usize],
    held: Option<bool>,
) -> PrimitiveCase<B> {
    let random = &mut Random::new((inner + columns.len()) as u64);
    // Leading axes are rows of one matrix.
    let rows = lead.iter().product();
    let x = Slot::tiles("x", random.normals([lead, &[inner]].concat()), (rows, inner));
    let weight = |&columns: &usize| Slot::tiles("w", random.normals([columns, inner]), (columns, inner));
    let slots: Vec<_> = [x].into_iter().chain(columns.iter().map(weight).collect::<Vec<_>>()).collect();
    // Another seed for gradients than for arguments.
    let random = &mut Random::new(29);
    let products = columns.iter().map(|&columns| Output::new("y", random.normals([lead, &[columns]].concat())));
    let products: Vec<_> = products.collect();
    // What the gradients are added to is drawn like a gradient of a result.
    let passed = slots.iter().map(|slot| Output::new(slot.name, random.normals(slot.leaf.array.shape.axes())));
    let passed: Vec<_> = passed.filter(|_| held.is_some()).collect();
    PrimitiveCase {
        name: "matmul_each_backward",
        options: format!("{lead:?} {inner} {columns:?} held {held:?}"),
        outputs: products.into_iter().chain(passed).collect(),
        slots,
        // Arguments passed through as results: their gradients join those of the products.
        forward: Box::new(move |x| {
            let products = x[1..].iter().map(|weight| vec![x[0][0].dot(&weight[0].t())]);
            products.chain(x.iter().filter(|_| held.is_some()).cloned()).collect()
        }),
        device: Box::new(move |x, dy| {
            let outputs = primitives::matmul_each(&x[0], &x[1..].iter().collect::<Vec<_>>())?;
            // Gradients of products first, then those of what is passed through, if anything is.
            let (dout, there) = dy.split_at(columns.len());
            // A scaled copy belongs to this call alone, so it may be written in place.
            let onto = |i: usize| match there.get(i) {
                Some(dx) if held == Some(false) => primitives::scale(1.0, dx).map(Some),
                dx => Ok(dx.cloned()),
            };
            let back = x[1..].iter().zip(dout).enumerate();
            let back = back.map(|(i, (weight, dout))| Ok(EachBackward { weight, dout, onto: onto(i + 1)? }));
            // Read before and after: adding in place must not show to whoever else holds the array.
            let values = || there.iter().map(Tensor::to_f32).collect::<Result<Vec<_>>>();
            let before = values()?;
            let (dx, of_weights) = primitives::matmul_each_backward(&x[0], back.collect::<Result<_>>()?, onto(0)?)?;
            assert_eq!(values()?, before, "what somebody else holds");
            let passed = x.iter().filter(|_| held.is_some()).cloned();
            let grads = [dx].into_iter().chain(of_weights).map(Some).collect();
            Ok(CaseResult { outputs: outputs.into_iter().chain(passed).collect(), grads })
        }),
    }
}

/// Gradients added to what is there: `a` and `b` are results as well, whose gradients that is.
pub fn matmul_onto<B: Primitives>() -> Vec<PrimitiveCase<B>> {
    let calls: [(&[usize], bool, Transpose, _); 5] = [
        (&[], false, Transpose { a: false, b: true }, (130, 65, 70)),
        (&[], false, Transpose { a: true, b: false }, (2, 33, 40)),
        (&[3], false, Transpose { a: true, b: true }, (5, 7, 3)),
        (&[2, 3], true, Transpose::default(), (5, 7, 3)),
        // The gradient of `a` is a product of few rows with a transposed matrix.
        (&[], false, Transpose::default(), (5, 65, 259)),
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

/// Rows of several heads times a matrix a head: one head, odd sizes, and enough rows for the fast products of a GPU.
pub fn head_products<B: Primitives>() -> Vec<PrimitiveCase<B>> {
    let sizes: [(&[usize], [usize; 3]); 5] =
        [(&[], [2, 3, 4]), (&[1], [1, 1, 1]), (&[2, 3], [3, 5, 2]), (&[70], [2, 8, 16]), (&[65], [3, 7, 5])];
    sizes.into_iter().map(|(lead, sizes)| by_heads(lead, sizes)).collect()
}

/// `x [lead,H,K]`, whose rows of one head lie `H K` elements apart, `m [H,K,V]` and `out [lead,H,V]`.
fn by_heads<B: Primitives>(lead: &[usize], [heads, key, value]: [usize; 3]) -> PrimitiveCase<B> {
    // Another seed for another width.
    let random = &mut Random::new(key as u64);
    let shape = |width| lead.iter().copied().chain([heads, width]).collect::<Vec<_>>();
    let (x, m) = (random.normals(shape(key)), random.normals([heads, key, value]));
    let out = random.normals(shape(value));
    PrimitiveCase {
        name: "head_products",
        options: format!("{}×{}", x.shape, m.shape),
        slots: vec![Slot::tiles("x", x, (1, key)), Slot::tiles("m", m, (key, value))],
        outputs: vec![Output::new("out", out)],
        // Row `i` belongs to head `i mod heads`.
        forward: Box::new(move |x| vec![x[0].iter().enumerate().map(|(i, row)| row.dot(&x[1][i % heads])).collect()]),
        device: Box::new(move |x, dy| {
            let out = primitives::head_products(&x[0], &x[1])?;
            let grads = primitives::head_products_backward(&x[0], &x[1], &dy[0])?;
            Ok(CaseResult { outputs: vec![out], grads: vec![Some(grads.a), Some(grads.b)] })
        }),
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
