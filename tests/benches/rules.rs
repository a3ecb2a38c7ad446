//! Times of every rule, of attention and of matrix products on the CPU.
//!
//! `cargo bench -p hecate-tests`. Nothing is timed before it was compared: rules with a scan, token by token, at the
//! size that is timed, and with the equations in 64 bits at a small one.

use divan::{Bencher, counter::ItemsCount};
use hecate_conformance::{Case, Random, Sizes, assert_close, case, oracle::Oracle, report};
use hecate_core::{
    DType, Device, Inputs, Kernel, Sequences, Tensor, forward, infer,
    primitives::{self, AttentionInputs, AttentionOptions, Cache},
    rules::*,
};
use hecate_cpu::{Algorithm, Cpu};

fn main() {
    divan::main();
}

/// Tokens, heads, width.
const PREFILL: [(usize, usize, usize); 4] = [(1024, 8, 64), (1024, 8, 128), (1024, 16, 64), (1024, 32, 128)];
const DECODE: [(usize, usize, usize); 3] = [(1, 8, 64), (1, 8, 128), (1, 32, 128)];

/// Arguments on the device, once the rule is known to be right there.
fn prepare<R: Oracle>((tokens, heads, width): (usize, usize, usize)) -> (Cpu, Case<R>, Inputs<R, Tensor<Cpu>>)
where
    Cpu: Kernel<R>,
{
    let device = Cpu::new();
    let rule = R::all()[0];
    let cell = report::check_rule(&device, rule);
    assert!(cell.passed, "{cell:?}");
    let case = Case::new(rule, Sizes::new(1, tokens, heads, width, width), 1);
    let run = |device: &Cpu| case.run(device, DType::F32).expect("a valid call");
    let (truth, found) = (run(&device.with_algorithm(Algorithm::Scan).expect("a form")), run(&device));
    let mut compared = case::compare_outputs(case.rule, &truth.outputs, &found.outputs);
    compared.extend(case::compare_grads(case.rule, &truth.grads, &found.grads));
    assert_close(&case, &compared);
    let inputs = case.upload(&device, DType::F32).expect("an upload");
    (device, case, inputs)
}

#[divan::bench(types = [Hebbian, Delta, Titans, Dgd, Atlas], args = PREFILL)]
fn rule_infer<R: Oracle>(bencher: Bencher<'_, '_>, sizes: (usize, usize, usize))
where
    Cpu: Kernel<R>,
{
    let (device, case, inputs) = prepare::<R>(sizes);
    bencher.counter(ItemsCount::new(sizes.0)).bench_local(|| infer(&device, case.rule, &inputs));
}

#[divan::bench(types = [Hebbian, Delta, Titans, Dgd, Atlas], args = PREFILL)]
fn rule_forward_and_backward<R: Oracle>(bencher: Bencher<'_, '_>, sizes: (usize, usize, usize))
where
    Cpu: Kernel<R>,
{
    let (device, case, inputs) = prepare::<R>(sizes);
    let grads = case.upload_grads(&device, DType::F32).expect("an upload");
    bencher.counter(ItemsCount::new(sizes.0)).bench_local(|| {
        let pass = forward(&device, case.rule, inputs.clone())?.pass;
        let gradients = pass.backward(grads.clone())?;
        device.synchronize().map(|()| gradients)
    });
}

#[divan::bench(types = [Hebbian, Delta, Titans, Dgd, Atlas], args = DECODE)]
fn rule_decode<R: Oracle>(bencher: Bencher<'_, '_>, sizes: (usize, usize, usize))
where
    Cpu: Kernel<R>,
{
    let (device, case, inputs) = prepare::<R>(sizes);
    bencher.counter(ItemsCount::new(sizes.0)).bench_local(|| infer(&device, case.rule, &inputs));
}

/// As [`rule_decode`], every token from the memory that the one before left.
#[divan::bench(types = [Hebbian, Delta, Titans, Dgd], args = DECODE)]
fn rule_decode_on<R: Oracle>(bencher: Bencher<'_, '_>, sizes: (usize, usize, usize))
where
    Cpu: Kernel<R>,
{
    let (device, case, mut inputs) = prepare::<R>(sizes);
    bencher.counter(ItemsCount::new(sizes.0)).bench_local(|| {
        infer(&device, case.rule, &inputs).map(|outputs| {
            inputs.state = outputs.state;
            outputs.out
        })
    });
}

/// Items are floating-point operations.
#[divan::bench(args = [256, 512, 1024])]
fn matmul(bencher: Bencher<'_, '_>, width: usize) {
    let (device, random) = (Cpu::new(), &mut Random::new(1));
    let mut matrix = || random.normals([width, width]).upload(&device, DType::F32).expect("an upload");
    let (a, b) = (matrix(), matrix());
    let product = || primitives::matmul(&a, &b, primitives::Transpose::default());
    let (host_a, host_b) = (a.to_f32().expect("a download"), b.to_f32().expect("a download"));
    let corner: f64 = (0..width).map(|k| f64::from(host_a[k]) * f64::from(host_b[k * width])).sum();
    let found = product().and_then(|c| c.to_f32()).expect("a valid call")[0];
    assert!((corner - f64::from(found)).abs() < 1e-4 * width as f64, "{found} is not {corner}");
    bencher.counter(ItemsCount::new(2 * width * width * width)).bench_local(product);
}

type Attending = AttentionInputs<Tensor<Cpu>>;

/// Tokens, query heads, key-value heads, width, window.
type AttentionSizes = (usize, usize, usize, usize, usize);

/// A text under several query heads that share keys and under a single head, a narrow window, a decoded token after a long cache.
const ATTENTION: [AttentionSizes; 4] =
    [(2048, 4, 1, 64, 2048), (2048, 1, 1, 128, 2048), (8192, 1, 1, 64, 256), (1, 4, 1, 64, 16_385)];

/// Normal arguments of attention, with a full cache where there is one token; its last output is known to be right.
fn attention_inputs((tokens, heads, shared, width, window): AttentionSizes) -> (AttentionOptions, Attending) {
    let (device, random) = (Cpu::new(), &mut Random::new(1));
    let mut draw = |axes: [usize; 4]| random.normals(axes).upload(&device, DType::F32).expect("an upload");
    let mut keys = |rows| draw([1, rows, shared, width]);
    let (k, v, kept) = (keys(tokens), keys(tokens), window - 1);
    let cache = (tokens == 1).then(|| (keys(kept), keys(kept)));
    let valid = || Tensor::from_f32(&device, [1, kept], vec![1.0; kept]).expect("an upload");
    let cache = cache.map(|(k, v)| Cache { k, v, valid: valid() });
    let inputs = AttentionInputs { q: draw([1, tokens, heads, width]), k, v, cache, prefix: None };
    let options = AttentionOptions { window, scale: (width as f32).powf(-0.5) };
    let y = primitives::attention(options, &Sequences::batch(1, tokens), inputs.clone()).expect("a valid call").y;
    let found = y.to_f32().expect("a download");
    let truth = last_output(options, &inputs);
    for (found, truth) in found[found.len() - width..].iter().zip(truth) {
        assert!((f64::from(*found) - truth).abs() < 1e-5, "{found} is not {truth}");
    }
    (options, inputs)
}

/// What the last token reads under the last head, in 64 bits.
fn last_output(options: AttentionOptions, inputs: &Attending) -> Vec<f64> {
    let (shared, width) = (inputs.k.shape().axes()[2], inputs.k.shape().last());
    // Rows of the cache, then of tokens, of the last head of keys.
    let rows = |cache: Option<&Tensor<Cpu>>, x: &Tensor<Cpu>| -> Vec<Vec<f64>> {
        let rows: Vec<f32> = cache.into_iter().chain([x]).flat_map(|x| x.to_f32().expect("a download")).collect();
        let head = rows.chunks(width).skip(shared - 1).step_by(shared);
        head.map(|row| row.iter().map(|&x| f64::from(x)).collect()).collect()
    };
    let cache = inputs.cache.as_ref();
    let (k, v) = (rows(cache.map(|cache| &cache.k), &inputs.k), rows(cache.map(|cache| &cache.v), &inputs.v));
    let q = rows(None, &inputs.q).pop().expect("a query");
    let seen = k.len().saturating_sub(options.window)..k.len();
    let dot = |k: &[f64]| -> f64 { q.iter().zip(k).map(|(q, k)| q * k).sum() };
    let weights: Vec<f64> = k[seen.clone()].iter().map(|k| (f64::from(options.scale) * dot(k)).exp()).collect();
    let total: f64 = weights.iter().sum();
    let along = |i: usize| weights.iter().zip(&v[seen.clone()]).map(|(w, v)| w * v[i]).sum::<f64>() / total;
    (0..width).map(along).collect()
}

#[divan::bench(args = ATTENTION)]
fn attention_infer(bencher: Bencher<'_, '_>, sizes: AttentionSizes) {
    let (options, inputs) = attention_inputs(sizes);
    let sequences = Sequences::batch(1, sizes.0);
    bencher
        .counter(ItemsCount::new(sizes.0))
        .bench_local(|| primitives::attention(options, &sequences, inputs.clone()).map(|attended| attended.y));
}

#[divan::bench(args = ATTENTION)]
fn attention_forward_and_backward(bencher: Bencher<'_, '_>, sizes: AttentionSizes) {
    let (options, inputs) = attention_inputs(sizes);
    let (dy, sequences) = (inputs.q.clone(), Sequences::batch(1, sizes.0));
    bencher
        .counter(ItemsCount::new(sizes.0))
        .bench_local(|| primitives::attention(options, &sequences, inputs.clone())?.pass.backward(&dy, None));
}
