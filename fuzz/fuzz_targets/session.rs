//! The file of a session: one that is restored goes on, and all else is an error.
#![no_main]

use hecate_cpu::Cpu;
use hecate_models::{
    Config, LanguageModel,
    generate::Session,
    sampling::{Sampler, Sampling},
};

libfuzzer_sys::fuzz_target!(|input: (&[u8], usize)| {
    let (content, at) = input;
    let config = Config { vocabulary_size: 7, ..Config::uniform("delta", 1, 4, 1).expect("a configuration") };
    let model = LanguageModel::new(&Cpu::new(), &config, 1).expect("a model");
    let sampler = || Sampler::new(Sampling::default()).expect("a sampler");
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("session.safetensors");
    let mut session = Session::new(&model, sampler()).expect("a session");
    session.feed(&model, &[1, 2]).expect("tokens of the vocabulary");
    session.save(&model, &path).expect("room");
    // A part of a sound file is overwritten, so that most of it still says which model it is of.
    let mut file = std::fs::read(&path).expect("a file");
    let at = at % file.len();
    let end = file.len().min(at + content.len());
    file[at..end].copy_from_slice(&content[..end - at]);
    std::fs::write(&path, file).expect("room");
    if let Ok(mut session) = Session::restore(&model, &path, sampler()) {
        let _ = session.next(&model);
    }
});
