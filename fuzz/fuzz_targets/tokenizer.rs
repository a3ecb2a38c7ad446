//! `tokenizer.json`: one that is taken makes tokens of a text, and text of any tokens.
#![no_main]

use hecate_models::Vocabulary;
use std::path::Path;

libfuzzer_sys::fuzz_target!(|input: (&[u8], &str, Vec<u32>)| {
    let (content, text, tokens) = input;
    let Ok(vocabulary) = Vocabulary::from_json(Path::new("tokenizer.json"), content) else { return };
    if let Ok(tokens) = vocabulary.encode(text) {
        assert!(tokens.iter().all(|&token| (token as usize) < vocabulary.size()));
        let _ = vocabulary.decode(&tokens);
    }
    let _ = vocabulary.decode(&tokens);
});
