//! `metrics.jsonl`, read and gone on with.
#![no_main]

use hecate_train::metrics::{Metrics, Record, is_record, read_metrics};

libfuzzer_sys::fuzz_target!(|content: &[u8]| {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("metrics.jsonl");
    std::fs::write(&path, content).expect("room");
    let _ = is_record(content);
    let _ = read_metrics(&path);
    if let Ok(mut metrics) = Metrics::resume(&path, 3) {
        metrics.add(&Record { step: 4, ..Record::default() }).expect("room");
        metrics.flush().expect("room");
        assert_eq!(read_metrics(&path).expect("a record").last().map(|record| record.step), Some(4));
    }
});
