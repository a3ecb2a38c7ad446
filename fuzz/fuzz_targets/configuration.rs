//! `config.json`: what is read can be written, and read again.
#![no_main]

use hecate_models::Config;

libfuzzer_sys::fuzz_target!(|text: &str| {
    if let Ok(config) = Config::from_json(text) {
        let written = config.to_json().expect("a valid configuration");
        assert_eq!(Config::from_json(&written).expect("what was written"), config);
    }
});
