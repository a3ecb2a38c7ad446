//! Damaged, missing and foreign files are errors that name the file.

use super::fixtures::*;
use hecate_cpu::Cpu;
use hecate_models::{Config, Error, trained::load_model};
use hecate_train::{
    Trainer,
    checkpoint::{Companion, Run},
};
use safetensors::SafeTensors;
use std::{
    fs,
    path::{Path, PathBuf},
};

/// A run with one checkpoint.
fn saved() -> (tempfile::TempDir, Run) {
    let folder = tempfile::tempdir().unwrap();
    let run = Run::new(folder.path());
    trainer("delta", settings()).save(&run).unwrap();
    (folder, run)
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let mut files: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.is_file());
    files.sort();
    files
}

/// Cut short at several lengths, and with single bytes changed.
fn damages(whole: &[u8]) -> Vec<Vec<u8>> {
    let n = whole.len();
    let cuts = [0, 1, 7, 8, n / 3, n / 2, n - 2].map(|length| whole[..length].to_vec());
    let flips = [0, 3, 8, 20, n / 4, n / 2, n - 2, n - 1].map(|at| {
        let mut damaged = whole.to_vec();
        damaged[at] ^= 0x11;
        damaged
    });
    [&cuts[..], &flips[..]].concat()
}

fn message(result: hecate_models::Result<impl Sized>, path: &Path) -> String {
    match result {
        Err(error @ Error::Checkpoint { .. }) => {
            let message = error.to_string();
            assert!(message.contains(&*path.to_string_lossy()), "`{message}` does not name {}", path.display());
            message
        }
        Err(other) => panic!("{other:?} is not about a checkpoint"),
        Ok(_) => panic!("{} was taken as it is", path.display()),
    }
}

#[test]
fn every_damage_of_a_checkpoint_is_noticed() {
    let (_folder, run) = saved();
    let checkpoint = run.checkpoint(0);
    let all = files(&checkpoint);
    assert_eq!(all.len(), 5);
    for path in all {
        let whole = fs::read(&path).unwrap();
        for damaged in damages(&whole) {
            fs::write(&path, damaged).unwrap();
            message(Trainer::resume(&Cpu::new(), &run), &checkpoint);
        }
        fs::remove_file(&path).unwrap();
        assert!(message(Trainer::resume(&Cpu::new(), &run), &path).contains("missing"));
        fs::write(&path, whole).unwrap();
    }
    Trainer::resume(&Cpu::new(), &run).unwrap();
}

#[test]
fn every_damage_of_a_model_is_noticed() {
    let (folder, run) = saved();
    let path = run.file("model.safetensors");
    let whole = fs::read(&path).unwrap();
    for damaged in damages(&whole) {
        fs::write(&path, damaged).unwrap();
        message(load_model(&Cpu::new(), folder.path()), &path);
    }
    fs::remove_file(&path).unwrap();
    assert!(message(load_model(&Cpu::new(), folder.path()), &path).contains("missing"));
}

/// Weights without a mark of Hecate's: their configuration can be any.
fn unmark(run: &Run) {
    let bytes = fs::read(run.file("model.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    fs::write(run.file("model.safetensors"), safetensors::serialize(file.tensors(), None).unwrap()).unwrap();
}

#[test]
fn a_damaged_configuration_never_panics() {
    let (folder, run) = saved();
    unmark(&run);
    let path = run.file("config.json");
    let whole = fs::read(&path).unwrap();
    for at in 0..whole.len() {
        let mut damaged = whole.clone();
        damaged[at] ^= 1;
        fs::write(&path, damaged).unwrap();
        // Another number may be as good a configuration, with other weights or the same.
        let _ = load_model(&Cpu::new(), folder.path());
    }
    for cut in [0, 1, whole.len() / 2, whole.len() - 3] {
        fs::write(&path, &whole[..cut]).unwrap();
        message(load_model(&Cpu::new(), folder.path()), &path);
    }
    fs::remove_file(&path).unwrap();
    assert!(message(load_model(&Cpu::new(), folder.path()), &path).contains("missing"));
}

#[test]
fn configuration_and_weights_must_belong_together() {
    let (folder, run) = saved();
    unmark(&run);
    let (config, weights) = (run.file("config.json"), run.file("model.safetensors"));
    let whole = fs::read_to_string(&config).unwrap();
    let with = |from: &str, to: &str| {
        assert!(whole.contains(from), "{whole}");
        fs::write(&config, whole.replacen(from, to, 1)).unwrap();
        load_model(&Cpu::new(), folder.path())
    };
    let unknown = message(with("\"delta\"", "\"gamma\""), &config);
    assert!(unknown.contains("gamma") && unknown.contains("titans"), "{unknown}");
    let shape = message(with("\"hidden_size\": 16", "\"hidden_size\": 24"), &weights);
    assert!(shape.contains("shape") && shape.contains("24"), "{shape}");
    let foreign = message(with("\"tie_word_embeddings\": true", "\"tie_word_embeddings\": false"), &weights);
    assert!(foreign.contains("lacks `lm_head.weight`"), "{foreign}");
    let options = message(with("\"conv\": 4", "\"conv\": 0"), &weights);
    assert!(options.contains("conv"), "{options}");
    let heads = message(with("\"heads\": 2", "\"heads\": 3"), &config);
    assert!(heads.contains("heads"), "{heads}");
}

#[test]
fn a_folder_without_a_run_says_so() {
    let folder = tempfile::tempdir().unwrap();
    message(Trainer::resume(&Cpu::new(), &Run::new(folder.path())), folder.path());
    let missing = folder.path().join("nowhere");
    message(Trainer::resume(&Cpu::new(), &Run::new(&missing)), &missing);
    message(load_model(&Cpu::new(), &missing), &missing);
}

#[test]
fn one_process_at_a_time() {
    let (_folder, run) = saved();
    let lock = run.lock().unwrap();
    assert!(message(run.lock(), run.folder()).contains("being trained by another process"));
    drop(lock);
    run.lock().unwrap();
}

#[test]
fn names_that_are_never_written_are_no_checkpoints() {
    let (_folder, run) = saved();
    for name in ["checkpoint-500", "checkpoint-+5", "checkpoint-000000500", "checkpoint-+0000005", "checkpoint-"] {
        fs::create_dir(run.file(name)).unwrap();
    }
    assert_eq!(run.latest().unwrap(), Some(0));
    let mut trainer = Trainer::resume(&Cpu::new(), &run).unwrap();
    train_to(&mut trainer, 1);
    trainer.save(&run).unwrap();
    assert_eq!(run.latest().unwrap(), Some(1));
    assert!(run.file("checkpoint-500").is_dir());
}

#[test]
fn a_new_run_takes_the_place_of_the_old_one() {
    let (folder, run) = saved();
    for name in ["metrics.jsonl", "notes.txt"] {
        fs::write(run.file(name), "old").unwrap();
    }
    let new = trainer("titans", settings());
    let beside: [Companion; 1] = [("metrics.jsonl", |content| content == b"old")];
    // Not of the old run, where the new one may write.
    fs::write(run.file("tokenizer.json"), "mine").unwrap();
    let told = new.begin(&run, &beside).unwrap_err().to_string();
    assert!(told.contains("tokenizer.json") && told.contains("not what Hecate wrote"), "{told}");
    assert_eq!(*Trainer::resume(&Cpu::new(), &run).unwrap().model().config::<Config>().unwrap(), config("delta"));
    fs::remove_file(run.file("tokenizer.json")).unwrap();
    new.begin(&run, &beside).unwrap();
    assert_eq!(bits(Trainer::resume(&Cpu::new(), &run).unwrap().model()), bits(new.model()));
    let mut left: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, ["checkpoint-00000000", "config.json", "model.safetensors", "notes.txt"]);
}

#[cfg(unix)]
#[test]
fn a_run_that_cannot_be_saved_leaves_the_old_one() {
    use std::os::unix::ffi::OsStrExt;
    let (_folder, run) = saved();
    let text = vec![std::ffi::OsStr::from_bytes(b"\xff.txt").into()];
    let plan = hecate_train::RunPlan { text, ..plan() };
    let new = Trainer::new(&Cpu::new(), &config("titans"), settings(), plan, None).unwrap();
    let before = files(run.folder());
    assert!(new.begin(&run, &[]).is_err());
    assert_eq!(files(run.folder()), before);
    assert_eq!(*Trainer::resume(&Cpu::new(), &run).unwrap().model().config::<Config>().unwrap(), config("delta"));
}

#[test]
fn clearing_removes_the_run_and_nothing_else() {
    let (folder, run) = saved();
    fs::write(run.file("notes.txt"), "mine").unwrap();
    run.clear(&["config.json", "model.safetensors"], &[]).unwrap();
    let left: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["notes.txt"]);
}
