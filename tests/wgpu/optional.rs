//! What an adapter has that not every one has: with it and without, kernels give the same answers. And 16-bit arrays that
//! are read as they are, as if they had been widened.

use super::{Gpu, backends};
use hecate_conformance::{Case, Random, Sizes, checks, oracle::Oracle, primitive_cases, require::skip};
use hecate_core::{
    DType, Host, Kernel, Tensor, f16,
    primitives::{LossInputs, Transpose, cast, cross_entropy, matmul, sum, sum_squares},
    rules::{Delta, Hebbian, Titans},
};
use hecate_cpu::Cpu;

/// The adapter as it is, and as if it had nothing that others lack.
fn ways(gpu: &Gpu) -> [Gpu; 2] {
    [gpu.clone(), gpu.with_portable_kernels()]
}

fn skip_without_f16(gpu: &Gpu) {
    if !gpu.adapter().f16 {
        skip("f16", &format!("{} has none; the same without it was tested", gpu.adapter()));
    }
}

/// Batch, rows, terms and columns, and which operand is transposed: in tiles, in parts of sums, of odd sizes, of few rows.
const PRODUCTS: [([usize; 4], Transpose); 8] = [
    ([1, 1, 301, 67], Transpose { a: false, b: true }),
    ([1, 3, 133, 37], Transpose { a: false, b: false }),
    ([2, 8, 66, 35], Transpose { a: false, b: true }),
    ([2, 7, 60, 36], Transpose { a: false, b: false }),
    ([1, 35, 65, 1], Transpose { a: true, b: false }),
    ([2, 12, 20, 9], Transpose { a: false, b: true }),
    ([1, 8, 400, 12], Transpose { a: true, b: false }),
    ([3, 5, 7, 9], Transpose { a: false, b: false }),
];

#[test]
fn products_of_16_bits() {
    for gpu in backends() {
        skip_without_f16(&gpu);
        let mut random = Random::new(101);
        for (size, dtype) in PRODUCTS.into_iter().flat_map(|size| [(size, DType::F16), (size, DType::Bf16)]) {
            let ([batch, m, k, n], transposed) = size;
            let a = random.normals(if transposed.a { [batch, k, m] } else { [batch, m, k] });
            let b = random.normals(if transposed.b { [batch, n, k] } else { [batch, k, n] });
            let product = |way: &Gpu, wide: bool| {
                let [a, b] = [&a, &b].map(|x| x.upload(way, dtype).unwrap());
                let [a, b] = if wide { [&a, &b].map(|x| cast(DType::F32, x).unwrap()) } else { [a, b] };
                matmul(&a, &b, transposed).and_then(|x| cast(dtype, &x)?.download()).unwrap()
            };
            for way in ways(&gpu) {
                assert_eq!(product(&way, false), product(&way, true), "{size:?} in {dtype} on {way:?}");
            }
        }
    }
}

/// Each half times one, alone and in fours.
#[test]
fn every_half_is_read_and_written() {
    for gpu in backends() {
        skip_without_f16(&gpu);
        let all: Vec<f16> = (0..=u16::MAX).map(f16::from_bits).collect();
        let product = |way: &Gpu, columns: usize| {
            let a = Tensor::upload(way, [1, all.len()], Host::F16(all.clone())).unwrap();
            let b = Tensor::upload(way, [1, columns], Host::F16(vec![f16::ONE; columns])).unwrap();
            matmul(&a, &b, Transpose { a: true, b: false }).and_then(|x| x.download()).unwrap()
        };
        for (way, columns) in ways(&gpu).iter().flat_map(|way| [(way, 1), (way, 4)]) {
            let Host::F16(found) = product(way, columns) else { panic!("products of halves are halves") };
            for (x, found) in all.iter().zip(found.chunks(columns)) {
                let same = |y: &f16| x == y || (x.is_nan() && y.is_nan());
                assert!(found.iter().all(same), "{:#x} became {found:?} on {way:?}", x.to_bits());
            }
        }
    }
}

/// Results are those of the same numbers in 32 bits, computed in the same way, rounded.
fn forward_of_16_bits<R: Oracle>(rule: R, sizes: Sizes)
where
    Gpu: Kernel<R>,
{
    for (gpu, dtype) in backends().into_iter().flat_map(|gpu| [(gpu.clone(), DType::F16), (gpu, DType::Bf16)]) {
        skip_without_f16(&gpu);
        let token = |slot| ["q", "k", "v"].contains(&slot);
        let case = Case::new(rule, sizes, 103).with(|slot, x| if token(slot) { x.rounded(dtype) } else { x });
        for way in ways(&gpu) {
            // With subgroups columns may be shared otherwise, and elements be rounded elsewhere: `shared_columns`.
            let truth = case.infer(&way, DType::F32).unwrap();
            let found = case.infer(&way, dtype).unwrap();
            assert_eq!(found.out.values, truth.out.rounded(dtype).values, "{case} in {dtype} on {way:?}");
            for (slot, (found, truth)) in found.as_ref().zip(truth.as_ref()).list().into_iter().skip(1) {
                assert_eq!(found.values, truth.values, "`{slot}` of {case} in {dtype} on {way:?}");
            }
        }
    }
}

#[test]
fn rules_of_16_bits() {
    forward_of_16_bits(Delta::default(), Sizes::new(2, 20, 3, 5, 7));
    forward_of_16_bits(Titans::default(), Sizes::new(1, 9, 1, 8, 40));
    forward_of_16_bits(Hebbian::default(), Sizes::new(1, 19, 2, 36, 3));
}

/// Columns that several invocations share, whose sums meet in subgroups or in workgroup memory: whole ones and others.
#[test]
fn shared_columns() {
    for gpu in backends() {
        checks::agrees(&ways(&gpu), &Case::new(Delta::default(), Sizes::new(1, 20, 1, 64, 9), 105), "shared columns");
        checks::agrees(&ways(&gpu), &Case::new(Titans::default(), Sizes::new(1, 11, 2, 99, 33), 106), "shared columns");
    }
}

/// Rows whose sums and maxima meet in workgroup memory; the suite has what the adapter is best at.
#[test]
fn attention() {
    let portable: Vec<Gpu> = backends().iter().map(Gpu::with_portable_kernels).collect();
    checks::primitive::agrees_with(
        &Cpu::new(),
        &primitive_cases::attention(),
        &portable,
        &primitive_cases::attention(),
    );
}

/// Sums of one and several stages, and maxima of rows longer and shorter than a workgroup.
#[test]
fn reductions() {
    for gpu in backends() {
        if !gpu.adapter().subgroups {
            skip("subgroups", &format!("{} has none; the same without them was tested", gpu.adapter()));
        }
        for count in [1, 100, 4097, 70_000] {
            let x = Random::new(107).uniforms([count], 0.1, 1.0);
            let truth = [x.values.iter().sum::<f64>(), x.values.iter().map(|x| x * x).sum()];
            for way in ways(&gpu) {
                let x = x.upload(&way, DType::F32).unwrap();
                let found = || [sum(&x), sum_squares(&x)].map(|x| x.and_then(|x| x.to_f32()).unwrap()[0]);
                assert_eq!(found().map(f32::to_bits), found().map(f32::to_bits), "{count} on {way:?}");
                for (found, truth) in found().into_iter().zip(truth) {
                    assert!((f64::from(found) / truth - 1.0).abs() < 1e-6, "{found}, not {truth}: {count} on {way:?}");
                }
            }
        }
    }
}

/// The largest number of a row is the same whoever looks for it: at the ends of the range too, and NaN where one is.
#[test]
fn maxima() {
    for gpu in backends() {
        for width in [3, 64, 301] {
            // Rows of negative numbers, of large ones, with an infinity of either sign, with a NaN of either sign.
            let marks =
                [None, Some(3e38), Some(f32::NEG_INFINITY), Some(f32::NAN), Some(-f32::NAN), Some(f32::INFINITY)];
            let row = |mark: Option<f32>| {
                let mut row: Vec<f32> = (0..width).map(|i| -1.0 - (i * 7 % width) as f32).collect();
                row[width / 2] = mark.unwrap_or(row[width / 2]);
                row
            };
            let rows: Vec<f32> = marks.into_iter().flat_map(row).collect();
            let lse = |way: &Gpu| {
                let logits = Tensor::from_f32(way, [marks.len(), width], rows.clone()).unwrap();
                let targets = Tensor::from_u32(way, [marks.len()], vec![0; marks.len()]).unwrap();
                let inputs = LossInputs { classes: width, logits: &logits, targets: &targets };
                cross_entropy(&inputs).and_then(|losses| losses.lse.to_f32()).unwrap()
            };
            let [one, other] = ways(&gpu).map(|way| lse(&way));
            for (mark, (one, other)) in marks.iter().zip(one.iter().zip(&other)) {
                let close = one == other || (one - other).abs() <= 1e-6 * one.abs() || (one.is_nan() && other.is_nan());
                assert!(close, "{mark:?} in {width}: {one} and {other} on {gpu:?}");
            }
            // Of an infinity above all there is nothing to subtract the others from.
            assert!(one[0].is_finite() && one[1] == 3e38 && one[2].is_finite(), "{one:?}");
            assert!(one[3..5].iter().all(|x| x.is_nan()), "{one:?}");
        }
    }
}
