//! Sums and texts so long that a driver which ends loops early would leave a part of them out. Every term is 1, so each result
//! is a count, which 32 bits hold exactly up to 2²⁴.

use super::open;
use crate::{Wgpu, launch::ROUNDS};
use hecate_core::{
    DType, Error, Inputs, Result, Tensor, forward,
    primitives::{Draw, LossInputs, Transpose, cross_entropy, matmul, sample, softmax},
    rules::{Hebbian, Matrix, WriteGates},
};

fn ones(device: &Wgpu, axes: &[usize]) -> Tensor<Wgpu> {
    Tensor::from_f32(device, axes, vec![1.0; axes.iter().product()]).expect("an array")
}

/// Counts and nothing else, or a refusal that names the rounds, which only such a driver gives.
fn counted(device: &Wgpu, found: Result<Vec<f32>>, expected: impl Fn(usize) -> f32, what: &str) {
    match found {
        Ok(found) => {
            let wrong = found.iter().enumerate().find(|&(i, &x)| (x - expected(i)).abs() > 1e-6 * expected(i).abs());
            assert!(
                wrong.is_none() && !found.is_empty(),
                "{what}: {wrong:?}, not {:?}",
                wrong.map(|(i, _)| expected(i))
            );
        }
        Err(Error::Unsupported { why, .. }) => {
            assert!(device.adapter().ends_loops && why.contains("65535"), "{what}: {why}");
        }
        Err(error) => panic!("{what}: {error}"),
    }
}

/// The scores of a large vocabulary times its vectors: few rows, many terms, stored either way. Never refused.
#[test]
fn products_of_long_sums() {
    let Some(device) = open() else { return };
    for (rows, columns, deep) in [(1, 9, false), (5, 8, false), (8, 4, true), (8, 3, false), (9, 3, false)] {
        let inner = 8 * ROUNDS;
        let b = ones(&device, &if deep { [columns, inner] } else { [inner, columns] });
        let transpose = Transpose { a: false, b: deep };
        let found = matmul(&ones(&device, &[rows, inner]), &b, transpose).and_then(|x| x.to_f32());
        let found = found.expect("a product");
        assert!(found.iter().all(|&x| x == inner as f32), "{rows} rows, {columns} columns, {deep}: {found:?}");
    }
}

/// A row of more elements than its invocations go through in so many rounds.
#[test]
fn long_rows() {
    let Some(device) = open() else { return };
    let length = 48 * ROUNDS;
    let logits = ones(&device, &[1, length]);
    let targets = Tensor::from_u32(&device, [1], vec![3]).expect("a target");
    let losses = cross_entropy(&LossInputs { classes: length, logits: &logits, targets: &targets });
    let losses = losses.and_then(|losses| losses.losses.to_f32());
    counted(&device, losses, |_| (length as f32).ln(), "the loss of equal scores");
    let shares = softmax(&logits).and_then(|x| x.to_f32());
    counted(&device, shares, |_| 1.0 / length as f32, "shares of equal scores");
}

/// Tokens of vocabularies that a driver which ends loops draws from too, and of one that it refuses unless the likeliest is
/// taken. Scores repeat every hundred tokens, so many are alike where a cut is.
#[test]
fn tokens_of_large_vocabularies() {
    let Some(device) = open() else { return };
    for (vocabulary, temperature) in [(500_000, 1.0), (48 * ROUNDS, 1.0), (48 * ROUNDS, 0.0)] {
        let scores: Vec<f32> = (0..vocabulary).map(|i| (i % 100) as f32 / 50.0).collect();
        let draw = Draw { temperature, top_k: 3, top_p: 0.9 };
        let expected = draw.token(&scores, [1, 2, 3]).expect("a token") as f32;
        let on = Tensor::from_f32(&device, [1, vocabulary], scores).expect("scores");
        let streams = Tensor::from_u32(&device, [1, 3], vec![1, 2, 3]).expect("a stream");
        let found = sample(&draw, &on, &streams).and_then(|drawn| drawn.tokens.to_f32());
        assert!(found.is_ok() || (vocabulary > 500_000 && temperature > 0.0), "{vocabulary} tokens: {found:?}");
        counted(&device, found, |_| expected, "the token drawn");
    }
}

/// A memory of one number that adds up ones says how many tokens it has read; gradients of values, how many come after.
#[test]
fn texts_of_many_tokens() {
    let Some(device) = open() else { return };
    for tokens in [ROUNDS / 4, ROUNDS + 7] {
        let zeros = |axes: &[usize]| Tensor::zeros(&device, axes, DType::F32).expect("an array");
        let each = [1, tokens, 1, 1];
        let inputs = Inputs {
            q: ones(&device, &each),
            k: ones(&device, &each),
            v: ones(&device, &each),
            gates: WriteGates { log_a: zeros(&each[..3]), theta: ones(&device, &each[..3]) },
            state: Matrix { m: zeros(&[1, 1, 1, 1]) },
            anchor: None,
        };
        let mut after = Ok(Vec::new());
        let out = forward(&device, Hebbian::default(), inputs).and_then(|run| {
            after = run.pass.backward_out(ones(&device, &each)).and_then(|grads| grads.v.to_f32());
            run.outputs.out.to_f32()
        });
        let refused = out.is_err();
        counted(&device, out, |t| (t + 1) as f32, "tokens read");
        if !refused {
            counted(&device, after, |t| (tokens - t) as f32, "tokens to come");
        }
    }
}
