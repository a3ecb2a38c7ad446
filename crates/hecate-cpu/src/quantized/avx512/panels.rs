//! Products of sixteen rows of weights with eight of `x`: a lane of registers for each row of weights.
//!
//! Groups of the sixteen rows are unpacked once for all rows of `x`, four values of each row side by side. One instruction
//! multiplies them all by four values of a row of `x`. Sums have the order of one row's product, so bits are the same.

use super::{bytes_32, bytes_64, floats_16, put_bytes, put_floats};
use crate::{
    Cpu,
    quantized::rounded::{GROUP, Rounded, SUMS},
};
use hecate_core::{Result, memory::zeros, quantized::KScales};
use rayon::prelude::*;
use std::arch::x86_64::*;

/// Rows of weights of a panel.
pub(in crate::quantized) const PANEL: usize = 16;

/// Rows of `x` that registers have sums of.
const TILE: usize = 8;

/// Four values are multiplied at once, eight times a group.
const QUADS: usize = GROUP / 4;

/// A group of 32 values of each row of weights.
#[derive(Clone, Copy, bytemuck::Zeroable)]
#[repr(C)]
pub(in crate::quantized) struct WeightGroup {
    /// `[8, rows, 4]`, without signs.
    quads: [[u8; 4 * PANEL]; QUADS],
    scales: [f32; PANEL],
    minima: [f32; PANEL],
}

/// The same of rows of `x`.
#[derive(Clone, Copy, bytemuck::Zeroable)]
#[repr(C)]
pub(in crate::quantized) struct Group {
    /// `[8, rows]`, four values each.
    quads: [[i32; TILE]; QUADS],
    d: [f32; TILE],
    /// `d Σ q`: what a minimum is multiplied by.
    sums: [f32; TILE],
    /// Where whole sums begin: at what the offset of weights adds, taken off.
    starts: [i32; TILE],
}

/// Where group `t` of `groups`, whole rounds of sums, lies: those of a sum lie together.
fn place(t: usize, groups: usize) -> usize {
    t % SUMS * (groups / SUMS) + t / SUMS
}

/// A format's panels.
#[derive(Clone, Copy)]
pub(in crate::quantized) struct Panels {
    /// What is added to values of weights, so that they have no signs.
    pub(super) offset: i32,
    /// Unpacks sixteen rows.
    pub(super) unpack: fn(&[&[u8]; PANEL], &mut [WeightGroup]),
    /// Multiplies them by eight rows of `x`: `[eight, sixteen]`.
    pub(super) products: fn(&[WeightGroup], &[Group]) -> [[f32; PANEL]; TILE],
}

impl Panels {
    /// Eight rows of `x` side by side, and the next eight: `[⌈n/8⌉, groups]`; rows that are missing are zeros.
    pub(in crate::quantized) fn tiles(&self, device: &Cpu, x: &Rounded) -> Result<Vec<Group>> {
        let (n, groups) = (x.rows(), x.groups());
        let mut tiles = zeros::<Group>("quantized_matmul", n.div_ceil(TILE) * groups)?;
        let work = |(i, tile): (usize, &mut [Group])| {
            for (r, row) in (i * TILE..n.min((i + 1) * TILE)).map(|row| x.row(row)).enumerate() {
                for t in 0..groups {
                    let group = &mut tile[place(t, groups)];
                    let quads = bytemuck::cast_slice::<i8, [i8; 4]>(&row.q[t]);
                    group.quads.iter_mut().zip(quads).for_each(|(to, &quad)| to[r] = bytemuck::cast(quad));
                    (group.d[r], group.sums[r]) = (row.d[t], row.d[t] * row.totals[t] as f32);
                    group.starts[r] = -self.offset * row.totals[t];
                }
            }
        };
        device.run(|| tiles.par_chunks_mut(groups).enumerate().for_each(work));
        Ok(tiles)
    }

    /// `out [rows,n]`, of some rows of weights and all `n` of `x`.
    pub(in crate::quantized) fn multiply(
        &self,
        weights: &[u8],
        tiles: &[Group],
        n: usize,
        out: &mut [f32],
    ) -> Result<()> {
        let (groups, size) = (tiles.len() / n.div_ceil(TILE), weights.len() * n / out.len());
        let mut panel = zeros::<WeightGroup>("quantized_matmul", groups)?;
        for (weights, out) in weights.chunks(PANEL * size).zip(out.chunks_mut(PANEL * n)) {
            // Rows that are missing are copies of the first, whose products go nowhere.
            let row = |r: usize| weights.chunks_exact(size).nth(r).unwrap_or(&weights[..size]);
            (self.unpack)(&std::array::from_fn(row), &mut panel);
            for (i, tile) in tiles.chunks_exact(groups).enumerate() {
                let products = (self.products)(&panel, tile);
                for (r, out) in out.chunks_exact_mut(n).enumerate() {
                    out[i * TILE..].iter_mut().zip(&products).for_each(|(out, products)| *out = products[r]);
                }
            }
        }
        Ok(())
    }
}

/// Sums of 32 bits of each row, one after another, and then over the sixteen as one row's product adds up lanes.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,f16c")]
pub(super) fn products<const MINIMA: bool>(weights: &[WeightGroup], x: &[Group]) -> [[f32; PANEL]; TILE] {
    let mut parts = [[_mm512_setzero_ps(); TILE]; SUMS];
    let each = weights.len() / SUMS;
    for (part, (weights, x)) in parts.iter_mut().zip(weights.chunks_exact(each).zip(x.chunks_exact(each))) {
        let mut sums = [_mm512_setzero_ps(); TILE];
        for (weights, x) in weights.iter().zip(x) {
            let mut dots = x.starts.map(|start| _mm512_set1_epi32(start));
            for (weights, x) in weights.quads.iter().zip(&x.quads) {
                let q = bytes_64(weights);
                for r in 0..TILE {
                    dots[r] = _mm512_dpbusd_epi32(dots[r], q, _mm512_set1_epi32(x[r]));
                }
            }
            let (scale, minimum) = (floats_16(&weights.scales), floats_16(&weights.minima));
            for r in 0..TILE {
                let scale = _mm512_mul_ps(scale, _mm512_set1_ps(x.d[r]));
                sums[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dots[r]), scale, sums[r]);
                if MINIMA {
                    sums[r] = _mm512_fnmadd_ps(minimum, _mm512_set1_ps(x.sums[r]), sums[r]);
                }
            }
        }
        *part = sums;
    }
    for half in [8, 4, 2, 1] {
        let (first, last) = parts.split_at_mut(half);
        for (first, last) in first.iter_mut().zip(last) {
            for (sum, last) in first.iter_mut().zip(last) {
                *sum = _mm512_add_ps(*sum, *last);
            }
        }
    }
    let mut out = [[0.0; PANEL]; TILE];
    out.iter_mut().zip(parts[0]).for_each(|(out, sums)| put_floats(out, sums));
    out
}

/// 32 bytes of each of sixteen rows, from byte `at` on, as registers of four bytes of each.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
fn turned(rows: &[&[u8]; PANEL], at: usize) -> [__m512i; QUADS] {
    let mut words = [_mm512_setzero_si512(); QUADS];
    for first in [0, 4] {
        // Rows `k` and `k + 4` side by side, of the first eight and of the last.
        let mut pairs = [_mm512_setzero_si512(); 4];
        for (k, pair) in (2 * first..).zip(&mut pairs) {
            let low = _mm512_castsi256_si512(bytes_32(&rows[k][at..]));
            *pair = _mm512_inserti64x4::<1>(low, bytes_32(&rows[k + 4][at..]));
        }
        let [a, b, c, d] = pairs;
        let (low, high) = (_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
        let (next_low, next_high) = (_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
        // Each has words `w` and `w + 4` of four rows, and of the next four.
        words[first] = _mm512_unpacklo_epi64(low, next_low);
        words[first + 1] = _mm512_unpackhi_epi64(low, next_low);
        words[first + 2] = _mm512_unpacklo_epi64(high, next_high);
        words[first + 3] = _mm512_unpackhi_epi64(high, next_high);
    }
    let mut out = words;
    for w in 0..4 {
        out[w] = _mm512_shuffle_i64x2::<0b10_00_10_00>(words[w], words[w + 4]);
        out[w + 4] = _mm512_shuffle_i64x2::<0b11_01_11_01>(words[w], words[w + 4]);
    }
    out
}

/// The 16-bit float at byte `at` of each row.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,f16c")]
fn halves(rows: &[&[u8]; PANEL], at: usize) -> __m512 {
    let mut halves = [[0; 2]; PANEL];
    for (half, row) in halves.iter_mut().zip(rows) {
        *half = [row[at], row[at + 1]];
    }
    _mm512_cvtph_ps(bytes_32(halves.as_flattened()))
}

/// Byte `j` of each row's eight as floats.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
fn bytes_of(rows: &[[u8; 8]; PANEL], j: usize) -> __m512 {
    let (shift, rows) = (_mm_cvtsi64_si128(8 * j as i64), rows.as_flattened());
    let low = _mm512_srl_epi64(bytes_64(rows), shift);
    let high = _mm512_srl_epi64(bytes_64(&rows[64..]), shift);
    let words = _mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
    let bytes = _mm512_and_si512(_mm512_permutex2var_epi32(low, words, high), _mm512_set1_epi32(255));
    _mm512_cvtepi32_ps(bytes)
}

/// `q4_k` with `BYTES` of 144, `q5_k` with 176.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,f16c")]
pub(super) fn affine<const BYTES: usize>(rows: &[&[u8]; PANEL], panel: &mut [WeightGroup]) {
    let (groups, fifth) = (panel.len(), BYTES > 144);
    let (four_bits, one_bit) = (_mm512_set1_epi8(15), _mm512_set1_epi8(1));
    for i in 0..rows[0].len() / BYTES {
        let at = i * BYTES;
        let (mut scales, mut minima) = ([[0; 8]; PANEL], [[0; 8]; PANEL]);
        for (row, (scales, minima)) in rows.iter().zip(scales.iter_mut().zip(&mut minima)) {
            let packed = KScales::unpack(row[at + 4..].first_chunk().expect("12 bytes"));
            (*scales, *minima) = (packed.scales, packed.minima);
        }
        let (d, least) = (halves(rows, at), halves(rows, at + 2));
        let high = if fifth { turned(rows, at + 16) } else { [_mm512_setzero_si512(); QUADS] };
        for c in 0..4 {
            let both = turned(rows, at + BYTES - 128 + 32 * c);
            for j in [2 * c, 2 * c + 1] {
                let group = &mut panel[place(8 * i + j, groups)];
                put_floats(&mut group.scales, _mm512_mul_ps(bytes_of(&scales, j), d));
                put_floats(&mut group.minima, _mm512_mul_ps(bytes_of(&minima, j), least));
                // The second group is in the upper halves of bytes.
                let shift = _mm_cvtsi32_si128(4 * (j % 2) as i32);
                for (w, to) in group.quads.iter_mut().enumerate() {
                    let mut q = _mm512_and_si512(_mm512_srl_epi16(both[w], shift), four_bits);
                    if fifth {
                        let bits = _mm512_and_si512(_mm512_srl_epi16(high[w], _mm_cvtsi32_si128(j as i32)), one_bit);
                        q = _mm512_or_si512(q, _mm512_slli_epi16::<4>(bits));
                    }
                    put_bytes(to, q);
                }
            }
        }
    }
}

/// With the sign bit turned `q` becomes `q + 128`.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,f16c")]
pub(super) fn q8_0(rows: &[&[u8]; PANEL], panel: &mut [WeightGroup]) {
    let groups = panel.len();
    for t in 0..rows[0].len() / 34 {
        let group = &mut panel[place(t, groups)];
        put_floats(&mut group.scales, halves(rows, 34 * t));
        for (to, q) in group.quads.iter_mut().zip(turned(rows, 34 * t + 2)) {
            put_bytes(to, _mm512_xor_si512(q, _mm512_set1_epi8(-128)));
        }
    }
}
