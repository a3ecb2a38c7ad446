//! Products of factors that are rounded to 8-bit floats, for the matrix units that have them.
//!
//! Source: Micikevicius and others, "FP8 Formats for Deep Learning". An array is divided by a *scale*, a power of two, rounded
//! and saturated; the product is multiplied by both scales again, which is exact.

use super::{MatmulDims, Transpose, check_device, check_dtype, check_float, check_rank, check_shape, check_size};
use crate::{Checked, DType, Device, Error, Result, Shape, Tensor};

/// A float of 8 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fp8 {
    /// 4 bits of exponent, 3 of mantissa, no infinity: `2⁻⁹` to 448. For activations and weights.
    E4M3,
    /// 5 bits of exponent, 2 of mantissa: `2⁻¹⁶` to 57,344. For gradients.
    E5M2,
}

impl Fp8 {
    /// Both.
    pub const ALL: [Self; 2] = [Self::E4M3, Self::E5M2];

    /// The largest number: `1.75 · 2⁸` or `1.75 · 2¹⁵`.
    pub const fn largest(self) -> f32 {
        match self {
            Self::E4M3 => 448.0,
            Self::E5M2 => 57_344.0,
        }
    }

    /// Bits of the mantissa, and the exponent of the smallest normal number.
    const fn layout(self) -> (i32, i32) {
        match self {
            Self::E4M3 => (3, -6),
            Self::E5M2 => (2, -14),
        }
    }

    /// The nearest number of the format, the even one of two. What is larger becomes the largest. NaN stays, and an infinity
    /// becomes NaN.
    pub fn round(self, x: f32) -> f32 {
        if !x.is_finite() {
            return f32::NAN;
        }
        let (mantissa, least) = self.layout();
        // Neighbours are this far apart where `x` is; below the normal numbers, as far as among the least of these.
        let apart = 2f32.powi(exponent(x).max(least) - mantissa);
        ((x / apart).round_ties_even() * apart).clamp(-self.largest(), self.largest())
    }

    /// The exponent of the smallest scale that brings `maximum` into range. None for an array of zeros, or of no numbers.
    pub fn scale_exponent(self, maximum: f32) -> Option<i32> {
        if maximum == 0.0 || !maximum.is_finite() {
            return None;
        }
        // Both formats end at 1.75 times a power of two.
        let top = exponent(self.largest());
        let over = maximum.abs() > self.largest() * 2f32.powi(exponent(maximum) - top);
        Some((exponent(maximum) - top + i32::from(over)).clamp(-126, 126))
    }
}

/// Of the leading bit; that of the smallest normal number for smaller ones.
fn exponent(x: f32) -> i32 {
    ((x.to_bits() >> 23 & 0xff) as i32 - 127).max(-126)
}

/// A matrix that is rounded to 8 bits on its way into a product.
#[derive(Debug)]
pub struct Fp8Factor<'a, D: Device> {
    /// Floats.
    pub x: &'a Tensor<D>,
    /// What they are rounded to.
    pub format: Fp8,
    /// Where the scale stands in an array `[n]` of powers of two, 32 bits. Without one it is the smallest that brings the
    /// largest element into range, for which the matrix is read once more.
    pub scale: Option<(&'a Tensor<D>, usize)>,
    /// An element of an array `[n]`, 32 bits, that is raised in place to the largest magnitude in `x`, NaN where there is one.
    pub maximum: Option<(&'a Tensor<D>, usize)>,
}

impl<D: Device> Clone for Fp8Factor<'_, D> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<D: Device> Copy for Fp8Factor<'_, D> {}

/// Products of 8-bit factors.
///
/// A device without units for them has these methods as they stand here.
pub trait Fp8Matmul: Device {
    /// Whether the device has such products.
    ///
    /// # Errors
    /// [`Error::Unsupported`] naming what is missing.
    fn check_fp8(&self) -> Result<()> {
        Err(unsupported::<Self>())
    }

    /// `out = a' b'`, `[m, n]` in the type of `a`, `'` as [`Transpose`] says. Sums have more bits than factors do, about as many
    /// as 16-bit floats or more.
    ///
    /// # Errors
    /// [`Error::Unsupported`], as [`Fp8Matmul::check_fp8`].
    fn fp8_matmul(
        &self,
        _: Checked<Self>,
        _dims: MatmulDims,
        _factors: [Fp8Factor<'_, Self>; 2],
    ) -> Result<Tensor<Self>> {
        Err(unsupported::<Self>())
    }
}

fn unsupported<D: Device>() -> Error {
    let why = "it has no units for them; GPUs of compute capability 8.9 or more do, elsewhere multiply bf16".into();
    Error::Unsupported { backend: D::NAME, what: "products of 8-bit floats", why }
}

/// Sizes of these products are multiples of it.
pub const FP8_ALIGNED: usize = 16;

/// `a [m, k] × b [k, n] = [m, n]`, either stored transposed, of factors that are rounded to 8 bits. All sizes are multiples
/// of [`FP8_ALIGNED`]; one factor at least is [`Fp8::E4M3`]. A NaN or infinity in a row of `a'` or a column of `b'` makes that of
/// the result NaN.
///
/// # Errors
/// Ranks other than 2, unequal inner lengths, other sizes, mixed or integer types, two factors of [`Fp8::E5M2`], scales or maxima
/// that are not there. [`Error::Unsupported`] on a device without such products.
pub fn fp8_matmul<D: Fp8Matmul>(a: Fp8Factor<'_, D>, b: Fp8Factor<'_, D>, transpose: Transpose) -> Result<Tensor<D>> {
    let what = "fp8_matmul";
    for (slot, factor) in [("a", &a), ("b", &b)] {
        check_device(what, a.x, &[(slot, factor.x)])?;
        check_rank(what, slot, factor.x, 2, "2")?;
        check_float(what, slot, factor.x)?;
        check_element(a.x, "scales", factor.scale)?;
        check_element(a.x, "maxima", factor.maximum)?;
    }
    check_dtype(what, "b", b.x, a.x.dtype())?;
    let across = |x: &Tensor<D>, transposed: bool| {
        let (first, second) = (x.shape().axes()[0], x.shape().axes()[1]);
        if transposed { (second, first) } else { (first, second) }
    };
    let ((rows, inner), (_, columns)) = (across(a.x, transpose.a), across(b.x, transpose.b));
    let expected = if transpose.b { [columns, inner] } else { [inner, columns] };
    check_shape(what, "b", b.x, &expected.into())?;
    for (option, size) in [("rows", rows), ("inner length", inner), ("columns", columns)] {
        if !size.is_multiple_of(FP8_ALIGNED) {
            let (found, expected) = (size.to_string(), "a multiple of 16, or a product of bf16");
            return Err(Error::Config { what, option, found, expected });
        }
    }
    if [a.format, b.format] == [Fp8::E5M2; 2] {
        let (found, expected) = ("e5m2 on both sides".into(), "e4m3 on one side at least");
        return Err(Error::Config { what, option: "format", found, expected });
    }
    check_size(what, &Shape::from([rows, columns]), a.x.dtype())?;
    a.x.device().fp8_matmul(Checked::new(), MatmulDims { batch: 1, rows, inner, columns, transpose }, [a, b])
}

/// Refuses an element of an array that does not have it.
fn check_element<D: Device>(
    beside: &Tensor<D>,
    slot: &'static str,
    element: Option<(&Tensor<D>, usize)>,
) -> Result<()> {
    let what = "fp8_matmul";
    let Some((array, index)) = element else { return Ok(()) };
    check_device(what, beside, &[(slot, array)])?;
    check_rank(what, slot, array, 1, "1")?;
    check_dtype(what, slot, array, DType::F32)?;
    if index < array.shape().count() {
        return Ok(());
    }
    let (found, expected) = (format!("element {index} of {}", array.shape()), "an element that is there");
    Err(Error::Config { what, option: slot, found, expected })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All numbers of a format, from its bits.
    fn numbers(format: Fp8) -> Vec<f32> {
        let (mantissa, least) = format.layout();
        let number = |bits: i32| {
            let (exponent, rest) = (bits >> mantissa, bits & ((1 << mantissa) - 1));
            match exponent {
                0 => rest as f32 * 2f32.powi(least - mantissa),
                _ => (rest + (1 << mantissa)) as f32 * 2f32.powi(least - mantissa + exponent - 1),
            }
        };
        (0..128).map(number).filter(|&x| x <= format.largest()).collect()
    }

    #[test]
    fn rounding_finds_the_nearest_number() {
        for format in Fp8::ALL {
            let numbers = numbers(format);
            assert_eq!(numbers.last(), Some(&format.largest()));
            for pair in numbers.windows(2) {
                let [low, high] = [pair[0], pair[1]];
                let middle = (low + high) / 2.0;
                // The even one of two has an even place in the list.
                let even = if numbers.iter().position(|x| *x == low).expect("a number") % 2 == 0 { low } else { high };
                let next = f32::from_bits(middle.to_bits() + 1);
                let before = f32::from_bits(middle.to_bits() - 1);
                for (x, y) in [(low, low), (high, high), (middle, even), (next, high), (before, low)] {
                    assert_eq!(format.round(x), y, "{x} as {format:?}");
                    assert_eq!(format.round(-x), -y, "−{x} as {format:?}");
                }
            }
            assert_eq!(format.round(f32::MAX), format.largest());
            assert!([f32::NAN, f32::INFINITY, f32::NEG_INFINITY].iter().all(|&x| format.round(x).is_nan()));
        }
    }

    #[test]
    fn a_scale_is_the_smallest_that_fits() {
        for format in Fp8::ALL {
            for maximum in [1e-30, 0.7, 1.0, 1.75, 1.750_001, 448.0, 449.0, 57_344.0, 57_345.0, 3e38] {
                let scale = 2f32.powi(format.scale_exponent(maximum).expect("a scale"));
                assert!(maximum / scale <= format.largest() && maximum / scale * 2.0 > format.largest(), "{maximum}");
            }
            assert!([0.0, f32::NAN, f32::INFINITY].iter().all(|&x| format.scale_exponent(x).is_none()));
        }
    }
}
