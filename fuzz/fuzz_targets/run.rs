//! The folder of a run: the list of checksums, and what a checkpoint says of its training.
#![no_main]

use hecate_cpu::Cpu;
use hecate_train::{
    PUBLISHED, Standing, Trainer,
    checkpoint::{Files, Run},
};

libfuzzer_sys::fuzz_target!(|contents: (&[u8], &[u8], bool)| {
    let (training, list, whole) = contents;
    let folder = tempfile::tempdir().expect("a folder");
    let run = Run::new(folder.path());
    let files = Files::from([("training.json".to_owned(), training.into())]);
    run.commit(3, &files, &[], 1).expect("room");
    if !whole {
        std::fs::write(run.checkpoint(3).join("checksums.json"), list).expect("room");
    }
    let _ = run.contents(&PUBLISHED, &[]);
    let _ = Standing::read(&run);
    let _ = Trainer::resume(&Cpu::new(), &run);
    // Whatever the list names, nothing outside of the run's folder is touched.
    run.commit(4, &files, &[], 1).expect("room");
});
