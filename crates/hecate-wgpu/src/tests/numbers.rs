//! Conversions bit by bit, and functions at the ends of their ranges.
//!
//! What drivers may do as they like is not asked for: subnormal results, and the bits of a NaN.

use super::open;
use hecate_core::{
    DType, Host, Tensor, bf16, f16,
    primitives::{Map, cast, map},
};

/// Every half is widened to what it is.
#[test]
fn halves_are_widened_exactly() {
    let Some(device) = open() else { return };
    let all = 0..=u16::MAX;
    let halves = [Host::F16(all.clone().map(f16::from_bits).collect()), Host::Bf16(all.map(bf16::from_bits).collect())];
    for host in halves {
        let x = Tensor::upload(&device, [1 << 16], host.clone()).expect("an array");
        let found = cast(DType::F32, &x).and_then(|x| x.to_f32()).expect("values");
        for (i, (found, truth)) in found.iter().zip(host.into_f32()).enumerate() {
            let same = found.to_bits() == truth.to_bits() || (found.is_nan() && truth.is_nan());
            assert!(same, "{i:#x}: {found}, not {truth}");
        }
    }
}

/// Floats are rounded to the nearest half, of two the even one.
#[test]
fn floats_are_rounded_to_the_nearest_half() {
    let Some(device) = open() else { return };
    // Around every 16th half of either kind: itself, the middle to the next, and what is beside the middle.
    let f16s = (0..=u16::MAX).step_by(16).flat_map(|bits| {
        let x = f16::from_bits(bits).to_f32().to_bits();
        [x, x.wrapping_add(0x1000), x.wrapping_add(0xfff), x.wrapping_add(0x1001)]
    });
    let bf16s = (0..=u16::MAX).step_by(16).flat_map(|bits| {
        let x = u32::from(bits) << 16;
        [x, x + 0x8000, x + 0x7fff, x + 0x8001]
    });
    // A driver may take those for zero.
    let subnormal = |bits: &u32| (bits & 0x7fff_ffff) < 0x0080_0000;
    let values: Vec<f32> = f16s.chain(bf16s).filter(|bits| !subnormal(bits)).map(f32::from_bits).collect();
    let x = Tensor::from_f32(&device, [values.len()], values.clone()).expect("an array");
    // The truth is the crate `half`, by way of core.
    for dtype in [DType::F16, DType::Bf16] {
        let found = cast(dtype, &x).and_then(|x| x.download()).expect("values").into_f32();
        let truth = Host::from_f32(dtype, values.clone()).into_f32();
        for ((found, truth), x) in found.iter().zip(truth).zip(&values) {
            let same = found.to_bits() == truth.to_bits() || (found.is_nan() && truth.is_nan());
            assert!(same, "{x:e} ({:#x}) as {dtype}: {found:e}, not {truth:e}", x.to_bits());
        }
    }
}

/// Maps at numbers too large for a naive formula, at infinities and at NaN.
#[test]
fn maps_hold_at_the_ends() {
    let Some(device) = open() else { return };
    // Where `e⁻ˣ` overflows 32 bits, where it underflows, and where `1 + e⁻ˣ` is 1.
    let at = [f32::NEG_INFINITY, -1e30, -200.0, -86.0, -1e-30, 0.0, 1e-30, 88.0, 200.0, 1e30, f32::INFINITY];
    let truth = |map, x: f64| match map {
        Map::Sigmoid => 1.0 / (1.0 + (-x).exp()),
        Map::LogSigmoid if x < 0.0 => x - x.exp().ln_1p(),
        Map::LogSigmoid => -(-x).exp().ln_1p(),
        Map::Softplus if x > 0.0 => x + (-x).exp().ln_1p(),
        Map::Softplus => x.exp().ln_1p(),
        _ => x.exp(),
    };
    for function in [Map::Sigmoid, Map::LogSigmoid, Map::Softplus, Map::Exp] {
        let x = Tensor::from_f32(&device, [at.len()], at.to_vec()).expect("an array");
        let found = map(function, &x).and_then(|y| y.to_f32()).expect("values");
        for (&x, found) in at.iter().zip(found) {
            let truth = truth(function, f64::from(x)) as f32;
            // What is subnormal may be zero, and so may what was made of it.
            let close = found == truth || (found - truth).abs() <= 4e-7 * truth.abs() || truth.abs() < 1.2e-38;
            assert!(close, "{} of {x}: {found}, not {truth}", function.name());
        }
    }
    for function in Map::ALL {
        let x = Tensor::from_f32(&device, [1], vec![f32::NAN]).expect("an array");
        let found = map(function, &x).and_then(|y| y.to_f32()).expect("values");
        assert!(found[0].is_nan(), "{} of NaN: {}", function.name(), found[0]);
    }
}
