//! Products with weights in Q4_K.

use super::{F32, close, random, run, upload, wide};
use crate::interpreter::{
    Device,
    scalar::{f32_to_half, half_to_f32},
};
use hecate_ptx::QuantizedGemm;

/// Value `i` of a super-block, from the definition of the format.
fn value(block: &[u8], i: usize) -> f64 {
    let half = |at: usize| f64::from(half_to_f32(u16::from_le_bytes([block[at], block[at + 1]])));
    let (d, d_min, s) = (half(0), half(2), &block[4..16]);
    let j = i / 32;
    let (scale, offset) = if j < 4 {
        (s[j] & 63, s[j + 4] & 63)
    } else {
        ((s[j + 4] & 15) | (s[j - 4] >> 6) << 4, (s[j + 4] >> 4) | (s[j] >> 6) << 4)
    };
    let byte = block[16 + 32 * (i / 64) + i % 32];
    let q = if i % 64 < 32 { byte & 15 } else { byte >> 4 };
    d * f64::from(scale) * f64::from(q) - d_min * f64::from(offset)
}

/// Super-blocks of any bytes, with steps of some hundredths.
fn blocks(seed: u64, count: usize) -> Vec<u8> {
    let bytes = random(seed, count * 144).into_iter().map(|x| ((x + 1.0) * 127.99) as u8);
    let mut bytes: Vec<u8> = bytes.collect();
    for (block, d) in bytes.chunks_mut(144).zip(random(seed + 1, count)) {
        block[..2].copy_from_slice(&f32_to_half(d / 100.0).to_le_bytes());
        block[2..4].copy_from_slice(&f32_to_half(d / 40.0 + 0.01).to_le_bytes());
    }
    bytes
}

fn check([m, n, k]: [usize; 3], a: &[f32], b: &[u8]) {
    let mut device = Device::default();
    let (first, second) = (upload(&mut device, a), device.input(b.iter().map(|byte| [*byte])));
    let c = device.output(m * n * 4);
    let specification = QuantizedGemm::new(m as u32, n as u32, k as u32).expect("sizes").into();
    run(specification, &mut device, &[first, second, c, (m as u32).into(), (n as u32).into(), (k as u32).into()]);
    let rows: Vec<&[u8]> = b.chunks(k.div_ceil(256) * 144).collect();
    let weight = |row: usize, i: usize| value(&rows[row][i / 256 * 144..], i % 256);
    let a = wide(a);
    let truth: Vec<f64> = (0..m * n).map(|at| (0..k).map(|i| a[at / n * k + i] * weight(at % n, i)).sum()).collect();
    close(&format!("Q4_K {m} × {n} × {k}"), &device.read(c, f32::from_le_bytes), &truth, F32);
}

/// One row and several, columns that fill no block, and rows of weights that fill no super-block.
#[test]
fn products() {
    for [m, n, k] in [[1, 1, 32], [1, 1, 256], [1, 9, 512], [3, 4, 300], [7, 5, 768], [4, 2, 1], [2, 3, 257]] {
        let mut a = random(50, m * k);
        let b = blocks(51, n * k.div_ceil(256));
        check([m, n, k], &a, &b);
        a[m * k - 1] = f32::NAN;
        check([m, n, k], &a, &b);
        a[m * k - 1] = f32::INFINITY;
        check([m, n, k], &a, &b);
    }
}

/// Infinite steps make a row of weights infinite or NaN, and what is after the last value counts nothing.
#[test]
fn infinite_steps() {
    let mut b = blocks(60, 2);
    b[..2].copy_from_slice(&0x7c00u16.to_le_bytes());
    check([1, 2, 256], &random(61, 256), &b);
    check([1, 2, 3], &[1.0, 2.0, 3.0], &b);
}
