//! Files of a run, damaged: those that Hecate wrote itself are refused, others read or refused.

use crate::{
    damage::{changes, damaged},
    device, hold, sound,
};
use hecate_cpu::Cpu;
use hecate_models::{
    Config, Precision, Vocabulary,
    text::{Corpus, Identity},
    trained::{load_config, load_model},
};
use hecate_train::{
    FirstStates, PUBLISHED, RunPlan, Settings, Standing, Trainer,
    checkpoint::Run,
    metrics::{Metrics, Record, read_metrics},
    optimizer::Constants,
    schedule::Schedule,
};
use proptest::{prelude::*, sample::Index};
use std::{
    fs,
    path::{Path, PathBuf},
};

/// Kinds of mixers.
const MIXERS: [&str; 10] = ["delta", "titans", "atlas", "attention", "mag", "mal", "mac", "cms", "conductor", "hope"];

#[test]
fn configurations_are_read_or_refused() {
    hold(400, &(prop::sample::select(&MIXERS[..]), changes()), |(mixer, changes)| {
        let whole = Config::uniform(mixer, 2, 16, 2).expect("a configuration").to_json().expect("text");
        let text = String::from_utf8_lossy(&damaged(whole.as_bytes(), &changes)).into_owned();
        sound("Config::from_json", || Config::from_json(&text))?.map_or(Ok(()), |config| {
            let written = sound("Config::to_json", || config.to_json())?.expect("finite numbers");
            prop_assert_eq!(Config::from_json(&written).ok(), Some(config));
            Ok(())
        })
    });
}

#[test]
fn records_of_runs_are_read_or_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("metrics.jsonl");
    let line = |step| Record { step, loss: Some(5.5), held_out_loss: Some(5.4), ..Record::default() };
    let mut metrics = Metrics::resume(&path, 0).expect("a new file");
    (1..9).for_each(|step| metrics.add(&line(step)).expect("a line"));
    metrics.flush().expect("room");
    let whole = fs::read(&path).expect("the file");
    hold(150, &(changes(), 0..12u64), |(changes, step)| {
        fs::write(&path, damaged(&whole, &changes)).expect("room");
        let _ = sound("read_metrics", || read_metrics(&path))?;
        if let Ok(mut metrics) = sound("Metrics::resume", || Metrics::resume(&path, step))? {
            let _ = sound("Metrics::add", || metrics.add(&line(step + 1)))?;
            let _ = sound("Metrics::flush", || metrics.flush())?;
        }
        Ok(())
    });
}

/// A run with one step, whose texts are carried, so that all its files are there.
fn saved(folder: &Path) -> Run {
    let text: String = (0..300).map(|i| format!("{i} and {}\n", i * i % 97)).collect();
    let corpus = Corpus::new(Path::new("a text"), &text, &Vocabulary::Bytes, 0.1, 32).expect("a text");
    let settings = Settings {
        batch: 2,
        tokens: 8,
        accumulate: 1,
        carry: 4,
        first_states: FirstStates::default(),
        schedule: Schedule { peak: 0.01, floor: 0.001, warmup: 1, steps: 9 },
        optimizer: Constants::default(),
        seed: 5,
        precision: Precision::F32,
    };
    let identity = Identity::of(&text);
    let (text, json_lines) = (Vec::new(), None);
    let plan =
        RunPlan { text, json_lines, identity, held_out: 0.1, evaluate_every: 4, save_every: 4, keep: RunPlan::KEEP };
    let config = Config::uniform("delta", 1, 8, 2).expect("a configuration");
    let mut trainer = Trainer::new(&device(), &config, settings, plan, None).expect("a trainer");
    trainer.step(&corpus.train.tokens).expect("a step");
    trainer.note(5.0).expect("a measurement");
    let run = Run::new(folder);
    trainer.save(&run).expect("room");
    run
}

/// What a checkpoint says of its training, with any number in the place of one: the checksums are right, so it is read.
#[test]
fn any_numbers_in_a_training_are_read_or_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let run = saved(folder.path());
    let (step, whole) = run.open(&PUBLISHED).expect("a checkpoint");
    let text = String::from_utf8(whole["training.json"].to_vec()).expect("a text");
    for known in ["starts", "seed", "held_out"] {
        assert!(text.contains(known), "no {known} in {text}");
    }
    let corpus: Vec<u32> = (0..2000).map(|token| token % 97).collect();
    let numbers = prop_oneof![
        prop::sample::select(vec!["0", "1", "-1", "1e300", "4611686018427387904", "18446744073709551615", "null"])
            .prop_map(str::to_owned),
        any::<u64>().prop_map(|number| number.to_string()),
        any::<f32>().prop_map(|number| number.to_string()),
    ];
    // A digit begins a number where none of its parts stands before it.
    let part = |byte: u8| byte.is_ascii_digit() || b".eE+-\"".contains(&byte);
    let begins: Vec<usize> =
        (1..text.len()).filter(|&at| text.as_bytes()[at].is_ascii_digit() && !part(text.as_bytes()[at - 1])).collect();
    hold(100, &(any::<Index>(), numbers), |(place, number)| {
        let at = *place.get(&begins);
        let end = at + text[at..].find(|x: char| !x.is_ascii_digit() && !".eE+-".contains(x)).expect("an end");
        let told = format!("{}{number}{}", &text[..at], &text[end..]);
        // A checkpoint of another step than it says is refused at once, so it lies where it says.
        let said = serde_json::from_str::<serde_json::Value>(&told).ok().and_then(|told| told["step"].as_u64());
        let mut files = whole.clone();
        files.insert("training.json".to_owned(), told.into_bytes().into());
        run.clear(&[], &[]).expect("no run");
        run.commit(said.unwrap_or(step), &files, &PUBLISHED, 1).expect("room");
        if let Ok(mut trainer) = sound("Trainer::resume", || Trainer::<Cpu>::resume(&device(), &run))? {
            let _ = sound("Trainer::step", || trainer.step(&corpus).map(|_| ()))?;
            let _ = sound("Trainer::save", || trainer.save(&run))?;
        }
        let _ = sound("Standing::read", || Standing::read(&run).map(|_| ()))?;
        Ok(())
    });
    run.clear(&[], &[]).expect("no run");
    run.commit(step + 1, &whole, &PUBLISHED, 1).expect("room");
    let refused = Trainer::<Cpu>::resume(&device(), &run).expect_err("another step").to_string();
    assert!(refused.contains("training.json") && refused.contains("step 2"), "{refused}");
}

/// Files of a folder and of those in it.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut all = Vec::new();
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() { all.extend(files(&path)) } else { all.push(path) }
    }
    all.sort();
    all
}

/// One file is damaged at a time, then whole again.
#[test]
fn damage_of_a_run_is_noticed() {
    let folder = tempfile::tempdir().expect("a folder");
    let run = saved(folder.path());
    assert!(Trainer::resume(&device(), &run).is_ok() && load_model(&device(), folder.path()).is_ok());
    let all = files(folder.path());
    let names: Vec<_> = all.iter().filter_map(|path| path.file_name()?.to_str()).collect();
    for name in ["config.json", "model.safetensors", "training.json", "checksums.json"] {
        assert!(names.contains(&name), "{name} is not in {names:?}");
    }
    hold(300, &(any::<Index>(), changes()), |(file, changes)| {
        let path = file.get(&all);
        let whole = fs::read(path).expect("the file");
        let bytes = damaged(&whole, &changes);
        fs::write(path, &bytes).expect("room");
        let loaded = sound("load_model", || load_model::<Cpu>(&device(), folder.path()).map(|_| ()));
        let config = sound("load_config", || load_config(&folder.path().join("config.json")).map(|_| ()));
        // Last: it writes what the checkpoint published again.
        let resumed = sound("Trainer::resume", || Trainer::<Cpu>::resume(&device(), &run).map(|_| ()));
        fs::write(path, &whole).expect("room");
        let (resumed, loaded, _) = (resumed?, loaded?, config?);
        // The list of checksums has none itself: blanks and a line twice say the same.
        let list = |bytes: &[u8]| serde_json::from_slice::<serde_json::Value>(bytes).ok();
        let same = bytes == whole || (path.ends_with("checksums.json") && list(&bytes) == list(&whole));
        let of_checkpoint = path.starts_with(run.checkpoint(1));
        if !same && of_checkpoint {
            prop_assert!(resumed.is_err(), "{} was resumed from: {changes:?}", path.display());
        }
        let published = ["config.json", "model.safetensors"].iter().any(|name| folder.path().join(name) == *path);
        if bytes != whole && published {
            prop_assert!(loaded.is_err(), "{} was loaded: {changes:?}", path.display());
        }
        Ok(())
    });
}
