//! A file of what a model remembers, loaded into a cache.
#![no_main]

use hecate_cpu::Cpu;
use hecate_models::{Config, LanguageModel};

libfuzzer_sys::fuzz_target!(|content: &[u8]| {
    let config = Config::uniform("titans", 1, 4, 1).expect("a configuration");
    let model = LanguageModel::new(&Cpu::new(), &config, 0).expect("a model");
    let mut cache = model.cache(1).expect("a cache");
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("read.safetensors");
    std::fs::write(&path, content).expect("room");
    if cache.load(&path).is_ok() {
        model.infer(&[1, 2, 3], 1, &mut cache).expect("a call");
    }
});
