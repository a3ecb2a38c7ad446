//! Integer products against values of 32 bits, kernel by kernel.

use super::*;

/// Uniform in `[−1, 1)`, the same every time.
fn uniform(seed: u64, count: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(2) + 1;
    let next = |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    };
    (0..count).map(next).collect()
}

/// Whole numbers times a power of two, the largest of each group 127: rounding to 8 bits changes none of them.
fn exact(seed: u64, count: usize) -> Vec<f32> {
    let whole = |(i, x): (usize, f32)| if i % 32 == 5 { 127.0 / 64.0 } else { (x * 127.0).round() / 64.0 };
    uniform(seed, count).into_iter().enumerate().map(whole).collect()
}

/// Root mean square of the difference over that of the truth; NaN where something is.
fn error(truth: &[f64], found: &[f32]) -> f64 {
    let difference: f64 = truth.iter().zip(found).map(|(x, &y)| (x - f64::from(y)).powi(2)).sum();
    (difference / truth.iter().map(|x| x * x).sum::<f64>()).sqrt()
}

/// `x Wᵀ` in 64 bits, from values as they were quantized; `[n,N]`.
fn truth(x: &[f32], weights: &[f32], inner: usize) -> Vec<f64> {
    let dot = |x: &[f32], w: &[f32]| x.iter().zip(w).map(|(&x, &w)| f64::from(x) * f64::from(w)).sum();
    x.chunks_exact(inner).flat_map(|x| weights.chunks_exact(inner).map(move |w| dot(x, w))).collect()
}

/// All rows of `x` with all rows of weights, by these kernels.
fn products(kernels: &Kernels, format: BlockFormat, blocks: &[u8], x: &[f32], inner: usize) -> Vec<f32> {
    let (n, size) = (x.len() / inner, format.bytes(inner).unwrap());
    let device = Cpu::new();
    let rounded = Rounded::new(&device, x, n).unwrap();
    let mut out = vec![0.0; n * (blocks.len() / size)];
    kernels.products(&device, blocks, &rounded, &mut out).unwrap();
    let columns = out.len() / n;
    (0..n).flat_map(|i| (0..columns).map(move |j| (i, j))).map(|(i, j)| out[j * n + i]).collect()
}

/// Kernels by their names: those for any processor, and those of this one.
fn all(format: BlockFormat) -> Vec<(&'static str, Kernels)> {
    let mut all = vec![("portable", portable::kernels(format)), ("best", Kernels::of(format))];
    #[cfg(target_arch = "x86_64")]
    all.extend(avx2::kernels(format).map(|kernels| ("avx2", kernels)));
    all
}

/// What is left is the rounding of sums of 32 bits.
#[test]
fn whole_numbers_are_multiplied_exactly() {
    for format in BlockFormat::ALL {
        for (n, inner, columns) in [(1, format.block(), 1), (3, 512, 5), (8, 768, 3), (17, 256, 7)] {
            let blocks = format.quantize(&uniform(3, inner * columns)).unwrap();
            let (x, weights) = (exact(5, n * inner), format.dequantize(&blocks).unwrap());
            let truth = truth(&x, &weights, inner);
            for (name, kernels) in all(format) {
                let error = error(&truth, &products(&kernels, format, &blocks, &x, inner));
                assert!(error < 1e-6, "{format} {name} {n}×{inner}×{columns}: {error}");
            }
        }
    }
}

/// Each value is rounded by at most 1/254 of its group's largest: uniform errors of that size have a deviation of
/// 1/(127 √12) of it, and values that are uniform themselves one of 1/√3. Their ratio is 1/254.
#[test]
fn activations_are_rounded_to_8_bits() {
    for format in BlockFormat::ALL {
        let (n, inner, columns) = (9, 1024, 64);
        let blocks = format.quantize(&uniform(7, inner * columns)).unwrap();
        let (x, weights) = (uniform(11, n * inner), format.dequantize(&blocks).unwrap());
        let truth = truth(&x, &weights, inner);
        for (name, kernels) in all(format) {
            let error = error(&truth, &products(&kernels, format, &blocks, &x, inner));
            assert!((1e-4..1.3 / 254.0).contains(&error), "{format} {name}: {error}");
        }
    }
}

/// NaN and infinities make a row NaN, and no other row.
#[test]
fn what_is_not_finite_is_seen() {
    for format in BlockFormat::ALL {
        let (inner, columns) = (512, 3);
        let blocks = format.quantize(&uniform(13, inner * columns)).unwrap();
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -f32::NAN] {
            let mut x = uniform(17, 9 * inner);
            x[4 * inner + 300] = bad;
            for (name, kernels) in all(format) {
                let y = products(&kernels, format, &blocks, &x, inner);
                for (row, y) in y.chunks_exact(columns).enumerate() {
                    assert!(y.iter().all(|y| y.is_finite() == (row != 4)), "{format} {name} {bad}: row {row}, {y:?}");
                }
            }
        }
    }
}

/// A row's bits do not depend on the rows beside it, nor on the threads.
#[test]
fn rows_and_threads_do_not_matter() {
    for format in BlockFormat::ALL {
        let (n, inner, columns) = (11, 512, 130);
        let (weights, x) = (uniform(19, inner * columns), uniform(23, n * inner));
        let call = |threads: usize, x: &[f32]| {
            let device = Cpu::with_threads(threads).unwrap();
            let blocks = format.quantize(&weights).unwrap();
            let weights = Quantized::new(&device, format, [columns, inner], &blocks).unwrap();
            let x = Tensor::from_f32(&device, [x.len() / inner, inner], x.to_vec()).unwrap();
            hecate_core::primitives::quantized_matmul(&x, &weights).unwrap().to_f32().unwrap()
        };
        let whole = call(1, &x);
        assert_eq!(whole, call(3, &x), "{format}");
        for (i, x) in x.chunks_exact(inner).enumerate() {
            assert_eq!(whole[i * columns..][..columns], call(2, x), "{format}, row {i}");
        }
    }
}

/// Sums are of whole numbers and then in one order, so AVX2 gives the bits of plain loops: with the largest numbers of 8 bits
/// of both signs too, whose products fill 16 bits, and with rows that are no whole number of rounds.
#[cfg(target_arch = "x86_64")]
#[test]
fn avx2_gives_the_bits_of_plain_loops() {
    // The largest values alone: −1 and 1 become −127 and 127.
    let ends = |i: usize| if i.is_multiple_of(3) { -1.0 } else { 1.0 };
    for format in BlockFormat::ALL {
        let Some(kernels) = avx2::kernels(format) else { return };
        // One row and several, less than eight, eight and more; rounds of `q8_0` that are not whole.
        for (n, blocks, columns) in [(1, 1, 3), (3, 2, 5), (8, 3, 2), (17, 11, 7)] {
            let inner = blocks * format.block();
            // Numbers like those of a model, and the ends of the range.
            let mut pairs = vec![(uniform(29, n * inner), uniform(31, inner * columns))];
            pairs.push(((0..n * inner).map(ends).collect(), (0..inner * columns).map(|i| ends(i / 5)).collect()));
            for (x, weights) in pairs {
                let mut quantized = format.quantize(&weights).unwrap();
                // Values of 8 bits go down to −128, which quantizing never makes.
                if format == BlockFormat::Q8_0 {
                    quantized.chunks_mut(34).for_each(|block| block[2..20].fill(0x80));
                }
                // The same weights and rows through both.
                let found = products(&kernels, format, &quantized, &x, inner);
                let expected = products(&portable::kernels(format), format, &quantized, &x, inner);
                // Bits, so that −0 and 0 are told apart.
                let bits = |y: &[f32]| y.iter().map(|y| y.to_bits()).collect::<Vec<_>>();
                assert_eq!(bits(&found), bits(&expected), "{format} {n}×{inner}×{columns}");
            }
        }
    }
}
