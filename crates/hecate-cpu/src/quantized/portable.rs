//! Products of whole numbers for any processor: loops that compilers turn into the vector instructions there are.

use super::{Dots, Kernels, RoundedRow, Several, rounded::GROUP, wide};
use hecate_core::quantized::{BlockFormat, KScales};

/// Groups of a block of 256 values.
const GROUPS: usize = 8;

pub(super) fn kernels(format: BlockFormat) -> Kernels {
    match format {
        BlockFormat::Q8_0 => of(dots::<Q80, 1>, dots::<Q80, { super::TOGETHER }>),
        BlockFormat::Q6K => of(dots::<Q6K, 1>, dots::<Q6K, { super::TOGETHER }>),
        BlockFormat::Q5K => of(dots::<Affine<true>, 1>, dots::<Affine<true>, { super::TOGETHER }>),
        BlockFormat::Q4K => of(dots::<Affine<false>, 1>, dots::<Affine<false>, { super::TOGETHER }>),
    }
}

fn of(one: Dots<1>, several: Dots<{ super::TOGETHER }>) -> Kernels {
    Kernels { one, several: Several::Rows(several) }
}

/// A format's groups of 32 values: whole numbers of 8 bits with a sign, one scale for each half, and what is subtracted.
trait Groups {
    /// Bytes and groups of a block.
    const BYTES: usize;
    const GROUPS: usize;

    /// Group `j` of a block: the whole numbers, two scales, and the minimum.
    fn group(block: &[u8], j: usize, q: &mut [i8; GROUP]) -> ([f32; 2], f32);
}

fn dots<F: Groups, const R: usize>(weights: &[u8], x: [RoundedRow<'_>; R]) -> [f32; R] {
    wide(
        (weights, x),
        #[inline(always)]
        |(weights, x)| {
            let mut sums = [0.0; R];
            for (i, block) in weights.chunks_exact(F::BYTES).enumerate() {
                // Unpacked once for all rows of `x`.
                for j in 0..F::GROUPS {
                    let (mut q, at) = ([0; GROUP], i * F::GROUPS + j);
                    let (scales, minimum) = F::group(block, j, &mut q);
                    for (sum, x) in sums.iter_mut().zip(&x) {
                        // Halves of a group may have scales of their own.
                        let [low, high] = [0, 1].map(|half| dot(&q, &x.q[at], half) as f32);
                        *sum +=
                            x.d[at] * (scales[0] * low + scales[1] * high) - minimum * (x.d[at] * x.totals[at] as f32);
                    }
                }
            }
            sums
        },
    )
}

/// The product of one half of a group, 16 values.
#[inline(always)]
fn dot(q: &[i8; GROUP], x: &[i8; GROUP], half: usize) -> i32 {
    let half = GROUP / 2 * half..GROUP / 2 * (half + 1);
    q[half.clone()].iter().zip(&x[half]).map(|(&q, &x)| i32::from(q) * i32::from(x)).sum()
}

/// A 16-bit float at byte `at`.
#[inline(always)]
fn half_at(block: &[u8], at: usize) -> f32 {
    half::f16::from_le_bytes([block[at], block[at + 1]]).to_f32_const()
}

struct Q80;

impl Groups for Q80 {
    const BYTES: usize = 34;
    const GROUPS: usize = 1;

    #[inline(always)]
    fn group(block: &[u8], _: usize, q: &mut [i8; GROUP]) -> ([f32; 2], f32) {
        q.iter_mut().zip(&block[2..]).for_each(|(q, &byte)| *q = byte as i8);
        ([half_at(block, 0); 2], 0.0)
    }
}

struct Q6K;

impl Groups for Q6K {
    const BYTES: usize = 210;
    const GROUPS: usize = GROUPS;

    #[inline(always)]
    fn group(block: &[u8], j: usize, q: &mut [i8; GROUP]) -> ([f32; 2], f32) {
        let (half, quarter) = (j / 4, j % 4);
        let lower = &block[64 * half + 32 * (quarter % 2)..][..GROUP];
        let upper = &block[128 + 32 * half..][..GROUP];
        for (q, (lower, upper)) in q.iter_mut().zip(lower.iter().zip(upper)) {
            let bits = lower >> (4 * (quarter / 2)) & 15 | (upper >> (2 * quarter) & 3) << 4;
            *q = bits as i8 - 32;
        }
        let d = half_at(block, 208);
        ([0, 1].map(|k| d * f32::from(block[192 + 2 * j + k] as i8)), 0.0)
    }
}

/// `q5_k` with a fifth bit, `q4_k` without.
struct Affine<const FIFTH: bool>;

impl<const FIFTH: bool> Groups for Affine<FIFTH> {
    const BYTES: usize = if FIFTH { 176 } else { 144 };
    const GROUPS: usize = GROUPS;

    #[inline(always)]
    fn group(block: &[u8], j: usize, q: &mut [i8; GROUP]) -> ([f32; 2], f32) {
        let lower = &block[if FIFTH { 48 } else { 16 } + GROUP * (j / 2)..][..GROUP];
        for (i, (q, lower)) in q.iter_mut().zip(lower).enumerate() {
            let fifth = if FIFTH { (block[16 + i] >> j & 1) << 4 } else { 0 };
            *q = (lower >> (4 * (j % 2)) & 15 | fifth) as i8;
        }
        let packed = KScales::unpack(block[4..].first_chunk().expect("12 bytes"));
        let scale = half_at(block, 0) * f32::from(packed.scales[j]);
        ([scale; 2], half_at(block, 2) * f32::from(packed.minima[j]))
    }
}
