//! Stops anywhere, and damage.

use super::*;

fn files(content: &str) -> Files {
    ["model.safetensors", "training.json"].map(|name| (name.to_owned(), content.as_bytes().to_vec())).into()
}

/// A second checkpoint, stopped before its `stop`-th change of the disk; whether it got through.
fn stopped_at(run: &Run, stop: usize) -> bool {
    let mut changes = 0;
    let mut reached = || {
        changes += 1;
        if changes > stop { Err(Error::checkpoint("", "stopped")) } else { Ok(()) }
    };
    run.commit_watched(2, &files("second"), &["model.safetensors"], &mut reached).is_ok()
}

#[test]
fn stopping_anywhere_leaves_one_whole_checkpoint() {
    for stop in 0.. {
        let folder = tempfile::tempdir().unwrap();
        let run = Run::new(folder.path());
        run.commit(1, &files("first"), &["model.safetensors"]).unwrap();
        let through = stopped_at(&run, stop);
        let before = fs::read(run.file("model.safetensors")).unwrap();
        assert!(before == b"first" || before == b"second", "stopped at change {stop}");
        let (step, found) = run.open(&["model.safetensors"]).unwrap();
        assert_eq!(found, files(if step == 1 { "first" } else { "second" }), "stopped at change {stop}");
        assert_eq!(fs::read(run.file("model.safetensors")).unwrap(), found["model.safetensors"]);
        assert_eq!(names(run.folder()).unwrap().len(), 2, "leftovers after stopping at change {stop}");
        if through {
            assert!(stop > 6 && step == 2);
            return;
        }
    }
}

#[test]
fn a_new_run_is_written_before_the_old_one_goes() {
    for stop in 0.. {
        let folder = tempfile::tempdir().unwrap();
        let run = Run::new(folder.path());
        run.commit(7, &files("old"), &["model.safetensors"]).unwrap();
        let mut left = stop;
        let mut reached = || {
            left -= 1;
            if left < 0 { Err(Error::checkpoint("", "stopped")) } else { Ok(()) }
        };
        let published = ["model.safetensors"];
        let result = run.replace_watched(7, &files("new"), &published, &published, &mut reached);
        if result.is_ok() {
            assert_eq!(run.open(&published).unwrap(), (7, files("new")));
            assert_eq!(names(run.folder()).unwrap().len(), 2, "leftovers");
            return;
        }
        // The folder, two files and their checksums; with the fifth change the new checkpoint exists.
        match stop {
            0..4 => assert_eq!(run.open(&published).unwrap().1, files("old"), "stopped at change {stop}"),
            4 => assert_eq!(run.latest().unwrap(), None),
            _ => assert_eq!(run.open(&published).unwrap().1, files("new"), "stopped at change {stop}"),
        }
    }
}

#[test]
fn damage_is_noticed() {
    let folder = tempfile::tempdir().unwrap();
    let run = Run::new(folder.path());
    assert!(matches!(run.open(&[]), Err(Error::Checkpoint { .. })));
    run.commit(7, &files("content"), &[]).unwrap();
    for name in ["model.safetensors", "training.json", CHECKSUMS] {
        let path = run.checkpoint(7).join(name);
        let whole = fs::read(&path).unwrap();
        for damaged in [whole[..whole.len() / 2].to_vec(), Vec::new(), [&whole[..], b"x"].concat()] {
            fs::write(&path, damaged).unwrap();
            assert!(matches!(run.open(&[]), Err(Error::Checkpoint { .. })), "{name}");
        }
        fs::remove_file(&path).unwrap();
        assert!(matches!(run.open(&[]), Err(Error::Checkpoint { .. })), "{name}");
        fs::write(&path, whole).unwrap();
    }
    assert_eq!(run.open(&[]).unwrap().0, 7);
}
