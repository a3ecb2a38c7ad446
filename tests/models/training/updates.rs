//! The learning rate, clipping, decay and accumulation.

use super::fixtures::*;
use approx::{assert_abs_diff_eq, assert_relative_eq};
use hecate_models::{Error, Gradients};
use hecate_train::{
    Settings, Trainer,
    optimizer::{Constants, Moments, norm_squared, scale},
    schedule::Schedule,
};

#[test]
fn the_rate_rises_to_its_peak_and_falls_to_its_floor() {
    let schedule = Schedule { peak: 0.02, floor: 0.002, warmup: 10, steps: 110 };
    assert_relative_eq!(schedule.rate(1), 0.002);
    assert_relative_eq!(schedule.rate(10), 0.02);
    assert_relative_eq!(schedule.rate(60), 0.011, max_relative = 1e-6);
    assert_relative_eq!(schedule.rate(110), 0.002);
    assert_relative_eq!(schedule.rate(500), 0.002);
    assert!((1..10).all(|step| schedule.rate(step) < schedule.rate(step + 1)));
    assert!((10..110).all(|step| schedule.rate(step) > schedule.rate(step + 1)));
    let flat = Schedule { peak: 0.1, floor: 0.1, warmup: 0, steps: 1 };
    assert_relative_eq!(flat.rate(1), 0.1);
}

#[test]
fn senseless_settings_are_refused() {
    let good = settings();
    let with_schedule = |schedule| Settings { schedule, ..good };
    let with_optimizer = |optimizer| Settings { optimizer, ..good };
    let (schedule, optimizer) = (good.schedule, good.optimizer);
    let bad = [
        ("batch", Settings { batch: 0, ..good }),
        ("sequence length", Settings { tokens: 0, ..good }),
        ("accumulate", Settings { accumulate: 0, ..good }),
        ("carry", Settings { carry: 0, ..good }),
        ("carry", Settings { carry: usize::MAX, ..good }),
        ("batch", Settings { batch: 1_000_000_000_000_000_000, ..good }),
        ("sequence length", Settings { tokens: usize::MAX, ..good }),
        ("accumulate", Settings { accumulate: usize::MAX, ..good }),
        ("batch × sequence length", Settings { batch: 1 << 20, tokens: 1 << 20, ..good }),
        ("steps", with_schedule(Schedule { steps: 0, warmup: 0, ..schedule })),
        ("warm-up", with_schedule(Schedule { warmup: 10, ..schedule })),
        ("learning rate", with_schedule(Schedule { peak: f32::NAN, ..schedule })),
        ("learning rate", with_schedule(Schedule { peak: 0.0, ..schedule })),
        ("lowest learning rate", with_schedule(Schedule { floor: 1.0, ..schedule })),
        ("lowest learning rate", with_schedule(Schedule { floor: f32::NAN, ..schedule })),
        ("clip", with_optimizer(Constants { clip: Some(0.0), ..optimizer })),
        ("clip", with_optimizer(Constants { clip: Some(f32::INFINITY), ..optimizer })),
        ("weight decay", with_optimizer(Constants { weight_decay: -1.0, ..optimizer })),
        ("beta1", with_optimizer(Constants { beta1: 1.0, ..optimizer })),
        ("epsilon", with_optimizer(Constants { epsilon: 0.0, ..optimizer })),
    ];
    for (expected, settings) in bad {
        let result = Trainer::new(&hecate_cpu::Cpu::new(), &config("delta"), settings, plan(), None);
        let field = match result {
            Err(Error::Config { field, .. }) => field,
            other => panic!("{expected}: {other:?}"),
        };
        assert_eq!(field, expected);
    }
}

/// Gradients of a fresh model on the first sequences of the text.
fn gradients(sequences: std::ops::Range<usize>) -> (f64, Gradients<hecate_cpu::Cpu>) {
    let text = corpus().train.tokens.to_vec().unwrap();
    let (inputs, targets) = (&text[sequences.start * 16..], &text[sequences.start * 16 + 1..]);
    let count = sequences.len() * 16;
    model("delta").loss_and_gradients(&inputs[..count], &targets[..count], sequences.len()).unwrap()
}

fn values(gradients: &Gradients<hecate_cpu::Cpu>) -> Vec<f32> {
    gradients.iter().flatten().flat_map(|gradient| gradient.to_f32().unwrap()).collect()
}

#[test]
fn clipping_scales_all_gradients_by_one_factor() {
    let (_, gradients) = gradients(0..2);
    let norm = values(&gradients).iter().map(|&g| f64::from(g).powi(2)).sum::<f64>().sqrt() as f32;
    for (clip, factor) in [(norm / 4.0, 0.25), (norm * 4.0, 1.0)] {
        let mut model = model("delta");
        let device = model.device().clone();
        let constants = Constants { beta1: 0.5, clip: Some(clip), ..Constants::default() };
        let mut moments = Moments::new(&device, model.parameters()).unwrap();
        let squared = norm_squared(&device, &gradients).unwrap();
        assert_relative_eq!(squared.to_f32().unwrap()[0].sqrt(), norm, max_relative = 1e-5);
        moments.update(model.parameters_mut(), &gradients, &squared, &constants, (1, 0.01)).unwrap();
        let means: Vec<f32> = moments.means.iter().flat_map(|mean| mean.to_f32().unwrap()).collect();
        for (mean, gradient) in means.iter().zip(values(&gradients)) {
            assert_relative_eq!(*mean, 0.5 * factor * gradient, max_relative = 1e-4, epsilon = 1e-12);
        }
    }
}

#[test]
fn decay_pulls_at_its_group_only() {
    let (_, mut gradients) = gradients(0..1);
    scale(&mut gradients, 0.0).unwrap();
    let mut model = model("delta");
    let device = model.device().clone();
    let before: Vec<_> = model.parameters().iter().map(|p| p.value.to_f32().unwrap()).collect();
    let constants = Constants { weight_decay: 0.5, ..Constants::default() };
    let mut moments = Moments::new(&device, model.parameters()).unwrap();
    let squared = norm_squared(&device, &gradients).unwrap();
    moments.update(model.parameters_mut(), &gradients, &squared, &constants, (1, 0.1)).unwrap();
    let groups = [true, false].map(|decay| model.parameters().iter().filter(|p| p.decay == decay).count());
    assert!(groups.iter().all(|&count| count > 0), "{groups:?}");
    for (parameter, before) in model.parameters().iter().zip(before) {
        let factor = if parameter.decay { 0.95 } else { 1.0 };
        for (after, before) in parameter.value.to_f32().unwrap().into_iter().zip(before) {
            assert_relative_eq!(after, factor * before, max_relative = 1e-6);
        }
    }
}

#[test]
fn accumulated_passes_are_one_larger_batch() {
    let (whole_loss, whole) = gradients(0..4);
    let (first_loss, mut sum) = gradients(0..2);
    let (second_loss, second) = gradients(2..4);
    sum.accumulate(second).unwrap();
    scale(&mut sum, 0.5).unwrap();
    assert_relative_eq!(whole_loss, (first_loss + second_loss) / 2.0, max_relative = 1e-6);
    for (whole, parts) in values(&whole).into_iter().zip(values(&sum)) {
        assert_abs_diff_eq!(whole, parts, epsilon = 1e-6);
    }
}

/// First moments after one step of a trainer, `(1 − β₁)` times its gradients: those of its windows as one batch.
fn first_moments(accumulate: usize, batch: usize) -> (hecate_train::Report, Vec<f32>) {
    let optimizer = Constants { beta1: 0.5, clip: None, ..Constants::default() };
    let mut trainer = trainer("delta", Settings { accumulate, batch, optimizer, ..settings() });
    let report = trainer.step(&corpus().train.tokens).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let run = hecate_train::checkpoint::Run::new(folder.path());
    trainer.save(&run).unwrap();
    let file = std::fs::read(run.checkpoint(1).join("training.safetensors")).unwrap();
    let file = safetensors::SafeTensors::deserialize(&file).unwrap();
    let mut means: Vec<_> = file.tensors().into_iter().filter(|(name, _)| name.starts_with("mean.")).collect();
    means.sort_by(|one, other| one.0.cmp(&other.0));
    let values = means.iter().flat_map(|(_, array)| array.data().chunks_exact(4));
    (report, values.map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap())).collect())
}

/// The mean of passes is that of one pass over all their windows; a factor would show in the norm, which AdamW hardly sees.
#[test]
fn a_trainer_learns_the_mean_of_its_passes() {
    let (whole, expected) = first_moments(1, 4);
    let size = expected.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>().sqrt();
    assert_relative_eq!(whole.gradient_norm, 2.0 * size, max_relative = 1e-5);
    for (accumulate, batch) in [(2, 2), (4, 1)] {
        let (report, found) = first_moments(accumulate, batch);
        // Sums of other orders: 32 bits' rounding.
        assert_relative_eq!(report.loss, whole.loss, max_relative = 1e-6);
        assert_relative_eq!(report.gradient_norm, whole.gradient_norm, max_relative = 1e-5);
        let apart = found.iter().zip(&expected).map(|(one, other)| f64::from(one - other).powi(2)).sum::<f64>().sqrt();
        assert!(found.len() == expected.len() && apart <= 1e-5 * size, "{accumulate}: {apart} of {size}");
    }
}

#[test]
fn training_lowers_the_loss() {
    let schedule = Schedule { peak: 0.02, floor: 0.002, warmup: 3, steps: 60 };
    let mut trainer = trainer("titans", Settings { schedule, batch: 4, ..settings() });
    let text = corpus().train.tokens.to_vec().unwrap();
    let losses: Vec<f64> = (0..60).map(|_| trainer.step(&text).unwrap().loss).collect();
    assert_relative_eq!(losses[0], 256_f64.ln(), max_relative = 0.05);
    assert!(losses[59] < 2.5, "{losses:?}");
}
