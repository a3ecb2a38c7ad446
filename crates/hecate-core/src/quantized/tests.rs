//! Blocks against ggml's, which `golden/make.py` wrote.

use super::*;
use std::iter;

/// Values in a golden file's arrays.
const COUNT: usize = 1024;

/// What ggml and `gguf` make of the same bytes; `make.py` says what a file holds.
struct Golden {
    weights: Vec<f32>,
    /// Of the weights, by ggml, and their values.
    blocks: Vec<u8>,
    values: Vec<f32>,
    /// Random ones, and their values.
    random_blocks: Vec<u8>,
    random_values: Vec<f32>,
}

impl Golden {
    fn of(format: BlockFormat) -> Self {
        let file: &[u8] = match format {
            BlockFormat::Q8_0 => include_bytes!("golden/q8_0.bin"),
            BlockFormat::Q6K => include_bytes!("golden/q6_k.bin"),
            BlockFormat::Q5K => include_bytes!("golden/q5_k.bin"),
            BlockFormat::Q4K => include_bytes!("golden/q4_k.bin"),
        };
        let (mut rest, size) = (file, format.bytes(COUNT).unwrap());
        let mut take = |bytes: usize| {
            let (part, after) = rest.split_at(bytes);
            rest = after;
            part.to_vec()
        };
        let floats = |bytes: Vec<u8>| bytes.as_chunks::<4>().0.iter().map(|x| f32::from_le_bytes(*x)).collect();
        let golden = Self {
            weights: floats(take(4 * COUNT)),
            blocks: take(size),
            values: floats(take(4 * COUNT)),
            random_blocks: take(size),
            random_values: floats(take(4 * COUNT)),
        };
        assert!(rest.is_empty(), "{format}");
        golden
    }
}

/// Root mean square of the difference over that of the weights.
fn error(weights: &[f32], values: &[f32]) -> f32 {
    let square = |x: &mut dyn Iterator<Item = f32>| x.map(|x| x * x).sum::<f32>();
    let difference = square(&mut weights.iter().zip(values).map(|(x, y)| x - y));
    (difference / square(&mut weights.iter().copied())).sqrt()
}

/// Kernels count formats by it.
#[test]
fn a_format_has_its_place_in_the_list() {
    assert!(BlockFormat::ALL.iter().enumerate().all(|(i, format)| format.index() == i));
}

/// Every bit: the operations are the same, and so is their order.
#[test]
fn values_of_blocks_are_those_of_gguf() {
    for format in BlockFormat::ALL {
        let golden = Golden::of(format);
        for (blocks, expected) in [(&golden.blocks, &golden.values), (&golden.random_blocks, &golden.random_values)] {
            let values = format.dequantize(blocks).unwrap();
            let wrong = values.iter().zip(expected).position(|(x, y)| x.to_bits() != y.to_bits() && x != y);
            assert_eq!(wrong, None, "{format}");
        }
    }
}

#[test]
fn blocks_of_8_bits_are_those_of_ggml() {
    let golden = Golden::of(BlockFormat::Q8_0);
    assert_eq!(BlockFormat::Q8_0.quantize(&golden.weights).unwrap(), golden.blocks);
}

/// Scales are found by another search than ggml's: what counts is that it finds none that are worse.
#[test]
fn errors_are_no_larger_than_those_of_ggml() {
    for format in BlockFormat::ALL {
        let golden = Golden::of(format);
        let values = format.dequantize(&format.quantize(&golden.weights).unwrap()).unwrap();
        let (own, of_ggml) = (error(&golden.weights, &values), error(&golden.weights, &golden.values));
        println!("{format}: {own}, ggml {of_ggml}");
        assert!(own > 0.0 && own <= of_ggml * 1.0001, "{format}: {own}, ggml {of_ggml}");
    }
}

/// Zeros, one sign, equal values, one value alone, tiny and huge ones: each with an error of the format's size.
#[test]
fn blocks_of_every_kind_of_value() {
    let kinds: [(&str, fn(usize) -> f32); 8] = [
        ("zeros", |_| 0.0),
        ("equal", |_| 0.75),
        ("equal and negative", |_| -0.75),
        ("positive", |i| 1.0 + (i % 7) as f32),
        ("negative", |i| -1.0 - (i % 7) as f32),
        ("one alone", |i| if i == 77 { -3.0 } else { 0.0 }),
        ("tiny", |i| 1e-20 * (i % 5) as f32),
        ("huge", |i| 2e6 * (i as f32).sin()),
    ];
    for ((name, value), format) in kinds.into_iter().flat_map(|kind| BlockFormat::ALL.map(|format| (kind, format))) {
        let x: Vec<f32> = (0..512).map(value).collect();
        let y = format.dequantize(&format.quantize(&x).unwrap()).unwrap();
        let most = x.iter().fold(0.0f32, |most, x| most.max(x.abs()));
        // The coarsest format has 15 levels from end to end; what is under the least 16-bit float is 0.
        let close = |(x, y): (&f32, &f32)| (x - y).abs() <= most / 14.0 + 1e-6;
        assert!(iter::zip(&x, &y).all(close), "{format}, {name}: {y:?}");
    }
}

#[test]
fn what_no_block_can_hold_is_refused() {
    for format in BlockFormat::ALL {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 2.2e6] {
            let mut x = vec![0.5; 512];
            x[300] = bad;
            let told = format.quantize(&x).unwrap_err().to_string();
            assert!(told.contains("`weight`") && told.contains("index 300") && told.contains("2^21"), "{told}");
        }
        let told = format.quantize(&vec![0.5; 500]).unwrap_err().to_string();
        assert!(told.contains("500") && told.contains(&format!("multiple of {}", format.block())), "{told}");
        let told = format.dequantize(&[0; 143]).unwrap_err().to_string();
        assert!(told.contains("143") && told.contains(&format!("multiple of {}", format.block_bytes())), "{told}");
        assert_eq!(format.quantize(&[]).unwrap(), Vec::<u8>::new());
    }
}

/// A scale of NaN is a value of NaN.
#[test]
fn scales_that_are_not_finite_are_seen() {
    let nan = half::f16::NAN.to_le_bytes();
    for (format, at) in BlockFormat::ALL.into_iter().zip([0, 208, 0, 0]) {
        let mut block = format.quantize(&vec![0.5; format.block()]).unwrap();
        block[at..at + 2].copy_from_slice(&nan);
        assert!(format.dequantize(&block).unwrap().iter().all(|x| x.is_nan()), "{format}");
    }
}

#[test]
fn names_are_known_and_others_are_told_the_list() {
    for format in BlockFormat::ALL {
        assert_eq!(format.name().parse::<BlockFormat>().unwrap(), format);
    }
    let told = "q3_k".parse::<BlockFormat>().unwrap_err().to_string();
    assert!(told.contains("q3_k") && BlockFormat::ALL.iter().all(|format| told.contains(format.name())), "{told}");
}
