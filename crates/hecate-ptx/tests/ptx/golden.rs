//! The text of kernels is that of files in `tests/golden`. `UPDATE=1` writes them.

use hecate_ptx::{
    Attention, Elementwise, GemmNaive, GemmTensorCore, GemmTiled, HalfType, LayerNorm, Module, Norm, Operation,
    QuantizedGemm, Scalar, Softmax, Specification, presets,
};
use std::{fs, path::Path};

/// Every kind of text, with the name of its file: all presets, and specifications with other numbers in their text.
pub(crate) fn named() -> Vec<(&'static str, Specification)> {
    let mut all: Vec<(&str, Specification)> = vec![
        ("gemm_naive", GemmNaive::new(100, 200, 300).expect("sizes").into()),
        ("softmax_warp", Softmax::new(1024, 4096).expect("sizes").into()),
        ("layernorm", LayerNorm::new(Norm::Mean, 8, 1000, 1e-5).expect("sizes").into()),
        ("gemm_tiled_128", GemmTiled::new(1000, 1000, 1000, 128).expect("sizes").into()),
        ("attention_grouped", Attention::new(77, [8, 2], 80, false).expect("sizes").into()),
        ("q4k_rows", QuantizedGemm::new(8, 100, 1000).expect("sizes").into()),
        ("tensor_core_bf16", GemmTensorCore::new(HalfType::Bf16, 4096, 4096, 4096).expect("sizes").into()),
        ("tensor_core_f16_any", GemmTensorCore::new(HalfType::F16, 100, 101, 102).expect("sizes").into()),
    ];
    let presets = [
        ("llama_attention", presets::llama_attention(2048, 64)),
        ("ffn_gemm", presets::ffn_gemm(32, 4096, 11008)),
        ("q4k_inference", presets::q4k_inference(1, 4096, 4096)),
        ("rmsnorm", presets::rmsnorm(4096)),
    ];
    all.extend(presets.map(|(name, preset)| (name, preset.expect("sizes"))));
    all
}

/// Those that have a file, and what is left of tiles, types and widths of heads.
pub(crate) fn specifications() -> Vec<Specification> {
    let named = named().into_iter().map(|(_, specification)| specification);
    let tensor_cores = [(HalfType::F16, 64), (HalfType::Bf16, 63)]
        .map(|(half, size)| GemmTensorCore::new(half, size, size, size).expect("sizes").into());
    let heads =
        [1, 70, 128, 256].map(|columns| Attention::new(9, [2, 2], columns, columns < 100).expect("sizes").into());
    let quantized = [2, 3, 4].map(|rows| QuantizedGemm::new(rows, 8, 512).expect("sizes").into());
    let tiled = GemmTiled::new(9, 9, 9, 64).expect("sizes").into();
    named.chain(tensor_cores).chain(heads).chain(quantized).chain([tiled]).collect()
}

fn compare(file: &str, module: &Module) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(file);
    if std::env::var_os("UPDATE").is_some() {
        fs::create_dir_all(path.parent().expect("a folder")).expect("a folder of files");
        fs::write(&path, module.text()).expect("a file that can be written");
    }
    let text =
        fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}; UPDATE=1 writes it", path.display()));
    let lines = text.lines().zip(module.text().lines()).position(|(file, written)| file != written);
    assert!(
        text == module.text(),
        "{file} differs in line {:?} from what is written; UPDATE=1 takes that",
        lines.map(|at| at + 1)
    );
}

#[test]
fn specifications_have_the_same_text() {
    for (name, specification) in named() {
        let module = specification.write().expect("a kernel");
        assert_eq!(Ok(&module), specification.write().as_ref(), "the same specification, twice");
        compare(&format!("{name}.ptx"), &module);
    }
}

#[test]
fn operations_have_the_same_text() {
    for (operation, scalar) in [
        (Operation::Add, Scalar::F32),
        (Operation::Div, Scalar::C128),
        (Operation::Abs, Scalar::C64),
        (Operation::Exp, Scalar::F64),
    ] {
        let kernel = Elementwise::new(operation, scalar).expect("a kernel");
        compare(&format!("{}.ptx", kernel.name()), &kernel.write().expect("a kernel"));
    }
}
