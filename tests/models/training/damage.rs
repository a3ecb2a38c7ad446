//! No byte of what Hecate wrote changes without being noticed, and what others wrote is read.

use super::fixtures::*;
use hecate_cpu::Cpu;
use hecate_models::{
    Config, Error, Vocabulary,
    trained::{Trained, WhichWeights, load_best_model, load_config, load_model},
};
use hecate_train::{Trainer, checkpoint::Run};
use safetensors::{SafeTensors, tensor::TensorView};
use std::{collections::HashMap, fs, path::Path};

/// A run with one checkpoint and its best weights.
fn saved() -> (tempfile::TempDir, Run) {
    let folder = tempfile::tempdir().unwrap();
    let run = Run::new(folder.path());
    let mut trainer = trainer("delta", settings());
    trainer.note(3.0).unwrap();
    trainer.save(&run).unwrap();
    (folder, run)
}

/// The file with each of these bytes changed, one at a time: another digit, another case, or no ASCII.
fn each_byte(whole: &[u8], places: impl Iterator<Item = usize>) -> impl Iterator<Item = (usize, Vec<u8>)> {
    places.map(|at| {
        let mut damaged = whole.to_vec();
        damaged[at] ^= [0x01, 0x20, 0x84][at % 3];
        (at, damaged)
    })
}

/// What is wrong with a file of this name.
fn why(result: hecate_models::Result<impl Sized>, name: &str, what: &str) -> String {
    match result {
        Err(Error::Checkpoint { path, why }) if path.ends_with(name) => why,
        Err(other) => panic!("{what}: {other:?} is not about {name}"),
        Ok(_) => panic!("{what}: {name} was taken as it is"),
    }
}

#[test]
fn no_byte_of_a_configuration_changes_unnoticed() {
    let (folder, run) = saved();
    let whole = fs::read(run.file("config.json")).unwrap();
    for (at, damaged) in each_byte(&whole, 0..whole.len()) {
        fs::write(run.file("config.json"), damaged).unwrap();
        let what = format!("byte {at}");
        assert!(why(load_model(&Cpu::new(), folder.path()), "config.json", &what).contains("written beside"));
        why(load_best_model(&Cpu::new(), folder.path()), "config.json", &what);
    }
}

#[test]
fn no_byte_of_weights_changes_unnoticed() {
    let (folder, run) = saved();
    // Every byte of one header, some of the other's: loading takes its time.
    for (name, load, stride) in [
        ("model.safetensors", load_model as fn(&Cpu, &Path) -> hecate_models::Result<_>, 1),
        ("best.safetensors", load_best_model, 11),
    ] {
        let whole = fs::read(run.file(name)).unwrap();
        // The whole header: its checksum, the checksum's own name, shapes and names.
        let header = 8 + u64::from_le_bytes(whole[..8].try_into().unwrap()) as usize;
        let places = (0..header).step_by(stride).chain((header..whole.len()).step_by(997));
        for (at, damaged) in each_byte(&whole, places) {
            fs::write(run.file(name), damaged).unwrap();
            why(load(&Cpu::new(), folder.path()), name, &format!("byte {at}"));
        }
        fs::write(run.file(name), whole).unwrap();
        load(&Cpu::new(), folder.path()).unwrap();
    }
}

#[test]
fn no_byte_of_the_training_state_changes_unnoticed() {
    let (_folder, run) = saved();
    for name in ["training.json", "checksums.json"] {
        let path = run.checkpoint(0).join(name);
        let whole = fs::read(&path).unwrap();
        for (at, damaged) in each_byte(&whole, 0..whole.len()) {
            fs::write(&path, damaged).unwrap();
            if let Ok(same) = Trainer::resume(&Cpu::new(), &run) {
                // One blank for another, or a byte of a name that no file has: nothing that counts.
                assert!(name == "checksums.json" && whole[at].is_ascii_whitespace(), "{name}: byte {at}");
                assert_eq!(same.steps(), 0);
            }
        }
        fs::write(&path, whole).unwrap();
    }
    Trainer::resume(&Cpu::new(), &run).unwrap();
}

/// The run's weights as somebody else would write them, with this metadata.
fn rewrite(run: &Run, metadata: Option<HashMap<String, String>>) {
    let bytes = fs::read(run.file("model.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let views: Vec<(String, TensorView)> = file.tensors();
    fs::write(run.file("model.safetensors"), safetensors::serialize(views, metadata).unwrap()).unwrap();
}

#[test]
fn weights_of_others_are_read_and_metadata_of_nobody_is_not() {
    let (folder, run) = saved();
    let expected = bits(&load_model(&Cpu::new(), folder.path()).unwrap());
    let entry = |key: &str, value: &str| Some(HashMap::from([(key.to_owned(), value.to_owned())]));
    for metadata in [None, Some(HashMap::new()), entry("format", "pt")] {
        rewrite(&run, metadata);
        assert_eq!(bits(&load_model(&Cpu::new(), folder.path()).unwrap()), expected);
    }
    for key in ["hecate", "hecatf", "Format", "checksum", "chfcksum", ""] {
        rewrite(&run, entry(key, "0123456789abcdef"));
        assert!(why(load_model(&Cpu::new(), folder.path()), "model.safetensors", key).contains("damaged"));
    }
    // Too short for a checksum.
    rewrite(&run, entry("hecate", ""));
    why(load_model(&Cpu::new(), folder.path()), "model.safetensors", "no digits");
}

#[test]
fn the_tokenizer_belongs_to_the_weights() {
    let folder = tempfile::tempdir().unwrap();
    let run = Run::new(folder.path());
    let tokenizer = super::text::tokenizer_json();
    let model = super::fixtures::config("delta");
    Trainer::new(&Cpu::new(), &model, settings(), plan(), Some(tokenizer.clone())).unwrap().save(&run).unwrap();
    let load = || Trained::load(&Cpu::new(), folder.path(), WhichWeights::Last);
    let trained = load().unwrap();
    assert!(matches!(trained.vocabulary, Vocabulary::Tokenizer { .. }) && trained.tokenizer == Some(tokenizer.clone()));
    let mut changed = tokenizer.clone();
    *changed.last_mut().unwrap() = b' ';
    fs::write(run.file("tokenizer.json"), changed).unwrap();
    assert!(why(load(), "tokenizer.json", "changed").contains("has changed"));
    fs::remove_file(run.file("tokenizer.json")).unwrap();
    assert!(why(load(), "tokenizer.json", "removed").contains("missing"));
    // One that nobody learned with.
    let (bytes, run) = saved();
    fs::write(run.file("tokenizer.json"), tokenizer).unwrap();
    let told = why(Trained::load(&Cpu::new(), bytes.path(), WhichWeights::Best), "tokenizer.json", "added");
    assert!(told.contains("is none that best.safetensors was written beside"), "{told}");
}

/// serde fills fields from lists by their order, if it is let: `[]` would be a model of defaults.
#[test]
fn lists_are_no_objects() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.json");
    for (text, place) in [
        ("[]", "the file"),
        ("[256, 64]", "the file"),
        ("{\"layers\": [[]]}", "layers[0]"),
        ("{\"layers\": [{}, {\"mixer\": [\"memory\"]}]}", "layers[1].mixer"),
        ("{\"layers\": [{\"mixer\": {\"kind\": \"mag\", \"memory\": []}}]}", "layers[0].mixer.memory"),
        ("{\"layers\": [{\"mixer\": {\"kind\": \"memory\", \"rule\": [\"delta\"]}}]}", "layers[0].mixer.rule"),
    ] {
        fs::write(&path, text).unwrap();
        let told = why(load_config(&path), "config.json", text);
        assert!(told.contains(&format!("{place} is a list, expected an object")), "{told}");
        assert!(Config::from_json(text).unwrap_err().to_string().contains("is a list"), "{text}");
    }
    // What is a list stays one.
    let cms = "{\"layers\": [{\"mixer\": {\"kind\": \"cms\", \"periods\": [2, 4]}}]}";
    fs::write(&path, cms).unwrap();
    load_config(&path).unwrap();
}
