//! The table of recorded errors, `docs/conformance.tsv`.
#![no_main]

use hecate_conformance::record::Record;

libfuzzer_sys::fuzz_target!(|text: &str| {
    if let Ok(record) = Record::parse(text) {
        let _ = Record::parse(&record.to_string()).expect("what was written");
    }
});
