//! A text's file, held in memory and left on the disk: both are the same text, or refused for the same reason.
#![no_main]

use hecate_models::{
    Vocabulary,
    text::{Corpus, Text},
};

libfuzzer_sys::fuzz_target!(|content: &[u8]| {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("text.txt");
    std::fs::write(&path, content).expect("room");
    let texts = [usize::MAX, 0].map(|in_memory| Text::open(std::slice::from_ref(&path), in_memory));
    let [Ok(held), Ok(left)] = &texts else {
        assert!(texts.iter().all(Result::is_err));
        return;
    };
    assert_eq!(held.identity(), left.identity());
    assert_eq!(held.whole().expect("a text"), left.whole().expect("a text"));
    let _ = Corpus::of(held, &Vocabulary::Bytes, 0.3, 4);
});
