//! Drawing a token from scores, the same one on every device.
//!
//! Weights are whole numbers: sums of them do not depend on their order, and no device rounds them otherwise.

use super::{check_device, check_dtype, check_float, check_rank, check_shape, threefry::threefry};
use crate::{Checked, DType, Device, Error, Result, Tensor};

/// Token `i` belongs to lane `i mod LANES`. What is drawn goes through lanes one after another, each by ascending token.
pub const LANES: usize = 1024;

/// In the place of a token, where a score is NaN.
pub const UNDEFINED: u32 = u32::MAX;
/// In the place of a token, where a score is +∞ and none is NaN.
pub const TOO_LARGE: u32 = u32::MAX - 1;
/// In the place of a token, where all scores are −∞.
pub const NO_SCORE: u32 = u32::MAX - 2;

/// Most tokens of a vocabulary: weights have 31 bits, and their sum is to have 62.
const TOKENS: usize = 1 << 31;

/// Levels of a factor of 2.
const OCTAVE: f64 = (1u32 << 24) as f64;
/// Factors of 2 between the likeliest token and the last that has a weight.
const OCTAVES: f64 = 31.0;
/// Level of a token without weight.
const NEVER: u32 = u32::MAX;
/// Of `2⁻ᶠ`, `f` in `[0, 1)`, times `2³¹`: with alternating signs, from the constant on. The error is 3·10⁻⁷ of the value.
const POWERS: [u32; 6] = [0x8000_0000, 0x58b9_0472, 0x1ebe_c46d, 0x0715_0107, 0x012e_5362, 0x001f_1256];

/// How tokens are drawn from scores.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Draw {
    /// Scores are divided by it, finite and at least 0; 0 takes the likeliest token always.
    pub temperature: f32,
    /// Only this many of the likeliest tokens are kept; 0 keeps all.
    pub top_k: usize,
    /// Of these only the likeliest that together reach this probability, in `(0, 1]`.
    pub top_p: f32,
}

/// [`Draw`] in the numbers that kernels calculate with.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cut {
    /// Whether the likeliest token is taken.
    pub greedy: bool,
    /// From half the distance to the largest score to levels.
    pub scale: f32,
    /// Half the distance from which on tokens have no weight.
    pub limit: f32,
    /// Most tokens that are kept; 0 keeps all.
    pub top_k: u32,
    /// `2³²` times the probability that is kept; 0 keeps all.
    pub top_p: u32,
}

impl Cut {
    /// The numbers of these options and of a vocabulary.
    fn new(draw: &Draw, vocabulary: usize) -> Self {
        let greedy = draw.temperature == 0.0;
        // Halves: the difference of two finite numbers may be infinite. Colder than 10⁻¹⁹ is as cold as that.
        let scale = 2.0 * OCTAVE * std::f64::consts::LOG2_E / f64::from(draw.temperature).max(1e-19);
        let limit = (OCTAVES * OCTAVE / scale).min(f64::from(f32::MAX)) as f32;
        let top_k = if draw.top_k < vocabulary { draw.top_k as u32 } else { 0 };
        // A share that rounds to all keeps all but what no draw finds.
        let share = (f64::from(draw.top_p) * 2f64.powi(32)).ceil().min(f64::from(u32::MAX));
        let top_p = if draw.top_p < 1.0 { share as u32 } else { 0 };
        Self { greedy, scale: scale as f32, limit, top_k, top_p }
    }

    /// The token of scores `[V]` that a stream's next draw takes, or what stands in its place. This is the definition:
    /// kernels do the same.
    ///
    /// A round draws one of the tokens by weight. One that is not kept is the last of what the next round draws from, without
    /// itself: all that are kept come before it.
    pub fn draw(&self, scores: &[f32], stream: [u32; 3]) -> u32 {
        let top = match largest(scores) {
            Ok(top) => top,
            Err(instead) => return instead,
        };
        if self.greedy {
            return top as u32;
        }
        let half = 0.5 * scores[top];
        let levels = Levels(scores.iter().map(|&x| self.level(half - 0.5 * x)).collect());
        let wanted = if self.top_p == 0 { u64::MAX } else { share(levels.kept(self.top_k), self.top_p).max(1) };
        // All tokens with a weight.
        let (mut bound, mut total) = ((NEVER, 0), levels.ahead((NEVER, 0)).1);
        for round in 0.. {
            let [word, _] = threefry([stream[0], stream[1]], [stream[2], round]);
            bound = levels.find(bound, share(total, word));
            let (count, mass) = levels.ahead(bound);
            if (self.top_k == 0 || count < self.top_k) && mass < wanted {
                break;
            }
            total = mass;
        }
        bound.1
    }

    /// The level of a token by half its distance to the largest score.
    fn level(&self, distance: f32) -> u32 {
        if distance < self.limit { (distance * self.scale) as u32 } else { NEVER }
    }
}

/// The token with the largest score, the first of equals, or what stands in its place.
fn largest(scores: &[f32]) -> std::result::Result<usize, u32> {
    if scores.iter().any(|x| x.is_nan()) {
        return Err(UNDEFINED);
    }
    let likelier = |best: usize, i: usize| if scores[i].total_cmp(&scores[best]).is_gt() { i } else { best };
    let top = (1..scores.len()).fold(0, likelier);
    match scores.get(top) {
        Some(&f32::INFINITY) => Err(TOO_LARGE),
        None | Some(&f32::NEG_INFINITY) => Err(NO_SCORE),
        Some(_) => Ok(top),
    }
}

/// A part of a whole under `2⁶²`, rounded down; `part` counts parts of `2³²`.
fn share(whole: u64, part: u32) -> u64 {
    let part = u64::from(part);
    (whole >> 32) * part + (((whole & 0xffff_ffff) * part) >> 32)
}

/// `2³¹` at level 0, half of it an octave further.
fn weight(level: u32) -> u64 {
    if level == NEVER {
        return 0;
    }
    let fraction = u64::from(level << 8);
    let (last, rest) = POWERS.split_last().expect("a constant");
    let power = rest.iter().rev().fold(*last, |sum, power| power - ((fraction * u64::from(sum)) >> 32) as u32);
    u64::from(power >> (level >> 24))
}

/// Levels of all tokens. A token comes before another of a higher level, and before a later one of its own.
struct Levels(Vec<u32>);

impl Levels {
    /// Number and weight of the tokens before this one, given by level and number.
    fn ahead(&self, (level, token): (u32, u32)) -> (u32, u64) {
        let before = |&(i, x): &(u32, u32)| x < level || (x == level && x != NEVER && i < token);
        let tokens = (0..).zip(self.0.iter().copied()).filter(before);
        tokens.fold((0, 0), |(count, mass), (_, x)| (count + 1, mass + weight(x)))
    }

    /// The token before `bound` whose interval of the weights, lane by lane, holds `target`.
    fn find(&self, bound: (u32, u32), mut target: u64) -> (u32, u32) {
        let count = self.0.len();
        for i in (0..LANES.min(count)).flat_map(|lane| (lane..count).step_by(LANES)) {
            let own = (self.0[i], i as u32);
            if own.0 != NEVER && own < bound {
                let weight = weight(own.0);
                if target < weight {
                    return own;
                }
                target -= weight;
            }
        }
        unreachable!("a target is less than the sum of the weights")
    }

    /// The weight of the first `top_k` tokens; of all where that is 0.
    fn kept(&self, top_k: u32) -> u64 {
        let up_to = |level: u32| self.0.iter().filter(|x| **x <= level).count() as u32;
        let (mut low, mut high) = (0, NEVER - 1);
        if top_k == 0 || up_to(high) <= top_k {
            return self.ahead((NEVER, 0)).1;
        }
        // The level that the last of them has.
        while low < high {
            let middle = low + (high - low) / 2;
            if up_to(middle) < top_k { low = middle + 1 } else { high = middle }
        }
        self.ahead((low + 1, 0)).1 - u64::from(up_to(low) - top_k) * weight(low)
    }
}

/// Results of [`sample`].
#[derive(Clone, Debug)]
pub struct Sampled<T> {
    /// `[B]`.
    pub tokens: T,
    /// `[B,3]`: the streams, each one draw on.
    pub streams: T,
}

/// Drawing tokens.
pub trait Sample: Device {
    /// [`Cut::draw`] for each row of `scores [B,V]` with its row of `streams [B,3]`.
    ///
    /// # Errors
    /// Only what the caller could not foresee.
    fn sample(
        &self,
        checked: Checked<Self>,
        cut: &Cut,
        scores: &Tensor<Self>,
        streams: &Tensor<Self>,
    ) -> Result<Sampled<Tensor<Self>>>;
}

/// A token of each row of `scores [B,V]`, drawn by the softmax of what [`Draw`] keeps. All devices draw the same tokens from the
/// same scores. Among equals the lowest token comes first (top-p: Holtzman et al., "The Curious Case of Neural Text
/// Degeneration").
///
/// A row of `streams [B,3]` is a seed of two words, and the number of draws so far. A row whose scores allow no draw has
/// [`UNDEFINED`], [`TOO_LARGE`] or [`NO_SCORE`] in the place of its token.
///
/// # Errors
/// [`Error::Config`] for a temperature that is negative or not finite, or a probability outside `(0, 1]`; no scores, integers,
/// other than 32-bit words for streams, a vocabulary over 2³¹.
pub fn sample<D: Sample>(draw: &Draw, scores: &Tensor<D>, streams: &Tensor<D>) -> Result<Sampled<Tensor<D>>> {
    let what = "sample";
    draw.check()?;
    check_device(what, scores, &[("streams", streams)])?;
    check_float(what, "scores", scores)?;
    check_rank(what, "scores", scores, 2, "2 ([B,V])")?;
    check_dtype(what, "streams", streams, DType::U32)?;
    let [batch, vocabulary] = [0, 1].map(|axis| scores.shape().axes()[axis]);
    check_shape(what, "streams", streams, &[batch, 3].into())?;
    if vocabulary > TOKENS {
        let found = vocabulary.to_string();
        return Err(Error::Config { what, option: "vocabulary", found, expected: "at most 2^31 tokens" });
    }
    scores.device().sample(Checked::new(), &Cut::new(draw, vocabulary), scores, streams)
}

impl Draw {
    /// As [`sample`] for one row of scores `[V]` that lies on the host.
    ///
    /// # Errors
    /// As [`sample`].
    pub fn token(&self, scores: &[f32], stream: [u32; 3]) -> Result<u32> {
        self.check()?;
        Ok(Cut::new(self, scores.len()).draw(scores, stream))
    }

    /// Refuses options outside their ranges.
    ///
    /// # Errors
    /// [`Error::Config`] naming the option.
    pub fn check(&self) -> Result<()> {
        let refused = |option, found: f32, expected| {
            Err(Error::Config { what: "sample", option, found: found.to_string(), expected })
        };
        if !(self.temperature.is_finite() && self.temperature >= 0.0) {
            return refused("temperature", self.temperature, "a finite number of at least 0 (0: greedy)");
        }
        if !(self.top_p > 0.0 && self.top_p <= 1.0) {
            return refused("top-p", self.top_p, "above 0 and at most 1 (1: no limit)");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_are_powers_of_two() {
        for level in (0..31 << 24).step_by(9973) {
            let (found, expected) = (weight(level) as f64, 2f64.powi(31) * (-f64::from(level) / OCTAVE).exp2());
            // One unit is cut off.
            assert!((found - expected).abs() <= 4e-7 * expected + 1.0, "{level}: {found} for {expected}");
            assert!(weight(level + 1) <= weight(level), "{level}");
        }
        assert_eq!([0, 1 << 24, 31 << 24, NEVER].map(weight), [1 << 31, 1 << 30, 1, 0]);
    }

    #[test]
    fn shares_are_rounded_down() {
        for (whole, part) in [(0, 7), (1 << 61, u32::MAX), ((1 << 40) + 12345, 0x8000_0001), (9, 0xffff_ffff)] {
            assert_eq!(u128::from(share(whole, part)), (u128::from(whole) * u128::from(part)) >> 32);
        }
    }

    #[test]
    fn what_is_kept_is_counted_with_ties() {
        let levels = Levels(vec![5, 0, 5, 9, 5, NEVER]);
        let sum = |tokens: &[u32]| tokens.iter().map(|&x| weight(x)).sum::<u64>();
        assert_eq!(levels.kept(0), sum(&[0, 5, 5, 5, 9]));
        assert_eq!([1, 2, 3, 4, 5, 6].map(|k| levels.kept(k)), [1, 2, 3, 4, 5, 5].map(|k| sum(&[0, 5, 5, 5, 9][..k])));
        assert_eq!(levels.ahead((5, 4)), (3, sum(&[0, 5, 5])));
    }
}
