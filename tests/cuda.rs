//! The CUDA column, on the first GPU.

use hecate_conformance::{Random, Sizes};
use hecate_core::{
    DType, Tensor,
    primitives::{Transpose, matmul, quantized_matmul, scale},
    quantized::{BlockFormat, Quantized},
};
use hecate_cuda::{Algorithm, Cuda};
use std::sync::OnceLock;

/// What this column's modules run on.
type Gpu = Cuda;

hecate_conformance::conformance!(backends);

/// The GPU under test, or nothing where there is none.
fn backends() -> Vec<Cuda> {
    static DEVICES: OnceLock<Vec<Cuda>> = OnceLock::new();
    let open = || Cuda::new(0).and_then(|cuda| cuda.with_poisoned_memory());
    DEVICES.get_or_init(|| gpu::opened(open())).clone()
}

/// Whether there is no GPU: large cases are not drawn for nothing then.
fn is_missing() -> bool {
    backends().is_empty()
}

/// Another stream of the GPU under test.
fn another() -> Cuda {
    Cuda::new(0).expect("a stream of a GPU that was there a moment ago")
}

/// The GPU with this algorithm of the linear rules, on a stream of its own.
fn with_algorithm(algorithm: Algorithm) -> Vec<Cuda> {
    backends().iter().map(|cuda| cuda.with_algorithm(algorithm).expect("another stream")).collect()
}

/// The linear rules token by token and, where that form exists, 64 tokens at once.
fn linear_backends() -> Vec<Cuda> {
    [Algorithm::Auto, Algorithm::Chunk(64)].into_iter().flat_map(with_algorithm).collect()
}

/// Every range of `K` that has a kernel, its edges, and more than any of them; blocks of columns whole and not.
const LINEAR_SIZES: [Sizes; 8] = [
    Sizes::new(1, 20, 2, 17, 33),
    Sizes::new(2, 10, 1, 32, 64),
    Sizes::new(1, 80, 1, 65, 5),
    Sizes::new(1, 12, 1, 128, 40),
    Sizes::new(1, 9, 1, 200, 3),
    Sizes::new(1, 4, 1, 256, 2),
    Sizes::new(1, 11, 2, 300, 9),
    Sizes::new(2, 130, 2, 70, 33),
];

/// The linear rules, 64 tokens at once whatever the sizes.
mod chunk {
    use hecate_conformance::conformance_cells;
    use hecate_cuda::{Algorithm, Cuda};

    fn backends() -> Vec<Cuda> {
        super::with_algorithm(Algorithm::Chunk(64))
    }

    hecate_core::for_each_linear_rule!(conformance_cells, backends,);
}

mod gpu;

#[path = "cuda/attention.rs"]
mod attention;

#[path = "cuda/decoding.rs"]
mod decoding;

#[path = "cuda/exact.rs"]
mod exact;

#[path = "cuda/frozen.rs"]
mod frozen;
#[path = "cuda/own_kernels.rs"]
mod own_kernels;

#[path = "cuda/slots.rs"]
mod slots;

#[path = "cuda/small.rs"]
mod small;

#[path = "cuda/linear.rs"]
mod linear;

#[path = "cuda/capture.rs"]
mod capture;

/// Every GPU that the driver lists opens and computes, and one beyond them is refused by its number.
#[test]
fn every_listed_gpu_computes() {
    if backends().is_empty() {
        return;
    }
    let count = Cuda::count().expect("a driver");
    for ordinal in 0..count {
        let gpu = Cuda::new(ordinal).unwrap_or_else(|error| panic!("GPU {ordinal}: {error}"));
        let x = Tensor::from_f32(&gpu, [2], vec![1.0, -2.0]).unwrap();
        assert_eq!(scale(2.0, &x).unwrap().to_f32().unwrap(), [2.0, -4.0], "GPU {ordinal}");
    }
    let refusal = Cuda::new(count).expect_err("one GPU more than there are").to_string();
    assert!(refusal.contains(&format!("number {count}")), "{refusal}");
}

/// Products by the column's own kernels, where there is a library for them, and by the one that they are compared with.
#[test]
fn own_products() {
    for cuda in backends() {
        for own in [cuda.with_own_products().unwrap(), cuda.with_naive_products().unwrap()] {
            for dtype in [DType::F32, DType::Bf16, DType::F16] {
                gpu::sizes::compare(
                    gpu::sizes::products_of(&own, dtype).unwrap(),
                    gpu::sizes::products_of(&hecate_cpu::Cpu::new(), dtype).unwrap(),
                );
            }
        }
    }
}

/// The rungs of products against the equations in 64 bits, at sizes these can be made for.
#[test]
fn rungs_of_products() {
    use hecate_conformance::{
        checks::primitive::{agrees, rounding},
        primitive_cases::matmul,
    };
    let rungs = |cuda: &Cuda| [cuda.with_naive_products().unwrap(), cuda.with_own_products().unwrap()];
    let rungs: Vec<_> = backends().iter().flat_map(rungs).collect();
    if !rungs.is_empty() {
        agrees(&rungs, &matmul());
        rounding(&rungs, &matmul());
    }
}

/// Tiles of tensor cores against the naive kernel: whole ones, parts of them at every edge, and sums of few terms.
#[test]
fn tensor_core_products() {
    for cuda in backends() {
        let (own, naive) = (cuda.with_own_products().unwrap(), cuda.with_naive_products().unwrap());
        let transpose = Transpose { a: false, b: true };
        for dtype in [DType::Bf16, DType::F16] {
            for [rows, inner, columns] in
                [[128, 64, 256], [64, 8, 2], [200, 328, 264], [129, 72, 514], [300, 1000, 130], [6, 320, 131]]
            {
                let mut random = Random::new((rows + inner) as u64);
                let [a, b] = [rows, columns].map(|rows| random.uniforms([rows, inner], -1.0, 1.0));
                let product = |cuda: &Cuda| {
                    let [a, b] = [&a, &b].map(|x| x.upload(cuda, dtype).unwrap());
                    vec![(format!("{rows}×{inner}×{columns}"), matmul(&a, &b, transpose).unwrap())]
                };
                gpu::sizes::compare(product(&own), product(&naive));
            }
        }
    }
}

/// Weights decoded tile by tile against decoded ones and the naive kernel: few tiles and many, parts of them at every edge,
/// blocks that end within a stage. Rows are no more than a tile has; last come more, whose matrix is decoded first.
#[test]
fn quantized_tiles() {
    for cuda in backends() {
        let naive = cuda.with_naive_products().unwrap();
        for format in BlockFormat::ALL {
            let odd = if format.block() == 32 { 160 } else { 768 };
            for [rows, inner, columns] in [[17, 256, 33], [64, 512, 32], [63, odd, 65], [50, 256, 1411], [129, odd, 65]]
            {
                let mut random = Random::new((rows + inner) as u64);
                let [x, weights] = [rows, columns].map(|rows| random.uniforms([rows, inner], -1.0, 1.0));
                let values: Vec<f32> = weights.values.iter().map(|&x| x as f32).collect();
                let blocks = format.quantize(&values).unwrap();
                for dtype in [DType::F32, DType::Bf16, DType::F16] {
                    let product = |cuda: &Cuda| {
                        let weight = Quantized::new(cuda, format, [columns, inner], &blocks).unwrap();
                        let y = quantized_matmul(&x.upload(cuda, dtype).unwrap(), &weight).unwrap();
                        vec![(format!("{format} in {dtype}, {rows}×{inner}×{columns}"), y)]
                    };
                    gpu::sizes::compare(product(&cuda), product(&naive));
                }
            }
        }
    }
}

/// Sizes of several tiles and parts, against the CPU column.
#[test]
fn large_primitives() {
    use hecate_conformance::{checks::primitive::agrees_with, primitive_cases};
    let (cpu, backends) = (hecate_cpu::Cpu::new(), backends());
    agrees_with(&cpu, &primitive_cases::attention_in_tiles(), &backends, &primitive_cases::attention_in_tiles());
    agrees_with(&cpu, &primitive_cases::conv_in_parts(), &backends, &primitive_cases::conv_in_parts());
}
