//! Kernels that take row after row.

use super::{F32, close, random, run, upload};
use crate::interpreter::{Argument, Device};
use hecate_ptx::{LayerNorm, Norm, Softmax};

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

const EPSILON: f32 = 1e-5;

fn norm_of(norm: Norm, row: &[f32], gamma: &[f32], beta: &[f32]) -> Vec<f64> {
    let mean_of = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
    let row: Vec<f64> = row.iter().copied().map(f64::from).collect();
    let mean = if norm == Norm::Mean { mean_of(&row) } else { 0.0 };
    let square = mean_of(&row.iter().map(|x| (x - mean).powi(2)).collect::<Vec<_>>());
    let scale = 1.0 / (square + f64::from(EPSILON)).sqrt();
    let scaled = row.iter().zip(gamma).map(|(x, gamma)| (x - mean) * scale * f64::from(*gamma));
    match norm {
        Norm::Mean => scaled.zip(beta).map(|(y, beta)| y + f64::from(*beta)).collect(),
        Norm::Rms => scaled.collect(),
    }
}

fn norm_rows(norm: Norm, [rows, hidden]: [usize; 2], x: &[f32]) {
    let (gamma, beta) = (random(8, hidden), random(9, hidden));
    let mut device = Device::default();
    let (input, output) = (upload(&mut device, x), device.output(x.len() * 4));
    let mut arguments = vec![input, output, upload(&mut device, &gamma)];
    if norm == Norm::Mean {
        arguments.push(upload(&mut device, &beta));
    }
    arguments.extend([rows, hidden].map(|size| Argument::U32(size as u32)));
    // A launch for two rows less has blocks that take several.
    let planned = rows.saturating_sub(2).max(1) as u32;
    let specification = LayerNorm::new(norm, planned, hidden as u32, EPSILON).expect("sizes").into();
    run(specification, &mut device, &arguments);
    let truth: Vec<f64> = x.chunks(hidden).flat_map(|row| norm_of(norm, row, &gamma, &beta)).collect();
    close(&format!("{norm:?} of {rows} × {hidden}"), &device.read(output, f32::from_le_bytes), &truth, F32);
}

#[test]
fn norms() {
    for norm in [Norm::Mean, Norm::Rms] {
        for (rows, hidden) in [(1, 1), (3, 31), (2, 256), (5, 257), (4, 1000)] {
            let mut x = random(7, rows * hidden);
            norm_rows(norm, [rows, hidden], &x);
            // Tiny rows, in which epsilon decides; a row without NaN stays without.
            norm_rows(norm, [rows, hidden], &x.iter().map(|x| x * 1e-3).collect::<Vec<_>>());
            for special in [f32::INFINITY, f32::NAN] {
                x[hidden - 1] = special;
                norm_rows(norm, [rows, hidden], &x);
            }
        }
    }
}

/// An RMS norm subtracts no mean; a layer norm does, and loses no digits of rows that are far from 0.
#[test]
fn rows_far_from_zero() {
    // Whole sixteenths, which an f32 holds exactly beside 1000.
    let x: Vec<f32> = random(10, 3 * 100).into_iter().map(|x| 1000.0 + (16.0 * x).round() / 16.0).collect();
    norm_rows(Norm::Rms, [3, 100], &x);
    norm_rows(Norm::Mean, [3, 100], &x);
}
