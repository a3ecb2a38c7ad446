//! Products with quantized matrices.
//!
//! Rows of `x` are whole numbers times a power of two, the largest of 32 being 127. A backend that rounds them to 8 bits
//! rounds nothing then, so that all backends are held to the same limit.

use super::{CaseResult, Output, PrimitiveCase, Slot, each};
use crate::{Array, Random};
use hecate_core::{
    Result, Tensor,
    primitives::{self, Primitives},
    quantized::{BlockFormat, KScales, Quantized},
};

/// Values of 6 bits: as many rows of weights have every one at every place.
const SIX_BITS: usize = 64;

/// `x Wᵀ` for every format: a row, few rows and many, on both sides of what a tile has, rows of weights that fill no tile, and
/// leading axes. Then all scales and minima of 6 bits.
pub fn quantized_matmul<B: Primitives>() -> Vec<PrimitiveCase<B>> {
    // Axes of `x` without the last, blocks of a row and rows of weights.
    let small: [(&[usize], usize, usize); 5] =
        [(&[], 1, 1), (&[1], 3, 17), (&[3], 2, 5), (&[2, 4], 1, 33), (&[13], 5, 7)];
    let tiles: [(&[usize], usize, usize); 6] =
        [(&[9], 2, 33), (&[63], 1, 65), (&[64], 3, 63), (&[65], 1, 67), (&[200], 2, 129), (&[260], 1, 3)];
    let sizes = small.into_iter().chain(tiles);
    let cases = BlockFormat::ALL.into_iter().flat_map(|format| sizes.clone().map(move |size| (format, size)));
    let mut cases: Vec<_> = cases.map(|(format, (lead, blocks, rows))| product(format, lead, blocks, rows)).collect();
    // Longer than what a GPU has of `x` at a time.
    cases.extend(BlockFormat::ALL.map(|format| product(format, &[2], 9 * 256 / format.block(), 2)));
    cases.push(product(BlockFormat::Q4K, &[1], 33, 2));
    for format in [BlockFormat::Q5K, BlockFormat::Q4K] {
        // Rows of `x` that devices have different kernels for, then the values themselves.
        cases.extend([&[][..], &[3], &[7], &[20]].map(|lead| every_scale(format, rows_of_x(lead, 256))));
        cases.push(every_scale(format, unit_rows(256)));
    }
    cases
}

fn product<B: Primitives>(format: BlockFormat, lead: &[usize], blocks: usize, rows: usize) -> PrimitiveCase<B> {
    let (random, inner) = (&mut Random::new((blocks + rows) as u64), blocks * format.block());
    let weights: Vec<f32> = random.normals([rows, inner]).values.iter().map(|&x| x as f32).collect();
    let blocks = format.quantize(&weights).expect("whole blocks of finite numbers");
    case(format, rows_of_x(lead, inner), blocks, rows)
}

/// A block a row of weights; see [`all_scales`].
fn every_scale<B: Primitives>(format: BlockFormat, x: Array) -> PrimitiveCase<B> {
    let blocks: Vec<u8> = all_scales().iter().flat_map(|scales| block(format, scales)).collect();
    case(format, x, blocks, SIX_BITS)
}

/// Each of the eight scales and each of the eight minima of a block takes all 64 values: steps are odd, so none comes twice.
fn all_scales() -> [KScales; SIX_BITS] {
    let value = |row: usize, step: usize, start: usize| ((step * row + start) % SIX_BITS) as u8;
    std::array::from_fn(|row| KScales {
        scales: std::array::from_fn(|j| value(row, 5, 11 * j)),
        minima: std::array::from_fn(|j| value(row, 23, 7 * j + 3)),
    })
}

/// A block of these scales and minima, whose other bits are anything: `d = 2⁻⁶`, `d' = 2⁻⁴`, then quants.
fn block(format: BlockFormat, scales: &KScales) -> Vec<u8> {
    let mut block = [[0x00, 0x24], [0x00, 0x2c]].concat();
    block.extend(scales.pack());
    // Another block has other quants.
    let first = usize::from(scales.scales[0]);
    // A step that is odd and no multiple of the width of any group.
    block.extend((block.len()..format.block_bytes()).map(|i| (151 * i + 89 * first) as u8));
    block
}

/// Rows of `x [lead,inner]` as the head of this file says.
fn rows_of_x(lead: &[usize], inner: usize) -> Array {
    let mut x = Random::new(inner as u64).normals([lead, &[inner]].concat());
    for (i, x) in x.values.iter_mut().enumerate() {
        *x = if i % 32 == 7 { 127.0 } else { (40.0 * *x).round().clamp(-127.0, 127.0) } / 64.0;
    }
    x
}

/// Every row `[inner]` has one element that is not 0: products are the values of the blocks themselves.
fn unit_rows(inner: usize) -> Array {
    let element = |i| if i / inner == i % inner { 127.0 / 64.0 } else { 0.0 };
    Array::new([inner, inner], (0..inner * inner).map(element).collect())
}

/// `x [lead,K]` times the matrix `[rows,K]` of these blocks.
fn case<B: Primitives>(format: BlockFormat, x: Array, blocks: Vec<u8>, rows: usize) -> PrimitiveCase<B> {
    let values: Vec<f64> = format.dequantize(&blocks).expect("blocks").into_iter().map(f64::from).collect();
    let (inner, lead) = (x.shape.last(), x.shape.axes());
    let y = Random::new(rows as u64).normals([&lead[..lead.len() - 1], &[rows]].concat());
    PrimitiveCase {
        name: "quantized_matmul",
        options: format!("{} {format} [{rows},{inner}]", x.shape),
        slots: vec![Slot::rows("x", x)],
        outputs: vec![Output::new("y", y)],
        // Values of the blocks, kept as they were quantized.
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
            shows_nan_of_blocks(&x[0], &weight)?;
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

/// A last block whose scale is NaN or infinite leaves no number of its row of weights, and changes no other.
fn shows_nan_of_blocks<B: Primitives>(x: &Tensor<B>, weight: &Quantized<B>) -> Result<()> {
    let (device, format, rows) = (x.device(), weight.format(), weight.rows());
    let sound = Array::download(&primitives::quantized_matmul(x, weight)?)?.values;
    // Where the 16 bits of `d` stand in a block.
    let at = if format == BlockFormat::Q6K { 208 } else { 0 };
    // NaN and infinity in 16 bits.
    for bad in [0x7e00_u16, 0x7c00] {
        let mut blocks = weight.blocks()?;
        let at = blocks.len() - format.block_bytes() + at;
        blocks[at..at + 2].copy_from_slice(&bad.to_le_bytes());
        let weight = Quantized::new(device, format, [rows, weight.columns()], &blocks)?;
        let found = Array::download(&primitives::quantized_matmul(x, &weight)?)?.values;
        for (found, sound) in found.chunks(rows).zip(sound.chunks(rows)) {
            assert_eq!(found[..rows - 1], sound[..rows - 1], "beside a row of weights with a scale {bad:#x}");
            assert!(!found[rows - 1].is_finite(), "a row of weights with a scale {bad:#x}: {}", found[rows - 1]);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// 64 values at each of the 16 places of a block, as a block has them.
    #[test]
    fn every_scale_is_there() {
        for format in [BlockFormat::Q5K, BlockFormat::Q4K] {
            let blocks: Vec<_> = all_scales().iter().map(|scales| block(format, scales)).collect();
            assert!(blocks.iter().all(|block| block.len() == format.block_bytes()));
            // Read back, so that packing is seen too.
            let read = |block: &Vec<u8>| KScales::unpack(block[4..16].as_array().expect("12 bytes"));
            for j in 0..8 {
                let count = |part: fn(&KScales) -> &[u8; 8]| {
                    blocks.iter().map(|block| part(&read(block))[j]).collect::<BTreeSet<_>>().len()
                };
                assert_eq!((count(|x| &x.scales), count(|x| &x.minima)), (64, 64), "group {j} of {format}");
            }
        }
    }
}
