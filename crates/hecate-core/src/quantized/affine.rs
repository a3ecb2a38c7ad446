//! `q4_k` and `q5_k`: eight groups of 32 values, each with a scale and a minimum of 6 bits.
//!
//! ```text
//! bytes 0, 2     d and d', 16-bit floats
//! bytes 4..16    s and m of the groups (KScales)
//! of q5_k        32 bytes: bit j of byte i is the fifth bit of value i of group j
//! then           128 bytes: byte 32 c + i has value i of group 2 c in its lower half, of group 2 c + 1 in its upper half
//! ```
//!
//! A value is `d s q − d' m`.

use super::{KScales, half_at, put_half, ratio, scales};

/// Values of a group.
const GROUP: usize = 32;
const GROUPS: usize = super::SUPER_BLOCK / GROUP;
/// Where what belongs to single values begins.
const HEADER: usize = 4 + scales::BYTES;

pub(super) const FOUR_BITS: usize = HEADER + super::SUPER_BLOCK / 2;
pub(super) const FIVE_BITS: usize = FOUR_BITS + GROUP;

/// Scales that are tried for a group beside the one that spans it, and how far they are apart, in levels.
const TRIES: usize = 20;
const APART: f32 = 0.1;

/// The largest scale or minimum of 6 bits.
const SIX_BITS: f32 = 63.0;

/// A group's `x ≈ scale q − minimum`; neither is negative.
#[derive(Clone, Copy, Debug, Default)]
struct Fit {
    scale: f32,
    minimum: f32,
}

pub(super) fn quantize<const BITS: u32>(x: &[f32], block: &mut [u8]) {
    let levels = ((1u32 << BITS) - 1) as f32;
    let mut fits = [Fit::default(); GROUPS];
    for (fit, x) in fits.iter_mut().zip(x.chunks_exact(GROUP)) {
        *fit = Fit::of(x, levels);
    }
    let most = |part: fn(&Fit) -> f32| fits.iter().map(part).fold(0.0, f32::max) / SIX_BITS;
    // Rounded first: what is made of them fits what will be read.
    let d = put_half(block, 0, most(|fit| fit.scale));
    let d_min = put_half(block, 2, most(|fit| fit.minimum));
    let mut packed = KScales { scales: [0; GROUPS], minima: [0; GROUPS] };
    for (j, x) in x.chunks_exact(GROUP).enumerate() {
        (packed.scales[j], packed.minima[j]) = fits[j].six_bits(x, levels, [d, d_min]);
    }
    block[4..HEADER].copy_from_slice(&packed.pack());
    let (high, low) = block[HEADER..].split_at_mut(if BITS == 5 { GROUP } else { 0 });
    high.fill(0);
    low.fill(0);
    for (j, x) in x.chunks_exact(GROUP).enumerate() {
        let (scale, minimum) = (d * f32::from(packed.scales[j]), d_min * f32::from(packed.minima[j]));
        for (i, x) in x.iter().enumerate() {
            let q = ratio(x + minimum, scale).round().clamp(0.0, levels) as u8;
            low[GROUP * (j / 2) + i] |= (q & 15) << (4 * (j % 2));
            if BITS == 5 {
                high[i] |= q >> 4 << j;
            }
        }
    }
}

pub(super) fn dequantize<const BITS: u32>(block: &[u8], values: &mut [f32]) {
    let (d, d_min) = (half_at(block, 0), half_at(block, 2));
    let packed: &[u8; scales::BYTES] = block[4..HEADER].first_chunk().expect("a header");
    let KScales { scales, minima } = KScales::unpack(packed);
    let (high, low) = block[HEADER..].split_at(if BITS == 5 { GROUP } else { 0 });
    for (j, values) in values.chunks_exact_mut(GROUP).enumerate() {
        let (scale, minimum) = (d * f32::from(scales[j]), d_min * f32::from(minima[j]));
        for (i, value) in values.iter_mut().enumerate() {
            let fifth = if BITS == 5 { (high[i] >> j & 1) << 4 } else { 0 };
            let q = low[GROUP * (j / 2) + i] >> (4 * (j % 2)) & 15 | fifth;
            *value = scale * f32::from(q) - minimum;
        }
    }
}

impl Fit {
    /// The one of several with the least sum of squared errors for the values of a group.
    fn of(x: &[f32], levels: f32) -> Self {
        let low = x.iter().fold(0.0f32, |low, &x| low.min(x));
        let high = x.iter().fold(low, |high, &x| high.max(x));
        let span = high - low;
        if span <= 0.0 {
            return Self { scale: 0.0, minimum: -low };
        }
        let spanned = Self { scale: span / levels, minimum: -low };
        let mut best = (spanned.error(x, levels), spanned);
        for i in 0..=TRIES {
            // From one level fewer to one more: a little of the range may be given up for finer steps.
            let inverse = (levels - 1.0 + APART * i as f32) / span;
            let fit = Self::least_squares(x, |x| (inverse * (x - low)).round().clamp(0.0, levels));
            let error = fit.error(x, levels);
            if error < best.0 {
                best = (error, fit);
            }
        }
        best.1
    }

    /// The scale and minimum of 6 bits, of those next to the fit's, with the least error.
    fn six_bits(&self, x: &[f32], levels: f32, [d, d_min]: [f32; 2]) -> (u8, u8) {
        let near = |x: f32, d: f32| {
            let nearest = ratio(x, d).round();
            [0.0, -1.0, 1.0].map(|step| (nearest + step).clamp(0.0, SIX_BITS))
        };
        let mut best = (f32::INFINITY, (0, 0));
        for (scale, minimum) in near(self.scale, d).into_iter().flat_map(|s| near(self.minimum, d_min).map(|m| (s, m)))
        {
            let error = Self { scale: d * scale, minimum: d_min * minimum }.error(x, levels);
            if error < best.0 {
                best = (error, (scale as u8, minimum as u8));
            }
        }
        best.1
    }

    /// Scale and minimum with the least error for given whole numbers.
    fn least_squares(x: &[f32], q: impl Fn(f32) -> f32) -> Self {
        let count = x.len() as f32;
        // Sums of q, q², x and q x.
        let [mut sum_q, mut sum_qq, mut sum_x, mut sum_qx] = [0.0f32; 4];
        for &x in x {
            let q = q(x);
            sum_q += q;
            sum_qq += q * q;
            sum_x += x;
            sum_qx += q * x;
        }
        let determinant = count * sum_qq - sum_q * sum_q;
        let minimum = ratio(sum_q * sum_qx - sum_qq * sum_x, determinant);
        // A minimum is subtracted and has no sign: no group begins above 0.
        if minimum < 0.0 {
            return Self { scale: ratio(sum_qx, sum_qq).max(0.0), minimum: 0.0 };
        }
        Self { scale: ratio(count * sum_qx - sum_q * sum_x, determinant).max(0.0), minimum }
    }

    /// The sum of squared errors, every value taking its nearest level.
    fn error(&self, x: &[f32], levels: f32) -> f32 {
        let Self { scale, minimum } = *self;
        let of = |&x: &f32| {
            let q = ratio(x + minimum, scale).round().clamp(0.0, levels);
            (scale * q - minimum - x).powi(2)
        };
        x.iter().map(of).sum()
    }
}
