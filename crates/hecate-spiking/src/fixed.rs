//! Arithmetic that gives the same bits on every device: sums in fixed point, and few roundings between sums and floats.
//!
//! What reaches a neuron in a burst is summed in 64 bits, of which 16 are behind the point. Sums of integers do not depend
//! on their order, so neither threads nor devices show in the result. Potentials are 32-bit floats.

/// Bits of a sum behind the point.
pub const FRACTION: u32 = 16;

/// Most that staged potentials of one burst, or the power amount, may count: 2⁴⁴. A sum then stays below 2⁶³: synapses, of
/// which there are at most [`SYNAPSES`], give at most 2⁶² of it, and these three 2⁶⁰ each.
pub const STAGED: f64 = (1u64 << 44) as f64;

/// Most synapses of a network: 2³⁰.
pub const SYNAPSES: usize = 1 << 30;

/// What a synapse adds, without its sign: `weight · potential / divisor`, where half of the last bit rounds up.
///
/// The product is at most 65,025 · 2¹⁶ and fits 32 bits, so that devices divide 32 bits by 32 bits.
pub(crate) fn contribution(weight: u8, potential: u8, divisor: u32) -> i64 {
    let product = (u32::from(weight) * u32::from(potential)) << FRACTION;
    if divisor <= 1 {
        return product.into();
    }
    let (quotient, rest) = (product / divisor, product % divisor);
    // Twice the rest may not fit.
    i64::from(quotient) + i64::from(rest >= divisor - rest)
}

/// A sum as a float, rounded half to even.
pub(crate) fn to_float(sum: i64) -> f32 {
    // The conversion rounds once; a power of two is exact, since the least sum is far above the least float.
    sum as f32 * (1.0 / (1u32 << FRACTION) as f32)
}

/// A finite potential as a part of a sum, rounded half to even. Its size is at most [`STAGED`].
pub(crate) fn to_fixed(potential: f32) -> i64 {
    // 24 bits times a power of two are exact in 64.
    (f64::from(potential) * f64::from(1u32 << FRACTION)).round_ties_even() as i64
}

/// The potential that a membrane-driven synapse passes on: rounded half to even into 0 to 255.
pub(crate) fn delivered(potential: f32) -> u8 {
    potential.clamp(0.0, 255.0).round_ties_even() as u8
}

/// Zero in the place of what lies below 2⁻¹²⁶, with its sign: devices differ in what they do there.
pub(crate) fn flushed(x: f32) -> f32 {
    if x.is_subnormal() { 0f32.copysign(x) } else { x }
}

/// From this excitability on a neuron always fires.
const CERTAIN: f32 = 0.999;

/// How many of the 2³² words let a neuron of this excitability fire: a word fires if it is less.
///
/// It is the least word `x` whose `f32(x) / 2³²` is at least `excitability`. So no device has to round a word to a float.
pub(crate) fn chance(excitability: f32) -> u64 {
    if excitability >= CERTAIN {
        return 1 << 32;
    }
    let fails = |word: u32| word as f32 / 2f32.powi(32) >= excitability;
    // Words that fail begin at `high`, those that fire end before `low`.
    let (mut low, mut high) = (0, u32::MAX);
    while low < high {
        let middle = low + (high - low) / 2;
        if fails(middle) { high = middle } else { low = middle + 1 }
    }
    low.into()
}

/// The word that decides whether a neuron fires in a burst.
pub(crate) fn word(neuron: u32, burst: u64) -> u32 {
    // The generator counts bursts modulo 2³².
    pcg(neuron.wrapping_mul(2_654_435_761).wrapping_add((burst as u32).wrapping_mul(1_597_334_677)))
}

/// PCG's permutation of 32 bits (RXS-M-XS).
fn pcg(x: u32) -> u32 {
    let state = x.wrapping_mul(747_796_405).wrapping_add(2_891_336_453);
    let mixed = ((state >> ((state >> 28) + 4)) ^ state).wrapping_mul(277_803_737);
    (mixed >> 22) ^ mixed
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A contribution is the nearest multiple of 2⁻¹⁶, and of two the larger.
    #[test]
    fn contributions_round_half_away_from_zero() {
        assert_eq!(contribution(255, 255, 1), 65025 << 16);
        assert_eq!(contribution(255, 255, 0), 65025 << 16);
        for divisor in [2u32, 3, 5, 7, 11, 1 << 17, 1 << 18, 65_537, u32::MAX] {
            for (weight, potential) in [(0, 9), (1, 1), (1, 3), (7, 255), (255, 254), (255, 255)] {
                let exact = (u64::from(weight) * u64::from(potential)) << 16;
                let expected = (2 * exact + u64::from(divisor)) / (2 * u64::from(divisor));
                assert_eq!(contribution(weight, potential, divisor) as u64, expected, "{weight} {potential} {divisor}");
            }
        }
        // 2¹⁶ / 2¹⁷ is half of the last bit, 3 · 2¹⁶ / 2¹⁷ one and a half.
        assert_eq!([contribution(1, 1, 1 << 17), contribution(1, 3, 1 << 17)], [1, 2]);
    }

    /// Halves between two floats go to the even one, of both signs.
    #[test]
    fn sums_round_half_to_even() {
        let one = 1i64 << 16;
        assert_eq!(to_float(3 * one / 2), 1.5);
        // 2²⁴ + 1 lies between two floats, as does 2²⁴ + 3.
        let large = 1i64 << 24;
        assert_eq!(to_float((large + 1) * one), 16_777_216.0);
        assert_eq!(to_float((large + 3) * one), 16_777_220.0);
        assert_eq!(to_float(-(large + 1) * one), -16_777_216.0);
        assert_eq!(to_float(1), 2f32.powi(-16));
        assert_eq!(to_float(0).to_bits(), 0);
    }

    #[test]
    fn potentials_round_half_to_even() {
        assert_eq!(to_fixed(1.0), 1 << 16);
        assert_eq!([0.5, 1.5, 2.5, -0.5, -1.5].map(|last| to_fixed(last / 65536.0)), [0, 2, 2, 0, -2]);
        assert_eq!(to_fixed(STAGED as f32), 1 << 60);
        assert_eq!([-3.0, 0.5, 1.5, 254.5, 300.0].map(delivered), [0, 0, 2, 254, 255]);
    }

    #[test]
    fn what_is_tiny_is_zero_with_its_sign() {
        let least = f32::MIN_POSITIVE;
        assert_eq!(
            [least, -least, 1.0, -0.0].map(|x| flushed(x).to_bits()),
            [least, -least, 1.0, -0.0].map(f32::to_bits)
        );
        assert_eq!([least / 2.0, -least / 2.0].map(|x| flushed(x).to_bits()), [0, 1 << 31]);
    }

    /// The count of words says the same as the comparison of floats, on both sides of the border.
    #[test]
    fn chances_are_those_of_the_comparison() {
        for excitability in [0.0, 1e-30, 1e-10, 0.1, 0.3, 0.5, 0.7, 0.998, 0.998_999_95] {
            let words = chance(excitability);
            let fires = |word: u64| (word as u32 as f32 / 2f32.powi(32)) < excitability;
            assert!(words == 0 || fires(words - 1), "{excitability}: {words}");
            assert!(words == 1 << 32 || !fires(words), "{excitability}: {words}");
        }
        // Words near the largest round up to 2³², so that they fail for every excitability below the certain one.
        assert_eq!([0.0, 0.999, 1.0].map(chance), [0, 1 << 32, 1 << 32]);
    }

    /// Values that the published generator gives.
    #[test]
    fn words_are_those_of_the_generator() {
        assert_eq!([pcg(0), pcg(1), pcg(u32::MAX)], PCG);
        assert_eq!(word(3, 5), pcg(3u32.wrapping_mul(2_654_435_761).wrapping_add(5u32.wrapping_mul(1_597_334_677))));
        assert_eq!(word(3, 5), word(3, 5 + (1 << 32)));
    }
    const PCG: [u32; 3] = [129_708_002, 2_831_084_092, 3_861_530_882];
}
