//! Products of whole numbers with AVX2: 32 products of 8 bits, added two by two and then four by four.
//!
//! The instruction takes one operand without signs. It gets the magnitudes of weights, and `x` with the signs of both.
//! `x` is never −128, so its sign can be turned; two products are at most `2 · 128 · 127`, which 16 bits hold.
//! Sums of 32 bits are taken in the order of the portable kernels, without fused products: bits are the same.

use super::{Dots, Kernels, RoundedRow, Several, TOGETHER, call, loads, rounded::GROUP};
use hecate_core::quantized::{BlockFormat, KScales};
use std::arch::x86_64::*;

/// Groups that meet their scales at once: those of a block of 256 values, or eight blocks of 32.
const ROUND: usize = 8;

/// Those of a format; none where the processor lacks something.
pub(super) fn kernels(format: BlockFormat) -> Option<Kernels> {
    let there = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("f16c");
    there.then_some(match format {
        BlockFormat::Q8_0 => of(call!(q8_0<1>(weights, x)), call!(q8_0<TOGETHER>(weights, x))),
        BlockFormat::Q6K => of(call!(q6_k<1>(weights, x)), call!(q6_k<TOGETHER>(weights, x))),
        BlockFormat::Q5K => of(call!(q5_k<1>(weights, x)), call!(q5_k<TOGETHER>(weights, x))),
        BlockFormat::Q4K => of(call!(q4_k<1>(weights, x)), call!(q4_k<TOGETHER>(weights, x))),
    })
}

fn of(one: Dots<1>, several: Dots<TOGETHER>) -> Kernels {
    Kernels { one, several: Several::Rows(several) }
}

/// Eight groups of 32 values: whole numbers with a sign, a scale for each half of a group, and what is subtracted.
struct Round {
    q: [__m256i; ROUND],
    scales: [__m256; 2],
    minima: __m256,
}

loads! {
    "avx2";
    bytes_32 __m256i, u8, 32, _mm256_loadu_si256;
    numbers __m256i, i8, 32, _mm256_loadu_si256;
    bytes_16 __m128i, u8, 16, _mm_loadu_si128;
    floats __m256, f32, 8, _mm256_loadu_ps;
    words __m256i, i32, 8, _mm256_loadu_si256;
}

/// Eight floats as an array.
#[inline]
#[target_feature(enable = "avx2")]
fn elements(from: __m256) -> [f32; ROUND] {
    let mut to = [0.0; ROUND];
    // SAFETY: there are as many elements as are written, and they need no alignment.
    #[expect(unsafe_code, reason = "stores take pointers")]
    unsafe {
        _mm256_storeu_ps(to.as_mut_ptr(), from);
    }
    to
}

/// The products of 32 values, four by four: the lower half of the register has those of the lower half of the group.
#[inline]
#[target_feature(enable = "avx2")]
fn dot(q: __m256i, x: __m256i) -> __m256i {
    // Sixteen sums of two products in 16 bits; a weight of −128 has the magnitude 128 without a sign.
    let pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(q), _mm256_sign_epi8(x, q));
    _mm256_madd_epi16(pairs, _mm256_set1_epi16(1))
}

/// Sums of the lower halves of eight groups, and of the upper ones.
#[inline]
#[target_feature(enable = "avx2")]
fn halves(dots: [__m256i; ROUND]) -> [__m256; 2] {
    let [a, b, c, d, e, f, g, h] = dots;
    // Sums of neighbours stay within halves of a register, as the halves of groups have to.
    let first = _mm256_hadd_epi32(_mm256_hadd_epi32(a, b), _mm256_hadd_epi32(c, d));
    let last = _mm256_hadd_epi32(_mm256_hadd_epi32(e, f), _mm256_hadd_epi32(g, h));
    [
        // Both lower halves, then both upper ones: groups in order.
        _mm256_cvtepi32_ps(_mm256_permute2x128_si256::<0x20>(first, last)),
        _mm256_cvtepi32_ps(_mm256_permute2x128_si256::<0x31>(first, last)),
    ]
}

/// Adds the products of a round with round `i` of each row of `x`.
#[inline]
#[target_feature(enable = "avx2")]
fn add<const R: usize>(sums: &mut [f32; R], round: &Round, x: &[RoundedRow<'_>; R], i: usize) {
    // Weights stay unpacked in registers for all rows of `x`.
    for (sum, x) in sums.iter_mut().zip(x) {
        // Eight registers of eight sums each; none depends on another.
        let mut dots = [_mm256_setzero_si256(); ROUND];
        for (dots, (q, x)) in dots.iter_mut().zip(round.q.iter().zip(&x.q[ROUND * i..])) {
            *dots = dot(*q, numbers(x));
        }
        // Whole sums meet their scales here, eight groups at a time.
        let [low, high] = halves(dots);
        let (d, totals) = (floats(&x.d[ROUND * i..]), _mm256_cvtepi32_ps(words(&x.totals[ROUND * i..])));
        // Products are rounded before they are added: plain loops have no fused ones.
        let both = _mm256_add_ps(_mm256_mul_ps(round.scales[0], low), _mm256_mul_ps(round.scales[1], high));
        // Where a format has no minima this takes off zeros.
        let least = _mm256_mul_ps(round.minima, _mm256_mul_ps(d, totals));
        // One after another, as the portable kernels do.
        elements(_mm256_sub_ps(_mm256_mul_ps(d, both), least)).iter().for_each(|term| *sum += term);
    }
}

/// Eight whole numbers without signs as floats.
#[inline]
#[target_feature(enable = "avx2")]
fn widened(bytes: [u8; ROUND]) -> __m256 {
    _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_cvtsi64_si128(i64::from_le_bytes(bytes))))
}

/// The 16-bit float at byte `at`, eight times.
#[inline]
#[target_feature(enable = "avx2,f16c")]
fn half_at(block: &[u8], at: usize) -> __m256 {
    // Every half is a whole number of bits, so this conversion is exact.
    let bits = i32::from(u16::from_le_bytes([block[at], block[at + 1]]));
    _mm256_broadcastss_ps(_mm_cvtph_ps(_mm_cvtsi32_si128(bits)))
}

/// Eight blocks of 32 values at a time; those that are missing are zeros.
#[target_feature(enable = "avx2,f16c")]
fn q8_0<const R: usize>(weights: &[u8], x: [RoundedRow<'_>; R]) -> [f32; R] {
    let mut sums = [0.0; R];
    for (i, blocks) in weights.as_chunks::<34>().0.chunks(ROUND).enumerate() {
        // A block is a group: its scale, then 32 numbers with signs.
        let (mut q, mut d) = ([_mm256_setzero_si256(); ROUND], [[0; 2]; ROUND]);
        for ((q, d), block) in q.iter_mut().zip(&mut d).zip(blocks) {
            *q = bytes_32(&block[2..]);
            *d = [block[0], block[1]];
        }
        // One scale for both halves of a group.
        let scale = _mm256_cvtph_ps(bytes_16(d.as_flattened()));
        add(&mut sums, &Round { q, scales: [scale; 2], minima: _mm256_setzero_ps() }, &x, i);
    }
    sums
}

/// Four bits of a value in one place, two in another, and a scale for 16 values.
#[target_feature(enable = "avx2,f16c")]
fn q6_k<const R: usize>(weights: &[u8], x: [RoundedRow<'_>; R]) -> [f32; R] {
    let (four_bits, two_bits, offset) = (_mm256_set1_epi8(15), _mm256_set1_epi8(3), _mm256_set1_epi8(32));
    // A sum for each row of `x`.
    let mut sums = [0.0; R];
    for (i, block) in weights.as_chunks::<210>().0.iter().enumerate() {
        let mut q = [_mm256_setzero_si256(); ROUND];
        for (j, q) in q.iter_mut().enumerate() {
            // Which bits of which bytes a group's values have: `Q6K` of the portable kernels says it number by number.
            let (half, quarter) = (j / 4, j % 4);
            let lower = bytes_32(&block[64 * half + GROUP * (quarter % 2)..]);
            let upper = bytes_32(&block[128 + 32 * half..]);
            // Shifts go over 16 bits; the mask after them drops what came from the neighbour.
            let lower = _mm256_srl_epi16(lower, _mm_cvtsi32_si128(4 * (quarter / 2) as i32));
            let upper = _mm256_srl_epi16(upper, _mm_cvtsi32_si128(2 * quarter as i32));
            // Two bits above four, and 32 off.
            let upper = _mm256_slli_epi16::<4>(_mm256_and_si256(upper, two_bits));
            *q = _mm256_sub_epi8(_mm256_or_si256(_mm256_and_si256(lower, four_bits), upper), offset);
        }
        // Scales of both halves of a group lie side by side.
        let bytes = bytes_16(&block[192..]);
        let pick = |odd: i8| {
            _mm_set_epi8(
                -1,
                -1,
                -1,
                -1,
                -1,
                -1,
                -1,
                -1,
                14 + odd,
                12 + odd,
                10 + odd,
                8 + odd,
                6 + odd,
                4 + odd,
                2 + odd,
                odd,
            )
        };
        // Scales have signs and 8 bits; even ones are of lower halves.
        let d = half_at(block, 208);
        let scales = [pick(0), pick(1)].map(|order| _mm_shuffle_epi8(bytes, order));
        let scales = scales.map(|scales| _mm256_mul_ps(d, _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(scales))));
        add(&mut sums, &Round { q, scales, minima: _mm256_setzero_ps() }, &x, i);
    }
    sums
}

/// 32 bytes of fifth bits, then 128 of the lower four.
#[target_feature(enable = "avx2,f16c")]
fn q5_k<const R: usize>(weights: &[u8], x: [RoundedRow<'_>; R]) -> [f32; R] {
    affine::<176, R>(weights, x)
}

/// 128 bytes of four bits.
#[target_feature(enable = "avx2,f16c")]
fn q4_k<const R: usize>(weights: &[u8], x: [RoundedRow<'_>; R]) -> [f32; R] {
    affine::<144, R>(weights, x)
}

/// `q4_k` with `BYTES` of 144, `q5_k` with 176: a fifth bit of each value in a place of its own.
#[inline]
#[target_feature(enable = "avx2,f16c")]
fn affine<const BYTES: usize, const R: usize>(weights: &[u8], x: [RoundedRow<'_>; R]) -> [f32; R] {
    let (four_bits, one_bit) = (_mm256_set1_epi8(15), _mm256_set1_epi8(1));
    let mut sums = [0.0; R];
    for (i, block) in weights.as_chunks::<BYTES>().0.iter().enumerate() {
        let mut q = [_mm256_setzero_si256(); ROUND];
        for (j, q) in q.iter_mut().enumerate() {
            // The second group of two is in the upper halves of bytes.
            let both = bytes_32(&block[BYTES - 128 + GROUP * (j / 2)..]);
            *q = _mm256_and_si256(_mm256_srl_epi16(both, _mm_cvtsi32_si128(4 * (j % 2) as i32)), four_bits);
            // Bit `j` of a byte belongs to group `j`.
            if BYTES > 144 {
                let fifth = _mm256_srl_epi16(bytes_32(&block[16..]), _mm_cvtsi32_si128(j as i32));
                *q = _mm256_or_si256(*q, _mm256_slli_epi16::<4>(_mm256_and_si256(fifth, one_bit)));
            }
        }
        // Eight scales and minima of 6 bits in 12 bytes.
        let packed = KScales::unpack(block[4..].first_chunk().expect("12 bytes"));
        // Both factors of a block are 16-bit floats, before its scales.
        let scale = _mm256_mul_ps(half_at(block, 0), widened(packed.scales));
        let minima = _mm256_mul_ps(half_at(block, 2), widened(packed.minima));
        add(&mut sums, &Round { q, scales: [scale; 2], minima }, &x, i);
    }
    sums
}
