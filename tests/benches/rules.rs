//! Times of every rule and of matrix products on the CPU.
//!
//! `cargo bench -p hecate-tests`. Nothing is timed before it was compared: rules with a scan, token by token, at the
//! size that is timed, and with the equations in 64 bits at a small one.

use divan::{Bencher, counter::ItemsCount};
use hecate_conformance::{Case, Random, Sizes, assert_close, case, oracle::Oracle, report};
use hecate_core::{DType, Device, Inputs, Kernel, Tensor, forward, infer, primitives, rules::*};
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
