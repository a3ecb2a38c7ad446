//! Products of factors of 8 bits.
//!
//! Factors are whole numbers times a power of two, which both formats hold as they are: such a product is that of the
//! equations. What is rounded, and how, a product with the unit matrix shows element by element.

use super::{CaseResult, Output, PrimitiveCase, Slot};
use crate::Random;
use hecate_core::{
    DType, Result, Tensor,
    primitives::{self, Fp8, Fp8Factor, Primitives, Transpose},
};

/// The largest whole number of a factor.
///
/// Sums of 80 products of two such are exact in the 14 bits that matrix units add with.
const MOST: f64 = 7.0;

/// All four ways to store the factors and both mixtures of formats, in tiles that are filled and not.
pub fn fp8_matmul<B: Primitives>() -> Vec<PrimitiveCase<B>> {
    use Fp8::{E4M3, E5M2};
    let mut cases = Vec::new();
    // No device takes e5m2 on both sides.
    for (a, b) in [(false, false), (false, true), (true, false), (true, true)] {
        for formats in [[E4M3, E4M3], [E5M2, E4M3], [E4M3, E5M2]] {
            cases.push(product(Transpose { a, b }, formats, [48, 80, 32]));
        }
    }
    // The smallest product, and one of several tiles of 64.
    cases.extend([[16, 16, 16], [144, 16, 208]].map(|sizes| product(Transpose::default(), [E4M3; 2], sizes)));
    cases
}

/// `a [m,k]` times `b [k,n]`, either stored transposed.
fn product<B: Primitives>(transpose: Transpose, formats: [Fp8; 2], [m, k, n]: [usize; 3]) -> PrimitiveCase<B> {
    // Every size has numbers of its own.
    let random = &mut Random::new((m + n) as u64);
    let across = |rows, columns, turned| if turned { [columns, rows] } else { [rows, columns] };
    let (a, b) = (across(m, k, transpose.a), across(k, n, transpose.b));
    let mut factor = |name, shape: [usize; 2], unit: f64| {
        let mut x = random.normals(shape);
        // The largest is there for certain, so that the scale is known.
        x.values.iter_mut().for_each(|x| *x = (3.0 * *x).round().clamp(-MOST, MOST) * unit);
        x.values[0] = MOST * unit;
        Slot::tiles(name, x, (shape[0], shape[1]))
    };
    // Two units, so that scales which were mixed up would be seen.
    let slots = vec![factor("a", a, 0.5), factor("b", b, 0.125)];
    let y = random.normals([m, n]);
    PrimitiveCase {
        name: "fp8_matmul",
        options: format!("{m}x{k}x{n} {transpose:?} {formats:?}"),
        slots,
        outputs: vec![Output::new("y", y)],
        // Both factors are one matrix each, as they are stored.
        forward: Box::new(move |x| {
            let turned = |x: &crate::oracle::Var, turned| if turned { x.t() } else { x.clone() };
            vec![vec![turned(&x[0][0], transpose.a).dot(&turned(&x[1][0], transpose.b))]]
        }),
        device: Box::new(move |x, _| {
            let [a, b] = [0, 1].map(|i| Fp8Factor { x: &x[i], format: formats[i], scale: None, maximum: None });
            // With each way to store a matrix and each format.
            for (factor, turned) in [(a, transpose.a), (b, transpose.b)] {
                rounds(factor, turned)?;
            }
            Ok(CaseResult { outputs: vec![primitives::fp8_matmul(a, b, transpose)?], grads: vec![] })
        }),
    }
}

/// An array like this one is rounded as [`Fp8::round`] does, by the scale that is given or by its own, and its maximum is noted.
fn rounds<B: Primitives>(like: Fp8Factor<'_, B>, turned: bool) -> Result<()> {
    let Fp8Factor { x, format, .. } = like;
    let (device, shape) = (x.device(), x.shape().clone());
    // The axis that the product sums over.
    let inner = shape.axes()[usize::from(!turned)];
    let unit = (0..inner * inner).map(|i| f32::from(u8::from(i % (inner + 1) == 0))).collect();
    let unit = Tensor::from_f32(device, [inner, inner], unit)?;
    // Ones and zeros are rounded to themselves.
    let unit = Fp8Factor { x: &unit, format: Fp8::E4M3, scale: None, maximum: None };
    // Numbers of all sizes: what is too small, ties, what is saturated.
    let mut values: Vec<f32> = Random::new(5).normals(shape.clone()).values.iter().map(|&x| x as f32).collect();
    for (i, x) in values.iter_mut().enumerate() {
        *x = match i % 5 {
            0 => *x * 2f32.powi(i as i32 % 31 - 20),
            1 => (*x * 16.0).round() / 16.0,
            2 => *x * 1e5,
            3 => -*x * 40.0,
            _ => *x,
        };
    }
    // What a device has to find.
    let most = values.iter().fold(0.0, |most: f32, x| most.max(x.abs()));
    let scale = 2f32.powi(format.scale_exponent(most).expect("a finite number"));
    // Neighbours show whether the right element is read and raised.
    let (scales, maxima) =
        (Tensor::from_f32(device, [3], vec![0.5, 4.0, 2.0])?, Tensor::zeros(device, [3], DType::F32)?);
    let x = Tensor::from_f32(device, shape.clone(), values.clone())?;
    let transpose = Transpose { a: turned, b: false };
    for (given, scale) in [(Some((&scales, 1)), 4.0), (None, scale)] {
        // Of two calls with the same maximum, the second raises nothing.
        let factor = Fp8Factor { x: &x, format, scale: given, maximum: Some((&maxima, 2)) };
        let found = primitives::fp8_matmul(factor, unit, transpose)?.to_f32()?;
        // Compared one by one: an element of the result has a single term.
        let (rows, columns) = (shape.axes()[0], shape.axes()[1]);
        for (i, x) in values.iter().enumerate() {
            // Where the element stands in the product.
            let at = if turned { i % columns * rows + i / columns } else { i };
            let expected = format.round(x / scale) * scale;
            assert_eq!(found[at], expected, "{x} as {format:?} in scales of {scale} on {device:?}");
        }
        assert_eq!(maxima.to_f32()?, [0.0, 0.0, most], "the largest of {format:?} on {device:?}");
    }
    // Saturation does not hide what is no number.
    for bad in [f32::NAN, f32::INFINITY] {
        let mut values = values.clone();
        // In the first row of the factor, however it is stored.
        values[0] = bad;
        let x = Tensor::from_f32(device, shape.clone(), values)?;
        let factor = Fp8Factor { x: &x, format, scale: Some((&scales, 0)), maximum: Some((&maxima, 0)) };
        let found = primitives::fp8_matmul(factor, unit, transpose)?.to_f32()?;
        assert!(found[0].is_nan() && !maxima.to_f32()?[0].is_finite(), "{bad} as {format:?} on {device:?}");
        // A term that is no number is one of its own row's sums alone.
        let sound = found[inner..].iter().all(|x| x.is_finite());
        assert!(sound, "rows beside one with {bad} as {format:?} on {device:?}");
    }
    Ok(())
}
