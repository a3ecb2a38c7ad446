//! Steps of a training run that the device replays as one graph: the same bits as call by call.

use crate::{
    column::{Column, device, is_missing},
    fp8::{fp8, lacks_fp8},
    training::fixtures::*,
};
use hecate_core::Tensor;
use hecate_models::{
    Config, Error, Interrupt, LanguageModel, Precision, Vocabulary,
    generate::{generate, generate_all},
    sampling::{Sampler, Sampling},
    text::Corpus,
};
use hecate_train::{Report, Settings, Trainer, checkpoint::Run, schedule::Schedule};
use std::path::Path;

/// A run on this device, of `steps` steps: what each did, and the weights' bits.
fn run(trainer: &mut Trainer<Column>, steps: u64) -> (Vec<Report>, Vec<(String, Vec<u32>)>) {
    let corpus = corpus();
    let mut reports = Vec::new();
    while trainer.steps() < steps {
        reports.push(trainer.step(&corpus.train.tokens).unwrap());
    }
    (reports, bits(trainer.model()))
}

/// A stream on which steps replay a graph, and one on which they go call by call.
fn both() -> [Column; 2] {
    let device = device();
    [device.with_poisoned_memory().unwrap(), device.with_steps_call_by_call().unwrap()]
}

/// Trainers of one model on both.
fn trainers(config: &Config, settings: Settings) -> [Trainer<Column>; 2] {
    both().map(|device| Trainer::new(&device, config, settings, plan(), None).unwrap())
}

/// Both make the same steps, and only the first of them has a graph.
fn check(config: &Config, settings: Settings) {
    let [mut graph, mut calls] = trainers(config, settings);
    let (found, expected) = (run(&mut graph, 9), run(&mut calls, 9));
    assert_eq!(graph.take_event(), None, "{:?}, {} passes, {config:?}", settings.precision, settings.accumulate);
    assert_eq!([graph.is_captured(), calls.is_captured()], [true, false], "{config:?}");
    assert_eq!(found, expected, "{config:?}");
}

#[test]
fn every_mixer_has_the_same_steps() {
    if is_missing() {
        return;
    }
    for mixer in [
        "delta",
        "titans",
        "dgd",
        "hebbian",
        "lattice",
        "trellis",
        "atlas",
        "moneta",
        "yaad",
        "memora",
        "titans_mlp",
        "attention",
        "mag",
        "mal",
        "mac",
        "cms",
        "conductor",
        "tnt",
        "hope",
    ] {
        check(&config(mixer), settings());
    }
}

#[test]
fn passes_of_a_step_and_bits_of_activations() {
    if is_missing() {
        return;
    }
    for mixer in ["delta", "titans", "attention"] {
        check(&config(mixer), Settings { accumulate: 3, ..settings() });
        check(&config(mixer), Settings { precision: Precision::Bf16, ..settings() });
    }
    // Factors of 8 bits, whose scales are another input of the graph.
    if !lacks_fp8() {
        check(&config("delta"), fp8());
        check(&config("attention"), Settings { accumulate: 3, ..fp8() });
    }
    // Chunks of 64 tokens, and products that go through cuBLAS.
    let wide = Config::uniform("delta", 2, 128, 2).unwrap();
    for precision in [Precision::F32, Precision::Bf16] {
        check(&wide, Settings { tokens: 256, batch: 4, precision, ..settings() });
    }
}

#[test]
fn what_changes_from_step_to_step_goes_call_by_call() {
    if is_missing() {
        return;
    }
    let dropping = Config { hidden_dropout: 0.3, ..config("delta") };
    let carrying = Settings { carry: 3, ..settings() };
    for (config, settings, why) in [(dropping, settings(), "masks"), (config("delta"), carrying, "carried")] {
        let [mut graph, mut calls] = trainers(&config, settings);
        assert_eq!(run(&mut graph, 9), run(&mut calls, 9));
        assert!(!graph.is_captured());
        let (told, untold) = (graph.take_event().expect("why there is no graph"), calls.take_event());
        assert!(told.contains(why) && untold.is_none(), "{told}");
    }
}

/// A graph reads weights where they were; who holds them makes an update write others.
#[test]
fn weights_that_somebody_holds() {
    if is_missing() {
        return;
    }
    let [mut graph, mut calls] = trainers(&config("delta"), settings());
    run(&mut graph, 4);
    assert!(graph.is_captured());
    let held: Vec<_> = graph.model().parameters().iter().map(|p| p.value.clone()).collect();
    let before: Vec<_> = held.iter().map(|x| x.to_f32().unwrap()).collect();
    assert_eq!(run(&mut graph, 9).1, run(&mut calls, 9).1);
    assert_eq!(held.iter().map(|x| x.to_f32().unwrap()).collect::<Vec<_>>(), before);
}

#[test]
fn runs_resume_bit_for_bit() {
    if is_missing() {
        return;
    }
    let [mut graph, mut calls] = trainers(&config("titans"), settings());
    let folder = tempfile::tempdir().unwrap();
    let saved = Run::new(folder.path().join("run"));
    graph.begin(&saved, &[]).unwrap();
    run(&mut graph, 5);
    graph.save(&saved).unwrap();
    let mut resumed = Trainer::resume(&both()[0], &saved).unwrap();
    assert!(!resumed.is_captured());
    assert_eq!(run(&mut resumed, 9).1, run(&mut calls, 9).1);
    assert!(resumed.is_captured());
}

/// A weight that is NaN, of a token that comes now and then: the step is refused as it is call by call, whether a graph
/// found it or not, and the weights are those before it.
#[test]
fn steps_that_are_not_finite() {
    if is_missing() {
        return;
    }
    let text: String =
        (0..400).map(|i| format!("{} plus {i} is {}{}\n", i % 7, i + i % 7, ["", "Z"][i / 7 % 2])).collect();
    let text = Corpus::new(Path::new("a text"), &text, &Vocabulary::Bytes, 0.1, 16).unwrap();
    let config = Config { tie_word_embeddings: false, ..config("delta") };
    let mut replayed = 0;
    for seed in 0..8 {
        let settings =
            Settings { seed, schedule: Schedule { steps: 60, ..settings().schedule }, batch: 1, ..settings() };
        let told = both().map(|device| {
            let mut model = LanguageModel::new(&device, &config, 3).unwrap();
            for parameter in model.parameters_mut().iter_mut().filter(|p| p.name == "model.embeddings.weight") {
                let (shape, mut values) = (parameter.value.shape().clone(), parameter.value.to_f32().unwrap());
                values[usize::from(b'Z') * 16] = f32::NAN;
                parameter.value = Tensor::from_f32(&device, shape, values).unwrap();
            }
            let mut trainer = Trainer::from_model(model, settings, plan(), None).unwrap();
            loop {
                let (before, captured) = (bits(trainer.model()), trainer.is_captured());
                match trainer.step(&text.train.tokens) {
                    Ok(_) => assert!(!trainer.finished(), "no Z in 60 windows"),
                    Err(error) => {
                        assert!(matches!(error, Error::NonFinite { .. }), "{error}");
                        assert_eq!(bits(trainer.model()), before);
                        return (captured, error.to_string());
                    }
                }
            }
        });
        assert_eq!(told[0].1, told[1].1);
        replayed += usize::from(told[0].0);
    }
    assert!(replayed > 0);
}

#[test]
fn a_request_to_stop_comes_before_a_replay() {
    if is_missing() {
        return;
    }
    let [graph, _] = trainers(&config("delta"), settings());
    let interrupt = Interrupt::default();
    let mut graph = graph.with_interrupt(interrupt.clone());
    let (_, before) = run(&mut graph, 4);
    assert!(graph.is_captured());
    interrupt.ask();
    assert!(matches!(graph.step(&corpus().train.tokens), Err(Error::Stopped)));
    assert_eq!(bits(graph.model()), before);
}

/// A model that is measured between steps, and continues a text, finds its memory and leaves the graph's alone.
#[test]
fn what_happens_between_steps() {
    if is_missing() {
        return;
    }
    let [mut graph, mut calls] = trainers(&config("delta"), settings());
    let between = |model: &LanguageModel<Column>| {
        let mut cache = model.cache(1).unwrap();
        model.infer(&[1, 2, 3, 4], 1, &mut cache).unwrap().to_f32().unwrap()
    };
    for steps in 1..=9 {
        assert_eq!(run(&mut graph, steps), run(&mut calls, steps));
        assert_eq!(between(graph.model()), between(calls.model()), "{steps}");
    }
}

/// A device that counts tokens itself draws for attention too, and hands the count back to who reads on.
#[test]
fn attention_draws_by_a_graph() {
    if is_missing() {
        return;
    }
    let greedy = || Sampler::new(Sampling { temperature: 0.0, ..Sampling::default() }).unwrap();
    for (mixer, captured) in [("delta", true), ("attention", true), ("mag", true), ("mal", true), ("mac", false)] {
        let model = LanguageModel::new(&device(), &Config::uniform(mixer, 2, 32, 2).unwrap(), 5).unwrap();
        let mut texts = generate_all(&model, &[&[72, 101], &[9, 8]], vec![greedy(), greedy()]).unwrap();
        texts.by_ref().take(3).for_each(|tokens| drop(tokens.unwrap()));
        assert_eq!(texts.is_captured(), captured, "{mixer}");
        let mut carried = generate(&model, &[72, 101], greedy()).unwrap();
        let mut text = vec![72, 101];
        for more in [[99, 100], [9, 10]] {
            // More than a device draws at a time.
            text.extend(carried.by_ref().take(21).map(|token| token.unwrap()));
            carried.read_on(&more).unwrap();
            text.extend(more);
        }
        let found: Vec<u32> = carried.take(20).map(|token| token.unwrap()).collect();
        let whole = generate(&model, &text, greedy()).unwrap();
        assert_eq!(found, whole.take(20).map(|token| token.unwrap()).collect::<Vec<_>>(), "{mixer}");
    }
}
