//! A run that was stopped ends with the weights of one that was not.

use super::fixtures::*;
use hecate_cpu::Cpu;
use hecate_models::{Config, Error, Precision, trained::load_model};
use hecate_train::{
    Settings, Trainer,
    checkpoint::Run,
    metrics::{Metrics, Record, read_metrics},
    schedule::Schedule,
};
use std::fs;

pub(super) fn check(mixer: &str, settings: Settings, stops: &[u64]) {
    check_with(&config(mixer), settings, stops);
}

pub(super) fn check_with(config: &Config, settings: Settings, stops: &[u64]) {
    let steps = settings.schedule.steps;
    let trainer = || Trainer::new(&Cpu::new(), config, settings, plan(), None).unwrap();
    let mut whole = trainer();
    train_to(&mut whole, steps);
    let folder = tempfile::tempdir().unwrap();
    let run = Run::new(folder.path());
    let mut stopped = trainer();
    for &stop in stops {
        train_to(&mut stopped, stop);
        stopped.save(&run).unwrap();
        stopped = Trainer::resume(&Cpu::new(), &run).unwrap();
        assert_eq!(stopped.steps(), stop);
    }
    train_to(&mut stopped, steps);
    stopped.save(&run).unwrap();
    assert!(stopped.finished());
    assert_eq!(bits(stopped.model()), bits(whole.model()), "{config:?} stopped at {stops:?}");
    assert_eq!(bits(&load_model(&Cpu::new(), run.folder()).unwrap()), bits(whole.model()));
}

#[test]
fn every_mixer_resumes_bit_for_bit() {
    for mixer in ["hebbian", "delta", "titans", "dgd", "attention"] {
        check(mixer, settings(), &[0, 1, 5, 8]);
    }
}

#[test]
fn accumulated_gradients_resume_bit_for_bit() {
    check("delta", Settings { accumulate: 3, ..settings() }, &[2, 3, 4]);
}

#[test]
fn activations_of_16_bits_resume_bit_for_bit() {
    let narrow = Settings { precision: Precision::Bf16, ..settings() };
    for mixer in ["delta", "titans", "attention"] {
        check(mixer, Settings { accumulate: 2, ..narrow }, &[1, 4, 8]);
    }
    // What is remembered between sequences is of 16 bits too.
    for mixer in ["delta", "mag", "cms", "hope"] {
        check(mixer, Settings { carry: 3, ..narrow }, &[1, 4, 8]);
    }
}

#[test]
fn the_number_of_threads_changes_nothing() {
    let weights = [1, 2, 3].map(|threads| {
        let device = Cpu::with_threads(threads).unwrap();
        let mut trainer = Trainer::new(&device, &config("titans"), settings(), plan(), None).unwrap();
        train_to(&mut trainer, 4);
        bits(trainer.model())
    });
    assert_eq!(weights[0], weights[1]);
    assert_eq!(weights[0], weights[2]);
}

#[test]
fn divergence_stops_and_keeps_the_last_checkpoint() {
    let schedule = Schedule { peak: 1e30, floor: 0.0, warmup: 0, steps: 20 };
    let mut trainer = trainer("delta", Settings { schedule, ..settings() });
    let folder = tempfile::tempdir().unwrap();
    let run = Run::new(folder.path());
    trainer.save(&run).unwrap();
    let text = corpus().train.tokens.to_vec().unwrap();
    let error = (0..20).find_map(|_| trainer.step(&text).err()).expect("a rate of 1e30 diverges");
    assert!(matches!(error, Error::NonFinite { .. }), "{error}");
    assert!(trainer.save(&run).is_err() && trainer.step(&text).is_err());
    assert_eq!(Trainer::resume(&Cpu::new(), &run).unwrap().steps(), 0);
}

#[test]
fn the_record_has_every_step_once() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("metrics.jsonl");
    let record = |step| Record { step, loss: Some(0.1 + step as f64), ..Record::default() };
    let mut metrics = Metrics::resume(&path, 0).unwrap();
    (1..=7).for_each(|step| metrics.add(&record(step)).unwrap());
    metrics.flush().unwrap();
    for torn in ["{\"step\": 8, \"lo", "\u{fffd}", "{}"] {
        let text = fs::read_to_string(&path).unwrap();
        fs::write(&path, text + torn).unwrap();
        let mut metrics = Metrics::resume(&path, 5).unwrap();
        (6..=7).for_each(|step| metrics.add(&record(step)).unwrap());
        let expected: Vec<Record> = (1..=7).map(record).collect();
        assert_eq!(read_metrics(&path).unwrap(), expected);
        assert_eq!(fs::read_to_string(&path).unwrap().lines().count(), 7);
    }
}
