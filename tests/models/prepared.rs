//! Kernels that are made before a first step or token: what comes after is the same, bit for bit.

use crate::{
    column::{Column, device, is_missing},
    training::fixtures::*,
};
use hecate_core::Device;
use hecate_models::{
    Config, Error, LanguageModel, Precision,
    generate::generate,
    sampling::{Sampler, Sampling},
    text::Stream,
};
use hecate_train::{
    Settings, Trainer,
    evaluate::{SEGMENT, Score, evaluate, prepare},
    optimizer::Constants,
    schedule::Schedule,
    tasks::{Purpose, Questions, Recall, TaskModel},
};
use std::ops::ControlFlow;

/// A column without kernels of its own never says that it compiles any.
fn check_told(told: &[usize]) {
    let compiles = Column::NAME == "cuda";
    assert!(told.is_empty() || compiles && told.iter().all(|&kernels| kernels > 0), "{told:?}");
}

#[test]
fn a_run_learns_the_same_after_it() {
    if is_missing() {
        return;
    }
    // Masks and carried memories are drawn from where a run is: preparing must not move it.
    let dropping = Config { hidden_dropout: 0.3, ..config("delta") };
    let carrying = Settings { carry: 3, ..settings() };
    let rounded = Settings { precision: Precision::Bf16, accumulate: 2, ..settings() };
    for (config, settings) in [(dropping, settings()), (config("titans"), carrying), (config("delta"), rounded)] {
        let run = |prepares: bool| {
            let mut trainer = Trainer::new(&device(), &config, settings, plan(), None).unwrap();
            let (text, mut told) = (corpus().train.tokens, Vec::new());
            let mut losses = Vec::new();
            for _ in 0..4 {
                if prepares {
                    trainer.prepare(&text, &mut |kernels| told.push(kernels)).unwrap();
                }
                losses.push(trainer.step(&text).unwrap().loss);
            }
            check_told(&told);
            (losses, bits(trainer.model()))
        };
        assert_eq!(run(true), run(false));
    }
}

#[test]
fn a_text_goes_on_the_same_after_it() {
    if is_missing() {
        return;
    }
    for mixer in ["delta", "atlas", "attention"] {
        let prompt = [1, 2, 3, 4, 5];
        let text = |prepares: bool| -> Vec<u32> {
            let model = LanguageModel::new(&device(), &config(mixer), 3).unwrap();
            let mut told = Vec::new();
            if prepares {
                model.prepare(&prompt, &mut |kernels| told.push(kernels)).unwrap();
                // Of no prompt there is nothing to prepare, and no error.
                model.prepare(&[], &mut |kernels| told.push(kernels)).unwrap();
            }
            check_told(&told);
            let sampler = Sampler::new(Sampling { seed: 7, ..Sampling::default() }).unwrap();
            generate(&model, &prompt, sampler).unwrap().take(20).map(|token| token.unwrap()).collect()
        };
        assert_eq!(text(true), text(false), "{mixer}");
    }
}

#[test]
fn a_text_is_measured_the_same_after_it() {
    if is_missing() {
        return;
    }
    let stream = Stream { tokens: (0..61).map(|i| i * i % 70).collect::<Vec<u32>>().into(), bytes: 61 };
    let score = |prepares: bool| -> Score {
        let model = LanguageModel::new(&device(), &config("delta"), 3).unwrap();
        let mut told = Vec::new();
        if prepares {
            let calls = [(48, 24), (SEGMENT, usize::MAX), (0, 0)];
            prepare(&model, &stream, &calls, &mut |kernels| told.push(kernels)).unwrap();
        }
        check_told(&told);
        evaluate(&model, &stream, 32, |_| ControlFlow::Continue(())).unwrap()
    };
    assert_eq!(score(true), score(false));
}

#[test]
fn a_task_is_learned_the_same_after_it() {
    if is_missing() {
        return;
    }
    let task = Recall::new(16, 16, 1).unwrap();
    let schedule = Schedule { peak: 0.01, floor: 0.005, warmup: 2, steps: 10 };
    let config = Config { hidden_dropout: 0.2, ..config("delta") };
    let run = |prepares: bool| {
        let random = &mut Purpose::Learning.random(1);
        let mut model = TaskModel::new(&device(), &config, schedule, Constants::default(), 1).unwrap();
        let mut told = Vec::new();
        let questions: Vec<Questions> = (0..3).map(|_| task.draw(random, 2, 4).unwrap()).collect();
        let mut losses = Vec::new();
        for questions in &questions {
            if prepares {
                model.prepare(questions, &mut |kernels| told.push(kernels)).unwrap();
            }
            losses.push(model.learn(questions).unwrap());
        }
        check_told(&told);
        (losses, model.right(&questions[0]).unwrap())
    };
    assert_eq!(run(true), run(false));
    let mut model = TaskModel::new(&device(), &config, schedule, Constants::default(), 1).unwrap();
    // What no model can be asked is found by the step, not before.
    let none = Questions { batch: 0, inputs: Vec::new(), rows: Vec::new(), answers: Vec::new() };
    model.prepare(&none, &mut |_| ()).unwrap();
    assert!(matches!(model.learn(&none), Err(Error::Config { .. } | Error::Core(_))));
}
