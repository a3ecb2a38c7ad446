//! The weights with the lowest held-out loss are kept beside the last ones.

use super::fixtures::*;
use hecate_cpu::Cpu;
use hecate_models::{
    LanguageModel,
    trained::{load_best_model, load_model},
};
use hecate_train::{Trainer, checkpoint::Run};
use std::fs;

type Weights = Vec<(String, Vec<u32>)>;

fn loaded(load: fn(&Cpu, &std::path::Path) -> hecate_models::Result<LanguageModel<Cpu>>, run: &Run) -> Weights {
    bits(&load(&Cpu::new(), run.folder()).unwrap())
}

/// Steps of which each notes a loss, with a checkpoint and a resume after those of `stops`: the weights after each step.
fn train(run: &Run, losses: &[f64], stops: &[usize]) -> (Trainer<Cpu>, Vec<Weights>) {
    let (mut trainer, mut all) = (trainer("delta", settings()), Vec::new());
    for (step, &loss) in losses.iter().enumerate() {
        train_to(&mut trainer, step as u64 + 1);
        trainer.note(loss).unwrap();
        all.push(bits(trainer.model()));
        if stops.contains(&step) {
            trainer.save(run).unwrap();
            trainer = Trainer::resume(&Cpu::new(), run).unwrap();
        }
    }
    trainer.save(run).unwrap();
    (trainer, all)
}

#[test]
fn the_lowest_loss_decides() {
    let folder = tempfile::tempdir().unwrap();
    let run = Run::new(folder.path());
    let (trainer, all) = train(&run, &[3.0, 1.0, 2.0, 1.0, f64::NAN], &[]);
    assert_eq!(trainer.best(), Some(1.0));
    assert_eq!(loaded(load_best_model, &run), all[1], "the first of equals");
    assert_eq!(loaded(load_model, &run), all[4]);
}

#[test]
fn a_resumed_run_keeps_the_best_so_far() {
    let losses = [3.0, 1.0, 2.0, 1.5, 0.5, 0.75];
    let expected = {
        let folder = tempfile::tempdir().unwrap();
        let run = Run::new(folder.path());
        train(&run, &losses, &[]);
        fs::read(run.file("best.safetensors")).unwrap()
    };
    for stops in [vec![1], vec![2, 3], vec![0, 4], vec![5]] {
        let folder = tempfile::tempdir().unwrap();
        let run = Run::new(folder.path());
        let (trainer, all) = train(&run, &losses, &stops);
        assert_eq!((trainer.best(), loaded(load_best_model, &run)), (Some(0.5), all[4].clone()), "{stops:?}");
        assert!(fs::read(run.file("best.safetensors")).unwrap() == expected, "other bytes after {stops:?}");
    }
}

#[test]
fn without_a_measurement_there_is_no_best() {
    let folder = tempfile::tempdir().unwrap();
    let run = Run::new(folder.path());
    trainer("delta", settings()).save(&run).unwrap();
    let told = load_best_model(&Cpu::new(), run.folder()).expect_err("no best weights").to_string();
    assert!(["best.safetensors", "not measured", "last weights"].iter().all(|part| told.contains(part)), "{told}");
    let mut trainer = Trainer::resume(&Cpu::new(), &run).unwrap();
    assert_eq!(trainer.best(), None);
    trainer.note(9.0).unwrap();
    train_to(&mut trainer, 1);
    trainer.save(&run).unwrap();
    assert_ne!(loaded(load_best_model, &run), loaded(load_model, &run));
}
