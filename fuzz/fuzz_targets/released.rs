//! Files of a released model: a GGUF file, or a folder's configuration and weights; what opens has weights of finite sizes.
#![no_main]

use hecate_cpu::Cpu;
use hecate_models::Opened;

libfuzzer_sys::fuzz_target!(|input: (bool, &str, &[u8])| {
    let (gguf, config, content) = input;
    let folder = tempfile::tempdir().expect("a folder");
    let write = |name: &str, content: &[u8]| {
        let path = folder.path().join(name);
        std::fs::write(&path, content).expect("room");
        path
    };
    let path = if gguf {
        write("model.gguf", content)
    } else {
        write("config.json", config.as_bytes());
        write("model.safetensors", content);
        folder.path().to_owned()
    };
    let Ok(opened) = Opened::open(&Cpu::new(), &path) else { return };
    let _ = opened.model();
});
