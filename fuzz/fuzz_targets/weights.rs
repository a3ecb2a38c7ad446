//! `model.safetensors` beside a configuration that fits: what is taken has finite sizes, all else is an error.
#![no_main]

use hecate_cpu::Cpu;
use hecate_models::{Config, trained::load_model, weights::count_parameters};

libfuzzer_sys::fuzz_target!(|content: &[u8]| {
    let folder = tempfile::tempdir().expect("a folder");
    let config = Config::uniform("delta", 1, 4, 1).and_then(|config| config.to_json()).expect("a configuration");
    std::fs::write(folder.path().join("config.json"), config).expect("room");
    let path = folder.path().join("model.safetensors");
    std::fs::write(&path, content).expect("room");
    let _ = count_parameters(&path, None);
    let _ = load_model(&Cpu::new(), folder.path());
});
