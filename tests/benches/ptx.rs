//! Kernels that are written as PTX, on a GPU: `cargo bench -p hecate-tests --bench ptx` prints a line for each.
//!
//! `text` and `loaded` are milliseconds to the text and from there to a function, `kernel` is the median of its launches by the GPU's
//! clock, and `cuBLAS` that of the same product by the backend's own call. Nothing is timed before its numbers were looked at: the
//! tests of hecate-ptx compare all of them with float64 on a GPU. `peers/ptx.py` times PyTorch's calls of the same sizes.

use hecate_core::{
    DType, Device as _, Result, Tensor,
    primitives::{Transpose, cast, matmul},
};
use hecate_cuda::{Argument, Cuda, OwnGrid, OwnKernel};
use hecate_ptx::{
    Attention, GemmNaive, GemmTensorCore, GemmTiled, HalfType, LayerNorm, Norm, QuantizedGemm, Softmax, Specification,
};
use std::{process::ExitCode, time::Instant};

/// Launches of which the median counts.
const ROUNDS: usize = 21;

/// A kernel, its arguments, and what it takes of arithmetic and of memory.
struct Timed<'a> {
    what: String,
    specification: Specification,
    arguments: Vec<Argument<'a>>,
    operations: f64,
    bytes: f64,
}

fn main() -> ExitCode {
    match Cuda::new(0) {
        Err(error) => {
            println!("skipped: {error}");
            ExitCode::SUCCESS
        }
        Ok(gpu) => match table(&gpu) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("error: {error}");
                ExitCode::FAILURE
            }
        },
    }
}

fn table(gpu: &Cuda) -> Result<()> {
    println!("{gpu:?}\nkernel | text ms | loaded ms | kernel ms | TFLOP/s | GB/s | cuBLAS ms");
    products(gpu)?;
    halves(gpu)?;
    quantized(gpu)?;
    rows(gpu)?;
    attention(gpu)
}

/// Numbers between −1 and 1.
fn random(gpu: &Cuda, count: usize) -> Result<Tensor<Cuda>> {
    let number = |i: usize| ((i as u32).wrapping_mul(2_654_435_761) >> 8) as f32 / 8_388_608.0 - 1.0;
    Tensor::from_f32(gpu, [count], (0..count).map(number).collect())
}

/// The middle one of several times, in milliseconds.
fn median(gpu: &Cuda, mut work: impl FnMut() -> Result<()>) -> Result<f64> {
    work()?;
    gpu.synchronize()?;
    let timed = (0..ROUNDS).map(|_| gpu.timed(&mut work)).collect::<Result<Vec<_>>>()?;
    let mut times =
        timed.iter().map(|((), timing)| timing.milliseconds().map(f64::from)).collect::<Result<Vec<_>>>()?;
    times.sort_by(f64::total_cmp);
    Ok(times[ROUNDS / 2])
}

fn loaded(gpu: &Cuda, specification: &Specification) -> Result<(OwnKernel, [f64; 2])> {
    let start = Instant::now();
    let module = specification.write().expect("a kernel of a specification");
    let text = start.elapsed();
    let kernel = gpu.load_ptx(module.text(), module.name())?;
    Ok((kernel, [text, start.elapsed() - text].map(|time| 1e3 * time.as_secs_f64())))
}

fn line(gpu: &Cuda, timed: &Timed<'_>, peer: Option<f64>) -> Result<()> {
    let Timed { what, specification, arguments, operations, bytes } = timed;
    let (kernel, [text, load]) = loaded(gpu, specification)?;
    let launch = specification.launch();
    let grid = OwnGrid { blocks: launch.grid, threads: launch.block, shared: 0 };
    let time = median(gpu, || {
        // SAFETY: arguments are the specification's own, and its arrays are as long as its sizes say.
        #[allow(unsafe_code)]
        unsafe {
            kernel.launch(grid, arguments)
        }
    })?;
    let peer = peer.map_or("-".to_owned(), |peer| format!("{peer:.4}"));
    let (rate, traffic) = (operations / time / 1e9, bytes / time / 1e6);
    println!("{what} | {text:.3} | {load:.2} | {time:.4} | {rate:.1} | {traffic:.0} | {peer}");
    Ok(())
}

fn products(gpu: &Cuda) -> Result<()> {
    for n in [1024u32, 4096] {
        let count = (n * n) as usize;
        let [a, b, c] = [random(gpu, count)?, random(gpu, count)?, random(gpu, count)?];
        let square = |x: &Tensor<Cuda>| x.reshape([n as usize, n as usize]);
        let (rows, columns) = (square(&a)?, square(&b)?);
        let peer = median(gpu, || matmul(&rows, &columns, Transpose::default()).map(drop))?;
        let kernels = [
            ("gemm_naive", GemmNaive::new(n, n, n).expect("sizes").into()),
            ("gemm_tiled 64", GemmTiled::new(n, n, n, 64).expect("sizes").into()),
            ("gemm_tiled 128", GemmTiled::new(n, n, n, 128).expect("sizes").into()),
        ];
        for (name, specification) in kernels {
            let sizes = [Argument::U32(n); 3];
            let arguments = [&[Argument::Read(&a), Argument::Read(&b), Argument::Write(&c)][..], &sizes].concat();
            let what = format!("{name}, {n}³");
            let (operations, bytes) = (2.0 * f64::from(n).powi(3), 12.0 * f64::from(n).powi(2));
            line(gpu, &Timed { what, specification, arguments, operations, bytes }, Some(peer))?;
        }
    }
    Ok(())
}

fn halves(gpu: &Cuda) -> Result<()> {
    for (half, dtype) in [(HalfType::Bf16, DType::Bf16), (HalfType::F16, DType::F16)] {
        for n in [1024u32, 4096] {
            let of = |dtype| cast(dtype, &random(gpu, (n * n) as usize)?.reshape([n as usize, n as usize])?);
            let [a, b, c] = [of(dtype)?, of(dtype)?, of(dtype)?];
            let peer = median(gpu, || matmul(&a, &b, Transpose::default()).map(drop))?;
            let arrays = [Argument::Read(&a), Argument::Read(&b), Argument::Write(&c)];
            let timed = Timed {
                what: format!("gemm_tensor_core {dtype}, {n}³"),
                specification: GemmTensorCore::new(half, n, n, n).expect("sizes").into(),
                arguments: [&arrays[..], &[Argument::U32(n); 3]].concat(),
                operations: 2.0 * f64::from(n).powi(3),
                bytes: 6.0 * f64::from(n).powi(2),
            };
            line(gpu, &timed, Some(peer))?;
        }
    }
    Ok(())
}

fn quantized(gpu: &Cuda) -> Result<()> {
    let (n, k) = (4096u32, 4096u32);
    let blocks = (n * k / 256 * 144) as usize;
    for m in [1u32, 16] {
        let [a, b, c] = [random(gpu, (m * k) as usize)?, random(gpu, blocks / 4)?, random(gpu, (m * n) as usize)?];
        let arrays = [Argument::Read(&a), Argument::Read(&b), Argument::Write(&c)];
        let timed = Timed {
            what: format!("q4k_gemm_fused, {m} × {n} × {k}"),
            specification: QuantizedGemm::new(m, n, k).expect("sizes").into(),
            arguments: [&arrays[..], &[m, n, k].map(Argument::U32)].concat(),
            operations: 2.0 * f64::from(m) * f64::from(n) * f64::from(k),
            bytes: blocks as f64 + 4.0 * f64::from(m * (n + k)),
        };
        line(gpu, &timed, None)?;
    }
    Ok(())
}

fn rows(gpu: &Cuda) -> Result<()> {
    let (rows, length) = (8192u32, 4096u32);
    let count = (rows * length) as usize;
    let [x, y, gamma, beta] =
        [random(gpu, count)?, random(gpu, count)?, random(gpu, length as usize)?, random(gpu, length as usize)?];
    let (arrays, sizes) = ([Argument::Read(&x), Argument::Write(&y)], [rows, length].map(Argument::U32));
    let norm = |norm| LayerNorm::new(norm, rows, length, 1e-6).expect("sizes").into();
    let kernels: [(&str, Specification, Vec<Argument<'_>>); 3] = [
        ("softmax_warp", Softmax::new(rows, length).expect("sizes").into(), vec![]),
        ("layernorm", norm(Norm::Mean), vec![Argument::Read(&gamma), Argument::Read(&beta)]),
        ("rmsnorm", norm(Norm::Rms), vec![Argument::Read(&gamma)]),
    ];
    for (name, specification, weights) in kernels {
        let timed = Timed {
            what: format!("{name}, {rows} × {length}"),
            specification,
            arguments: [&arrays[..], &weights, &sizes].concat(),
            operations: 0.0,
            bytes: 8.0 * count as f64,
        };
        line(gpu, &timed, None)?;
    }
    Ok(())
}

fn attention(gpu: &Cuda) -> Result<()> {
    let (tokens, heads, columns) = (2048u32, 32u32, 64u32);
    let count = (tokens * heads * columns) as usize;
    let [q, k, v, out] = [random(gpu, count)?, random(gpu, count)?, random(gpu, count)?, random(gpu, count)?];
    for causal in [false, true] {
        // Half of all pairs are seen by a causal query.
        let pairs = f64::from(tokens).powi(2) * f64::from(heads) * if causal { 0.5 } else { 1.0 };
        let timed = Timed {
            what: format!(
                "{}, {heads} heads, {tokens} × {columns}",
                if causal { "flash_attention_causal" } else { "flash_attention" }
            ),
            specification: Attention::new(tokens, [heads, heads], columns, causal).expect("sizes").into(),
            arguments: vec![
                Argument::Read(&q),
                Argument::Read(&k),
                Argument::Read(&v),
                Argument::Write(&out),
                Argument::U32(tokens),
            ],
            operations: 4.0 * pairs * f64::from(columns),
            bytes: 16.0 * count as f64,
        };
        line(gpu, &timed, None)?;
    }
    Ok(())
}
