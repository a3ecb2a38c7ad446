//! Products of whole numbers with AVX-512 VNNI: 64 products of 8 bits, added four by four, in one instruction.
//!
//! That instruction takes one operand without signs: `q` is stored so in the K formats, and `q + 128` is where it has one.
//! What the offset adds is taken off as a whole number, so that sums stay exact until they meet their scales.

use super::{Kernels, RoundedRow, TOGETHER};
use hecate_core::quantized::{BlockFormat, KScales};
use std::arch::x86_64::*;

/// Calls a kernel, which only [`kernels`] hands out.
macro_rules! call {
    ($kernel:ident $rows:expr) => {
        |weights, x| {
            // SAFETY: `kernels` made sure that the processor has what the kernel is compiled for.
            #[allow(unsafe_code)]
            unsafe {
                $kernel::<{ $rows }>(weights, x)
            }
        }
    };
}

/// Those of a format; none where the processor lacks something.
pub(super) fn kernels(format: BlockFormat) -> Option<Kernels> {
    let there = is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("avx512vnni")
        && is_x86_feature_detected!("f16c");
    there.then_some(match format {
        BlockFormat::Q8_0 => Kernels { one: call!(q8_0 1), several: call!(q8_0 TOGETHER) },
        BlockFormat::Q6K => Kernels { one: call!(q6_k 1), several: call!(q6_k TOGETHER) },
        BlockFormat::Q5K => Kernels { one: call!(q5_k 1), several: call!(q5_k TOGETHER) },
        BlockFormat::Q4K => Kernels { one: call!(q4_k 1), several: call!(q4_k TOGETHER) },
    })
}

/// The first bytes of a slice in registers, wherever they lie.
macro_rules! loads {
    ($($name:ident $vector:ty, $element:ty, $count:literal, $load:ident;)*) => {$(
        #[inline]
        #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
        fn $name(from: &[$element]) -> $vector {
            let from: &[$element; $count] = from.first_chunk().expect("a whole vector");
            // SAFETY: there are as many elements as are read, and they need no alignment.
            #[expect(unsafe_code, reason = "loads take pointers")]
            unsafe { $load(from.as_ptr().cast()) }
        }
    )*};
}
loads! {
    bytes_64 __m512i, u8, 64, _mm512_loadu_si512;
    bytes_32 __m256i, u8, 32, _mm256_loadu_si256;
    bytes_16 __m128i, u8, 16, _mm_loadu_si128;
    floats_8 __m256, f32, 8, _mm256_loadu_ps;
}

/// A row of activations cut as blocks of 256 values cut it: one check of bounds a block.
#[derive(Clone, Copy)]
struct SuperBlocks<'a> {
    q: &'a [[i8; 256]],
    d: &'a [[f32; 8]],
    sums: &'a [[f32; 8]],
}

impl<'a> From<RoundedRow<'a>> for SuperBlocks<'a> {
    #[inline(always)]
    fn from(x: RoundedRow<'a>) -> Self {
        Self { q: x.q.as_flattened().as_chunks().0, d: x.d.as_chunks().0, sums: x.sums.as_chunks().0 }
    }
}

/// Whole numbers `64 c` to `64 c + 63` of a block's activations.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
fn activations(q: &[i8; 256], c: usize) -> __m512i {
    bytes_64(bytemuck::cast_slice(&q.as_chunks::<64>().0[c]))
}

/// A 16-bit float at byte `at`.
#[inline]
#[target_feature(enable = "avx512f,avx512vl,f16c")]
fn half_at(block: &[u8], at: usize) -> f32 {
    let bits = u16::from_le_bytes([block[at], block[at + 1]]);
    _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(i32::from(bits))))
}

/// Eight whole numbers of 8 bits as floats.
#[inline]
#[target_feature(enable = "avx512f,avx512vl")]
fn widened(bytes: [u8; 8]) -> __m256 {
    _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_cvtsi64_si128(i64::from_le_bytes(bytes))))
}

/// Lane `l` of the result is lane `start + l / 8` of eight.
#[inline]
#[target_feature(enable = "avx512f,avx512vl")]
fn spread(eight: __m256, start: i32) -> __m512 {
    let lanes =
        _mm512_add_epi32(_mm512_set1_epi32(start), _mm512_set_epi32(1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0));
    _mm512_permutexvar_ps(lanes, _mm512_castps256_ps512(eight))
}

/// `q4_k` with `BYTES` of 144, `q5_k` with 176: a block at a time, two of its groups in a register.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,f16c")]
fn affine<const R: usize, const BYTES: usize>(weights: &[u8], x: [RoundedRow<'_>; R]) -> [f32; R] {
    let x = x.map(SuperBlocks::from);
    let (mut sums, mut minima) = ([_mm512_setzero_ps(); R], [_mm256_setzero_ps(); R]);
    let (four_bits, one_bit) = (_mm512_set1_epi8(15), _mm512_set1_epi8(1));
    // The second group of a register is in the upper halves of bytes.
    let upper = _mm512_set_epi64(4, 4, 4, 4, 0, 0, 0, 0);
    let (fifth, next_bit) = (BYTES > 144, _mm512_set_epi64(1, 1, 1, 1, 0, 0, 0, 0));
    for (i, block) in weights.as_chunks::<BYTES>().0.iter().enumerate() {
        let packed = KScales::unpack(block[4..].first_chunk().expect("12 bytes"));
        let scale = _mm256_mul_ps(widened(packed.scales), _mm256_set1_ps(half_at(block, 0)));
        let minimum = _mm256_mul_ps(widened(packed.minima), _mm256_set1_ps(half_at(block, 2)));
        let mut scales = [_mm256_setzero_ps(); R];
        for r in 0..R {
            scales[r] = _mm256_mul_ps(scale, floats_8(&x[r].d[i]));
            minima[r] = _mm256_fmadd_ps(minimum, floats_8(&x[r].sums[i]), minima[r]);
        }
        let high = if fifth { _mm512_broadcast_i64x4(bytes_32(&block[16..])) } else { _mm512_setzero_si512() };
        let low = &block[BYTES - 128..];
        for c in 0..4 {
            let both = _mm512_broadcast_i64x4(bytes_32(&low[32 * c..]));
            let mut q = _mm512_and_si512(_mm512_srlv_epi64(both, upper), four_bits);
            if fifth {
                let bit = _mm512_add_epi64(next_bit, _mm512_set1_epi64(2 * c as i64));
                let bits = _mm512_and_si512(_mm512_srlv_epi64(high, bit), one_bit);
                q = _mm512_or_si512(q, _mm512_slli_epi64::<4>(bits));
            }
            for r in 0..R {
                let dots = _mm512_dpbusd_epi32(_mm512_setzero_si512(), q, activations(&x[r].q[i], c));
                sums[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dots), spread(scales[r], 2 * c as i32), sums[r]);
            }
        }
    }
    let mut out = [0.0; R];
    for r in 0..R {
        out[r] = _mm512_reduce_add_ps(_mm512_sub_ps(sums[r], _mm512_zextps256_ps512(minima[r])));
    }
    out
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,f16c")]
fn q4_k<const R: usize>(weights: &[u8], x: [RoundedRow<'_>; R]) -> [f32; R] {
    affine::<R, 144>(weights, x)
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,f16c")]
fn q5_k<const R: usize>(weights: &[u8], x: [RoundedRow<'_>; R]) -> [f32; R] {
    affine::<R, 176>(weights, x)
}

/// Four groups of 16 values in a register, four lanes of sums for each.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,f16c")]
fn q6_k<const R: usize>(weights: &[u8], x: [RoundedRow<'_>; R]) -> [f32; R] {
    let x = x.map(SuperBlocks::from);
    let mut sums = [_mm512_setzero_ps(); R];
    let (four_bits, two_bits, offset) = (_mm512_set1_epi8(15), _mm512_set1_epi8(3), _mm512_set1_epi8(32));
    let shifts = _mm512_set_epi64(2, 2, 2, 2, 0, 0, 0, 0);
    let pairs = _mm512_set_epi32(7, 7, 6, 6, 5, 5, 4, 4, 3, 3, 2, 2, 1, 1, 0, 0);
    let fours = _mm512_set_epi32(3, 3, 3, 3, 2, 2, 2, 2, 1, 1, 1, 1, 0, 0, 0, 0);
    for (i, block) in weights.as_chunks::<210>().0.iter().enumerate() {
        let scale = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes_16(&block[192..])));
        let scale = _mm512_mul_ps(scale, _mm512_set1_ps(half_at(block, 208)));
        let mut scales = [_mm512_setzero_ps(); R];
        for r in 0..R {
            let d = _mm512_castps256_ps512(floats_8(&x[r].d[i]));
            scales[r] = _mm512_mul_ps(scale, _mm512_permutexvar_ps(pairs, d));
        }
        // Register `c` has values `64 c` to `64 c + 63`.
        for c in 0..4 {
            let low = bytes_64(&block[64 * (c / 2)..]);
            let low = if c % 2 == 0 { low } else { _mm512_srli_epi64::<4>(low) };
            let high = _mm512_broadcast_i64x4(bytes_32(&block[128 + 32 * (c / 2)..]));
            let shift = _mm512_add_epi64(shifts, _mm512_set1_epi64(4 * (c % 2) as i64));
            let high = _mm512_and_si512(_mm512_srlv_epi64(high, shift), two_bits);
            let q = _mm512_or_si512(_mm512_and_si512(low, four_bits), _mm512_slli_epi64::<4>(high));
            let lanes = _mm512_add_epi32(fours, _mm512_set1_epi32(4 * c as i32));
            for r in 0..R {
                let (x, zero) = (activations(&x[r].q[i], c), _mm512_setzero_si512());
                let dots = _mm512_sub_epi32(_mm512_dpbusd_epi32(zero, q, x), _mm512_dpbusd_epi32(zero, offset, x));
                let scale = _mm512_permutexvar_ps(lanes, scales[r]);
                sums[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dots), scale, sums[r]);
            }
        }
    }
    sums.map(|sum| _mm512_reduce_add_ps(sum))
}

/// Eight blocks of 32 values at a time, two in a register; what is left of a row goes block by block.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,f16c")]
fn q8_0<const R: usize>(weights: &[u8], x: [RoundedRow<'_>; R]) -> [f32; R] {
    let mut sums = [_mm512_setzero_ps(); R];
    let (blocks, x) = (x.map(SuperBlocks::from), x);
    // With the sign bit turned `q` becomes `q + 128`.
    let (offset, zero) = (_mm512_set1_epi8(-128), _mm512_setzero_si512());
    let (whole, rest) = weights.as_chunks::<{ 8 * 34 }>();
    for (i, weights) in whole.iter().enumerate() {
        let d: [[u8; 2]; 8] = std::array::from_fn(|k| [weights[34 * k], weights[34 * k + 1]]);
        let d = _mm256_cvtph_ps(bytes_16(d.as_flattened()));
        let mut scales = [_mm256_setzero_ps(); R];
        for r in 0..R {
            scales[r] = _mm256_mul_ps(d, floats_8(&blocks[r].d[i]));
        }
        for c in 0..4 {
            let low = _mm512_castsi256_si512(bytes_32(&weights[68 * c + 2..]));
            let q = _mm512_inserti64x4::<1>(low, bytes_32(&weights[68 * c + 36..]));
            let q = _mm512_xor_si512(q, offset);
            for r in 0..R {
                let x = activations(&blocks[r].q[i], c);
                let dots = _mm512_sub_epi32(_mm512_dpbusd_epi32(zero, q, x), _mm512_dpbusd_epi32(zero, offset, x));
                sums[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dots), spread(scales[r], 2 * c as i32), sums[r]);
            }
        }
    }
    for (i, block) in (8 * whole.len()..).zip(rest.as_chunks::<34>().0) {
        let (d, q) = (half_at(block, 0), _mm512_zextsi256_si512(bytes_32(&block[2..])));
        let q = _mm512_xor_si512(q, offset);
        for r in 0..R {
            // The upper half of the register is zeros of `x`.
            let row = _mm512_zextsi256_si512(bytes_32(bytemuck::cast_slice(&x[r].q[i])));
            let dots = _mm512_sub_epi32(_mm512_dpbusd_epi32(zero, q, row), _mm512_dpbusd_epi32(zero, offset, row));
            sums[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dots), _mm512_set1_ps(d * x[r].d[i]), sums[r]);
        }
    }
    sums.map(|sum| _mm512_reduce_add_ps(sum))
}
