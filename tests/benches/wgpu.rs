//! Times of products, of attention and of rules on a WebGPU adapter.
//!
//! `cargo bench -p hecate-tests --bench wgpu [-- PART..]` prints a table; with arguments only the rows whose name has one
//! of them in it. Calls are queued one after another and waited for together, so that a time is that of the work and
//! not of its start; arguments may be in the cache from the call before. Products and rules are not timed before they were
//! compared with the CPU column, or with the equations in 64 bits. The last rows are of what an adapter may have: 16-bit
//! arrays and reductions with it and without (`-- bf16 f16 sum cross_entropy` for those alone), and cooperative matrices beside
//! the general form (`-- cooperative general`).

use hecate_conformance::{Array, Case, Random, Sizes, oracle::Oracle, report};
use hecate_core::{
    DType, Device as _, Kernel, Result, Rule, Sequences, Tensor, forward, infer,
    primitives::{self, AttentionInputs, AttentionOptions, LossInputs, Transpose},
    rules::*,
};
use hecate_cpu::Cpu;
use hecate_wgpu::{Selection, Wgpu};
use std::time::Instant;

/// Seconds that a row is timed for, about.
const SPAN: f64 = 0.3;

/// Seconds of the same work before: a device that stood idle takes a while to reach its clock.
const WARM: f64 = 0.4;

/// Seconds a call.
fn time(device: &Wgpu, work: &dyn Fn() -> Result<()>) -> Result<f64> {
    let run = |times: usize| -> Result<f64> {
        let start = Instant::now();
        for _ in 0..times {
            work()?;
        }
        device.synchronize()?;
        Ok(start.elapsed().as_secs_f64() / times as f64)
    };
    let start = Instant::now();
    let mut guess = run(2)?;
    while start.elapsed().as_secs_f64() < WARM {
        guess = run(2)?;
    }
    let times = ((SPAN / 3.0 / guess) as usize).clamp(1, 1000);
    // The best of three: whatever else the machine does only adds.
    let spans = [run(times)?, run(times)?, run(times)?];
    Ok(spans.into_iter().fold(f64::INFINITY, f64::min))
}

/// `[m,k] × [k,n]`, and billions of operations a second.
fn matmul_row(device: &Wgpu, dtype: DType, [m, k, n]: [usize; 3], transpose: Transpose) -> Result<String> {
    let shape = |transposed, [r, c]: [usize; 2]| if transposed { [c, r] } else { [r, c] };
    let mut random = Random::new(1);
    let mut draw = |size: [usize; 3]| {
        let [m, k, n] = size;
        [random.normals(shape(transpose.a, [m, k])), random.normals(shape(transpose.b, [k, n]))]
    };
    let cut = draw([m.min(384), k.min(384), n.min(384)]);
    let product = |device: &Wgpu, [a, b]: &[Array; 2]| {
        primitives::matmul(&a.upload(device, dtype)?, &b.upload(device, dtype)?, transpose)
    };
    let found = Array::download(&product(device, &cut)?)?;
    let cpu = Cpu::new();
    let truth = primitives::matmul(&cut[0].upload(&cpu, dtype)?, &cut[1].upload(&cpu, dtype)?, transpose)?;
    let error = hecate_conformance::error(&Array::download(&truth)?.values, &found.values);
    // Two roundings of one number differ by a step of the type at most, and seldom by that.
    let limit = match dtype {
        DType::Bf16 => 2e-3,
        DType::F16 => 3e-4,
        _ => 1e-5,
    };
    assert!(error < limit, "a product is {error} away from the CPU's");
    let [a, b] = draw([m, k, n]);
    let (a, b) = (a.upload(device, dtype)?, b.upload(device, dtype)?);
    let seconds = time(device, &|| primitives::matmul(&a, &b, transpose).map(drop))?;
    let rate = 2.0 * (m * k * n) as f64 / seconds * 1e-9;
    Ok(format!("{:>9.3} ms {rate:>8.1} GFLOP/s", seconds * 1e3))
}

/// Attention over all earlier tokens: results, and results and gradients.
fn attention_row(device: &Wgpu, [b, t, h, d]: [usize; 4]) -> Result<String> {
    let options = AttentionOptions { window: t.max(2), scale: (d as f32).powf(-0.5) };
    let mut random = Random::new(1);
    let mut upload = || random.normals([b, t, h, d]).upload(device, DType::F32);
    let inputs = AttentionInputs { q: upload()?, k: upload()?, v: upload()?, cache: None, prefix: None };
    let (dy, sequences) = (upload()?, Sequences::batch(b, t));
    let results = || primitives::attention(options, &sequences, inputs.clone());
    let forward = time(device, &|| results().map(drop))?;
    let both = time(device, &|| results()?.pass.backward(&dy, None).map(drop))?;
    Ok(format!("{:>9.3} ms forward {:>9.3} ms both", forward * 1e3, both * 1e3))
}

/// A rule, once it is known to be right in 32 bits.
fn rule_row<R: Oracle>(device: &Wgpu, dtype: DType, rule: R, [b, t, h, d]: [usize; 4]) -> Result<String>
where
    Wgpu: Kernel<R>,
{
    let cell = report::check_rule(device, rule);
    assert!(cell.passed, "{cell:?}");
    let case = Case::new(rule, Sizes::new(b, t, h, d, d), 1);
    let (inputs, grads) = (case.upload(device, dtype)?, case.upload_grads(device, dtype)?);
    let results = time(device, &|| infer(device, rule, &inputs).map(drop))?;
    let both = time(device, &|| {
        let pass = forward(device, rule, inputs.clone())?.pass;
        pass.backward(grads.clone()).map(drop)
    })?;
    Ok(format!("{:>9.3} ms forward {:>9.3} ms both", results * 1e3, both * 1e3))
}

/// Prints a row, if it is asked for.
fn row(parts: &[String], name: String, measure: impl FnOnce() -> Result<String>) {
    if parts.is_empty() || parts.iter().any(|part| name.contains(part)) {
        match measure() {
            Ok(line) => println!("{name:<44} {line}"),
            Err(error) => println!("{name:<44} {error}"),
        }
    }
}

/// Batch, tokens, heads and width; few tokens of rules that go token by token.
fn rule_sizes(rule: &str) -> [usize; 4] {
    match rule {
        "hebbian" | "delta" | "titans" | "dgd" => [8, 1024, 8, 64],
        _ => [8, 128, 8, 64],
    }
}

fn table(device: &Wgpu, parts: &[String]) {
    println!("{device:?}, f32");
    let plain = Transpose::default();
    for n in [512, 1024, 2048, 4096] {
        row(parts, format!("matmul {n}^3"), || matmul_row(device, DType::F32, [n; 3], plain));
    }
    let layouts = [("a bᵀ", false, true), ("aᵀ b", true, false), ("aᵀ bᵀ", true, true)];
    for (name, a, b) in layouts {
        row(parts, format!("matmul 4096^3 {name}"), || matmul_row(device, DType::F32, [4096; 3], Transpose { a, b }));
    }
    let sizes = [[8192, 1024, 4096], [1024, 8192, 1024], [256, 8192, 256], [1, 4096, 4096], [2047, 2047, 2047]];
    for [m, k, n] in sizes {
        row(parts, format!("matmul {m}×{k}×{n}"), || matmul_row(device, DType::F32, [m, k, n], plain));
    }
    for sizes in [[4, 2048, 16, 128], [8, 1024, 8, 64]] {
        row(parts, format!("attention {sizes:?}"), || attention_row(device, sizes));
    }
    macro_rules! rules {
        ($($rule:ident),*) => { $(
            let sizes = rule_sizes(<$rule as Rule>::NAME);
            row(parts, format!("{} {sizes:?}", <$rule as Rule>::NAME), || rule_row(device, DType::F32, <$rule>::all()[0], sizes));
        )* };
    }
    hecate_core::for_each_rule!(rules);
    groups(device, parts);
    optional(device, parts);
    cooperative(device, parts);
}

/// Products of f16 by cooperative matrices, which have to be asked for, and in the general form.
fn cooperative(device: &Wgpu, parts: &[String]) {
    let layouts = [("a b", false, false), ("a bᵀ", false, true), ("aᵀ b", true, false)];
    let sizes = [[1024; 3], [4096; 3], [8192, 1024, 4096], [1024, 8192, 1024]];
    for ([m, k, n], (layout, a, b)) in sizes.into_iter().flat_map(|size| layouts.map(|layout| (size, layout))) {
        let name = format!("matmul {m}×{k}×{n} {layout} f16");
        row(parts, format!("{name}, general"), || matmul_row(device, DType::F16, [m, k, n], Transpose { a, b }));
        row(parts, format!("{name}, cooperative"), || {
            let device = Wgpu::cooperative(&Selection::Default)?;
            matmul_row(&device, DType::F16, [m, k, n], Transpose { a, b })
        });
    }
}

/// Networks whose groups of tokens are frozen: at the sizes of those that go token by token, and where CUDA is timed.
fn groups(device: &Wgpu, parts: &[String]) {
    let wide = MlpMemory { expansion: 4, ..TitansMlp::default().memory };
    for group in [16, 64] {
        for (memory, sizes) in [(TitansMlp::default().memory, [8, 128, 8, 64]), (wide, [4, 2048, 16, 64])] {
            let rule = TitansMlp { memory, frozen: Some(group), ..TitansMlp::default() };
            row(parts, format!("titans_mlp frozen {group} {sizes:?}"), || rule_row(device, DType::F32, rule, sizes));
            let rule = Yaad { memory, frozen: Some(group), ..Yaad::default() };
            row(parts, format!("yaad frozen {group} {sizes:?}"), || rule_row(device, DType::F32, rule, sizes));
            let rule = Moneta { memory, frozen: Some(group), ..Moneta::default() };
            row(parts, format!("moneta frozen {group} {sizes:?}"), || rule_row(device, DType::F32, rule, sizes));
            let rule = Memora { memory, frozen: Some(group), ..Memora::default() };
            row(parts, format!("memora frozen {group} {sizes:?}"), || rule_row(device, DType::F32, rule, sizes));
        }
        // Memories that go by cooperative matrices, where the device was opened with them.
        for sizes in [[4, 1024, 8, 128], [2, 512, 8, 256]] {
            let rule = TitansMlp { memory: wide, frozen: Some(group), ..TitansMlp::default() };
            row(parts, format!("titans_mlp frozen {group} {sizes:?}"), || rule_row(device, DType::F32, rule, sizes));
            let rule = Yaad { memory: wide, frozen: Some(group), ..Yaad::default() };
            row(parts, format!("yaad frozen {group} {sizes:?}"), || rule_row(device, DType::F32, rule, sizes));
        }
        let sizes = [4, 2048, 16, 64];
        let rule = TitansMlp { memory: MlpMemory { norm: true, ..wide }, frozen: Some(group), ..TitansMlp::default() };
        row(parts, format!("titans_mlp with a norm frozen {group} {sizes:?}"), || {
            rule_row(device, DType::F32, rule, sizes)
        });
        let rule = YaadMatrix { frozen: Some(group), ..YaadMatrix::default() };
        row(parts, format!("yaad_matrix frozen {group} {sizes:?}"), || rule_row(device, DType::F32, rule, sizes));
    }
}

/// What an adapter may have beyond others, with it and without.
fn optional(device: &Wgpu, parts: &[String]) {
    for (way, device) in [("", device), (", portable", &device.with_portable_kernels())] {
        for dtype in [DType::Bf16, DType::F16] {
            for n in [1024, 4096] {
                let name = format!("matmul {n}^3 {dtype}{way}");
                row(parts, name, || matmul_row(device, dtype, [n; 3], Transpose::default()));
            }
            let sizes = rule_sizes(Delta::NAME);
            row(parts, format!("delta {sizes:?} {dtype}{way}"), || rule_row(device, dtype, Delta::default(), sizes));
        }
        row(parts, format!("sum 2^24{way}"), || reduction_row(device, &[1 << 24], primitives::sum));
        row(parts, format!("cross_entropy [8192, 300]{way}"), || {
            let targets = Tensor::from_u32(device, [8192], (0..8192).map(|i| i % 300).collect())?;
            let losses = |logits: &Tensor<_>| {
                let inputs = LossInputs { classes: 300, logits, targets: &targets };
                primitives::cross_entropy(&inputs).map(|results| results.losses)
            };
            reduction_row(device, &[8192, 300], losses)
        });
    }
}

/// A reduction of an array, and billions of bytes a second.
fn reduction_row(
    device: &Wgpu,
    shape: &[usize],
    reduce: impl Fn(&Tensor<Wgpu>) -> Result<Tensor<Wgpu>>,
) -> Result<String> {
    let x = Random::new(1).uniforms(shape, 0.0, 1.0).upload(device, DType::F32)?;
    let seconds = time(device, &|| reduce(&x).map(drop))?;
    let rate = 4.0 * x.shape().count() as f64 / seconds * 1e-9;
    Ok(format!("{:>9.3} ms {rate:>8.1} GB/s", seconds * 1e3))
}

fn main() {
    let parts: Vec<String> = std::env::args().skip(1).filter(|argument| !argument.starts_with("--")).collect();
    match Wgpu::new(&Selection::Default) {
        Err(error) => println!("skipped: {error}"),
        Ok(device) => table(&device, &parts),
    }
}
