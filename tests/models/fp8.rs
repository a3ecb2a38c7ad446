//! Training with 8-bit factors, where the device multiplies such; elsewhere its refusal.

use crate::{
    column::{Column, device, is_missing},
    training::fixtures::*,
};
use hecate_conformance::{Array, error, require::say};
use hecate_core::primitives::Fp8Matmul;
use hecate_models::{Config, Error, LanguageModel, Precision};
use hecate_train::{Settings, Trainer, checkpoint::Run, schedule::Schedule};

pub(crate) fn fp8() -> Settings {
    Settings { precision: Precision::Fp8, ..settings() }
}

/// Whether there is no device that multiplies 8-bit factors, which is said.
pub(crate) fn lacks_fp8() -> bool {
    if is_missing() {
        return true;
    }
    let lacking = device().check_fp8();
    if let Err(why) = &lacking {
        say(&format!("skipped: {why}"));
    }
    lacking.is_err()
}

fn new(config: &Config, settings: Settings) -> Result<Trainer<Column>, Error> {
    Trainer::new(&device(), config, settings, plan(), None)
}

#[test]
fn a_device_without_such_products_says_so() {
    if is_missing() {
        return;
    }
    let trainer = new(&config("delta"), fp8());
    match device().check_fp8() {
        Ok(()) => assert!(trainer.is_ok()),
        Err(_) => {
            let Err(Error::Core(error)) = trainer else { panic!("not refused: {trainer:?}") };
            let refused = matches!(error, hecate_core::Error::Unsupported { .. });
            assert!(refused && error.to_string().contains("8-bit floats"), "{error}");
        }
    }
    // Sizes are refused before devices are.
    let error = new(&config("delta"), Settings { batch: 1, tokens: 24, ..fp8() }).unwrap_err().to_string();
    assert!(error.contains("sequence length") && error.contains("multiple of 16"), "{error}");
}

#[test]
fn gradients_are_those_of_16_bits_but_for_rounding() {
    if lacks_fp8() {
        return;
    }
    for mixer in ["delta", "titans", "attention", "mag"] {
        let config = Config::uniform(mixer, 2, 64, 2).unwrap();
        let text: Vec<u32> = (0..97).map(|i| i * i % 83).collect();
        let [(exact, wide), (found, narrow)] = [Precision::Bf16, Precision::Fp8].map(|precision| {
            let model = LanguageModel::new(&device(), &config, 7).unwrap().with_precision(precision);
            let (loss, gradients) = model.loss_and_gradients(&text[..96], &text[1..], 3).unwrap();
            let values = gradients.iter().flatten().flat_map(|g| Array::download(g).unwrap().values);
            (loss, values.collect::<Vec<_>>())
        });
        let off = error(&wide, &narrow);
        println!("{mixer}: loss {exact} and {found}, gradients {off:.1e} apart");
        assert!((exact - found).abs() < 0.01 * exact, "{mixer}: {exact} and {found}");
        // Each of some twenty arrays is rounded by up to 2⁻⁴ or 2⁻³ of its elements, a third of that in the mean.
        assert!(off > 1e-3 && off < 0.3, "{mixer}: gradients are {off:.1e} apart");
    }
}

#[test]
fn a_run_resumes_bit_for_bit() {
    if lacks_fp8() {
        return;
    }
    for settings in [fp8(), Settings { accumulate: 2, ..fp8() }, Settings { carry: 3, ..fp8() }] {
        let config = config("delta");
        let mut whole = new(&config, settings).unwrap();
        train_to(&mut whole, 9);
        let folder = tempfile::tempdir().unwrap();
        let run = Run::new(folder.path());
        let mut stopped = new(&config, settings).unwrap();
        for stop in [0, 1, 5, 8] {
            train_to(&mut stopped, stop);
            stopped.save(&run).unwrap();
            stopped = Trainer::resume(&device(), &run).unwrap();
        }
        train_to(&mut stopped, 9);
        assert_eq!(bits(stopped.model()), bits(whole.model()), "{settings:?}");
        // What is remembered of factors.
        let file = run.checkpoint(8).join("training.json");
        let text = std::fs::read_to_string(&file).unwrap();
        assert!(text.contains("scales") && text.contains("q_proj"), "{text}");
    }
}

#[test]
fn what_16_does_not_divide_stays_at_16_bits() {
    if lacks_fp8() {
        return;
    }
    let config = Config::uniform("delta", 2, 24, 2).unwrap();
    let [narrow, wide] = [Precision::Fp8, Precision::Bf16].map(|precision| {
        let mut trainer = new(&config, Settings { precision, ..settings() }).unwrap();
        train_to(&mut trainer, 1);
        let told = trainer.take_event();
        // Once is enough.
        train_to(&mut trainer, 3);
        assert!(!trainer.take_event().is_some_and(|again| again.contains("16")));
        (told, trainer)
    });
    // Every product has the width of the stream on one side.
    let told = narrow.0.expect("which products have no 8-bit factors");
    assert!(told.contains("q_proj") && told.contains("more") && told.contains("16"), "{told}");
    assert_eq!(wide.0, None);
    assert_eq!(bits(narrow.1.model()), bits(wide.1.model()));
}

#[test]
fn the_loss_falls_as_with_16_bits() {
    if lacks_fp8() {
        return;
    }
    let config = Config::uniform("delta", 2, 64, 2).unwrap();
    let schedule = Schedule { peak: 0.003, floor: 0.0003, warmup: 5, steps: 60 };
    let [wide, narrow] = [Precision::Bf16, Precision::Fp8].map(|precision| {
        let mut trainer = new(&config, Settings { schedule, batch: 4, tokens: 32, precision, ..settings() }).unwrap();
        let corpus = corpus();
        (0..60).map(|_| trainer.step(&corpus.train.tokens).unwrap().loss).collect::<Vec<_>>()
    });
    println!("{wide:.3?}\n{narrow:.3?}");
    // The first steps fall by two nats and more on the way that both take.
    for (a, b) in wide.iter().zip(&narrow).take(10) {
        assert!((a - b).abs() < 0.05 * a, "{wide:.3?}\n{narrow:.3?}");
    }
    let mean = |losses: &[f64]| losses[40..].iter().sum::<f64>() / 20.0;
    assert!((mean(&wide) - mean(&narrow)).abs() < 0.03 * mean(&wide), "{wide:.3?}\n{narrow:.3?}");
}
