//! Specifications: names, presets, launches, and sizes that are refused when they are made.

use crate::golden::specifications;
use hecate_ptx::{
    Attention, Error, GemmNaive, GemmTensorCore, GemmTiled, HalfType, LayerNorm, Library, Norm, QuantizedGemm, Softmax,
    Specification, Target, presets,
};
use std::time::{Duration, Instant};

#[test]
fn names_are_those_of_entries() {
    for specification in specifications() {
        let module = specification.write().expect("a kernel");
        assert_eq!(module.name(), specification.name());
        assert!(module.text().contains(&format!(".visible .entry {}(\n", specification.name())), "{specification:?}");
        assert_eq!(module.block(), specification.launch().block, "{specification:?}");
    }
    let name = |specification: Specification| specification.name();
    assert_eq!(name(GemmNaive::new(1, 1, 1).expect("sizes").into()), "gemm_naive");
    assert_eq!(name(Softmax::new(1, 32).expect("sizes").into()), "softmax_warp");
    assert_eq!(name(QuantizedGemm::new(1, 1, 32).expect("sizes").into()), "q4k_gemm_fused");
}

#[test]
fn presets_are_specifications() {
    let attention = Attention::new(2048, [32, 32], 64, true).expect("sizes");
    assert_eq!(presets::llama_attention(2048, 64), Ok(attention.into()));
    // 32 rows of 4096 columns become rows of 11008.
    assert_eq!(presets::ffn_gemm(32, 4096, 11008), Ok(GemmTiled::new(32, 11008, 4096, 32).expect("sizes").into()));
    assert_eq!(presets::ffn_gemm(64, 8, 8), Ok(GemmTiled::new(64, 8, 8, 64).expect("sizes").into()));
    assert_eq!(presets::ffn_gemm(65, 8, 8), Ok(GemmTiled::new(65, 8, 8, 128).expect("sizes").into()));
    assert_eq!(presets::q4k_inference(1, 4096, 4096), Ok(QuantizedGemm::new(1, 4096, 4096).expect("sizes").into()));
    assert_eq!(presets::rmsnorm(4096), Ok(LayerNorm::new(Norm::Rms, 1, 4096, 1e-6).expect("sizes").into()));
}

/// The header, the signature and the shared memory of a tiled product, as callers of such kernels know them.
#[test]
fn texts_have_their_known_parts() {
    let tiled = presets::ffn_gemm(32, 4096, 11008).expect("sizes").write().expect("a kernel");
    let parameters = [("u64", "A"), ("u64", "B"), ("u64", "C"), ("u32", "M"), ("u32", "N"), ("u32", "K")];
    let lines: Vec<String> = parameters.iter().map(|(ty, name)| format!("    .param .{ty} param_{name}")).collect();
    let signature = format!(".visible .entry gemm_tiled(\n{}\n)", lines.join(",\n"));
    assert!(tiled.text().contains(&signature), "{signature}");
    for array in ["smem_A[1024];", "smem_B[1024];"] {
        assert!(tiled.text().contains(&format!(".shared .align 16 .f32 {array}")), "{array}");
    }
    assert_eq!(tiled.shared_bytes(), 8192);
    let tensor_core = GemmTensorCore::new(HalfType::F16, 64, 64, 64).expect("sizes");
    let text = Specification::from(tensor_core).write().expect("a kernel");
    for instruction in ["mma.sync.aligned.m16n8k16", "ldmatrix.sync", "cp.async.cg.shared.global"] {
        assert!(text.text().contains(instruction), "{instruction}");
    }
    assert_eq!(text.target(), Target { isa: (7, 0), capability: 80 });
    assert_eq!(text.shared_bytes(), hecate_ptx::SHARED_LIMIT);
    assert_eq!(tiled.target(), Target::LEAST);
}

/// What a refusal names: the size and what was found.
fn refused<T: std::fmt::Debug>(made: Result<T, Error>, size: &str, found: &str) {
    let error = made.expect_err("a size for which there is no kernel");
    assert!(matches!(error, Error::Size { .. }), "{error:?}");
    let message = error.to_string();
    assert!(message.contains(&format!("`{size}` is {found}; give it")), "{message}");
}

#[test]
fn sizes_without_a_kernel_are_refused() {
    refused(GemmNaive::new(0, 1, 1), "m", "0");
    refused(GemmNaive::new(1, 0, 1), "n", "0");
    refused(GemmNaive::new(1, 1, 0), "k", "0");
    refused(GemmNaive::new(65535 * 16 + 1, 1, 1), "m", "1048561");
    refused(GemmNaive::new(1, 1 << 31, 1), "n", "2147483648");
    refused(GemmTiled::new(1, 1, 1, 48), "tile", "48");
    refused(GemmTiled::new(65535 * 32 + 1, 1, 1, 32), "m", "2097121");
    refused(GemmTensorCore::new(HalfType::F16, 0, 1, 1), "m", "0");
    refused(GemmTensorCore::new(HalfType::F16, 65535 * 128 + 1, 1, 1), "m", "8388481");
    refused(QuantizedGemm::new(65536, 1, 1), "m", "65536");
    refused(QuantizedGemm::new(1, 1, 0), "k", "0");
    refused(Softmax::new(1, 0), "length", "0");
    refused(Softmax::new(1 << 31, 1), "rows", "2147483648");
    refused(LayerNorm::new(Norm::Rms, 1, 0, 1e-6), "hidden", "0");
    for (epsilon, found) in [(0.0, "0"), (-1.0, "-1"), (f32::NAN, "NaN"), (f32::INFINITY, "inf")] {
        refused(LayerNorm::new(Norm::Mean, 1, 8, epsilon), "epsilon", found);
    }
    refused(Attention::new(0, [1, 1], 1, true), "tokens", "0");
    refused(Attention::new(1, [1, 1], 257, true), "head_dim", "257");
    refused(Attention::new(1, [4, 3], 1, true), "heads", "4");
    refused(Attention::new(1, [2, 4], 1, true), "key_heads", "4");
    refused(Attention::new(1, [65536, 1], 1, true), "heads", "65536");
    refused(presets::llama_attention(2048, 512), "head_dim", "512");
}

/// At the ends of their ranges specifications are written, and their grids are ones that GPUs have.
#[test]
fn the_largest_sizes_have_grids() {
    let most = i32::MAX as u32;
    let mut all: Vec<Specification> = vec![
        GemmNaive::new(65535 * 16, most, most).expect("sizes").into(),
        Softmax::new(most, most).expect("sizes").into(),
        LayerNorm::new(Norm::Mean, most, most, f32::MIN_POSITIVE).expect("sizes").into(),
        Attention::new(most, [65535, 1], 256, true).expect("sizes").into(),
        QuantizedGemm::new(65535, most, most).expect("sizes").into(),
        GemmTensorCore::new(HalfType::Bf16, 65535 * 128, most, most).expect("sizes").into(),
    ];
    let tiled = |tile: u32| Specification::from(GemmTiled::new(65535 * tile, most, most, tile).expect("sizes"));
    all.extend([32, 64, 128].map(tiled));
    // Every width of a head fits into shared memory.
    let attention = |columns| Specification::from(Attention::new(1, [1, 1], columns, false).expect("sizes"));
    all.extend((1..=256).map(attention));
    for specification in all {
        specification.write().expect("a kernel");
        let [x, y, z] = specification.launch().grid;
        assert!((1..=most).contains(&x) && (1..=65535).contains(&y) && z == 1, "{specification:?}: {x} × {y} × {z}");
    }
}

#[test]
fn libraries_refuse_what_a_machine_cannot_run() {
    assert_eq!(Library::default(), Library::new());
    let tensor_core = GemmTensorCore::new(HalfType::Bf16, 8, 8, 8).expect("sizes").into();
    let (turing, ampere) = (Target { isa: (8, 0), capability: 75 }, Target { isa: (8, 0), capability: 80 });
    let error = Library::for_device(turing).write(&tensor_core).expect_err("no such tensor cores");
    assert!(matches!(error, Error::Target { has, .. } if has == turing), "{error}");
    assert!(Library::for_device(ampere).write(&tensor_core).is_ok());
    let naive = GemmNaive::new(1, 1, 1).expect("sizes").into();
    assert!(Library::for_device(turing).write(&naive).is_ok());
}

/// A kernel is text within a millisecond: the fastest of some tries, since other programs run beside this one.
#[test]
fn a_millisecond_a_kernel() {
    for specification in specifications() {
        let tries = (0..20).map(|_| {
            let start = Instant::now();
            specification.write().expect("a kernel");
            start.elapsed()
        });
        let fastest = tries.min().expect("some tries");
        println!("{specification:?}: {fastest:?}");
        assert!(fastest <= Duration::from_millis(1), "{specification:?} took {fastest:?}");
    }
}
