//! Losses on the tape, the way back from one number, and rows of any array.

use super::tape::{array, parameters, place, values};
use crate::column::{Column, device, is_missing};
use approx::assert_relative_eq;
use hecate_core::{DType, Tensor};
use hecate_models::{Config, LanguageModel, Parameters, Precision, Tape, Var, text::Stream};
use hecate_train::evaluate::{Score, evaluate};
use std::ops::ControlFlow;

fn ids(axes: &[usize], ids: &[u32]) -> Tensor<Column> {
    Tensor::from_u32(&device(), axes, ids.to_vec()).expect("ids")
}

/// Mean cross-entropy and its gradient by the logits, in 64 bits.
fn truth(logits: &[[f64; 3]], targets: &[u32]) -> (f64, Vec<f64>) {
    let count = logits.len() as f64;
    let lse = |row: &[f64; 3]| row.iter().map(|x| x.exp()).sum::<f64>().ln();
    let rows = || logits.iter().zip(targets);
    let loss = rows().map(|(row, &target)| lse(row) - row[target as usize]).sum::<f64>() / count;
    let gradient = |(row, &target): (&[f64; 3], &u32)| -> Vec<f64> {
        let hot = |v| f64::from(u8::from(v == target as usize));
        row.iter().enumerate().map(|(v, x)| ((x - lse(row)).exp() - hot(v)) / count).collect()
    };
    (loss, rows().flat_map(gradient).collect())
}

/// A learned array `[2,2,3]`, and its rows in 64 bits.
fn logits() -> (Parameters<Column>, Vec<[f64; 3]>) {
    let rows: Vec<[f64; 3]> = (0..4).map(|i| [0.5, 0.25 * f64::from(i), -1.5]).collect();
    let mut parameters = Parameters::new();
    let values = rows.iter().flatten().map(|&x| x as f32).collect();
    parameters.add("logits", Tensor::from_f32(&device(), [2, 2, 3], values).expect("logits"), false);
    (parameters, rows)
}

#[test]
fn cross_entropy_is_the_mean_over_rows() {
    if is_missing() {
        return;
    }
    let (parameters, rows) = logits();
    let targets = [2, 0, 1, 1];
    let (loss, gradient) = truth(&rows, &targets);
    // The gradient of a loss arrives as it is left: a factor, a sum.
    for factor in [1.0, -3.0] {
        let tape = Tape::recording(&parameters);
        let x = tape.parameter(place(&parameters, 0)).unwrap();
        let mean = tape.cross_entropy(&x, &ids(&[2, 2], &targets)).unwrap();
        assert_eq!(mean.axes(), [1]);
        assert_relative_eq!(f64::from(mean.value().to_f32().unwrap()[0]), loss, max_relative = 1e-6);
        let sum = tape.add(&tape.scale(factor, &mean).unwrap(), &mean).unwrap();
        let gradients = tape.backward(&sum).unwrap();
        for (found, truth) in values(&gradients)[0].clone().expect("a gradient").into_iter().zip(&gradient) {
            assert_relative_eq!(f64::from(found), (f64::from(factor) + 1.0) * truth, max_relative = 1e-5);
        }
    }
    let tape = Tape::inert(&parameters);
    let x = tape.parameter(place(&parameters, 0)).unwrap();
    let refused = tape.cross_entropy(&x, &ids(&[4], &targets)).unwrap_err().to_string();
    assert!(refused.contains("targets") && refused.contains("[2, 2]"), "{refused}");
}

#[test]
fn logits_of_16_bits_have_gradients_of_16_bits() {
    if is_missing() {
        return;
    }
    let (parameters, rows) = logits();
    let (loss, gradient) = truth(&rows, &[1; 4]);
    let tape = Tape::recording(&parameters);
    let x = tape.cast(DType::Bf16, &tape.parameter(place(&parameters, 0)).unwrap()).unwrap();
    let mean = tape.cross_entropy(&x, &ids(&[2, 2], &[1; 4])).unwrap();
    assert_eq!(mean.value().dtype(), DType::F32);
    assert_relative_eq!(f64::from(mean.value().to_f32().unwrap()[0]), loss, max_relative = 1e-2);
    let found = values(&tape.backward(&mean).unwrap())[0].clone().expect("a gradient");
    found.into_iter().zip(gradient).for_each(|(found, truth)| {
        assert_relative_eq!(f64::from(found), truth, max_relative = 2e-2);
    });
}

#[test]
fn a_way_back_starts_from_one_number_of_the_tape() {
    if is_missing() {
        return;
    }
    let parameters = parameters();
    let a = |tape: &Tape<'_, Column>| tape.parameter(place(&parameters, 0)).unwrap();
    let refusal = |tape: Tape<'_, Column>, loss: &Var<Column>, word: &str| {
        let message = tape.backward(loss).expect_err("refused").to_string();
        assert!(message.contains(word), "`{word}` is not in: {message}");
    };
    let tape = Tape::recording(&parameters);
    let loss = a(&tape);
    refusal(tape, &loss, "an array [2, 3]");
    refusal(Tape::recording(&parameters), &Var::constant(array(&[1], [1])), "a constant");
    let inert = Tape::inert(&parameters);
    let loss = inert.narrow(&a(&inert), 0, 0, 1).and_then(|row| inert.narrow(&row, 1, 0, 1)).unwrap();
    refusal(inert, &loss, "inert");
}

#[test]
fn rows_are_those_of_any_array() {
    if is_missing() {
        return;
    }
    let mut parameters = Parameters::new();
    parameters.add("x", array(&[2, 2, 2], 0..8), false);
    for axes in [&[2, 2, 2][..], &[4, 2], &[1, 4, 1, 2]] {
        let tape = Tape::recording(&parameters);
        let x = tape.reshape(&tape.parameter(place(&parameters, 0)).unwrap(), axes).unwrap();
        let y = tape.rows(&x, &ids(&[1, 3], &[3, 0, 3])).unwrap();
        assert_eq!((y.axes(), y.value().to_f32().unwrap()), (&[1, 3, 2][..], vec![6.0, 7.0, 0.0, 1.0, 6.0, 7.0]));
        let gradients = tape.backward_seeded([(y, array(&[1, 3, 2], 1..=6))]).unwrap();
        // The last row was taken twice.
        assert_eq!(values(&gradients), [Some(vec![3.0, 4.0, 0.0, 0.0, 0.0, 0.0, 6.0, 8.0])]);
    }
}

#[test]
fn tensors_print_their_values() {
    if is_missing() {
        return;
    }
    let name = <Column as hecate_core::Device>::NAME;
    assert_eq!(format!("{:?}", array(&[2, 1], 7..=8)), format!("Tensor(f32 [2, 1] on {name} [[7.0], [8.0]])"));
    assert_eq!(format!("{:?}", ids(&[2], &[5, 0])), format!("Tensor(u32 [2] on {name} [5, 0])"));
    let large = Tensor::zeros(&device(), [1001], DType::Bf16).unwrap();
    assert_eq!(format!("{large:?}"), format!("Tensor(bf16 [1001] on {name})"));
}

/// A model of 70 tokens, which 16 bits pad, that makes so many scores at a time.
fn with_vocabulary(tied: bool, precision: Precision, scores: usize) -> LanguageModel<Column> {
    let config =
        Config { vocabulary_size: 70, tie_word_embeddings: tied, ..Config::uniform("delta", 1, 16, 2).unwrap() };
    let model = LanguageModel::new(&device(), &config, 3).expect("a model");
    model.with_precision(precision).with_scores_at_once(scores)
}

/// Scores of one token, of a few that do not divide the 36 of a pass, and of nearly all.
#[test]
fn scores_at_once_change_rounding_alone() {
    if is_missing() {
        return;
    }
    let inputs: Vec<u32> = (0..36).map(|i| i * i % 70).collect();
    let targets: Vec<u32> = (0..36).map(|i| (i * 7 + 3) % 70).collect();
    // Rounding of 32-bit sums; in 16 bits the head's gradient gathers in 32, so only the stream's is rounded.
    for (precision, off) in [(Precision::F32, 1e-5), (Precision::Bf16, 1e-2)] {
        for tied in [true, false] {
            let run = |scores| {
                let model = with_vocabulary(tied, precision, scores);
                let (loss, gradients) = model.loss_and_gradients(&inputs, &targets, 2).expect("a pass");
                assert_relative_eq!(model.loss(&inputs, &targets, 2).unwrap(), loss, max_relative = off);
                (loss, values(&gradients))
            };
            let (loss, gradients) = run(usize::MAX);
            for scores in [0, 70, 5 * 70, 35 * 70 + 69] {
                let (found, others) = run(scores);
                assert_relative_eq!(found, loss, max_relative = 1e-5);
                assert_eq!(others.len(), gradients.len());
                for (a, b) in gradients.iter().zip(&others) {
                    let (a, b) = (a.as_ref().expect("a gradient"), b.as_ref().expect("a gradient"));
                    let largest = a.iter().fold(0.0, |largest: f32, x| largest.max(x.abs()));
                    a.iter().zip(b).for_each(|(a, b)| {
                        assert!(f64::from((a - b).abs()) <= off * f64::from(largest), "{scores}: {a} {b}")
                    });
                }
            }
        }
    }
}

#[test]
fn texts_are_measured_with_few_scores_at_a_time() {
    if is_missing() {
        return;
    }
    let stream = Stream { tokens: (0..61).map(|i| i * i % 70).collect::<Vec<u32>>().into(), bytes: 61 };
    let [whole, pieces] = [usize::MAX, 3 * 70].map(|scores| -> Score {
        let model = with_vocabulary(true, Precision::F32, scores);
        evaluate(&model, &stream, 32, |_| ControlFlow::Continue(())).expect("a score")
    });
    assert_eq!((whole.tokens, pieces.tokens), (60, 60));
    assert_relative_eq!(whole.nats, pieces.nats, max_relative = 1e-6);
}

/// Tokens of a large vocabulary, which no piece has all scores of.
const LARGE: usize = 250_000;

/// A model of so many tokens, one layer, a stream of 8.
fn with_large_vocabulary(precision: Precision) -> LanguageModel<Column> {
    let config = Config {
        vocabulary_size: LARGE,
        tie_word_embeddings: false,
        // Scores far enough apart to tell one token from another.
        initializer_range: 0.5,
        ..Config::uniform("delta", 1, 8, 2).unwrap()
    };
    LanguageModel::new(&device(), &config, 5).expect("a model").with_precision(precision)
}

/// Mean loss in 64 bits, and what the head's gradient times the head's weight must be: `Σ (p − 1ₜ) s / T` over all scores `s`.
fn large_truth(logits: &[f32], targets: &[u32]) -> (f64, f64) {
    let (mut loss, mut product) = (0.0, 0.0);
    for (row, &target) in logits.chunks_exact(LARGE).zip(targets) {
        let most = row.iter().fold(f64::MIN, |most, &x| most.max(x.into()));
        let exps: Vec<f64> = row.iter().map(|&x| (f64::from(x) - most).exp()).collect();
        let (sum, own) = (exps.iter().sum::<f64>(), f64::from(row[target as usize]));
        loss += sum.ln() + most - own;
        product += row.iter().zip(exps).map(|(&x, exp)| f64::from(x) * exp / sum).sum::<f64>() - own;
    }
    (loss / targets.len() as f64, product / targets.len() as f64)
}

/// Root of the sum of squares.
fn length<'a>(values: impl IntoIterator<Item = &'a f32>) -> f64 {
    values.into_iter().map(|&x| f64::from(x).powi(2)).sum::<f64>().sqrt()
}

#[test]
fn a_large_vocabulary_has_the_losses_and_gradients_of_all_scores_at_once() {
    if is_missing() {
        return;
    }
    let inputs: Vec<u32> = (0..10).map(|i| i * 24_989).collect();
    let targets: Vec<u32> = (0..10).map(|i| 249_999 - i * i * 2_003).collect();
    // Rounding of 32-bit sums; twice that of a number to 16 bits.
    for (precision, off) in [(Precision::F32, 1e-5), (Precision::Bf16, 8e-3)] {
        let run = |model: LanguageModel<Column>| {
            let (loss, gradients) = model.loss_and_gradients(&inputs, &targets, 2).expect("a pass");
            (f64::from(loss as f32), values(&gradients))
        };
        let model = with_large_vocabulary(precision);
        let mut cache = model.cache(2).expect("a cache");
        let logits = model.infer(&inputs, 2, &mut cache).unwrap().to_f32().unwrap();
        let (expected, product) = large_truth(&logits, &targets);
        let head = model.parameters().iter().position(|parameter| parameter.name.contains("lm_head")).expect("a head");
        let weight = model.parameters().iter().nth(head).expect("a head").value.to_f32().unwrap();
        assert_relative_eq!(f64::from(model.loss(&inputs, &targets, 2).unwrap() as f32), expected, max_relative = 1e-5);
        let (loss, gradients) = run(model);
        assert_relative_eq!(loss, expected, max_relative = off);
        let dhead = gradients[head].as_ref().expect("a gradient");
        let found: f64 = dhead.iter().zip(&weight).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum();
        assert!((found - product).abs() <= off * length(dhead) * length(&weight), "{found}, not {product}");
        let (whole, all) = run(with_large_vocabulary(precision).with_scores_at_once(usize::MAX));
        assert_relative_eq!(loss, whole, max_relative = 1e-5);
        assert_eq!(all.len(), gradients.len());
        for (a, b) in all.iter().zip(&gradients) {
            let (a, b) = (a.as_ref().expect("a gradient"), b.as_ref().expect("a gradient"));
            let error = length(&a.iter().zip(b).map(|(a, b)| a - b).collect::<Vec<_>>());
            assert!(error <= off * length(a), "{error} of {}", length(a));
        }
    }
}
