//! Rotary positions (Su et al., "RoFormer", eq 34), in the half-split order of Hugging Face models.

use super::{check_float, check_like, check_rank, check_shape};
use crate::{Checked, DType, Device, Error, Result, Sequences, Tensor};

/// Sizes and angles of a rotation.
#[derive(Clone, Debug, PartialEq)]
pub struct RotaryDims {
    /// How the rows split into sequences.
    pub sequences: Sequences,
    /// Position of the first token of each sequence, `[N]`.
    pub offsets: Vec<usize>,
    /// `H`.
    pub heads: usize,
    /// `d`, even.
    pub width: usize,
    /// Base of the geometric row of frequencies.
    pub base: f32,
    /// 1 to rotate forward, −1 to rotate back.
    pub sign: f32,
}

/// First position that there is not: 64-bit floats know all whole numbers below.
const POSITIONS: u64 = 1 << 53;

/// Rotation of pairs by angles that grow with the position.
pub trait Rotary: Device {
    /// For each token at position `p` and each `i < d/2`, with `φ = sign · p · base^{−2i/d}`, turns the pair
    /// `(x[i], x[i + d/2])` by `φ`. Angles are reduced in 64 bits.
    ///
    /// # Errors
    /// Only what the caller could not foresee.
    fn rotary(&self, checked: Checked<Self>, dims: &RotaryDims, x: &Tensor<Self>) -> Result<Tensor<Self>>;

    /// As [`Rotary::rotary`], every sequence further on by its element of `positions [N]`, 32-bit integers. Waits for the
    /// device where it has no kernel of its own for this.
    ///
    /// # Errors
    /// The device's own failures.
    fn rotary_from(
        &self,
        checked: Checked<Self>,
        dims: &RotaryDims,
        x: &Tensor<Self>,
        positions: &Tensor<Self>,
    ) -> Result<Tensor<Self>> {
        let further = positions.to_u32()?;
        let offsets = dims.offsets.iter().zip(further).map(|(offset, further)| offset + further as usize).collect();
        self.rotary(checked, &RotaryDims { offsets, ..dims.clone() }, x)
    }

    /// `positions [N]`, 32-bit integers, each greater by `tokens` modulo 2³². Waits as [`Rotary::rotary_from`] does.
    ///
    /// # Errors
    /// The device's own failures.
    fn advance(&self, _: Checked<Self>, positions: &Tensor<Self>, tokens: u32) -> Result<Tensor<Self>> {
        let further = positions.to_u32()?.into_iter().map(|position| position.wrapping_add(tokens)).collect();
        Tensor::from_u32(self, positions.shape().clone(), further)
    }
}

/// `x [B,T,H,d]` turned by its positions; the first token of sequence `n` stands at `offsets[n]`.
///
/// # Errors
/// Odd `d`, not one offset a sequence, positions of 2⁵³ and above, shapes that do not fit, integers.
pub fn rotary<D: Rotary>(x: &Tensor<D>, sequences: &Sequences, offsets: &[usize], base: f32) -> Result<Tensor<D>> {
    let dims = check(x, sequences, offsets, base)?;
    x.device().rotary(Checked::new(), &dims, x)
}

/// As [`rotary`], where the device counts: the first token of sequence `n` stands at `positions[n]`, 32-bit integers `[N]`.
/// So steps are the same work wherever in a text they are.
///
/// # Errors
/// As [`rotary`], and `positions` of another shape, type or device.
pub fn rotary_from<D: Rotary>(
    x: &Tensor<D>,
    sequences: &Sequences,
    positions: &Tensor<D>,
    base: f32,
) -> Result<Tensor<D>> {
    let dims = check(x, sequences, &vec![0; sequences.count()], base)?;
    check_positions("rotary", x.device(), positions, sequences.count())?;
    x.device().rotary_from(Checked::new(), &dims, x, positions)
}

/// Where sequences stand after `tokens` more: `positions [N]` are those of [`rotary_from`].
///
/// # Errors
/// `positions` of another rank or type; the device's own failures.
pub fn advance<D: Rotary>(positions: &Tensor<D>, tokens: u32) -> Result<Tensor<D>> {
    let device = positions.device();
    check_positions("advance", device, positions, positions.shape().count())?;
    device.advance(Checked::new(), positions, tokens)
}

/// Refuses what is not one 32-bit integer for each of `count` sequences.
fn check_positions<D: Device>(what: &'static str, device: &D, positions: &Tensor<D>, count: usize) -> Result<()> {
    let slot = "positions";
    positions.check_device(device, what, slot)?;
    check_shape(what, slot, positions, &[count].into())?;
    match positions.dtype() {
        DType::U32 => Ok(()),
        found => Err(Error::DType { what, slot, expected: "u32", found }),
    }
}

/// Gradient of [`rotary`]: the rotation back.
///
/// # Errors
/// As [`rotary`].
pub fn rotary_backward<D: Rotary>(
    dy: &Tensor<D>,
    sequences: &Sequences,
    offsets: &[usize],
    base: f32,
) -> Result<Tensor<D>> {
    let dims = RotaryDims { sign: -1.0, ..check(dy, sequences, offsets, base)? };
    let dx = dy.device().rotary(Checked::new(), &dims, dy)?;
    check_like("rotary", "dx", &dx, dy)?;
    Ok(dx)
}

fn check<D: Device>(x: &Tensor<D>, sequences: &Sequences, offsets: &[usize], base: f32) -> Result<RotaryDims> {
    let what = "rotary";
    check_float(what, "x", x)?;
    check_rank(what, "x", x, 4, "4 ([B,T,H,d])")?;
    sequences.check(what, "x", x.shape())?;
    let (heads, width) = (x.shape().axes()[2], x.shape().last());
    let fail = |option, found: String, expected| Err(Error::Config { what, option, found, expected });
    if width % 2 != 0 {
        return fail("width", width.to_string(), "an even head width");
    }
    if offsets.len() != sequences.count() {
        return fail("offsets", offsets.len().to_string(), "one offset per sequence");
    }
    let past = |(rows, &offset): (std::ops::Range<usize>, &usize)| offset.saturating_add(rows.len()) as u64 > POSITIONS;
    if let Some(n) = sequences.ranges().zip(offsets).position(past) {
        let found = format!("{} for sequence {n}", offsets[n]);
        return fail("offsets", found, "positions under 2^53");
    }
    if !(base.is_finite() && base > 0.0) {
        return fail("base", base.to_string(), "a finite number over 0");
    }
    Ok(RotaryDims { sequences: sequences.clone(), offsets: offsets.to_vec(), heads, width, base, sign: 1.0 })
}
