//! Instructions that compute a register of a thread from its other registers.

/// Relative error of approximations: what PTX's documentation allows them, so that a tolerance is met by any GPU.
const APPROXIMATION: f64 = 1.0 / (1 << 22) as f64;

/// What an instruction computes from the bits of its operands.
pub(crate) type Compute = fn(&[u64]) -> u64;

/// The instruction of this name, if it computes a register from registers.
pub(crate) fn decode(name: &[&str]) -> Option<Compute> {
    Some(match name {
        ["mov" | "cvta", ..] => |a| a[0],
        ["selp", _] => |a| if a[2] != 0 { a[0] } else { a[1] },
        ["setp", how, ty] => return compare(how, ty),
        ["and", ..] => |a| a[0] & a[1],
        ["or", ..] => |a| a[0] | a[1],
        ["xor", ..] => |a| a[0] ^ a[1],
        ["not", "pred"] => |a| u64::from(a[0] == 0),
        // All bits are moved out by 32 and 64 places and more.
        ["shl", "b32"] => |a| low(a[0].checked_shl(a[1] as u32).unwrap_or(0)),
        ["shl", "b64"] => |a| a[0].checked_shl(a[1] as u32).unwrap_or(0),
        ["shr", "u32" | "u64"] => |a| a[0].checked_shr(a[1] as u32).unwrap_or(0),
        ["mul", "wide", "u32"] => |a| a[0] * a[1],
        ["mad", "wide", "u32"] => |a| (a[0] * a[1]).wrapping_add(a[2]),
        ["mul", "lo", "u32"] => |a| low(a[0].wrapping_mul(a[1])),
        ["mul", "lo", "u64"] => |a| a[0].wrapping_mul(a[1]),
        ["mad", "lo", "u32"] => |a| low(a[0].wrapping_mul(a[1]).wrapping_add(a[2])),
        ["mad", "lo", "u64"] => |a| a[0].wrapping_mul(a[1]).wrapping_add(a[2]),
        ["cvt", rest @ ..] => return convert(rest),
        ["ex2", "approx", "f32"] => |a| {
            let exact = f64::from(f32::from_bits(a[0] as u32)).exp2();
            u64::from(((exact * (1.0 + APPROXIMATION)) as f32).to_bits())
        },
        [operation, rounding @ .., "f32"] => return single(operation, rounding),
        [operation, rounding @ .., "f64"] => return double(operation, rounding),
        [operation, "u32"] => return integer(operation, true),
        [operation, "u64"] => return integer(operation, false),
        _ => return None,
    })
}

/// The lower half of a word.
fn low(value: u64) -> u64 {
    value & 0xffff_ffff
}

fn integer(name: &str, is_short: bool) -> Option<Compute> {
    Some(match (name, is_short) {
        ("add", true) => |a| low(a[0].wrapping_add(a[1])),
        ("add", false) => |a| a[0].wrapping_add(a[1]),
        ("sub", true) => |a| low(a[0].wrapping_sub(a[1])),
        ("sub", false) => |a| a[0].wrapping_sub(a[1]),
        ("div", _) => |a| a[0] / a[1],
        ("rem", _) => |a| a[0] % a[1],
        ("min", _) => |a| a[0].min(a[1]),
        ("max", _) => |a| a[0].max(a[1]),
        _ => return None,
    })
}

/// Arithmetic of one type of floats; a sum or a product must say how it is rounded.
macro_rules! floats {
    ($name:ident, $float:ident, $bits:ty) => {
        fn $name(name: &str, rounding: &[&str]) -> Option<Compute> {
            fn value(bits: u64) -> $float {
                $float::from_bits(bits as $bits)
            }
            Some(match (name, rounding) {
                ("add", ["rn"]) => |a| (value(a[0]) + value(a[1])).to_bits().into(),
                ("sub", ["rn"]) => |a| (value(a[0]) - value(a[1])).to_bits().into(),
                ("mul", ["rn"]) => |a| (value(a[0]) * value(a[1])).to_bits().into(),
                ("div", ["rn"]) => |a| (value(a[0]) / value(a[1])).to_bits().into(),
                ("fma", ["rn"]) => |a| value(a[0]).mul_add(value(a[1]), value(a[2])).to_bits().into(),
                ("sqrt", ["rn"]) => |a| value(a[0]).sqrt().to_bits().into(),
                ("rcp", ["rn"]) => |a| (1.0 / value(a[0])).to_bits().into(),
                ("neg", []) => |a| (-value(a[0])).to_bits().into(),
                ("abs", []) => |a| value(a[0]).abs().to_bits().into(),
                // A negative zero is smaller than a positive one.
                ("min", []) => |a| {
                    let [x, y] = [value(a[0]), value(a[1])];
                    let smaller = if x != y {
                        x.min(y)
                    } else if x.is_sign_negative() {
                        x
                    } else {
                        y
                    };
                    smaller.to_bits().into()
                },
                ("max", []) => |a| {
                    let [x, y] = [value(a[0]), value(a[1])];
                    let larger = if x != y {
                        x.max(y)
                    } else if x.is_sign_positive() {
                        x
                    } else {
                        y
                    };
                    larger.to_bits().into()
                },
                _ => return None,
            })
        }
    };
}
floats!(single, f32, u32);
floats!(double, f64, u64);

/// Comparisons of one type. A comparison with NaN is false, but `nan`.
macro_rules! comparisons {
    ($how:ident, $value:expr) => {
        match $how {
            "lt" => |a| ($value(a[0]) < $value(a[1])).into(),
            "le" => |a| ($value(a[0]) <= $value(a[1])).into(),
            "gt" => |a| ($value(a[0]) > $value(a[1])).into(),
            "ge" => |a| ($value(a[0]) >= $value(a[1])).into(),
            "eq" => |a| ($value(a[0]) == $value(a[1])).into(),
            "ne" => |a| ($value(a[0]) < $value(a[1]) || $value(a[0]) > $value(a[1])).into(),
            "nan" => |a| $value(a[0]).partial_cmp(&$value(a[1])).is_none().into(),
            _ => return None,
        }
    };
}

fn compare(how: &str, ty: &str) -> Option<Compute> {
    Some(match ty {
        "f32" => comparisons!(how, |bits: u64| f32::from_bits(bits as u32)),
        "f64" => comparisons!(how, f64::from_bits),
        "u32" | "u64" => comparisons!(how, u64::from),
        _ => return None,
    })
}

fn convert(words: &[&str]) -> Option<Compute> {
    fn value(bits: u64) -> f32 {
        f32::from_bits(bits as u32)
    }
    Some(match words {
        ["u64", "u32"] | ["u32", "u16"] => |a| a[0],
        ["rn", "f32", "u32"] => |a| (a[0] as f32).to_bits().into(),
        ["f32", "f16"] => |a| half_to_f32(a[0] as u16).to_bits().into(),
        ["rn", "f16", "f32"] => |a| f32_to_half(value(a[0])).into(),
        ["rn", "bf16", "f32"] => |a| f32_to_bf16(value(a[0])).into(),
        // Both halves in one register, the upper one first.
        ["rn", "f16x2", "f32"] => |a| u64::from(f32_to_half(value(a[0]))) << 16 | u64::from(f32_to_half(value(a[1]))),
        ["rn", "bf16x2", "f32"] => |a| u64::from(f32_to_bf16(value(a[0]))) << 16 | u64::from(f32_to_bf16(value(a[1]))),
        ["rni", "f32", "f32"] => |a| value(a[0]).round_ties_even().to_bits().into(),
        ["rni", "f64", "f64"] => |a| f64::from_bits(a[0]).round_ties_even().to_bits(),
        ["rmi", "f32", "f32"] => |a| value(a[0]).floor().to_bits().into(),
        ["rmi", "f64", "f64"] => |a| f64::from_bits(a[0]).floor().to_bits(),
        ["rzi", "u32", "f32"] => |a| (value(a[0]) as u32).into(),
        ["rzi", "u64", "f64"] => |a| f64::from_bits(a[0]) as u64,
        _ => return None,
    })
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
