//! Products of one row of weights, which are read as they lie in memory.
//!
//! Whole sums of groups meet their scales sixteen at a time. A lane adds up every sixteenth group; lanes are added at the end.

use super::{bytes_16, bytes_32, bytes_64, floats_8, floats_16, words_16};
use crate::quantized::{RoundedRow, rounded::SUMS};
use hecate_core::quantized::KScales;
use std::arch::x86_64::*;

/// Bytes ahead of those that are multiplied, which are asked for by then: processors do not look as far themselves.
const AHEAD: usize = 4096;

/// Asks for the cache lines of as many bytes as `bytes`, later in memory.
#[inline]
#[target_feature(enable = "avx512f")]
fn fetch_after(bytes: &[u8]) {
    for line in (0..bytes.len()).step_by(64) {
        let address = bytes.as_ptr().wrapping_add(line + AHEAD).cast();
        // SAFETY: a hint, whatever is there.
        #[allow(unsafe_code, unused_unsafe, reason = "safe in later standard libraries alone")]
        unsafe {
            _mm_prefetch::<_MM_HINT_T0>(address);
        }
    }
}

/// Sixteen groups of a row of activations: one check of bounds for all.
#[derive(Clone, Copy)]
struct Round<'a> {
    q: &'a [[u8; 64]; 8],
    d: &'a [f32; SUMS],
    totals: &'a [i32; SUMS],
}

impl<'a> Round<'a> {
    /// All of a row, which has whole rounds.
    #[inline(always)]
    fn all(x: RoundedRow<'a>) -> impl Iterator<Item = Self> {
        let q = bytemuck::cast_slice::<i8, u8>(x.q.as_flattened()).as_chunks().0.as_chunks().0;
        let (d, totals) = (x.d.as_chunks().0, x.totals.as_chunks().0);
        q.iter().zip(d.iter().zip(totals)).map(|(q, (d, totals))| Self { q, d, totals })
    }
}

/// Whole sums of sixteen groups, of which each register has the products of two: lane `t` has the sum of group `t`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
fn groups(dots: [__m512i; 8]) -> __m512i {
    let two = |a, b| _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
    let four = |a, b| _mm512_add_epi32(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));
    let [a, b, c, d, e, f, g, h] = dots;
    let (first, last) = (four(two(a, b), two(c, d)), four(two(e, f), two(g, h)));
    let sums = _mm512_add_epi32(
        _mm512_shuffle_i64x2::<0b10_00_10_00>(first, last),
        _mm512_shuffle_i64x2::<0b11_01_11_01>(first, last),
    );
    let order = _mm512_set_epi32(15, 11, 14, 10, 13, 9, 12, 8, 7, 3, 6, 2, 5, 1, 4, 0);
    _mm512_permutexvar_epi32(order, sums)
}

/// Bytes of two blocks as sixteen floats.
#[inline]
#[target_feature(enable = "avx512f,avx512vl")]
fn widened(first: [u8; 8], last: [u8; 8]) -> __m512 {
    let bytes = _mm_set_epi64x(i64::from_le_bytes(last), i64::from_le_bytes(first));
    _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(bytes))
}

/// What is left of blocks of a row, with zeros behind.
#[cold]
fn filled<const BYTES: usize, const N: usize>(rest: &[[u8; BYTES]]) -> [[u8; BYTES]; N] {
    let mut blocks = [[0; BYTES]; N];
    blocks[..rest.len()].copy_from_slice(rest);
    blocks
}

/// `q4_k` with `BYTES` of 144, `q5_k` with 176: two blocks at a time, two groups in a register.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,f16c")]
pub(super) fn affine<const BYTES: usize>(weights: &[u8], [x]: [RoundedRow<'_>; 1]) -> [f32; 1] {
    let (four_bits, one_bit) = (_mm512_set1_epi8(15), _mm512_set1_epi8(1));
    // The second group of a register is in the upper halves of bytes.
    let upper = _mm512_set_epi64(4, 4, 4, 4, 0, 0, 0, 0);
    let (fifth, next_bit) = (BYTES > 144, _mm512_set_epi64(1, 1, 1, 1, 0, 0, 0, 0));
    // Words 0 and 2 of the first four, then 1 and 3: `d` of two blocks, then `d'`.
    let scale_of = _mm512_set_epi32(2, 2, 2, 2, 2, 2, 2, 2, 0, 0, 0, 0, 0, 0, 0, 0);
    let minimum_of = _mm512_set_epi32(3, 3, 3, 3, 3, 3, 3, 3, 1, 1, 1, 1, 1, 1, 1, 1);
    let mut sums = _mm512_setzero_ps();
    let (whole, rest) = weights.as_chunks::<BYTES>().0.as_chunks::<2>();
    let last;
    let rest = if rest.is_empty() {
        None
    } else {
        last = filled(rest);
        Some(&last)
    };
    for (blocks, x) in whole.iter().chain(rest).zip(Round::all(x)) {
        fetch_after(blocks.as_flattened());
        let mut dots = [_mm512_setzero_si512(); 8];
        for (i, block) in blocks.iter().enumerate() {
            let high = if fifth { _mm512_broadcast_i64x4(bytes_32(&block[16..])) } else { _mm512_setzero_si512() };
            for c in 0..4 {
                let both = _mm512_broadcast_i64x4(bytes_32(&block[BYTES - 128 + 32 * c..]));
                let mut q = _mm512_and_si512(_mm512_srlv_epi64(both, upper), four_bits);
                if fifth {
                    let bit = _mm512_add_epi64(next_bit, _mm512_set1_epi64(2 * c as i64));
                    let bits = _mm512_and_si512(_mm512_srlv_epi64(high, bit), one_bit);
                    q = _mm512_or_si512(q, _mm512_slli_epi64::<4>(bits));
                }
                dots[4 * i + c] = _mm512_dpbusd_epi32(dots[4 * i + c], q, bytes_64(&x.q[4 * i + c]));
            }
        }
        let [a, b] = blocks;
        let first = KScales::unpack(a[4..].first_chunk().expect("12 bytes"));
        let second = KScales::unpack(b[4..].first_chunk().expect("12 bytes"));
        let halves = [a[0], a[1], a[2], a[3], b[0], b[1], b[2], b[3]];
        let halves = _mm512_castps128_ps512(_mm_cvtph_ps(_mm_cvtsi64_si128(i64::from_le_bytes(halves))));
        let scale = _mm512_mul_ps(widened(first.scales, second.scales), _mm512_permutexvar_ps(scale_of, halves));
        let minimum = _mm512_mul_ps(widened(first.minima, second.minima), _mm512_permutexvar_ps(minimum_of, halves));
        let (d, totals) = (floats_16(x.d), _mm512_cvtepi32_ps(words_16(x.totals)));
        sums = _mm512_fmadd_ps(_mm512_cvtepi32_ps(groups(dots)), _mm512_mul_ps(scale, d), sums);
        sums = _mm512_fnmadd_ps(minimum, _mm512_mul_ps(d, totals), sums);
    }
    [_mm512_reduce_add_ps(sums)]
}

/// Sixteen blocks of 32 values at a time, two in a register.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,f16c")]
pub(super) fn q8_0(weights: &[u8], [x]: [RoundedRow<'_>; 1]) -> [f32; 1] {
    // With the sign bit turned `q` becomes `q + 128`.
    let offset = _mm512_set1_epi8(-128);
    let mut sums = _mm512_setzero_ps();
    let (whole, rest) = weights.as_chunks::<34>().0.as_chunks::<SUMS>();
    let last;
    let rest = if rest.is_empty() {
        None
    } else {
        last = filled(rest);
        Some(&last)
    };
    for (blocks, x) in whole.iter().chain(rest).zip(Round::all(x)) {
        fetch_after(blocks.as_flattened());
        let mut dots = [_mm512_setzero_si512(); 8];
        for (c, dots) in dots.iter_mut().enumerate() {
            let low = _mm512_castsi256_si512(bytes_32(&blocks[2 * c][2..]));
            let q = _mm512_inserti64x4::<1>(low, bytes_32(&blocks[2 * c + 1][2..]));
            *dots = _mm512_dpbusd_epi32(*dots, _mm512_xor_si512(q, offset), bytes_64(&x.q[c]));
        }
        let mut d = [[0; 2]; SUMS];
        for (d, block) in d.iter_mut().zip(blocks) {
            *d = [block[0], block[1]];
        }
        let scale = _mm512_mul_ps(_mm512_cvtph_ps(bytes_32(d.as_flattened())), floats_16(x.d));
        let dots = _mm512_sub_epi32(groups(dots), _mm512_slli_epi32::<7>(words_16(x.totals)));
        sums = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dots), scale, sums);
    }
    [_mm512_reduce_add_ps(sums)]
}

/// A 16-bit float at byte `at`.
#[inline]
#[target_feature(enable = "avx512f,avx512vl,f16c")]
fn half_at(block: &[u8], at: usize) -> f32 {
    let bits = u16::from_le_bytes([block[at], block[at + 1]]);
    _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(i32::from(bits))))
}

/// Four groups of 16 values in a register, four lanes of sums for each.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,f16c")]
pub(super) fn q6_k<const R: usize>(weights: &[u8], x: [RoundedRow<'_>; R]) -> [f32; R] {
    let x = x.map(|x| (x.q.as_flattened().as_chunks::<256>().0, x.d.as_chunks::<8>().0));
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
            let d = _mm512_castps256_ps512(floats_8(&x[r].1[i]));
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
                let (x, zero) = (bytes_64(bytemuck::cast_slice(&x[r].0[i][64 * c..])), _mm512_setzero_si512());
                let dots = _mm512_sub_epi32(_mm512_dpbusd_epi32(zero, q, x), _mm512_dpbusd_epi32(zero, offset, x));
                let scale = _mm512_permutexvar_ps(lanes, scales[r]);
                sums[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dots), scale, sums[r]);
            }
        }
    }
    sums.map(|sum| _mm512_reduce_add_ps(sum))
}
