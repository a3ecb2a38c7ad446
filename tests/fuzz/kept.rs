//! Files of caches, of runs of architectures and of documents that hold anything, and plans over any number of steps.

use crate::{device, hold, layers::build, sound};
use hecate_cpu::Cpu;
use hecate_models::{
    Config, Footprint, LanguageModel, MixerConfig, Precision,
    layers::mixer,
    text::{Identity, JsonLines},
    trained::{Trained, WhichWeights},
};
use hecate_train::{RunPlan, Settings, Trainer, checkpoint::Run, schedule::Schedule};
use proptest::{collection::vec, prelude::*};
use std::fs;

/// Any bytes, and now and then the length and the braces with which a safetensors file begins.
fn contents() -> impl Strategy<Value = Vec<u8>> {
    let headed = vec(any::<u8>(), 0..30).prop_map(|rest| [&[2, 0, 0, 0, 0, 0, 0, 0][..], b"{}", &rest].concat());
    prop_oneof![vec(any::<u8>(), 0..60), headed]
}

/// What was there before a file was refused is there still.
#[test]
fn caches_are_loaded_or_refused() {
    let config = Config { vocabulary_size: 7, ..Config::uniform("titans", 1, 8, 2).expect("a configuration") };
    let model = LanguageModel::new(&device(), &config, 1).expect("a model");
    let memory = MixerConfig::Memory(hecate_models::MemoryConfig { heads: 1, ..Default::default() });
    let (mixer, parameters) = build(1, |build| mixer(build, &memory, 2, 1e-6)).expect("a mixer");
    hold(100, &contents(), |content| {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("read.safetensors");
        fs::write(&path, content).expect("room");
        let mut cache = model.cache(1).expect("a cache");
        prop_assert!(sound("Cache::load", || cache.load(&path))?.is_err());
        prop_assert_eq!(cache.position(), 0);
        let mut layer = mixer.cache(&device(), &parameters, 1).expect("a cache");
        prop_assert!(sound("LayerCache::load", || layer.load(&path))?.is_err());
        Ok(())
    });
}

#[test]
fn runs_of_an_architecture_are_read_or_refused() {
    hold(100, &vec(contents(), 3), |files| {
        let folder = tempfile::tempdir().expect("a folder");
        for (name, content) in ["config.json", "model.safetensors", "checksums.json"].iter().zip(&files) {
            fs::write(folder.path().join(name), content).expect("room");
        }
        let load = || Trained::load_as::<Config>(&device(), folder.path(), WhichWeights::Last).map(|_| ());
        prop_assert!(sound("Trained::load_as", load)?.is_err());
        let run = Run::new(folder.path());
        let resume = || Trainer::<Cpu>::resume_as::<Config>(&device(), &run).map(|_| ());
        prop_assert!(sound("Trainer::resume_as", resume)?.is_err());
        Ok(())
    });
}

#[test]
fn documents_are_read_or_refused() {
    let lines = prop_oneof![
        "\\PC{0,40}",
        "\\PC{0,9}".prop_map(|text| serde_json::json!({ "text": text }).to_string()),
        Just(r#"{"text": [{"role": 1}]}"#.to_owned()),
    ];
    hold(100, &(vec(lines, 0..4), "\\PC{0,3}", 0..99usize), |(lines, border, room)| {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a.jsonl");
        fs::write(&path, lines.join("\n")).expect("room");
        let documents = JsonLines { field: "text".to_owned(), border };
        let opened = sound("JsonLines::open", || documents.open(std::slice::from_ref(&path), room))?;
        // All of it is held in memory.
        prop_assert!(opened.is_err() || opened.is_ok_and(|text| text.bytes() <= room));
        Ok(())
    });
}

#[test]
fn plans_are_made_over_any_steps() {
    hold(200, &any::<(u64, u64)>(), |(steps, elements)| {
        let rate = sound("Schedule::over", || Schedule::over(steps).rate(steps))?;
        prop_assert!(rate.is_finite());
        let settings = sound("Settings::over", || Settings::over(steps))?;
        prop_assert_eq!(settings.schedule.steps, steps);
        let identity = Identity { bytes: 1, checksum: String::new(), tokens: None };
        let plan = sound("RunPlan::of", || RunPlan::of(identity, steps))?;
        prop_assert!(plan.evaluate_every > 0 && plan.save_every > 0);
        let room = sound("Footprint::of_elements", || Footprint::of_elements(u128::from(elements), Precision::F32))?;
        prop_assert!(room.weights >= usize::try_from(elements).unwrap_or(usize::MAX));
        Ok(())
    });
}
