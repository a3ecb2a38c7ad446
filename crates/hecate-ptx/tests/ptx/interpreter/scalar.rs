//! Instructions that compute a register of a thread from its other registers.

use super::memory::Fault;

/// Relative error of approximations: what PTX's documentation allows them, so that a tolerance is met by any GPU.
const APPROXIMATION: f64 = 1.0 / (1 << 22) as f64;

/// Result of an instruction whose operands have these bits.
pub(crate) fn compute(name: &[String], a: &[u64]) -> Result<u64, Fault> {
    let words: Vec<&str> = name.iter().map(String::as_str).collect();
    let result = match words.as_slice() {
        ["mov" | "cvta", ..] => Some(a[0]),
        ["selp", _] => Some(if a[2] != 0 { a[0] } else { a[1] }),
        ["setp", how, ty] => compare(how, ty, a),
        ["and" | "or" | "xor" | "not", ..] => bits(words[0], a),
        ["shl", ty] => Some(cut(ty, a[0].checked_shl(a[1] as u32).unwrap_or(0))),
        ["shr", _] => Some(a[0].checked_shr(a[1] as u32).unwrap_or(0)),
        ["mul", "wide", "u32"] => Some(a[0] * a[1]),
        ["mad", "wide", "u32"] => Some((a[0] * a[1]).wrapping_add(a[2])),
        ["mad", "lo", ty] => Some(cut(ty, a[0].wrapping_mul(a[1]).wrapping_add(a[2]))),
        ["cvt", rest @ ..] => convert(rest, a[0]),
        ["ex2", "approx", "f32"] => {
            let exact = f64::from(f32::from_bits(a[0] as u32)).exp2();
            Some(u64::from(((exact * (1.0 + APPROXIMATION)) as f32).to_bits()))
        }
        [operation, .., "f32"] => single(operation, &words, a).map(|value| value.to_bits().into()),
        [operation, .., "f64"] => double(operation, &words, a).map(f64::to_bits),
        [operation, .., ty @ ("u32" | "u64")] => integer(operation, a).map(|value| cut(ty, value)),
        _ => None,
    };
    result.ok_or_else(|| format!("`{}` of {a:x?} is not defined", name.join(".")))
}

/// The bits that a type has.
fn cut(ty: &str, value: u64) -> u64 {
    if ty.ends_with("32") { value & 0xffff_ffff } else { value }
}

fn bits(name: &str, a: &[u64]) -> Option<u64> {
    Some(match name {
        "and" => a[0] & a[1],
        "or" => a[0] | a[1],
        "xor" => a[0] ^ a[1],
        _ => u64::from(a[0] == 0),
    })
}

fn integer(name: &str, a: &[u64]) -> Option<u64> {
    Some(match name {
        "add" => a[0].wrapping_add(a[1]),
        "sub" => a[0].wrapping_sub(a[1]),
        "mul" => a[0].wrapping_mul(a[1]),
        "div" => a[0].checked_div(a[1])?,
        "rem" => a[0].checked_rem(a[1])?,
        "min" => a[0].min(a[1]),
        "max" => a[0].max(a[1]),
        _ => return None,
    })
}

/// Arithmetic of one type of floats; a sum or a product must say how it is rounded.
macro_rules! floats {
    ($name:ident, $float:ty, $bits:ty) => {
        fn $name(name: &str, words: &[&str], a: &[u64]) -> Option<$float> {
            let value = |i: usize| <$float>::from_bits(a[i] as $bits);
            Some(match (name, words.len() == 3 && words[1] == "rn") {
                ("add", true) => value(0) + value(1),
                ("sub", true) => value(0) - value(1),
                ("mul", true) => value(0) * value(1),
                ("div", true) => value(0) / value(1),
                ("fma", true) => value(0).mul_add(value(1), value(2)),
                ("sqrt", true) => value(0).sqrt(),
                ("rcp", true) => 1.0 / value(0),
                ("neg", false) => -value(0),
                ("abs", false) => value(0).abs(),
                ("min", false) => value(0).min(value(1)),
                ("max", false) => value(0).max(value(1)),
                _ => return None,
            })
        }
    };
}
floats!(single, f32, u32);
floats!(double, f64, u64);

fn compare(how: &str, ty: &str, a: &[u64]) -> Option<u64> {
    use std::cmp::Ordering::{Equal, Greater, Less};
    let order = match ty {
        "f32" => f32::from_bits(a[0] as u32).partial_cmp(&f32::from_bits(a[1] as u32)),
        "f64" => f64::from_bits(a[0]).partial_cmp(&f64::from_bits(a[1])),
        "u32" | "u64" => Some(a[0].cmp(&a[1])),
        _ => return None,
    };
    let holds = match how {
        "lt" => order == Some(Less),
        "le" => matches!(order, Some(Less | Equal)),
        "gt" => order == Some(Greater),
        "ge" => matches!(order, Some(Greater | Equal)),
        "eq" => order == Some(Equal),
        "ne" => matches!(order, Some(Less | Greater)),
        "nan" => order.is_none(),
        _ => return None,
    };
    Some(holds.into())
}

fn convert(words: &[&str], a: u64) -> Option<u64> {
    let single = |bits: u64| f32::from_bits(bits as u32);
    Some(match words {
        ["u64", "u32"] | ["u32", "u16"] => a,
        ["rn", "f32", "u32"] => (a as f32).to_bits().into(),
        ["f32", "f16"] => half_to_f32(a as u16).to_bits().into(),
        ["rn", "f16", "f32"] => f32_to_half(single(a)).into(),
        ["rn", "bf16", "f32"] => f32_to_bf16(single(a)).into(),
        ["rni", "f32", "f32"] => single(a).round_ties_even().to_bits().into(),
        ["rni", "f64", "f64"] => f64::from_bits(a).round_ties_even().to_bits(),
        ["rmi", "f32", "f32"] => single(a).floor().to_bits().into(),
        ["rmi", "f64", "f64"] => f64::from_bits(a).floor().to_bits(),
        ["rzi", "u32", "f32"] => (single(a) as u32).into(),
        ["rzi", "u64", "f64"] => f64::from_bits(a) as u64,
        _ => return None,
    })
}

/// Bits of two numbers, rounded to 16 bits each, the second in the lower half.
pub(crate) fn convert_pair(ty: &str, high: u64, low: u64) -> u64 {
    let round = |bits: u64| {
        let value = f32::from_bits(bits as u32);
        u64::from(if ty == "f16x2" { f32_to_half(value) } else { f32_to_bf16(value) })
    };
    round(high) << 16 | round(low)
}

/// Value of a binary16.
pub(crate) fn half_to_f32(bits: u16) -> f32 {
    let (exponent, fraction) = (i32::from(bits >> 10 & 31), f32::from(bits & 1023));
    let size = match exponent {
        0 => fraction * 2f32.powi(-24),
        31 if fraction == 0.0 => f32::INFINITY,
        31 => f32::NAN,
        _ => (1024.0 + fraction) * 2f32.powi(exponent - 25),
    };
    if bits >> 15 == 1 { -size } else { size }
}

/// The nearest binary16, halves to the even one.
pub(crate) fn f32_to_half(value: f32) -> u16 {
    let sign = (value.to_bits() >> 16 & 0x8000) as u16;
    if value.is_nan() {
        return 0x7fff;
    }
    let size = value.abs();
    // Largest numbers of each exponent are whole multiples of that exponent's unit.
    let exponent = ((size.to_bits() >> 23) as i32 - 127).max(-14);
    let units = (f64::from(size) * 2f64.powi(10 - exponent)).round_ties_even();
    if size.is_infinite() || units * 2f64.powi(exponent - 10) >= 65536.0 {
        return sign | 0x7c00;
    }
    // A normal number has 1024 units and more, which carry into the exponent.
    sign | (((exponent + 14) as u16) << 10).wrapping_add(units as u16)
}

/// The nearest bfloat16, halves to the even one.
pub(crate) fn f32_to_bf16(value: f32) -> u16 {
    if value.is_nan() {
        return 0x7fff;
    }
    let bits = value.to_bits();
    ((bits + 0x7fff + (bits >> 16 & 1)) >> 16) as u16
}

#[test]
fn halves_are_rounded_to_the_nearest() {
    // Of a 16-bit number and its successor, everything below the middle goes down and above it up.
    for bits in 0..0x7bffu16 {
        let (low, high) = (half_to_f32(bits), half_to_f32(bits + 1));
        let middle = (low + high) / 2.0;
        assert_eq!(f32_to_half(low), bits);
        assert_eq!(f32_to_half(middle), bits + (bits & 1), "halves go to the even one");
        assert_eq!(f32_to_half(middle.next_down()), bits);
        assert_eq!(f32_to_half(middle.next_up()), bits + 1);
    }
    assert_eq!([f32_to_half(65519.0), f32_to_half(65520.0), f32_to_half(-f32::INFINITY)], [0x7bff, 0x7c00, 0xfc00]);
    assert!(half_to_f32(f32_to_half(f32::NAN)).is_nan());
}
