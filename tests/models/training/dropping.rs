//! Training with dropout: the same run after a stop, other masks at every step, and none where nothing learns.

use super::{fixtures::*, resuming::check_with};
use approx::assert_relative_eq;
use hecate_cpu::Cpu;
use hecate_models::{
    Config, LanguageModel, Masks,
    generate::generate,
    sampling::{Sampler, Sampling},
    text::Windows,
};
use hecate_train::{Settings, Trainer, schedule::Schedule};

fn dropping(mixer: &str) -> Config {
    Config { attention_dropout: 0.2, activation_dropout: 0.1, hidden_dropout: 0.3, ..config(mixer) }
}

/// Gradients of a model whose passes drop by `masks`, by parameter.
fn gradients(config: &Config, masks: Option<Masks>) -> (f64, Vec<Vec<f32>>) {
    let mut model = LanguageModel::new(&Cpu::new(), config, 3).unwrap();
    model.set_masks(masks);
    let text = corpus().train.tokens.to_vec().unwrap();
    let (loss, gradients) = model.loss_and_gradients(&text[..32], &text[1..33], 2).unwrap();
    (loss, gradients.iter().flatten().map(|gradient| gradient.to_f32().unwrap()).collect())
}

#[test]
fn runs_resume_bit_for_bit() {
    for mixer in ["delta", "attention", "mag", "mac", "cms", "tnt", "hope"] {
        check_with(&dropping(mixer), Settings { accumulate: 2, ..settings() }, &[0, 1, 5]);
    }
    check_with(&dropping("titans"), Settings { carry: 3, ..settings() }, &[1, 2, 4]);
}

#[test]
fn every_mixer_drops() {
    for mixer in ["delta", "attention", "mag", "mal", "mac", "cms", "conductor", "tnt", "hope"] {
        let [attention, activation, hidden] = [(0.2, 0.0, 0.0), (0.0, 0.2, 0.0), (0.0, 0.0, 0.2)].map(|shares| {
            let (attention_dropout, activation_dropout, hidden_dropout) = shares;
            Config { attention_dropout, activation_dropout, hidden_dropout, ..config(mixer) }
        });
        let masks = Masks { seed: 1, step: 1, pass: 0 };
        for config in [attention, activation, hidden] {
            assert_ne!(gradients(&config, Some(masks)), gradients(&config, None), "{mixer}");
        }
    }
}

#[test]
fn steps_passes_and_seeds_have_masks_of_their_own() {
    let config = dropping("delta");
    let masks = Masks { seed: 1, step: 1, pass: 0 };
    let first = gradients(&config, Some(masks));
    assert_eq!(first, gradients(&config, Some(masks)));
    for other in [Masks { seed: 2, ..masks }, Masks { step: 2, ..masks }, Masks { pass: 1, ..masks }] {
        assert_ne!(first, gradients(&config, Some(other)), "{other:?}");
    }
}

#[test]
fn a_trainer_takes_the_masks_of_its_step_and_pass() {
    let (config, text) = (dropping("mal"), corpus().train.tokens.to_vec().unwrap());
    // Steps that change nothing.
    let schedule = Schedule { peak: 1e-30, floor: 0.0, warmup: 0, steps: 9 };
    let settings = Settings { accumulate: 2, schedule, ..settings() };
    let mut trainer = Trainer::new(&Cpu::new(), &config, settings, plan(), None).unwrap();
    let mut model = LanguageModel::new(&Cpu::new(), &config, settings.seed).unwrap();
    let mut windows = Windows::new(settings.seed);
    for step in 1..=3 {
        let learned = trainer.step(&corpus().train.tokens).unwrap().loss;
        let mut expected = 0.0;
        for pass in 0..2 {
            let (inputs, targets) = windows.draw(&text, settings.batch, settings.tokens).unwrap();
            model.set_masks(Some(Masks { seed: settings.seed, step, pass }));
            expected += model.loss_and_gradients(&inputs, &targets, settings.batch).unwrap().0 / 2.0;
        }
        assert_relative_eq!(learned, expected, max_relative = 1e-6);
    }
}

/// The memories that the second sequence of a text finds are those of the pass over the first, masks and all.
#[test]
fn what_is_carried_was_dropped_like_the_rest() {
    let text = corpus().train.tokens.to_vec().unwrap();
    // Steps that change nothing.
    let schedule = Schedule { peak: 1e-30, floor: 0.0, warmup: 0, steps: 9 };
    let settings = Settings { carry: 2, schedule, ..settings() };
    for mixer in ["delta", "attention", "mag", "mal", "mac", "cms", "conductor", "tnt", "hope"] {
        let config = dropping(mixer);
        let mut trainer = Trainer::new(&Cpu::new(), &config, settings, plan(), None).unwrap();
        let learned = [(); 2].map(|()| trainer.step(&text).unwrap().loss);
        let mut model = LanguageModel::new(&Cpu::new(), &config, settings.seed).unwrap();
        let starts = Windows::new(settings.seed).starts(&text, settings.batch, settings.text()).unwrap();
        let mut cache = model.cache(settings.batch).unwrap();
        for (i, learned) in learned.into_iter().enumerate() {
            let at = |start: &usize| start + i * settings.tokens..start + (i + 1) * settings.tokens;
            let inputs: Vec<u32> = starts.iter().flat_map(|start| &text[at(start)]).copied().collect();
            let next = |start: &usize| at(start).start + 1..at(start).end + 1;
            let targets: Vec<u32> = starts.iter().flat_map(|start| &text[next(start)]).copied().collect();
            model.set_masks(Some(Masks { seed: settings.seed, step: i as u64 + 1, pass: 0 }));
            let (expected, _) = model.loss_and_gradients_with_cache(&inputs, &targets, &mut cache).unwrap();
            // In the first, persistent tokens of mag and mal are dropped too, which no cache goes through.
            assert!(i == 0 || (learned / expected - 1.0).abs() < 1e-5, "{mixer}: {learned} is not {expected}");
        }
    }
}

#[test]
fn nothing_is_dropped_unless_asked_for() {
    let masks = Masks { seed: 1, step: 1, pass: 0 };
    assert_eq!(gradients(&config("mag"), Some(masks)), gradients(&config("mag"), None));
    let run = |config: &Config| {
        let mut trainer = Trainer::new(&Cpu::new(), config, settings(), plan(), None).unwrap();
        train_to(&mut trainer, 3);
        bits(trainer.model())
    };
    assert_eq!(run(&Config { hidden_dropout: 0.0, ..config("delta") }), run(&config("delta")));
    assert_ne!(run(&Config { hidden_dropout: 0.1, ..config("delta") }), run(&config("delta")));
}

#[test]
fn evaluation_and_generation_drop_nothing() {
    let text = corpus().train.tokens.to_vec().unwrap();
    let measure = |config: &Config| {
        let mut model = LanguageModel::new(&Cpu::new(), config, 3).unwrap();
        model.set_masks(Some(Masks { seed: 1, step: 1, pass: 0 }));
        let sampler = Sampler::new(Sampling { temperature: 0.0, ..Sampling::default() }).unwrap();
        let tokens: Vec<u32> = generate(&model, &text[..9], sampler).unwrap().take(5).map(Result::unwrap).collect();
        (model.loss(&text[..32], &text[1..33], 2).unwrap(), tokens)
    };
    assert_eq!(measure(&dropping("mag")), measure(&config("mag")));
}

#[test]
fn shares_are_read_from_configurations() {
    let text = r#"{"hidden_dropout": 0.25, "layers": [{}]}"#;
    assert_eq!(Config::from_json(text).unwrap().dropout().hidden, 0.25);
    assert_eq!(Config::from_json(r#"{"layers": [{}]}"#).unwrap().dropout(), hecate_models::Dropout::default());
    let told = Config::from_json(r#"{"attention_dropout": 1.0}"#).unwrap_err().to_string();
    assert!(told.contains("`attention_dropout` is 1"), "{told}");
}
