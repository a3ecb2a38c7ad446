//! What the linear rules take of the first GPU's memory beside arguments and results, as a table in Markdown.
//!
//! `cargo bench -p hecate-tests --bench memory`. A cell is what was found and, where they differ, what the engine documents
//! (`hecate-cuda/src/linear/mod.rs`); the program fails where these are more than 16 KiB apart. Blocks need up to 227 KiB of
//! shared memory here, which GPUs of servers have from compute capability 9.0 on; with less some calls go token by token.

use hecate_core::{
    DType, Device as _, Dims, Error, Forward, Inputs, Kernel, Outputs, Result, Rule, Sequences, Shape, Slots as _,
    Tensor, forward, infer,
    rules::{Delta, Titans},
};
use hecate_cuda::Cuda;
use std::process::ExitCode;

/// Tokens of a chunk.
const CHUNK: usize = 64;
/// Bytes that the pool may round up, of a dozen arrays.
const ROUNDED: usize = 16 << 10;

/// Segments of a sequence at most.
const MOST_SEGMENTS: usize = 16;

/// Bytes of shared memory of a block that the largest of these kernels needs.
const SHARED: usize = 227 << 10;

/// Bytes beside arguments and results: at most without a backward; between a forward and its backward; at most in these two.
type Bytes = [usize; 3];

const TITLES: [&str; 3] = ["forward alone", "kept for a backward", "both, at most"];

/// What the engine documents of a call whose sequences are cut into so many segments; 0: they are not.
fn documented(dtype: DType, dims: &Dims, matrices: usize, segments: usize) -> Bytes {
    let (key, value) = (dims.key, dims.value);
    let chunks = dims.heads * dims.sequences.ranges().map(|rows| rows.len().div_ceil(CHUNK)).sum::<usize>();
    let rows = dims.heads * dims.sequences.rows();
    // What is prepared, what a backward needs as much again of, and what is kept.
    let [prepared, doubled, kept] = if dtype == DType::Bf16 {
        let prepared = 4 * (CHUNK * CHUNK + 8 * CHUNK + 8) * chunks;
        let states = 2 * key.next_power_of_two().max(64) * value.next_multiple_of(16) * matrices * chunks;
        let doubled = states + 2 * value * rows;
        [prepared, doubled, prepared + doubled]
    } else {
        let states = 4 * key * value * matrices * chunks;
        [4 * (2 * CHUNK * CHUNK + 272) * chunks, states, states]
    };
    // B and E of the documentation, and values and outputs with columns for P.
    let wide = value + key * matrices;
    let [begun, ends] = [value, wide].map(|columns| 4 * key * columns * matrices * dims.heads * segments);
    let found = if segments == 0 { 0 } else { 2 * ends + 2 * dtype.size() * wide * rows };
    let cut = ends + 2 * begun;
    [prepared + cut.max(found), kept + ends, prepared + 2 * doubled + cut]
}

/// Segments of a call, by what it keeps: as many of each sequence.
fn segments(dtype: DType, dims: &Dims, matrices: usize, kept: usize) -> usize {
    let apart = |count: &usize| documented(dtype, dims, matrices, *count)[1].abs_diff(kept);
    (0..=MOST_SEGMENTS).map(|each| each * dims.sequences.count()).min_by_key(apart).unwrap_or(0)
}

/// Zeros: what is measured does not hang on values.
fn arguments<R: Rule>(device: &Cuda, rule: R, dtype: DType, dims: &Dims) -> Result<Inputs<R, Tensor<Cuda>>> {
    let zeros = |_, shape: Shape| Tensor::zeros(device, shape, DType::F32);
    let tokens = |shape| Tensor::zeros(device, shape, dtype);
    Ok(Inputs {
        q: tokens(dims.keys())?,
        k: tokens(dims.keys())?,
        v: tokens(dims.values())?,
        gates: R::Gates::try_map(rule.gates(dims), zeros)?,
        state: R::State::try_map(rule.state(dims), zeros)?,
        anchor: None,
    })
}

/// Bytes in use now, and the most since this was last asked.
fn used(device: &Cuda) -> Result<[usize; 2]> {
    device.synchronize()?;
    let most = device.peak_bytes()?;
    match (device.restart_peak()?, most) {
        (Some(now), Some(most)) => Ok([now, most]),
        _ => Err(Error::Unsupported { backend: "cuda", what: "counting bytes", why: "this GPU keeps no pool".into() }),
    }
}

fn bytes(arrays: Vec<(&'static str, &Tensor<Cuda>)>) -> usize {
    arrays.into_iter().map(|(_, x)| x.shape().count() * x.dtype().size()).sum()
}

fn measure<R: Rule>(device: &Cuda, rule: R, dtype: DType, dims: &Dims) -> Result<Bytes>
where
    Cuda: Kernel<R>,
{
    let inputs = arguments(device, rule, dtype, dims)?;
    let zeros = |_, x: Tensor<Cuda>| Tensor::zeros(device, x.shape().clone(), x.dtype());
    // What is made for the first call and kept is in use from here on.
    let grads = infer(device, rule, &inputs)?.try_map(zeros)?;
    let [before, _] = used(device)?;
    let outputs: Outputs<R, _> = infer(device, rule, &inputs)?;
    let results = bytes(outputs.list());
    drop(outputs);
    let [_, alone] = used(device)?;
    let Forward { outputs, pass } = forward(device, rule, inputs)?;
    let [between, most_forward] = used(device)?;
    let gradients = pass.backward(grads)?;
    let [_, most_back] = used(device)?;
    let both = most_forward.max(most_back);
    drop(outputs);
    Ok([alone - before - results, between - before - results, both - before - results - bytes(gradients.list())])
}

/// A line of the table, and whether it is as documented: `cut` into segments beside each other, or not.
fn line<R: Rule>(device: &Cuda, rule: R, dtype: DType, [b, t, h, d]: [usize; 4], cut: bool) -> Result<bool>
where
    Cuda: Kernel<R>,
{
    let dims =
        Dims { batch: b, tokens: t, heads: h, key: d, value: d, sequences: Sequences::batch(b, t), anchored: false };
    let found = measure(device, rule, dtype, &dims)?;
    let matrices = R::State::NAMES.len();
    let segments = segments(dtype, &dims, matrices, found[1]);
    let expected = documented(dtype, &dims, matrices, segments);
    let alike = |(found, expected): (&usize, &usize)| found.abs_diff(*expected) <= ROUNDED;
    let megabytes = |bytes: usize| format!("{:.1}", bytes as f64 / 1e6);
    let cells = found.iter().zip(&expected).map(|(&found, &expected)| match [found, expected].map(megabytes) {
        [found, expected] if found == expected => found,
        [found, expected] => format!("{found}, not {expected}"),
    });
    let cells = cells.collect::<Vec<_>>().join(" | ");
    let as_said = (segments > 0) == cut;
    let count =
        if as_said { segments.to_string() } else { format!("{segments}, not {}", if cut { "more" } else { "0" }) };
    println!("| {} | {dtype} | {b}, {t}, {h}, {d} | {count} | {cells} |", R::NAME);
    Ok(as_said && found.iter().zip(&expected).all(alike))
}

/// Whether all lines are as documented.
fn table(device: &Cuda) -> Result<bool> {
    println!("{device:?}, megabytes beside arguments and results\n");
    println!("| rule | `q`, `k`, `v` | B, T, H, D | segments | {} |", TITLES.join(" | "));
    println!("|{}", "---|".repeat(4 + TITLES.len()));
    let mut good = true;
    // The last two are long sequences of few heads.
    for sizes in [[4, 2048, 16, 128], [2, 16384, 16, 128], [8, 1024, 8, 64], [1, 16384, 4, 128], [2, 16384, 1, 64]] {
        for dtype in [DType::Bf16, DType::F32] {
            good &= line(device, Delta::default(), dtype, sizes, sizes[2] < 8)?;
            good &= line(device, Titans::default(), dtype, sizes, sizes[2] < 8)?;
        }
    }
    good &= line(device, Delta::default(), DType::Bf16, [4, 2048, 8, 256], false)?;
    // Odd sizes: a chunk that is not full, keys and columns between two tiles.
    good &= line(device, Titans::default(), DType::Bf16, [3, 1000, 5, 72], false)?;
    Ok(good)
}

fn main() -> ExitCode {
    let done = match Cuda::new(0) {
        Err(error) => {
            println!("skipped: {error}");
            return ExitCode::SUCCESS;
        }
        Ok(device) if device.properties().shared_memory < SHARED => {
            println!("skipped: blocks of this GPU have less than {SHARED} bytes of shared memory");
            return ExitCode::SUCCESS;
        }
        Ok(device) => table(&device),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => {
            eprintln!("error: other segments, or more than {ROUNDED} bytes from what is documented");
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
