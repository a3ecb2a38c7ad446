//! Kernels that take row after row.

use super::{F32, close, random, run, upload};
use crate::interpreter::Device;
use hecate_ptx::Softmax;

fn softmax_of(row: &[f32]) -> Vec<f64> {
    let largest = row.iter().fold(f64::NEG_INFINITY, |largest, &x| largest.max(f64::from(x)));
    let exponentials: Vec<f64> = row.iter().map(|&x| (f64::from(x) - largest).exp()).collect();
    let sum: f64 = exponentials.iter().sum();
    exponentials.into_iter().map(|exponential| exponential / sum).collect()
}

#[test]
fn softmax() {
    for (rows, length) in [(1, 1), (3, 31), (2, 32), (2, 33), (5, 100), (1, 1000)] {
        // Spread over some twenty powers of e, and far from 0.
        let mut x: Vec<f32> = random(3, rows * length).into_iter().map(|x| 20.0 * x + 1000.0).collect();
        softmax_rows(rows, length, &x);
        x[length - 1] = f32::NEG_INFINITY;
        softmax_rows(rows, length, &x);
        for special in [f32::INFINITY, f32::NAN] {
            x[rows * length - 1] = special;
            softmax_rows(rows, length, &x);
        }
        softmax_rows(rows, length, &vec![f32::NEG_INFINITY; rows * length]);
        softmax_rows(rows, length, &vec![f32::MAX; rows * length]);
    }
}

fn softmax_rows(rows: usize, length: usize, x: &[f32]) {
    let mut device = Device::default();
    let (input, output) = (upload(&mut device, x), device.output(x.len() * 4));
    let specification = Softmax::new(rows as u32, length as u32).expect("sizes").into();
    run(specification, &mut device, &[input, output, (rows as u32).into(), (length as u32).into()]);
    let truth: Vec<f64> = x.chunks(length).flat_map(softmax_of).collect();
    close(&format!("softmax of {rows} × {length}"), &device.read(output, f32::from_le_bytes), &truth, F32);
}

/// A grid of fewer blocks than rows does all rows.
#[test]
fn fewer_blocks_than_rows() {
    let (x, mut device) = (random(4, 5 * 7), Device::default());
    let (input, output) = (upload(&mut device, &x), device.output(x.len() * 4));
    let module = hecate_ptx::Specification::from(Softmax::new(5, 7).expect("sizes")).write().expect("a kernel");
    device.launch(&module, [2, 1, 1], &[input, output, 5u32.into(), 7u32.into()]).expect("a launch");
    let truth: Vec<f64> = x.chunks(7).flat_map(softmax_of).collect();
    close("softmax by two blocks", &device.read(output, f32::from_le_bytes), &truth, F32);
}
