//! Products with quantized matrices, beside others: `cargo bench -p hecate-tests --bench quantized -- DEVICE [TYPE] [N..]`.
//!
//! Rows `x` and the other matrices are of TYPE: `f32`, `bf16` or `f16`.
//! Weights are `[4096, 4096]`, in as many copies as no cache holds, one after another. Where the device captures a step,
//! the step goes through all copies, so that starting kernels costs next to nothing.

use hecate::{Choose, Job, devices_of, select};
use hecate_core::{
    Backend, Capture, DType, Host, Result, Tensor, capture,
    primitives::{self, Transpose},
    quantized::{BlockFormat, Quantized},
};
use std::{hint::black_box, time::Instant};

/// Rows of weights, and values of a row.
const SIZE: usize = 4096;

/// Bytes of weights that a round goes through: more than caches of GPUs hold.
const BYTES: usize = 320 << 20;

/// Rounds of which the fastest counts: others share the machine.
const ROUNDS: usize = 12;

/// Type and rows of `x`.
struct Products(DType, Vec<usize>);

fn main() {
    // Cargo adds a flag of its own.
    let mut words = std::env::args().skip(1).filter(|word| !word.starts_with('-'));
    let choose: Choose = words.next().unwrap_or_else(|| "cpu".into()).parse().expect("a device");
    let mut words = words.peekable();
    let types = [DType::F32, DType::Bf16, DType::F16];
    let named = words.peek().and_then(|word| types.into_iter().find(|dtype| dtype.to_string() == *word));
    let dtype = named.inspect(|_| drop(words.next())).unwrap_or(DType::F32);
    let rows: Vec<usize> = words.map(|word| word.parse().expect("a number of rows")).collect();
    let rows = if rows.is_empty() { vec![1, 8, 64, 512] } else { rows };
    let found = devices_of(&choose.backends().expect("a backend"));
    select(&found, &choose).expect("a device").run(Products(dtype, rows)).expect("a device").expect("products");
}

impl Job for Products {
    type Output = Result<()>;

    fn run<B: Backend>(self, device: &B) -> Result<()> {
        let Self(dtype, rows) = self;
        println!("{device:?}, x in {dtype}\nformat rows microseconds GB/s GFLOP/s");
        let row: Vec<f32> =
            (0..SIZE * SIZE).map(|i| ((i * 2_654_435_761) as u32 >> 8) as f32 / 8_388_608.0 - 1.0).collect();
        for format in BlockFormat::ALL {
            let blocks = format.quantize(&row)?;
            let copies = 0..BYTES.div_ceil(blocks.len());
            let weights =
                copies.map(|_| Quantized::new(device, format, [SIZE, SIZE], &blocks)).collect::<Result<Vec<_>>>()?;
            for &n in &rows {
                let seconds =
                    time(device, (dtype, n), weights.len(), &|x, i| primitives::quantized_matmul(x, &weights[i]))?;
                print(format.name(), n, seconds, blocks.len());
            }
        }
        let bytes = dtype.size() * SIZE * SIZE;
        let copies = BYTES.div_ceil(bytes);
        let matrix = || primitives::cast(dtype, &Tensor::from_f32(device, [SIZE, SIZE], row.clone())?);
        let weights = (0..copies).map(|_| matrix()).collect::<Result<Vec<_>>>()?;
        let transpose = Transpose { a: false, b: true };
        for &n in &rows {
            let seconds = time(device, (dtype, n), copies, &|x, i| primitives::matmul(x, &weights[i], transpose))?;
            print(&dtype.to_string(), n, seconds, bytes);
        }
        Ok(())
    }
}

fn print(name: &str, n: usize, seconds: f64, bytes: usize) {
    let (bandwidth, rate) = (bytes as f64 / seconds / 1e9, 2.0 * (n * SIZE * SIZE) as f64 / seconds / 1e9);
    println!("{name:<6} {n:>4} {:>12.2} {bandwidth:>6.1} {rate:>8.1}", seconds * 1e6);
}

/// Seconds of one product with `n` rows of `x`, each with the next of `copies` weights.
fn time<B: Backend>(
    device: &B,
    (dtype, n): (DType, usize),
    copies: usize,
    product: &dyn Fn(&Tensor<B>, usize) -> Result<Tensor<B>>,
) -> Result<f64> {
    let values: Vec<f32> = (0..n * SIZE).map(|i| (i as f32).sin()).collect();
    let x = primitives::cast(dtype, &Tensor::from_f32(device, [n, SIZE], values)?)?;
    let round = |x: &Tensor<B>| (0..copies).try_for_each(|i| product(x, i).map(|y| drop(black_box(y))));
    // A graph of all products; what comes in and goes out is one number.
    let token = Tensor::from_u32(device, [1], vec![0])?;
    let mut step = |state: Vec<Tensor<B>>, token: Tensor<B>| {
        round(&state[0])?;
        Ok((state, token))
    };
    let mut captured = capture(device, std::slice::from_ref(&x), &token, &mut step)?;
    let mut best = f64::INFINITY;
    for _ in 0..ROUNDS {
        let start = Instant::now();
        match &mut captured {
            Capture::Graph(captured) => drop(captured.step(Host::U32(vec![0]))?),
            Capture::Refused { .. } => {
                round(&x)?;
                device.synchronize()?;
            }
        }
        best = best.min(start.elapsed().as_secs_f64() / copies as f64);
    }
    Ok(best)
}
