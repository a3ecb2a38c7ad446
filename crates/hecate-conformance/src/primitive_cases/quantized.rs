//! Products with quantized matrices.
//!
//! Rows of `x` are whole numbers times a power of two, the largest of 32 being 127. A backend that rounds them to 8 bits
//! rounds nothing then, so that all backends are held to the same limit.

use super::{CaseResult, Output, PrimitiveCase, Slot, each};
use crate::{Array, Random};
use hecate_core::{
    Result, Tensor,
    primitives::{self, Primitives},
    quantized::{BlockFormat, Quantized},
};

/// `x Wᵀ` for every format: a row, few rows and many, rows of weights that fill no tile, and leading axes.
pub fn quantized_matmul<B: Primitives>() -> Vec<PrimitiveCase<B>> {
    // Axes of `x` without the last, blocks of a row and rows of weights.
    let sizes: [(&[usize], usize, usize); 6] =
        [(&[], 1, 1), (&[1], 3, 17), (&[3], 2, 5), (&[2, 4], 1, 33), (&[13], 5, 7), (&[260], 1, 3)];
    let cases = BlockFormat::ALL.into_iter().flat_map(|format| sizes.map(|size| (format, size)));
    let mut cases: Vec<_> = cases.map(|(format, (lead, blocks, rows))| product(format, lead, blocks, rows)).collect();
    // Longer than what a GPU has of `x` at a time.
    cases.extend(BlockFormat::ALL.map(|format| product(format, &[2], 9 * 256 / format.block(), 2)));
    cases.push(product(BlockFormat::Q4K, &[1], 33, 2));
    cases
}

fn product<B: Primitives>(format: BlockFormat, lead: &[usize], blocks: usize, rows: usize) -> PrimitiveCase<B> {
    let (random, inner) = (&mut Random::new((blocks + rows) as u64), blocks * format.block());
    let weights: Vec<f32> = random.normals([rows, inner]).values.iter().map(|&x| x as f32).collect();
    let blocks = format.quantize(&weights).expect("whole blocks of finite numbers");
    let values: Vec<f64> = format.dequantize(&blocks).expect("blocks").into_iter().map(f64::from).collect();
    // Kept as they were quantized: the equations have the values that the blocks hold.
    let mut x = random.normals([lead, &[inner]].concat());
    for (i, x) in x.values.iter_mut().enumerate() {
        *x = if i % 32 == 7 { 127.0 } else { (40.0 * *x).round().clamp(-127.0, 127.0) } / 64.0;
    }
    let y = random.normals([lead, &[rows]].concat());
    PrimitiveCase {
        name: "quantized_matmul",
        options: format!("{} {format} [{rows},{inner}]", x.shape),
        slots: vec![Slot::rows("x", x)],
        outputs: vec![Output::new("y", y)],
        forward: Box::new(move |x| {
            // No gradient is wanted of them.
            let weights = x[0][0].constant(rows, inner, values.clone()).t();
            vec![each(&x[0], |x| x.dot(&weights))]
        }),
        device: Box::new(move |x, _| {
            let device = x[0].device();
            let weight = Quantized::new(device, format, [rows, inner], &blocks)?;
            assert_eq!(weight.blocks()?, blocks, "what was uploaded");
            // On every device and at every size, since each has kernels of its own.
            shows_nan(&x[0], &weight)?;
            Ok(CaseResult { outputs: vec![primitives::quantized_matmul(&x[0], &weight)?], grads: vec![] })
        }),
    }
}

/// One NaN or infinity in the last row leaves no number of that row, and changes no other row.
fn shows_nan<B: Primitives>(x: &Tensor<B>, weight: &Quantized<B>) -> Result<()> {
    let call = |x: &Array| {
        Array::download(&primitives::quantized_matmul(
            &x.upload(weight.words().device(), hecate_core::DType::F32)?,
            weight,
        )?)
    };
    let x = Array::download(x)?;
    // In 32 bits, whatever the case has.
    let sound = call(&x)?.values;
    // In the middle of a group.
    for bad in [f64::NAN, f64::INFINITY] {
        let mut x = x.clone();
        let at = x.values.len() - 3;
        x.values[at] = bad;
        let found = call(&x)?.values;
        let last = found.len() - weight.rows();
        assert_eq!(found[..last], sound[..last], "rows beside one with {bad}");
        assert!(found[last..].iter().all(|y| !y.is_finite()), "a row with {bad}: {:?}", &found[last..]);
    }
    Ok(())
}
